"""An origin whose files are in memory, for tests of what stages them."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
from collections.abc import Callable

from overlapiter.origins.origin import Original

OLD_NS = 10**18


class MemoryOrigin:
    """Files in memory.

    Attributes:
        contents: Their bytes, by path; one that is not there is missing.
        mtimes_ns: Of those that are not old.
        n_opened: How often each was opened.
        n_stats: How often each was asked for its size and mtime by its path.
        before_read: Called with the path before each read.
    """

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents
        self.mtimes_ns: dict[str, int] = {}
        self.n_opened: collections.Counter[str] = collections.Counter()
        self.n_stats: collections.Counter[str] = collections.Counter()
        self.before_read: Callable[[str], object] = lambda _path: None

    def stat(self, path: str) -> Original:
        self.n_stats[path] += 1
        return self.original(path)

    def original(self, path: str) -> Original:
        data = self.contents.get(path)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return Original(len(data), self.mtimes_ns.get(path, OLD_NS))

    def open(self, path: str) -> contextlib.AbstractContextManager[MemoryFile]:
        self.n_opened[path] += 1
        self.original(path)
        return contextlib.nullcontext(MemoryFile(self, path))


class MemoryFile:
    """A file of an origin that is open."""

    def __init__(self, origin: MemoryOrigin, path: str) -> None:
        self._origin, self._path = origin, path
        self._position = 0

    def stat(self) -> Original:
        return self._origin.original(self._path)

    def read(self, size_bytes: int) -> bytes:
        self._origin.before_read(self._path)
        piece = self._origin.contents[self._path][self._position :][:size_bytes]
        self._position += len(piece)
        return piece
