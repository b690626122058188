"""Measures a slow store as a run would use it, with reads in flight that tune themselves."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from overlapiter.options import (
    FIRST_READS_IN_FLIGHT,
    MAX_READS_IN_FLIGHT,
    MIN_READS_IN_FLIGHT,
)
from overlapiter.origins.origin import LocalFile, LocalOrigin, Origin
from overlapiter.workers.prefetcher.threads import Threads, reads_within_limit
from overlapiter.workers.supervisor.inflight import InFlight, Reading

from .console import CommandError
from .crew import answered

_CHUNK_BYTES = 1 << 20
_MOST_FILES = 200_000
_TIMEOUT_SECONDS = 5.0
_LOOK_SECONDS = 0.02


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
        self._origin = origin
        self._begin = begin
        self._threads = Threads(self._work)
        self._lock = threading.Lock()  # guards the following
        self._n_left = self._n_files = self._n_bytes = 0
        self._read_seconds = 0.0
        self._unread: dict[str, str] = {}
        self._asked: dict[str, None] = {}
        self._has_ended = threading.Event()
        self._started, *_ = self._before = self._counts()
        self._sums: dict[int, list[float]] = {}

    def measure(self, paths: Sequence[str], seconds: float) -> tuple[list[Level], dict[str, str]]:
        """Read files in random order, none twice, for so long at most.

        Returns:
            What each number of reads brought; why files could not be read, by their paths.
        """
        self._n_left = len(paths)
        for path in random.sample(paths, len(paths)):
            self._threads.put(functools.partial(self._read, path))
        deadline = self._started + seconds
        try:
            self._change()
            while time.monotonic() < deadline and not self._has_ended.wait(_LOOK_SECONDS):
                self._look()
        finally:
            self._has_ended.set()
            self._threads.resize(0)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while self._asked and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            if self._n_files > self._before[1]:  # else the time is that of what does not answer
                self._look()
        if self._n_files > self._before[1]:
            self._look()
        with self._lock:
            silent = dict.fromkeys(self._asked, f"no answer for {_TIMEOUT_SECONDS:g} s")
            unread = {**self._unread, **silent}
        return [_level(*each) for each in sorted(self._sums.items()) if each[1][1]], unread

    def _look(self) -> None:
        """Add what was read since the last look to its number of reads, and tune that."""
        counts, n_reads = self._counts(), self._in_flight.n_reads
        added = map(operator.sub, counts, self._before)
        self._sums[n_reads] = [*map(operator.add, self._sums.get(n_reads, [0.0] * 5), added)]
        self._before = counts
        at_seconds, n_files, n_bytes, read_seconds, _ = counts
        waited_seconds = at_seconds - self._started
        reading = Reading(at_seconds, n_files, n_bytes, read_seconds, 0.0, waited_seconds)
        if self._in_flight.update(reading) != n_reads and not self._has_ended.is_set():
            self._change()

    def _change(self) -> None:
        self._begin(self._in_flight.n_reads)
        self._threads.resize(self._in_flight.n_reads)

    def _counts(self) -> tuple[float, int, int, float, float]:
        """Return the time, files, bytes, how long reading them took, and CPU time."""
        with self._lock:
            counts = self._n_files, self._n_bytes, self._read_seconds
        return time.monotonic(), *counts, time.process_time()

    # --- in the threads -----------------------------------------------------------------------

    def _work(self) -> None:
        while self._threads.do_next():
            pass

    def _read(self, path: str) -> None:
        """Read a file, until the time is over if it is large."""
        if self._has_ended.is_set():
            return
        self._asked[path] = None
        n_bytes, began_seconds, reason, piece = 0, time.monotonic(), None, b""
        try:
            with self._origin.open(path) as file:
                file.stat()
                while (piece := file.read(_CHUNK_BYTES)) and not self._has_ended.is_set():
                    n_bytes += len(piece)
        except OSError as error:
            reason = error.strerror or str(error)
        with self._lock:
            del self._asked[path]
            if reason is None and piece and not n_bytes:
                pass  # the time was over before anything of it had come
            elif reason is None:
                self._n_files += 1
                self._n_bytes += n_bytes
                self._read_seconds += time.monotonic() - began_seconds
            else:
                self._unread[path] = reason
            self._n_left -= 1
            if not self._n_left:
                self._has_ended.set()


def _level(n_reads: int, sums: Sequence[float]) -> Level:
    seconds, n_files, n_bytes, read_seconds, cpu_seconds = sums
    speeds = n_files / seconds, n_bytes / seconds, read_seconds / n_files
    return Level(n_reads, seconds, int(n_files), int(n_bytes), *speeds, cpu_seconds)
