"""Which files an example reads, and where an ``open`` of such a file goes.

A dataset declares its files through one protocol, ``dataset.source_paths(i) -> list[str]``;
framework adapters register the datasets they know with :func:`known_paths` and
:func:`source_roots`. Of any other dataset the files are discovered: the dataset is asked for the
example, and the first ``open`` of a file below the source is intercepted (by a prefetcher).

Opens are intercepted in worker processes alone, by :class:`OpenHook`, which replaces
``builtins.open`` and ``io.open``. C libraries that open files themselves ask :func:`local_path`.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple, Protocol, SupportsIndex

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
        """Tell the handler that a staged copy cannot be opened."""
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


class Copy(NamedTuple):
    """A staged copy as a prefetcher has validated it.

    Attributes:
        path: Where it lies.
        stamp: What :func:`stamp_of` gave then; anything that is done to the file changes it.
    """

    path: str
    stamp: int

    def is_intact(self) -> bool:
        """Return whether the file is still the one that was validated. Costs one look at it."""
        try:
            return stamp_of(os.lstat(self.path)) == self.stamp
        except OSError:
            return False


def stamp_of(found: os.stat_result) -> int:
    """Return a number, never 0, that is the same only for the same file, untouched since."""
    return hash((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)) % 2**64 or 1


class Redirect:
    """The handler of a file reader: a source path is opened at its staged copy.

    Only the files of the current part of a mini-batch that a prefetcher has staged and validated
    are in the table, and only as long as nobody touches them, so what nobody validated is not read.

    Attributes:
        opens_staged: Opens that went to a staged copy, since the start.
        opens_source: Opens that went to the slow store, since the start.
        opened: The source paths opened for the current example, in order.
    """

    def __init__(self) -> None:
        self._table: dict[str, Copy] = {}
        self.opens_staged = 0
        self.opens_source = 0
        self.opened: list[str] = []
        self._missing: set[str] = set()

    def begin_part(self, table: dict[str, Copy]) -> None:
        """Replace the table: source path, as written or absolute, to its staged copy."""
        self._table = table
        self._missing.clear()

    def begin_example(self) -> None:
        """Forget what the previous example opened."""
        self.opened = []

    def __call__(self, path: str) -> str | None:
        """Return the staged copy of ``path``, or None to open the source."""
        self.opened.append(path)
        copy = self._table.get(path) or self._table.get(os.path.abspath(path))
        if copy is not None and copy.path not in self._missing:
            if copy.is_intact():
                self.opens_staged += 1
                return copy.path
            self._missing.add(copy.path)
        self.opens_source += 1
        return None

    def missed(self, staged: str) -> None:
        """Count an open of a staged copy that failed as one of the source."""
        self._missing.add(staged)
        self.opens_staged -= 1
        self.opens_source += 1

    def distrust(self) -> None:
        """Send the further opens of this part to the source, and have its files looked at again."""
        self._missing.update(copy.path for copy in self._table.values())
        self._table = {}

    @property
    def has_missed(self) -> bool:
        """Whether a staged copy of the current part has disappeared or was touched."""
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
    return staged or name


def paths_below(source: str, paths: list[str]) -> Iterator[tuple[str, str]]:
    """Give ``(path as written, absolute path)`` for each path that lies below ``source``.

    The absolute path is normalised, so that it cannot leave the source by ``..``.
    """
    prefix = os.path.join(source, "")
    for path in paths:
        absolute = normalised(path)
        if absolute.startswith(prefix):
            yield path, absolute
