"""Deaths: what a worker was at when it died, and when that is given up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from overlapiter.workers.supervisor.schedule import Part

#: Deaths on the same example after which it is given up.
MAX_DEATHS = 3
#: The same for the example that was to come next when its worker died between two examples.
MAX_SUSPECT_DEATHS = 10


class Death(NamedTuple):
    """The end of a worker's process."""

    exit_code: int  # how it ended; -N means killed by signal N
    current_index: int  # the example that it was at; -1 for none
    last_words: str  # the traceback that it reported before, mostly empty


class GivenUp(NamedTuple):
    """An example that is given up, and the part that it is in."""

    part: Part
    example: int
    n_deaths: int


class Deaths:
    """Counts, for each part, the deaths in a row on the same example."""

    def __init__(self) -> None:
        self._in_a_row: dict[int, tuple[tuple[int, bool], int]] = {}

    def add(self, death: Death, parts: Sequence[Part]) -> GivenUp | None:
        """Count the death of a worker with parts at hand, in order; return what to give up, if any.

        If it was at none of their examples, it may have died of the one that was to come next.
        """
        if not parts:
            return None
        at = next((part for part in parts if death.current_index in part.indices), None)
        part, is_known = at or parts[0], at is not None
        index = death.current_index if is_known else part.indices[0]
        culprit, count = self._in_a_row.pop(part.part_id, (None, 0))
        count = count + 1 if culprit == (index, is_known) else 1
        if count == (MAX_DEATHS if is_known else MAX_SUSPECT_DEATHS):
            return GivenUp(part, index, count)
        self._in_a_row[part.part_id] = (index, is_known), count
        return None
