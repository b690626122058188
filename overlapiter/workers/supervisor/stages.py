"""What the two stages of the supervisor, staging and reading, have in common."""

from __future__ import annotations

from typing import Protocol

from overlapiter.workers.supervisor.schedule import Batch

#: A part keeps a file reader busy for at most this long: short enough to balance the load, long
#: enough that messages cost little.
PART_SECONDS = 0.016
#: Parts that a file reader has at hand, so that it never waits for the supervisor.
READER_CREDIT = 2
#: No limit of examples or of parts.
UNBOUNDED = 1 << 60


class Supervising(Protocol):
    """What a stage needs of the supervisor."""

    def settle(self, batch: Batch | None) -> None:
        """Deliver a mini-batch that the schedule calls settled, if there is one."""

    def warn(self, text: str) -> None:
        """Have the trainer warn the user."""


class CostEstimate:
    """What reading an example costs, as far as has been seen.

    Attributes:
        example_seconds: How long one takes inside the dataset; 0 before the first.
        n_files: Most files that one has opened.
    """

    def __init__(self) -> None:
        self.example_seconds = 0.0
        self.n_files = 1

    def add(self, seconds: float, n_files: int) -> None:
        """Learn from an example."""
        share = 0.1 if self.example_seconds else 1.0
        self.example_seconds += (seconds - self.example_seconds) * share
        self.n_files = max(self.n_files, n_files)

    def part_size(self, batch_size: int, n_readers: int, n_build_ahead: int) -> int:
        """Return how many examples of a mini-batch to put into a part.

        Few large parts cost less; yet each reader is to have its share of what is built ahead, and
        one part to do next.
        """
        fair = max(1, batch_size * n_build_ahead // (READER_CREDIT * n_readers))
        if not self.example_seconds:
            return max(1, min(fair, -(-batch_size // 8)))
        return max(1, min(fair, batch_size, round(PART_SECONDS / self.example_seconds)))
