"""The training and validation files: lists of them, HDF5 files, data classes of the user's."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from overlapiter.errors import OptionError, TrainingError

from .model import Batch, module_from
from .settings import Settings

#: As what labels go to the loss.
_LABEL_TYPES = {
    "softmax_cross_entropy": np.int32,
    "sigmoid_cross_entropy": np.int32,
    "mean_squared_error": np.float32,
}


class DataFile(Protocol):
    """A file of examples; what a data class of the user's must be, made with the path alone."""

    def __len__(self) -> int:
        """Return how many examples it has."""

    def read(self, start: int, stop: int) -> Batch:
        """Return arrays of the examples in a range: the features, and the labels last."""

    def close(self) -> None:
        """Close the file."""


class Hdf5File:
    """An HDF5 file with data sets of equal length: of the features, and of the labels last.

    Raises:
        TrainingError: It cannot be read, a data set is missing, or their lengths differ.
    """

    def __init__(self, path: str, names: Sequence[str]) -> None:
        h5py = importlib.import_module("h5py")
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise TrainingError(f"{path} cannot be read as HDF5: {error}") from error
        missing = [name for name in names if not isinstance(self._file.get(name), h5py.Dataset)]
        if missing:
            present = ", ".join(self._file) or "nothing"
            self._file.close()
            raise TrainingError(
                f"{path} has no data set {missing[0]}, only {present}; name them with --features "
                f"and --labels"
            )
        self._sets = [self._file[name] for name in names]
        lengths = [len(each) if each.ndim else 0 for each in self._sets]
        if len(set(lengths)) > 1:
            self._file.close()
            words = ", ".join(f"{n} of {name}" for n, name in zip(lengths, names, strict=True))
            raise TrainingError(f"{path} has different numbers of examples: {words}")

    def __len__(self) -> int:
        """Return how many examples it has."""
        return len(self._sets[0])

    def read(self, start: int, stop: int) -> Batch:
        """Return the arrays of a range."""
        return tuple(each[start:stop] for each in self._sets)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Source:
    """Opens the files of a training, and gives their examples in the types that models take.

    Raises:
        OptionError: The data class cannot be found, or h5py is missing.
    """

    def __init__(self, settings: Settings) -> None:
        self._names = (*settings.features, settings.labels)
        self._label_type = _LABEL_TYPES.get(settings.loss)
        self._open = self._opener(settings.data)

    def _opener(self, data: str) -> Callable[[str], DataFile]:
        if data:
            path, _, name = data.rpartition(":")
            if not path:
                raise OptionError("data", f"{data!r} names no class; write FILE.py:CLASS")
            found = getattr(module_from(path, "data"), name, None)
            if found is None:
                raise OptionError("data", f"{path} has no class {name}; write FILE.py:CLASS")
            return found  # type: ignore[no-any-return]  # the user's
        try:
            importlib.import_module("h5py")
        except ImportError:
            words = "HDF5 files need h5py: pip install 'overlapiter[train]'"
            raise OptionError("features", words) from None
        return lambda path: Hdf5File(path, self._names)

    def look_at(self, path: str) -> tuple[int, Batch]:
        """Return how many examples a file has, and the first one as a mini-batch, if there is one.

        Raises:
            TrainingError: It cannot be read.
        """
        with self._opened(path, path) as file:
            length = len(file)
            return length, self._examples(path, file, 0, 1) if length else ()

    def read(self, path: str, start: int, stop: int, local_path: str = "") -> Batch:
        """Return the examples in a range of a file, of which a copy may lie at ``local_path``.

        Raises:
            TrainingError: They cannot be read, or are not as many.
        """
        with self._opened(path, local_path or path) as file:
            return self._examples(path, file, start, stop)

    def _examples(self, path: str, file: DataFile, start: int, stop: int) -> Batch:
        batch = file.read(start, stop)
        lengths = {len(each) for each in batch}
        if lengths != {stop - start}:
            words = f"{path}: examples {start} to {stop} came as arrays of length {sorted(lengths)}"
            raise TrainingError(f"{words}; features and labels must be equally long")
        *features, labels = batch
        return (*(_plain(path, each) for each in features), self._plain_labels(path, labels))

    @contextlib.contextmanager
    def _opened(self, path: str, where: str) -> Iterator[DataFile]:
        try:
            with contextlib.closing(self._open(where)) as file:
                yield file
        except TrainingError:
            raise
        except (Exception, SystemExit) as error:  # which would end a thread without a word
            raise TrainingError(
                f"{path} cannot be read ({type(error).__name__}: {error}); mend it, or take it out "
                f"of the list"
            ) from error

    def _plain_labels(self, path: str, labels: Any) -> Any:
        if self._label_type is None:
            return _plain(path, labels)
        labels = np.asarray(labels)
        is_number = labels.dtype.kind in "biuf"
        with np.errstate(invalid="ignore"):  # what does not fit differs then
            plain = np.ascontiguousarray(labels, self._label_type if is_number else None)
        if not is_number or (self._label_type is np.int32 and not np.array_equal(plain, labels)):
            raise TrainingError(
                f"{path} has labels of type {labels.dtype} that do not fit --loss: the "
                f"cross-entropies take whole numbers, mean_squared_error all numbers"
            )
        return plain


def _plain(path: str, array: Any) -> Any:
    """Return an array in single precision, or with integers of 32 bits."""
    array = np.asarray(array)
    if array.dtype.kind == "f":
        return np.ascontiguousarray(array, np.float32)
    if array.dtype.kind not in "iu":
        return array
    plain = np.ascontiguousarray(array, np.int32)
    if not np.can_cast(array.dtype, np.int32) and not np.array_equal(plain, array):
        raise TrainingError(f"{path} has whole numbers beyond 32 bits; write them as floats")
    return plain


def listed(files: str | os.PathLike[str] | Sequence[Any], option: str) -> list[str]:
    """Return the absolute paths of files.

    Args:
        files: The paths, or a file with one path a line, relative to its folder; lines that begin
            with # do not count.
        option: Name of the list, for errors.

    Raises:
        OptionError: There is no such list, it names no file, or files that are not there.
    """
    if isinstance(files, (str, os.PathLike)):
        folder = os.path.dirname(os.path.abspath(files))
        try:
            with open(files, encoding="utf-8-sig") as lines:
                words = [line.strip() for line in lines]
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(option, f"{files} cannot be read as a list ({error})") from None
        names = [word for word in words if word and not word.startswith("#")]
    else:
        folder, names = os.getcwd(), [os.fspath(each) for each in files]
    if not names:
        raise OptionError(option, f"{files} names no file; write one path a line")
    paths = [os.path.join(folder, name) for name in names]
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        more = f", and {len(missing) - 1} more of the list" if missing[1:] else ""
        raise OptionError(option, f"there is no {missing[0]}{more}")
    for path in paths:  # some data classes take folders; a pipe would be waited for
        if not (os.path.isfile(path) or os.path.isdir(path)):
            raise OptionError(option, f"{path} is no file; take it out of the list")
    return paths
