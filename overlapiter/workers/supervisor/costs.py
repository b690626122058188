"""What examples cost, as far as has been seen, and how large parts are for that."""

from __future__ import annotations

import math

#: A part keeps a file reader busy for at most this long: short enough to balance the load, long
#: enough that messages cost little.
PART_SECONDS = 0.032
#: A part counts as at most so many times as slow as those before.
_MOST_TIMES = 4
#: Parts of the first mini-batch, or more where there are many readers.
_FIRST_PARTS = 8
#: Parts that a file reader has at hand, so that it never waits for the supervisor.
READER_CREDIT = 2
#: Readers that wait for less than this share of the time for which they use a core do not count
#: as waiting.
_SLACK = 0.2


class CostEstimate:
    """What reading an example costs, as far as has been seen, on cores that the readers share."""

    def __init__(self, n_readers: int, n_cores: int) -> None:
        self._n_readers = n_readers
        self.n_busy = n_readers  # those that are to have work: more than cores if they wait
        self._n_cores = n_cores
        self._cpu_seconds = 0.0
        self.example_seconds = 0.0  # how long one keeps a reader busy; 0 before the first
        self.n_files = 1  # most files that one has opened

    def add(self, n_examples: int, n_files: int, busy_ns: int, cpu_ns: int) -> None:
        """Learn from a part, of which one that stalled counts as a slow one.

        Args:
            n_examples: Its examples.
            n_files: Most files that one of them has opened.
            busy_ns: What it took, less the time for which a core was waited for. Where a reader
                loses its core between its looks at the two clocks, it is too little, even negative.
            cpu_ns: For how long it had a core; else it waited for something such as a disk.
        """
        share = 0.1 if self.example_seconds else 1.0
        seconds = max(busy_ns, cpu_ns) / 1e9 / n_examples
        if self.example_seconds:
            seconds = min(seconds, _MOST_TIMES * self.example_seconds)
        self.example_seconds += (seconds - self.example_seconds) * share
        self._cpu_seconds += (cpu_ns / 1e9 / n_examples - self._cpu_seconds) * share
        self.n_files = max(self.n_files, n_files)
        if self._cpu_seconds:
            waiting = self.example_seconds / self._cpu_seconds
            n_useful = math.ceil(self._n_cores * max(1.0, waiting - _SLACK))
            self.n_busy = min(self._n_readers, n_useful)

    def part_size(self, batch_size: int, n_build_ahead: int, *, is_first: bool = False) -> int:
        """Return how many examples of a mini-batch to put into a part.

        Few large parts of one size cost less; yet each reader that has work is to have its share of
        what is built ahead, and one part to do next. The first mini-batch is waited for: small
        parts of it are staged and read by all at once.
        """
        n_parts = math.ceil(READER_CREDIT * self.n_busy / n_build_ahead)
        if self.example_seconds:
            n_parts = max(n_parts, round(batch_size * self.example_seconds / PART_SECONDS))
        elif is_first:
            n_parts = max(n_parts, _FIRST_PARTS)
        return max(1, -(-batch_size // n_parts))
