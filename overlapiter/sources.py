"""Which files an example reads, and where an ``open`` of such a file goes.

A dataset declares its files through one protocol, ``dataset.source_paths(i) -> list[str]``;
framework adapters register the datasets they know with :func:`known_paths` and
:func:`source_roots`. Of any other dataset the files are discovered: the dataset is asked for the
example, and the first ``open`` of a file below the source is intercepted.

Opens are intercepted in worker processes alone, by :class:`OpenHook`, which replaces
``builtins.open`` and ``io.open``. C libraries that open files themselves ask :func:`local_path`.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol, SupportsIndex

import numpy as np


class Dataset(Protocol):
    """What overlapiter needs of a dataset: a length, and an example for each index."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def __getitem__(self, index: SupportsIndex) -> object:
        """Return one example."""


# --- the protocol -----------------------------------------------------------------------------


def declared_paths(dataset: object, index: int) -> list[str] | None:
    """Return the source files that example ``index`` reads, or None where nobody declares them.

    What the dataset itself declares counts more than what is known of its class.
    """
    declare = getattr(dataset, "source_paths", None)
    if declare is None:
        return known_paths(dataset, index)
    return [os.fsdecode(path) for path in declare(index)]


@functools.singledispatch
def known_paths(  # what others register uses its arguments
    dataset: object,  # noqa: ARG001
    index: int,  # noqa: ARG001
) -> list[str] | None:
    """Return what is known of the class of ``dataset``; adapters register theirs here.

    An implementation costs microseconds and opens nothing.
    """
    return None


@known_paths.register(list)
@known_paths.register(tuple)
@known_paths.register(range)
@known_paths.register(np.ndarray)
def _(_dataset: object, _index: int) -> list[str]:
    return []  # held in memory


@functools.singledispatch
def source_roots(dataset: object) -> set[str]:
    """Return the root directories below which the files of ``dataset`` are known to lie.

    A dataset that nobody registered is searched for wrapped datasets among its attributes.
    """
    roots: set[str] = set()
    if id(dataset) in _being_searched:  # it refers to itself
        return roots
    _being_searched.add(id(dataset))
    try:
        for value in getattr(dataset, "__dict__", {}).values():
            is_text = isinstance(value, (str, bytes, np.ndarray))
            if hasattr(type(value), "__getitem__") and not is_text:
                roots |= source_roots(value)
    finally:
        _being_searched.discard(id(dataset))
    return roots


_being_searched: set[int] = set()


@source_roots.register(list)
@source_roots.register(tuple)
@source_roots.register(dict)
@source_roots.register(range)
def _(_dataset: object) -> set[str]:
    return set()


# --- interception -----------------------------------------------------------------------------

OpenFunction = Callable[..., IO[Any]]


class OpenHook:
    """Sends every reading ``open`` of a file below the source to a handler.

    A handler takes the path as the caller wrote it, and returns the path to open instead, or None
    to leave the call alone. The hook costs a string comparison for any other file.

    Args:
        source: Absolute root of the files on the slow store.
        handler: Called in the thread that opens.
    """

    def __init__(self, source: str, handler: Callable[[str], str | None]) -> None:
        self._prefix = os.path.join(source, "")
        self._handler = handler
        self._underlying: OpenFunction | None = None

    def install(self) -> None:
        """Replace ``open``; what was there before still does the opening."""
        underlying = self._underlying = builtins.open
        redirected = self.redirected

        @functools.wraps(underlying)
        def open_below_source(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
            # A number is a file descriptor; a writing mode is never redirected.
            if isinstance(file, (str, bytes, os.PathLike)) and mode in _READ_MODES:
                other = redirected(file)
                if other is not None:
                    try:
                        return underlying(other, mode, *args, **kwargs)
                    except OSError:  # the staged copy has gone: the source still has it
                        self.missed(other)
            return underlying(file, mode, *args, **kwargs)

        self._wrapper = open_below_source
        builtins.open = open_below_source  # type: ignore[assignment]  # same call signature
        io.open = open_below_source  # type: ignore[assignment]  # same call signature
        self._set_pathlib_open(open_below_source)
        _set_current_hook(self)

    def uninstall(self) -> None:
        """Put back the ``open`` that was found, unless somebody replaced it since."""
        if self._underlying is not None and builtins.open is self._wrapper:
            builtins.open = self._underlying  # type: ignore[assignment]  # what was there before
            io.open = self._underlying  # type: ignore[assignment]  # what was there before
            self._set_pathlib_open(self._underlying)
        self._underlying = None
        if _current_hook is self:
            _set_current_hook(None)

    @staticmethod
    def _set_pathlib_open(function: OpenFunction) -> None:
        # Python 3.10's pathlib keeps the open that it found when it was imported.
        accessor = getattr(pathlib, "_normal_accessor", None)
        if accessor is not None:
            accessor.open = function

    def redirected(self, file: Any) -> str | None:
        """Return what to open instead of ``file``; None for ``file`` itself."""
        path = file if type(file) is str else os.fsdecode(os.fspath(file))
        return self._handler(path) if is_below(self._prefix, path) else None

    def missed(self, staged: str) -> None:
        """Tell the handler that a staged copy has disappeared."""
        missed = getattr(self._handler, "missed", None)
        if missed is not None:
            missed(staged)


_READ_MODES = frozenset({"r", "rb", "br", "rt", "tr"})


def is_below(prefix: str, path: str) -> bool:
    """Return whether ``path``, absolute or relative, lies below ``prefix`` (which ends in a slash).

    Symbolic links are not resolved.
    """
    return normalised(path).startswith(prefix)


def normalised(path: str) -> str:
    """Return ``os.path.abspath(path)``; at once where nothing is to be done."""
    if path.startswith("/") and "/." not in path and "//" not in path and path[-1] != "/":
        return path
    return os.path.abspath(path)


class Redirect:
    """The handler of a file reader: a source path is opened at its staged copy.

    Only the files of the current part of a mini-batch that a prefetcher has staged and validated
    are in the table, so a copy that nobody validated is never read.

    Attributes:
        opens_staged: Opens that went to a staged copy, since the start.
        opens_source: Opens that went to the slow store, since the start.
        opened: The source paths opened for the current example, in order.
    """

    def __init__(self) -> None:
        self._table: dict[str, str] = {}
        self.opens_staged = 0
        self.opens_source = 0
        self.opened: list[str] = []
        self._missing: set[str] = set()

    def begin_part(self, table: dict[str, str]) -> None:
        """Replace the table: source path, as written or absolute, to staged path."""
        self._table = table
        self._missing.clear()

    def begin_example(self) -> None:
        """Forget what the previous example opened."""
        self.opened = []

    def __call__(self, path: str) -> str | None:
        """Return the staged copy of ``path``, or None to open the source."""
        self.opened.append(path)
        staged = self.staged(path)
        if staged is None:
            self.opens_source += 1
        else:
            self.opens_staged += 1
        return staged

    def staged(self, path: str) -> str | None:
        """Return the staged copy of ``path`` if this part may read it; counts nothing."""
        staged = self._table.get(path) or self._table.get(os.path.abspath(path))
        return None if staged is None or staged in self._missing else staged

    def missed(self, staged: str) -> None:
        """Count an open of a staged copy that has disappeared as one of the source."""
        self._missing.add(staged)
        self.opens_staged -= 1
        self.opens_source += 1

    def distrust(self) -> None:
        """Send the further opens of this part to the source, and have its files looked at again."""
        self._missing.update(self._table.values())
        self._table = {}

    @property
    def has_missed(self) -> bool:
        """Whether a staged copy of the current part has disappeared."""
        return bool(self._missing)


_current_hook: OpenHook | None = None


def _set_current_hook(hook: OpenHook | None) -> None:
    global _current_hook  # as builtins.open, it is one for the process
    _current_hook = hook


def local_path(path: str | os.PathLike[str]) -> str:
    """Return the path to open instead of ``path``: its staged copy, or ``path`` itself.

    For libraries that open files without Python's ``open`` (OpenCV, HDF5). Counts, and is
    discovered, as an ``open``. Outside a worker it returns ``path`` unchanged. The answer holds
    while the example is being read.
    """
    name = os.fspath(path)
    staged = None if _current_hook is None else _current_hook.redirected(name)
    if _current_hook is not None and staged is not None and not os.path.exists(staged):
        _current_hook.missed(staged)
        staged = None
    return staged or name


# --- discovery --------------------------------------------------------------------------------


class _PathFoundError(BaseException):
    """Leaves the dataset at its first open; no Exception, so that user code lets it pass."""


class Discovery:
    """Finds the files of an example by asking the dataset for it.

    Used in a prefetcher. It costs what the dataset does before it opens its first file. A dataset
    that reads several files for one example gives its first one so; to reach the next, the
    dataset is run again with the staged copies of those before (see ``after``).

    Not thread-safe: one call at a time, from any thread; other threads may open files meanwhile.

    Args:
        dataset: The dataset.
        source: Absolute root of the files on the slow store.
    """

    def __init__(self, dataset: Dataset, source: str) -> None:
        self._dataset = dataset
        self._thread: int | None = None
        self._known: dict[str, str] = {}
        self._found: str | None = None
        OpenHook(source, self._on_open).install()

    def next_path(self, index: int, after: dict[str, str]) -> str | None:
        """Return the first file that example ``index`` opens which is not in ``after``.

        Args:
            index: Index of the example.
            after: Files already staged for this example: source path to staged path.

        Returns:
            The path as the dataset wrote it, or None if the example opens no further file. None
            too where the dataset raises: the file reader meets the same error and reports it.
        """
        self._known, self._found = after, None
        self._thread = threading.get_ident()
        with contextlib.suppress(BaseException):  # even sys.exit is for the file reader to meet
            self._dataset[index]
        self._thread = None
        return self._found

    def _on_open(self, path: str) -> str | None:
        if self._thread != threading.get_ident():
            return None
        staged = self._known.get(path)
        if staged is None:
            self._found = self._found or path
            raise _PathFoundError
        return staged


def paths_below(source: str, paths: list[str]) -> Iterator[tuple[str, str]]:
    """Give ``(path as written, absolute path)`` for each path that lies below ``source``.

    The absolute path is normalised, so that it cannot leave the source by ``..``.
    """
    prefix = os.path.join(source, "")
    for path in paths:
        absolute = normalised(path)
        if absolute.startswith(prefix):
            yield path, absolute
