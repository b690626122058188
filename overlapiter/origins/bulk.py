"""Reading small files of a mounted directory in bulk, in threads that run no Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from overlapiter.compiled import compiled
from overlapiter.origins.origin import LocalFile, LocalOrigin, Origin, has_builtin_open

_bulk = compiled("overlapiter.origins._bulk")


class BulkRead(NamedTuple):
    """What became of a file.

    If it was read there are ``data``; if it is too large, a descriptor. Else it cannot be read, and
    there is an error; or it is empty, or was changed meanwhile, or was only to be looked at.
    """

    token: Any  # what came with the path
    error: int  # ``errno``; 0 if there was none
    fd: int  # of the file, opened and not read, see Bulk.lent; -1 if it is closed
    size_bytes: int
    mtime_ns: int  # as Original has it
    began_ns: int  # when the source was asked, by ``time.monotonic_ns()``
    ended_ns: int  # when the last answer had come
    data: memoryview | None  # all of its bytes, as they lie in the memory that took them

    def failure(self) -> OSError:
        """Return the error as the calls of ``os`` raise it."""
        return OSError(self.error, os.strerror(self.error))


class Bulk:
    """Reads files, the oldest first. Safe for threads.

    As many are read at once as it has threads; large ones that the caller reads count among these.
    Those that are asked for together are given back together, if none holds the others up.

    Args:
        most_bytes: Larger files are opened alone.

    Attributes:
        has_threads: Whether there are any; else nothing is to be submitted.
    """

    def __init__(self, most_bytes: int) -> None:
        self._pool = _bulk.Pool(most_bytes)
        self.has_threads = False

    def resize(self, n_threads: int) -> None:
        """Start threads, or have some end; if not all can be started, as many remain as before."""
        self.has_threads = self._pool.resize(n_threads) > 0

    def submit(self, files: Sequence[tuple[Any, str]], *, only_look: bool = False) -> None:
        """Have files read, or looked at as by ``stat``: a token, and a path, for each."""
        self._pool.submit([*files], only_look)

    def lent(self, read: BulkRead, path: str) -> LocalFile:
        """Return a large file, which counts as a read until it is closed."""
        return _LentFile(path, read.fd, self._pool)

    def wait(self) -> list[BulkRead]:
        """Return what has been read, once all files asked for together are, or a large one is."""
        return [*map(BulkRead._make, self._pool.collect(True))]

    def take(self) -> list[BulkRead]:
        """Return what has been read by now."""
        return [*map(BulkRead._make, self._pool.collect(False))]


class _LentFile(LocalFile):
    def __init__(self, path: str, fd: int, pool: Any) -> None:
        super().__init__(path, fd)
        self._pool = pool

    def __exit__(self, *exception: object) -> None:
        try:
            super().__exit__(*exception)
        finally:  # also where closing fails, as it may on a file server that is sick
            self._pool.give_back()


def bulk_of(origin: Origin, most_bytes: int) -> Bulk | None:
    """Return what reads an origin in bulk; None where its files are to be read one by one."""
    is_possible = isinstance(origin, LocalOrigin) and has_builtin_open()
    if _bulk is None or not is_possible:
        return None
    return Bulk(most_bytes)
