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
        self.busy_ns = 0  # for how long files were being read, up to the end of the last one
        self.file_changes = 0.0  # sum of the squares of the relative changes of files per second
        self.byte_changes = 0.0  # the same for bytes per second
        self._last_ns = 0
        self._stretch = [0, 0, 0]  # ns, files, kB
        self._seen = 0, 0
        self._rates: tuple[float, float] | None = None

    def add(self, ended_ns: int, n_files: int, n_kb: int) -> bool:
        """Take note of all files up to the last one, when its read ended, and of their kB.

        Returns:
            Whether there is one more.
        """
        more_files, more_kb = n_files - self._seen[0], n_kb - self._seen[1]
        if more_files <= 0:
            return False
        took_ns, self._last_ns = ended_ns - self._last_ns, ended_ns
        self._seen = n_files, n_kb
        self.busy_ns += min(took_ns, _LONGEST_NS)
        if not 0 < took_ns < _LONGEST_NS:
            self._stretch, self._rates = [0, 0, 0], None
            return True
        stretch = [
            a + b for a, b in zip(self._stretch, (took_ns, more_files, more_kb), strict=True)
        ]
        self._stretch = stretch
        if stretch[1] >= _STRETCH_FILES:
            self._compare(stretch[1] / stretch[0], max(1, stretch[2]) / stretch[0])
            self._stretch = [0, 0, 0]
        return True

    def _compare(self, file_rate: float, byte_rate: float) -> None:
        before, self._rates = self._rates, (file_rate, byte_rate)
        if before is None:
            return
        file_change, byte_change = math.log(file_rate / before[0]), math.log(byte_rate / before[1])
        if max(abs(file_change), abs(byte_change)) < _MOST_CHANGE:
            self.file_changes += file_change**2
            self.byte_changes += byte_change**2
