"""Which files an example reads, and where an ``open`` of such a file goes.

A dataset declares its files through one protocol, ``dataset.source_paths(i) -> list[str]``;
framework adapters register the datasets they know with :func:`known_paths` and
:func:`source_roots`. Of any other dataset the files are discovered: the dataset is asked for the
example, and the first ``open`` of a file below the source is intercepted (by a prefetcher).

See :mod:`.openhook` for how an ``open`` is intercepted.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any, Protocol, SupportsIndex

import numpy as np

from .urls import checked_root, has_plain_name, is_url, url_below


def index_maker(index_type: str) -> Callable[[Any], Any]:
    """Return what makes an index of the type in which the dataset wants it.

    That is a character of NumPy's; ``O`` for indices that are given as they come.
    """
    if index_type != "O":
        return np.dtype(index_type).type
    # NumPy would make an array of a tuple, and a number of a tensor.
    return lambda index: index.value() if isinstance(index, Key) else index


@dataclasses.dataclass(frozen=True, repr=False)
class Key:
    """An index that cannot be hashed or compared, as one that can, in any process."""

    pickled: bytes

    @classmethod
    def of(cls, index: object) -> Key:
        """Return the key of an index."""
        return cls(pickle.dumps(index, pickle.HIGHEST_PROTOCOL))

    def value(self) -> Any:
        """Return the index."""
        return pickle.loads(self.pickled)

    def __repr__(self) -> str:
        """Show the index, for error messages."""
        try:
            return repr(self.value())
        except Exception:  # user code
            return "with a key that cannot be shown"


class Dataset(Protocol):
    """What overlapiter needs of a dataset: a length, and an example for each index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex) -> object: ...


# --- the protocol -----------------------------------------------------------------------------

#: By which datasets give examples, those of Chainer and PyTorch included.
_READING_METHODS = ("__getitem__", "__getitems__", "get_example")


def declared_paths(dataset: object, index: int) -> list[str] | None:
    """Return the source files that example ``index`` reads, or None where they are not declared.

    What the dataset itself declares counts more than what is known of its class.
    """
    declare = getattr(dataset, "source_paths", None)
    if declare is not None:
        return [os.fsdecode(path) for path in declare(index)]
    return known_paths(dataset, index) if _reads_as_known(dataset) else None


def _reads_as_known(dataset: object) -> bool:
    """Return whether a dataset reads by the code of the class of which the files are known.

    A subclass with code of its own may read other files: they have to be discovered.
    """
    if "get_example" in getattr(dataset, "__dict__", ()):
        return False
    kind, registry = type(dataset), known_paths.registry
    if kind in registry:
        return True
    known = next(base for base in kind.__mro__ if base in registry)
    return all(getattr(kind, name, None) is getattr(known, name, None) for name in _READING_METHODS)


@functools.singledispatch
def known_paths(_dataset: object, _index: int) -> list[str] | None:
    """Return the files of an example, if they are known; adapters register theirs here.

    An implementation costs microseconds and opens nothing.
    """
    return None


@functools.singledispatch
def source_roots(dataset: object) -> set[str]:
    """Return the root directories below which the files of ``dataset`` are known to lie.

    A dataset of an unregistered class is searched for wrapped datasets among its attributes.
    """
    if id(dataset) in _being_searched:  # it refers to itself
        return set()
    _being_searched.add(id(dataset))
    try:
        parts = getattr(dataset, "__dict__", {}).values()
        return set().union(*(source_roots(p) for p in parts if hasattr(type(p), "__getitem__")))
    finally:
        _being_searched.discard(id(dataset))


_being_searched: set[int] = set()


for _held in (np.ndarray, np.memmap, list, tuple, range):  # held in memory
    known_paths.register(_held, lambda _dataset, _index: [])
    source_roots.register(_held, lambda _dataset: set())
for _other in (str, bytes, dict):
    source_roots.register(_other, lambda _dataset: set())


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
    root = checked_root(path)
    return root if is_url(root) else normalised(root)


def normalised(path: str) -> str:
    """Return ``os.path.abspath(path)``, which has one slash at its start as Linux sees it.

    It comes back at once where nothing is to be done.
    """
    has_dots = "/." in path and ("/./" in path or "/../" in path or path.endswith(("/.", "/..")))
    if has_dots or not path.startswith("/") or "//" in path or path[-1] == "/":
        return "/" + os.path.abspath(path).lstrip("/")
    return path


def paths_below(source: str, paths: list[str]) -> Iterator[tuple[str, str]]:
    """Give ``(path as written, absolute path)`` for each path that lies below ``source``.

    The absolute path is normalised, so that it cannot leave the source by ``..``; a URL of which
    that cannot be said is left out.
    """
    prefix = source if source[-1:] == "/" else f"{source}/"
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
