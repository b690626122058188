"""What the two stages of the supervisor, staging and reading, have in common."""

from __future__ import annotations

from typing import Protocol

from overlapiter.workers.supervisor.schedule import Batch

#: A part should keep a file reader busy for about this long: short enough to balance the load,
#: long enough that messages cost little.
PART_SECONDS = 0.004
#: Parts that a file reader has at hand, so that it never waits for the supervisor.
READER_CREDIT = 2
#: No limit of examples or of parts.
UNBOUNDED = 1 << 60


class Desk(Protocol):
    """What a stage needs of the supervisor."""

    def settle(self, batch: Batch | None) -> None:
        """Deliver a mini-batch that the schedule calls settled, if there is one."""

    def warn(self, text: str) -> None:
        """Have the trainer warn the user."""


class Experience:
    """What reading examples has taught so far.

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

    def part_size(self, batch_size: int, n_readers: int) -> int:
        """Return how many examples of a mini-batch to put into a part."""
        fair = max(1, batch_size // n_readers)
        if not self.example_seconds:
            return max(1, min(fair, -(-batch_size // 8)))
        return max(1, min(fair, round(PART_SECONDS / self.example_seconds)))
