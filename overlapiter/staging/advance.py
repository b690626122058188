"""Advances: room that a process is granted before it knows for which files.

Most files are small and the usage file is shared, so to hold it for each of them costs as much
as all else that is done with it. An advance is counted when it is granted and lives for a moment;
what of it is not used is given back. So the count is too high by what is left of the advances,
never too low.

Whoever counts the files anew waits until all advances that were granted before have ended: from
then on what was taken of them has become files, which are found.
"""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple

from overlapiter.staging.usage import Usage

#: Small, for so much is counted too high for each process that is killed.
ADVANCE_BYTES = 1 << 20
ADVANCE_INODES = 64
#: A file that is larger than this part of an advance is granted room by itself.
_FEW = 4
#: An advance is at most such a part of what is in use, and of what the capacity leaves.
_SHARES_OF_USED, _SHARES_OF_LEFT = 32, 256
#: How long an advance lives.
_LIFE_MS = 500

#: The cells of an advance: what is left of it, when it ends, and after how many recounts it began.
N_CELLS = 3
_BYTES, _UNTIL_MS, _N_RECOUNTS = range(N_CELLS)


class _Taken(NamedTuple):
    """What was taken of an advance for a file.

    Attributes:
        size_bytes: So many bytes.
        until_ms: When the advance ends: what has not become the size of a partial file by then
            was not granted.
        n_recounts: Which advance that was, as far as anybody needs to know.
    """

    size_bytes: int
    until_ms: int
    n_recounts: int

    @property
    def is_in_time(self) -> bool:
        """Whether the advance has not ended."""
        return _now_ms() < self.until_ms


class Advance:
    """What a process has in advance. Safe for threads.

    Args:
        cells: Holds it, in 64-bit numbers: memory that outlives the process, so that another one
            can give back what that has left.
    """

    def __init__(self, cells: memoryview) -> None:
        self._lock = threading.Lock()
        self._cells = cells
        self._inodes = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to give back."""
        return not self._cells[_BYTES]

    def fill(self, fd: int, size_bytes: int, n_inodes: int) -> bool:
        """Take room for a file, and give its partial file that size; False if there is none.

        Raises:
            OSError: From the disk.
        """
        taken = self._take(size_bytes, n_inodes)
        if taken is None:
            return False
        try:
            os.ftruncate(fd, size_bytes)
        except OSError:
            self._put_back(taken)
            raise
        is_granted = taken.is_in_time
        if not is_granted:  # who counts anew may have missed it
            os.ftruncate(fd, 0)
        return is_granted

    def _take(self, size_bytes: int, n_inodes: int) -> _Taken | None:
        cells = self._cells
        with self._lock:
            if size_bytes > cells[_BYTES] or n_inodes > self._inodes:
                return None
            taken = _Taken(size_bytes, cells[_UNTIL_MS], cells[_N_RECOUNTS])
            if not taken.is_in_time:
                return None
            cells[_BYTES] -= size_bytes
            self._inodes -= n_inodes
            return taken

    def _put_back(self, taken: _Taken) -> None:
        with self._lock:
            if taken.n_recounts == self._cells[_N_RECOUNTS]:
                self._cells[_BYTES] += taken.size_bytes

    def end(self, usage: Usage) -> None:
        """Count what is left as free, the usage file being held."""
        cells = self._cells
        with self._lock:
            # A recount finds what was taken and no more, and who makes the file anew knows nothing.
            is_counted = usage.n_recounts == cells[_N_RECOUNTS]
            if is_counted and usage.advanced_until_ms >= cells[_UNTIL_MS]:
                usage.used_bytes = max(0, usage.used_bytes - cells[_BYTES])
            if cells[_UNTIL_MS]:
                usage.n_advances = max(0, usage.n_advances - 1)
            cells[_BYTES] = cells[_UNTIL_MS] = self._inodes = 0

    def begin(self, usage: Usage, size_bytes: int) -> None:
        """Take up what :func:`grant` has granted, once the usage is written."""
        with self._lock:
            self._cells[_UNTIL_MS] = usage.advanced_until_ms
            self._cells[_N_RECOUNTS] = usage.n_recounts
            self._cells[_BYTES], self._inodes = size_bytes, ADVANCE_INODES


def amount(usage: Usage, size_bytes: int, capacity_bytes: int | None) -> int:
    """Return how many bytes to grant in advance beside a file; 0 where that is not worth it.

    Little, beside what is in use, as others may have a capacity; and beside what is left of ours.
    """
    most_bytes = min(ADVANCE_BYTES, usage.used_bytes // _SHARES_OF_USED)
    if capacity_bytes is not None:
        most_bytes = min(most_bytes, (capacity_bytes - usage.used_bytes) // _SHARES_OF_LEFT)
    return most_bytes if most_bytes >= _FEW * size_bytes else 0


def grant(usage: Usage, size_bytes: int) -> None:
    """Count an advance."""
    if not seconds_to_end(usage):  # what is left of earlier ones belonged to the dead
        usage.n_advances = 0
    usage.n_advances += 1
    usage.used_bytes += size_bytes
    usage.granted_bytes += size_bytes
    usage.granted_inodes += ADVANCE_INODES
    usage.advanced_until_ms = _now_ms() + _LIFE_MS


def n_out(usage: Usage) -> int:
    """Return how many advances may still become files, at most."""
    return usage.n_advances if seconds_to_end(usage) else 0


def seconds_to_end(usage: Usage) -> float:
    """Return after how long all advances that were granted by now have ended."""
    left_ms = usage.advanced_until_ms - _now_ms()
    return max(0, min(left_ms, _LIFE_MS)) / 1000  # beyond that it is of another boot


def _now_ms() -> int:
    """Return the time on a clock that all processes of the node share, in milliseconds."""
    return time.monotonic_ns() // 1_000_000
