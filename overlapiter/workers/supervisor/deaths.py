"""Deaths: what a worker was at when it died, and when that is given up. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from overlapiter.workers.supervisor.schedule import Part

#: Deaths on the same example after which it is given up.
MAX_DEATHS = 3
#: The same for the example that was to come next when its worker died between two examples.
MAX_SUSPECT_DEATHS = 10


@dataclasses.dataclass(frozen=True)
class Culprit:
    """The example that a worker died on.

    Attributes:
        index: Its index.
        is_known: Whether the worker was at it; if not, it was to come next.
    """

    index: int
    is_known: bool


@dataclasses.dataclass(frozen=True)
class Death:
    """The end of a worker's process.

    Attributes:
        exit_code: How it ended; ``-N`` means killed by signal N.
        current_index: The example that it was at; -1 for none.
        last_words: The traceback that it reported before, mostly empty.
    """

    exit_code: int
    current_index: int
    last_words: str

    def culprit(self, parts: Sequence[Part]) -> Culprit | None:
        """Return the example at fault; None if the worker had nothing to do.

        Args:
            parts: The parts that it had at hand, the one it was at first.
        """
        if any(self.current_index in part.indices for part in parts):
            return Culprit(self.current_index, True)
        return Culprit(parts[0].indices[0], False) if parts else None


class Deaths:
    """Counts, for each part, the deaths in a row on the same example."""

    def __init__(self) -> None:
        self._in_a_row: dict[int, tuple[Culprit, int]] = {}

    def add(self, part: Part, culprit: Culprit | None) -> int:
        """Count the death of a worker that had a part at hand.

        Returns:
            How many died on the culprit if it is in this part and now to be given up, else 0.
        """
        if culprit is None or culprit.index not in part.indices:
            return 0
        before = self._in_a_row.get(part.part_id)
        count = before[1] + 1 if before and before[0] == culprit else 1
        self._in_a_row[part.part_id] = culprit, count
        if count < (MAX_DEATHS if culprit.is_known else MAX_SUSPECT_DEATHS):
            return 0
        del self._in_a_row[part.part_id]
        return count
