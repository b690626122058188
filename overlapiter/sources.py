"""Which files an example reads, and where an ``open`` of such a file goes.

A dataset declares its files through one protocol, ``dataset.source_paths(i) -> list[str]``;
framework adapters register the datasets they know with :func:`known_paths` and
:func:`source_roots`. Of any other dataset the files are discovered: the dataset is asked for the
example, and the first ``open`` of a file below the source is intercepted (by a prefetcher).

An ``open`` goes where :class:`Redirect` says; see :mod:`.openhook` for how it is intercepted.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import NamedTuple, Protocol, SupportsIndex

import numpy as np

from .urls import checked_root, has_plain_name, is_url, url_below


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


# --- names ---------------------------------------------------------------------------------------


def is_below(prefix: str, path: str) -> bool:
    """Return whether ``path``, absolute or relative, lies below ``prefix`` (which ends in a slash).

    Symbolic links are not resolved.
    """
    return normalised(path).startswith(prefix)


def source_root(path: str) -> str:
    """Return a source root, a directory or a URL, as it is written within overlapiter.

    Raises:
        OptionError: It is a URL that cannot be a root.
    """
    root = checked_root("source", path)
    return root if is_url(root) else os.path.abspath(root)


def normalised(path: str) -> str:
    """Return ``os.path.abspath(path)``; at once where nothing is to be done."""
    if path.startswith("/") and "/." not in path and "//" not in path and path[-1] != "/":
        return path
    return os.path.abspath(path)


def paths_below(source: str, paths: list[str]) -> Iterator[tuple[str, str]]:
    """Give ``(path as written, absolute path)`` for each path that lies below ``source``.

    The absolute path is normalised, so that it cannot leave the source by ``..``; a URL of which
    that cannot be said is left out.
    """
    prefix = os.path.join(source, "")
    if is_url(source):
        for path in paths:
            url = url_below(prefix, path)
            if url is not None and has_plain_name(prefix, url):
                yield path, url
        return
    for path in paths:
        absolute = normalised(path)
        if absolute.startswith(prefix):
            yield path, absolute


# --- staged copies ----------------------------------------------------------------------------


#: Source path to path and stamp of its copy, as messages have it: a :class:`Copy` costs several
#: times as much to pickle as a plain tuple.
PlainCopies = dict[str, tuple[str, int]]


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
