"""Tunes the reads in flight of all prefetchers of an iterator, together."""

from __future__ import annotations

from overlapiter.board import Counter
from overlapiter.workers.plan import StagingPlan
from overlapiter.workers.supervisor.inflight import InFlight, Reading
from overlapiter.workers.supervisor.team import Team

#: How often to look at the counters.
_LOOK_AFTER_SECONDS = 0.02
#: Examples that a prefetcher has at hand beyond twice its reads: parts come back as a whole, so
#: most examples of the last ones may be done already.
_SPARE_EXAMPLES = 64


def credit_examples(reads_per_prefetcher: int) -> int:
    """Return how many examples a prefetcher is to have at hand, so that no read of it waits."""
    return 2 * reads_per_prefetcher + _SPARE_EXAMPLES


class Tuner:
    """Looks at what the prefetchers have counted, and tells them how many reads to have in flight.

    One for all of them, since they share one store: each by itself would see its throughput grow
    by what it takes from the others.

    The times are of one clock that never goes back.
    """

    def __init__(self, team: Team, plan: StagingPlan, now_seconds: float) -> None:
        self._team = team
        self.in_flight = InFlight(
            plan.first_reads_in_flight, plan.least_reads_in_flight, plan.most_reads_in_flight
        )
        self._sent = dict.fromkeys(range(len(team.workers)), (0, plan.reads_per_prefetcher))
        self._seen_seconds = now_seconds
        self._look_at = now_seconds
        self._is_waiting = False
        self.has_lack = False  # whether there was too little to read at the last look
        self._waited_seconds = self._lack_seconds = 0.0

    @property
    def reads_per_prefetcher(self) -> int:
        """Reads that each prefetcher is to have in flight."""
        return self.in_flight.n_reads // self._team.n_wanted

    def look(self, now_seconds: float, *, is_waiting: bool) -> None:
        """Take note of the present; tell the prefetchers if their reads change."""
        passed_seconds, self._seen_seconds = now_seconds - self._seen_seconds, now_seconds
        self._waited_seconds += passed_seconds * self._is_waiting
        self._lack_seconds += passed_seconds * self.has_lack
        self._is_waiting = is_waiting
        at_hand = sum(worker.n_examples for worker in self._team)
        self.has_lack = at_hand < self._total(Counter.READS_IN_FLIGHT)
        if now_seconds >= self._look_at:
            self._look_at = now_seconds + _LOOK_AFTER_SECONDS
            self.in_flight.update(self._reading())
            self._tell()

    def _reading(self) -> Reading:
        return Reading(
            self._seen_seconds,
            self._total(Counter.FILES_STAGED),
            self._total(Counter.BYTES_STAGED),
            self._total(Counter.READ_NS) / 1e9,
            self._lack_seconds,
            self._waited_seconds,
        )

    def _total(self, counter: Counter) -> int:
        return sum(worker.row.get(counter) for worker in self._team)

    def _tell(self) -> None:
        """Send the number to those that do not know it, such as a process that was replaced."""
        wanted = self.reads_per_prefetcher
        for worker in self._team:
            if not worker.pid or self._sent[worker.number] == (worker.pid, wanted):
                continue
            self._sent[worker.number] = worker.pid, wanted
            worker.send(("reads", wanted))
