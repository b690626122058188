"""Measures a slow store as a run would use it, with reads in flight that tune themselves."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from overlapiter.options import FIRST_READS_IN_FLIGHT, MAX_READS_IN_FLIGHT, MIN_READS_IN_FLIGHT
from overlapiter.origins.origin import LocalFile, LocalOrigin, Origin
from overlapiter.workers.prefetcher.threads import reads_within_limit
from overlapiter.workers.supervisor.inflight import InFlight, Reading

from .console import CommandError
from .crew import Crew, Part, answered

_CHUNK_BYTES = 1 << 20
_MOST_FILES = 200_000
_TIMEOUT_SECONDS = 5.0
_LOOK_SECONDS = 0.02

#: Files, of which one that was not read to its end is a part, their bytes, and how long that took.
_Sizes = tuple[float, int, float]


class Level(NamedTuple):
    """What so many reads in flight brought, for how long; the latency is the mean of a read."""

    n_reads: int
    seconds: float
    n_files: float
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


def find_files(source: str, seconds: float) -> tuple[list[str], bool, dict[str, str]]:
    """Look for files below a mounted source, for so long at most.

    A link to a folder is followed, but of several that lead to one folder only the first.

    Returns:
        The files; whether these are all; why folders could not be listed, by their paths.
    """
    deadline = time.monotonic() + seconds
    paths: list[str] = []
    unlisted: dict[str, str] = {}

    def look() -> bool:
        folders, linked = [source], set[str]()
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if time.monotonic() > deadline or len(paths) == _MOST_FILES:
                            return False
                        if not _is_folder(entry):
                            paths.append(entry.path)
                        elif not entry.is_symlink():
                            folders.append(entry.path)
                        elif (real := os.path.realpath(entry.path)) not in linked:
                            linked.add(real)
                            folders.append(entry.path)
            except OSError as error:
                unlisted[folder] = error.strerror or str(error)
        return not unlisted

    is_all = False
    with contextlib.suppress(CommandError):  # what has been found by then is enough
        is_all = answered(source, look, seconds)
    return [*paths], is_all, {**unlisted}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):  # a link in a circle, or to what may not be looked at
        return entry.is_dir()
    return False


def measure(
    origin: Origin, paths: Sequence[str], seconds: float, begin: Callable[[int], None]
) -> tuple[list[Level], dict[str, str]]:
    """Read files in random order, none twice, for so long at most.

    As many reads are in flight as a run would have that waits for all of them; ``begin`` is called
    with each number of them.

    Returns:
        What each number of reads brought; why files could not be read, by their paths.
    """
    most = min(MAX_READS_IN_FLIGHT, reads_within_limit())
    in_flight = InFlight(FIRST_READS_IN_FLIGHT, min(MIN_READS_IN_FLIGHT, most), most)
    started = time.monotonic()
    deadline = started + seconds
    crew: Crew[None, _Sizes] = Crew(
        origin, lambda part: _read(crew, part, deadline), in_flight.n_reads, _TIMEOUT_SECONDS
    )
    parts: Iterator[Part[None]] = ({path: None} for path in random.sample(paths, len(paths)))
    in_time = itertools.takewhile(lambda _: time.monotonic() < deadline, parts)
    # The time, files, bytes, seconds of reading and of the CPU: now, and at the last look.
    counts = before = started, 0, 0, 0.0, time.process_time()
    sums: dict[int, Any] = defaultdict(lambda: np.zeros(5))  # by the number of reads
    silent: dict[str, str] = {}
    begin(in_flight.n_reads)
    with contextlib.closing(crew.run(in_time)) as done:
        for part, sizes in done:
            if sizes is None:  # the time that it took counts only if others come after it
                silent |= dict.fromkeys(part, crew.silence)
                continue
            n_files, n_bytes, read_seconds = map(operator.add, counts[1:4], sizes)
            counts = time.monotonic(), n_files, n_bytes, read_seconds, time.process_time()
            if counts[0] > before[0] + _LOOK_SECONDS:
                n_reads = in_flight.n_reads
                sums[n_reads] += np.subtract(counts, before)
                before = counts
                if in_flight.update(Reading(*counts[:4], 0.0, counts[0] - started)) != n_reads:
                    begin(in_flight.n_reads)
                    crew.resize(in_flight.n_reads)
    sums[in_flight.n_reads] += np.subtract(counts, before)
    unread = {path: reason for path, reason in crew.reasons.items() if reason}
    levels = [_level(n, each.tolist()) for n, each in sorted(sums.items()) if each[1]]
    return levels, unread | silent


def _read(crew: Crew[None, _Sizes], part: Part[None], deadline: float) -> _Sizes:
    """Read a file, until the time is over if it is large."""
    (path,) = part
    n_bytes, began_seconds = 0, time.monotonic()
    if began_seconds > deadline:
        return 0, 0, 0.0
    try:
        with crew.open(path) as file:
            size_bytes = file.stat().size_bytes
            while piece := file.read(_CHUNK_BYTES):
                n_bytes += len(piece)
                if time.monotonic() > deadline:
                    break
    except OSError:  # the crew has noted why
        return 0, 0, 0.0
    share = n_bytes / size_bytes if n_bytes < size_bytes else 1  # not every store tells the size
    return share, n_bytes, time.monotonic() - began_seconds


def _level(n_reads: int, sums: list[float]) -> Level:
    seconds, n_files, n_bytes, read_seconds, cpu_seconds = sums
    speeds = n_files / seconds, n_bytes / seconds, read_seconds / n_files
    return Level(n_reads, seconds, n_files, int(n_bytes), *speeds, cpu_seconds)
