"""Measures a slow store as a run would use it, with reads in flight that tune themselves."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from overlapiter.options import (
    FIRST_READS_IN_FLIGHT,
    MAX_READS_IN_FLIGHT,
    MIN_READS_IN_FLIGHT,
)
from overlapiter.origins.origin import LocalFile, LocalOrigin, Origin
from overlapiter.workers.prefetcher.threads import reads_within_limit
from overlapiter.workers.supervisor.inflight import InFlight, Reading

from .console import CommandError
from .crew import Crew, Part, answered

_CHUNK_BYTES = 1 << 20
_MOST_FILES = 200_000
_TIMEOUT_SECONDS = 5.0
_LOOK_SECONDS = 0.02

#: Files, their bytes, and how long reading them took.
_Sizes = tuple[int, int, float]


class Level(NamedTuple):
    """What so many reads in flight brought, for how long; the latency is the mean of a read."""

    n_reads: int
    seconds: float
    n_files: int
    n_bytes: int
    files_per_second: float
    bytes_per_second: float
    latency_seconds: float
    cpu_seconds: float


class UncachedOrigin(LocalOrigin):
    """Files below a mounted directory, none of which this node remembers."""

    def open(self, path: str) -> LocalFile:
        """Open a file, for the length of a ``with`` block."""
        file = super().open(path)
        with contextlib.suppress(OSError):  # it is no file, as it tells when it is asked
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return file


def find_files(source: str, seconds: float) -> tuple[list[str], bool]:
    """Look for files below a mounted source, for so long at most; return if these are all."""
    deadline = time.monotonic() + seconds
    paths: list[str] = []
    folders = [source]

    def look() -> bool:
        while folders:
            with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if time.monotonic() > deadline or len(paths) == _MOST_FILES:
                        return False
                    is_folder = entry.is_dir(follow_symlinks=False)
                    (folders if is_folder else paths).append(entry.path)
        return True

    is_all = False
    with contextlib.suppress(CommandError):  # what has been found by then is enough
        is_all = answered(source, look, seconds)
    return [*paths], is_all


class SourceMeter:
    """Reads files with as many reads in flight as a run would have that waits for all of them.

    Args:
        origin: Gives the files.
        begin: Called with the number of reads in flight before each.
    """

    def __init__(self, origin: Origin, begin: Callable[[int], None]) -> None:
        most = min(MAX_READS_IN_FLIGHT, reads_within_limit())
        self._in_flight = InFlight(FIRST_READS_IN_FLIGHT, min(MIN_READS_IN_FLIGHT, most), most)
        self._begin = begin
        n_reads = self._in_flight.n_reads
        self._crew = Crew[None, _Sizes](origin, self._read, n_reads, _TIMEOUT_SECONDS)
        self._deadline = self._started = time.monotonic()
        self._counts = self._before = self._started, 0, 0, 0.0, time.process_time()
        self._sums: dict[int, list[float]] = {}

    def measure(self, paths: Sequence[str], seconds: float) -> tuple[list[Level], dict[str, str]]:
        """Read files in random order, none twice, for so long at most.

        Returns:
            What each number of reads brought; why files could not be read, by their paths.
        """
        self._deadline += seconds
        parts: Iterator[Part[None]] = ({path: None} for path in random.sample(paths, len(paths)))
        in_time = itertools.takewhile(lambda _: time.monotonic() < self._deadline, parts)
        silent: dict[str, str] = {}
        self._begin(self._in_flight.n_reads)
        with contextlib.closing(self._crew.run(in_time)) as done:
            for part, sizes in done:
                if sizes is None:  # the time that it took counts only if others come after it
                    silent |= dict.fromkeys(part, self._crew.silence)
                else:
                    self._add(*sizes)
        self._look()
        unread = {path: reason for path, reason in self._crew.reasons.items() if reason}
        levels = [_level(*each) for each in sorted(self._sums.items()) if each[1][1]]
        return levels, unread | silent

    def _add(self, n_files: int, n_bytes: int, seconds: float) -> None:
        """Count a file, and tune the number of reads some times a second."""
        at_seconds, n_reads = time.monotonic(), self._in_flight.n_reads
        n_files, n_bytes = n_files + self._counts[1], n_bytes + self._counts[2]
        seconds += self._counts[3]
        self._counts = at_seconds, n_files, n_bytes, seconds, time.process_time()
        if at_seconds > self._before[0] + _LOOK_SECONDS:
            self._look()
            waited_seconds = at_seconds - self._started
            reading = Reading(at_seconds, n_files, n_bytes, seconds, 0.0, waited_seconds)
            if self._in_flight.update(reading) != n_reads:
                self._begin(self._in_flight.n_reads)
                self._crew.resize(self._in_flight.n_reads)

    def _look(self) -> None:
        """Add what was read since the last look to its number of reads."""
        n_reads, added = self._in_flight.n_reads, map(operator.sub, self._counts, self._before)
        self._sums[n_reads] = [*map(operator.add, self._sums.get(n_reads, [0.0] * 5), added)]
        self._before = self._counts

    def _read(self, part: Part[None]) -> _Sizes:
        """Read a file, until the time is over if it is large."""
        (path,) = part
        n_bytes, began_seconds = 0, time.monotonic()
        if began_seconds > self._deadline:
            return 0, 0, 0.0
        try:
            with self._crew.open(path) as file:
                file.stat()
                while piece := file.read(_CHUNK_BYTES):
                    n_bytes += len(piece)
                    if time.monotonic() > self._deadline:
                        break
        except OSError:  # the origin has noted why
            return 0, 0, 0.0
        return 1, n_bytes, time.monotonic() - began_seconds


def _level(n_reads: int, sums: Sequence[float]) -> Level:
    seconds, n_files, n_bytes, read_seconds, cpu_seconds = sums
    speeds = n_files / seconds, n_bytes / seconds, read_seconds / n_files
    return Level(n_reads, seconds, int(n_files), int(n_bytes), *speeds, cpu_seconds)
