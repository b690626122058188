"""What the two stages of the supervisor, staging and reading, have in common."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from overlapiter.workers.supervisor.schedule import Batch

#: A part keeps a file reader busy for at most this long: short enough to balance the load, long
#: enough that messages cost little.
PART_SECONDS = 0.016
#: Parts that a file reader has at hand, so that it never waits for the supervisor.
READER_CREDIT = 2
#: No limit of examples or of parts.
UNBOUNDED = 1 << 60
#: From so many waits for each example on, file readers wait for something else than a core.
_WAITING = 0.3


class ReadCost(NamedTuple):
    """What reading a part has cost.

    Attributes:
        fetch_ns: Nanoseconds inside the dataset.
        n_files: Most files that one of its examples has opened.
        n_waits: How often the process gave up its core, for a disk for example.
    """

    fetch_ns: int
    n_files: int
    n_waits: int


class Supervising(Protocol):
    """What a stage needs of the supervisor."""

    def settle(self, batch: Batch | None) -> None:
        """Deliver a mini-batch that the schedule calls settled, if there is one."""

    def warn(self, text: str) -> None:
        """Have the trainer warn the user."""


class CostEstimate:
    """What reading an example costs, as far as has been seen.

    Args:
        n_readers: File reader processes.
        n_cores: Cores that they share.

    Attributes:
        example_seconds: How long one takes inside the dataset; 0 before the first.
        n_files: Most files that one has opened.
    """

    def __init__(self, n_readers: int, n_cores: int) -> None:
        self._n_readers = n_readers
        self._n_cores = n_cores
        self._waits = 0.0  # how often reading an example gives up its core, on the average
        self.example_seconds = 0.0
        self.n_files = 1

    def add(self, cost: ReadCost, n_examples: int) -> None:
        """Learn from the examples of a part."""
        share = 0.1 if self.example_seconds else 1.0
        self.example_seconds += (cost.fetch_ns / 1e9 / n_examples - self.example_seconds) * share
        self._waits += (cost.n_waits / n_examples - self._waits) * share
        self.n_files = max(self.n_files, cost.n_files)

    def part_size(self, batch_size: int, n_build_ahead: int) -> int:
        """Return how many examples of a mini-batch to put into a part.

        Few large parts cost less; yet each reader is to have its share of what is built ahead, and
        one part to do next. Readers beyond the number of cores are of use only if they wait.
        """
        if not self.example_seconds:
            return max(1, min(batch_size // self._n_readers, -(-batch_size // 8)))
        n_busy = self._n_readers
        if self._waits < _WAITING:
            n_busy = min(n_busy, self._n_cores)
        fair = batch_size * n_build_ahead // (READER_CREDIT * n_busy)
        return max(1, min(fair, batch_size, round(PART_SECONDS / self.example_seconds)))
