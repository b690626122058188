"""Measures a slow store: how many files a second it gives, by number of reads in flight."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from overlapiter.origins.origin import Origin

READS_IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64, 128)
#: Reads that each thread is to do at a level, where there are enough files.
_LEAST_ROUNDS = 4
_CHUNK_BYTES = 1 << 20
_MOST_FILES = 200_000


class Level(NamedTuple):
    """What so many reads in flight brought.

    Attributes:
        n_reads: Reads in flight.
        n_files: Files that were read.
        n_bytes: Bytes that were read.
        seconds: How long that took.
        latency_seconds: Median from the request to open a file to its first bytes.
        cpu_seconds: What it took of the processors.
    """

    n_reads: int
    n_files: int
    n_bytes: int
    seconds: float
    latency_seconds: float
    cpu_seconds: float

    @property
    def files_per_second(self) -> float:
        """How many files came in a second."""
        return self.n_files / self.seconds

    @property
    def bytes_per_second(self) -> float:
        """How many bytes came in a second."""
        return self.n_bytes / self.seconds

    @property
    def file_bytes(self) -> float:
        """How large a file was, on average."""
        return self.n_bytes / max(self.n_files, 1)


class Sample(NamedTuple):
    """Files to measure with.

    Attributes:
        paths: In random order.
        is_whole: Whether these are all files of the data set.
    """

    paths: list[str]
    is_whole: bool


def find_files(source: str, seconds: float) -> Sample:
    """Look for files below a mounted source, for so long at most."""
    deadline = time.monotonic() + seconds
    paths: list[str] = []
    is_whole = True
    for folder, _, names in os.walk(source):
        paths += [os.path.join(folder, name) for name in names]
        if time.monotonic() > deadline or len(paths) >= _MOST_FILES:
            is_whole = False
            break
    random.shuffle(paths)
    return Sample(paths, is_whole)


def levels_for(n_files: int) -> list[int]:
    """Return the numbers of reads in flight that so many files allow to measure."""
    found = list(READS_IN_FLIGHT)
    while len(found) > 1 and n_files < _LEAST_ROUNDS * sum(found):
        found.pop()
    return found


def measure(
    origin: Origin, paths: Sequence[str], seconds: float, begin: Callable[[int], None]
) -> Iterator[Level]:
    """Measure each number of reads in flight, on files that were not read before.

    Args:
        origin: Gives the files.
        paths: The files.
        seconds: For all of it.
        begin: Called with the number of reads in flight before each.
    """
    todo = iter(paths)
    numbers = levels_for(len(paths))
    for number in numbers:
        begin(number)
        share = len(paths) * number // sum(numbers)
        files = list(itertools.islice(todo, max(share, 1)))
        level = _Run(origin, files, seconds / len(numbers)).measure(number)
        if level is not None:
            yield level


class _Run:
    """Reads files with several threads until time or files are up."""

    def __init__(self, origin: Origin, files: Sequence[str], seconds: float) -> None:
        self._origin = origin
        self._files = iter(files)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._latencies: list[float] = []
        self._n_bytes = 0
        self._deadline = 0.0
        self._ended = 0.0

    def measure(self, n_reads: int) -> Level | None:
        """Return what came of it; None if no file could be read."""
        cpu_seconds, started = time.process_time(), time.monotonic()
        self._deadline = started + self._seconds
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(n_reads)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._deadline = 0.0  # an interruption ends them, too
        if not self._latencies:
            return None
        return Level(
            n_reads,
            len(self._latencies),
            self._n_bytes,
            max(self._ended - started, 1e-6),
            statistics.median(self._latencies),
            time.process_time() - cpu_seconds,
        )

    def _work(self) -> None:
        while time.monotonic() < self._deadline:
            with self._lock:
                path = next(self._files, None)
            if path is None:
                return
            with contextlib.suppress(OSError):  # removed, or unreadable: another one
                latency_seconds, n_bytes = self._read(path)
                with self._lock:
                    self._latencies.append(latency_seconds)
                    self._n_bytes += n_bytes
                    self._ended = time.monotonic()

    def _read(self, path: str) -> tuple[float, int]:
        started = time.monotonic()
        if self._origin.is_local:
            with open(path, "rb", buffering=0) as file:
                # What this node remembers of it is not what is to be measured.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                return self._drain(file.read, started)
        with self._origin.open(path) as original:
            return self._drain(original.read, started)

    def _drain(self, read: Callable[[int], bytes | None], started: float) -> tuple[float, int]:
        n_bytes = len(read(_CHUNK_BYTES) or b"")
        latency_seconds = time.monotonic() - started
        while time.monotonic() < self._deadline and (piece := read(_CHUNK_BYTES)):
            n_bytes += len(piece)
        return latency_seconds, n_bytes
