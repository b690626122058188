"""Tells whether the slow store gives a steady number of bytes or a steady number of files. Pure.

A store whose bandwidth is the limit gives as many bytes in each stretch of time, and more or fewer
files by their sizes; one that serves so many requests at once gives as many files. So the rates of
both are compared from one stretch to the next: the limit is what changes less. What else changes
the rates, such as other jobs, changes both alike.
"""

from __future__ import annotations

import math

#: Files of a stretch: few, so that their mean size differs from one to the next.
_STRETCH_FILES = 24
#: A longer time without a file is a pause.
_LONGEST_NS = 500_000_000
#: A change of the rates by more is no noise of sizes: something else has begun.
_MOST_CHANGE = 0.5


class StoreRates:
    """Compares the rates of the slow store in one stretch of time with those in the one before."""

    def __init__(self) -> None:
        self._n_files = self._last_ns = 0
        self._begin = 0, 0, 0  # of the stretch: ns, files, kB
        self._rates: tuple[float, float] | None = None

    def add(self, ended_ns: int, n_files: int, n_kb: int) -> tuple[int, float, float] | None:
        """Take note of all files up to the last one, when its read ended, and of their kB.

        Returns:
            For how many ns of the time since the last file one was being read, and the squares of
            the relative changes of files and of bytes per second. None if there is no further file.
        """
        if n_files <= self._n_files:
            return None
        took_ns = ended_ns - self._last_ns
        self._n_files, self._last_ns = n_files, ended_ns
        changes = 0.0, 0.0
        now = ended_ns, n_files, n_kb
        if not 0 < took_ns < _LONGEST_NS:
            self._begin, self._rates = now, None
        elif n_files - self._begin[1] >= _STRETCH_FILES:
            ns, files, kb = (b - a for a, b in zip(self._begin, now, strict=True))
            changes = self._changes_to(files / ns, max(1, kb) / ns)
            self._begin = now
        return min(took_ns, _LONGEST_NS), *changes

    def _changes_to(self, file_rate: float, byte_rate: float) -> tuple[float, float]:
        before, self._rates = self._rates, (file_rate, byte_rate)
        if before is None:
            return 0.0, 0.0
        file_change, byte_change = math.log(file_rate / before[0]), math.log(byte_rate / before[1])
        if max(abs(file_change), abs(byte_change)) < _MOST_CHANGE:
            return file_change**2, byte_change**2
        return 0.0, 0.0
