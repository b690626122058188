"""A slow store in simulated time, read by as many readers as an ``InFlight`` wants."""

from __future__ import annotations

import heapq
import math
import random
from typing import NamedTuple, Protocol

from overlapiter.workers.supervisor.inflight import Reading

_TICK_SECONDS = 0.02


class HasReads(Protocol):
    """What decides how many reads there are."""

    @property
    def n_reads(self) -> int: ...

    def update(self, reading: Reading, /) -> int: ...


class Fixed:
    """Always the same number."""

    def __init__(self, n_reads: int) -> None:
        self.n_reads = n_reads

    def update(self, _reading: Reading, /) -> int:
        return self.n_reads


class Store:
    """Serves whoever asks first.

    Args:
        latency_seconds: Of each read; with ``jitter``, of the mean read.
        files_per_second: Its bandwidth, for files of 20 kB.
        n_served: Requests that are served at a time; the others queue.
        jitter: The share of the latency that is random, exponentially distributed.
    """

    def __init__(
        self,
        latency_seconds: float,
        files_per_second: float = math.inf,
        n_served: int = 1 << 30,
        jitter: float = 0.0,
    ) -> None:
        self.latency_seconds = latency_seconds
        self.files_per_second = files_per_second
        self.n_served = n_served
        self._jitter = jitter
        self._random = random.Random(0)
        self._sent_seconds = 0.0
        self._served: list[float] = []

    def read(self, now: float) -> float:
        """Return when a read that begins now is done."""
        begins = now
        while len(self._served) >= self.n_served:
            begins = max(now, heapq.heappop(self._served))
        chance = self._random.expovariate(1) if self._jitter else 1.0
        latency = self.latency_seconds * (1 + self._jitter * (chance - 1))
        self._sent_seconds = max(now, self._sent_seconds) + 1 / self.files_per_second
        done = max(begins + latency, self._sent_seconds)
        heapq.heappush(self._served, done)
        return done


class Moment(NamedTuple):
    """How far a simulation has come."""

    seconds: float
    n_reads: int
    n_files: int


class Simulation:
    """Reads a store with as many reads in flight as are wanted.

    Attributes:
        demand_per_second: Files that can be used; 32 are read ahead of it.
        is_waiting: Whether the trainer waits.
        history: What happened; one entry for each reading.
    """

    def __init__(self, store: Store, decider: HasReads) -> None:
        self.store = store
        self.demand_per_second = math.inf
        self.is_waiting = True
        self.history = [Moment(0.0, decider.n_reads, 0)]
        self._decider = decider
        self._in_flight: list[tuple[float, float]] = []
        self._n_files = 0
        self._read_seconds = self._lack_seconds = self._waited_seconds = 0.0

    def run(self, seconds: float) -> None:
        """Go on for so many seconds of simulated time."""
        begun = self.history[-1].seconds
        for number in range(1, round(seconds / _TICK_SECONDS) + 1):
            self._run_until(begun + number * _TICK_SECONDS)

    def _run_until(self, end: float) -> None:
        now = end - _TICK_SECONDS
        self._begin(now)
        while self._in_flight and self._in_flight[0][0] <= end:
            now, began = heapq.heappop(self._in_flight)
            self._n_files += 1
            self._read_seconds += now - began
            self._begin(now)
        self._lack_seconds += _TICK_SECONDS * (len(self._in_flight) < self._decider.n_reads)
        self._waited_seconds += _TICK_SECONDS * self.is_waiting
        reading = Reading(
            end,
            self._n_files,
            20_000 * self._n_files,
            self._read_seconds,
            self._lack_seconds,
            self._waited_seconds,
        )
        n_reads = self._decider.update(reading)
        self.history.append(Moment(end, n_reads, self._n_files))

    def _begin(self, now: float) -> None:
        while (
            len(self._in_flight) < self._decider.n_reads
            and self._n_files + len(self._in_flight) < self.demand_per_second * now + 32
        ):
            heapq.heappush(self._in_flight, (self.store.read(now), now))

    def rate(self, seconds: float) -> float:
        """Return the files per second of the last ``seconds``."""
        last = self.history[-1]
        first = self.history[-1 - round(seconds / _TICK_SECONDS)]
        return (last.n_files - first.n_files) / (last.seconds - first.seconds)

    def numbers(self, seconds: float) -> list[int]:
        """Return the reads in flight of the last ``seconds``."""
        return [moment.n_reads for moment in self.history[-round(seconds / _TICK_SECONDS) :]]
