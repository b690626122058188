"""Since when a remote store fails: what its patience counts from, in all processes of a run."""

from __future__ import annotations

import hashlib
import mmap
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Row: TypeAlias = npt.NDArray[np.int64]

#: A failure says nothing of now if nothing was tried for so long after it.
_FORGET_NS = 60 * 10**9
#: Many more than files that fail at the same time: two that share a row are tried for longer.
_N_ROWS = 1024


class Outages:
    """Since when a store and single files of it fail, as known to a process and all forked from it.

    So a file that has failed in a prefetcher, and any file of a store that has failed there for as
    long as it may, is tried once in a file reader, not as long again.

    It may be pickled; the copy knows of no outage. Safe for threads and processes: two that write
    at the same time may forget that a file failed, and then try it for longer.
    """

    def __init__(self) -> None:
        # A row each: which file, when it failed first and last. The first one is of the store.
        self._rows = np.frombuffer(mmap.mmap(-1, 24 * _N_ROWS), np.int64).reshape(_N_ROWS, 3)

    def __reduce__(self) -> tuple[type[Outages], tuple[()]]:
        return Outages, ()

    def note(self, name: str, now_seconds: float) -> float:
        """Note that a file could not be read; return since when that, or the store, is so."""
        since_ns = now_ns = int(now_seconds * 1e9)
        for key, row in self._find(name):
            found, first_ns, last_ns = row
            if found != key or not first_ns or now_ns - last_ns > _FORGET_NS:
                first_ns = now_ns
            row[:] = key, first_ns, now_ns
            since_ns = min(since_ns, int(first_ns))
        return since_ns / 1e9

    def end(self, name: str) -> None:
        """Note that the store has answered about a file."""
        for key, row in self._find(name):
            if row[1] and row[0] == key:
                row[1] = 0

    def _find(self, name: str) -> tuple[tuple[int, Row], tuple[int, Row]]:
        """Return the keys and rows of the store and of a file."""
        digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest()
        key = int.from_bytes(digest, "big", signed=True)
        return (0, self._rows[0]), (key, self._rows[1 + key % (_N_ROWS - 1)])
