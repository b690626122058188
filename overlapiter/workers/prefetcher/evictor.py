"""Making room for a part: the victims that the supervisor has named go, one at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from overlapiter.sources import Dataset, declared_paths, paths_below
from overlapiter.staging.strays import Strays
from overlapiter.staging.tiers import Tiers
from overlapiter.store.eviction import Victim

#: The tier of an example that is not staged.
ABSENT = -1


class Evictor:
    """Evicts the files of examples.

    Args:
        dataset: Tells which files an example reads.
        source: Root of the files on the slow store.
        tiers: Where they are staged.
        strays: In each tier, what may go besides.
        validated: The stamps of the copies of each example, see the prefetcher.
        count: Called for each file that is gone for good.
    """

    def __init__(
        self,
        dataset: Dataset,
        source: str,
        tiers: Tiers,
        strays: Sequence[Strays],
        validated: memoryview,
        count: Callable[[], None],
    ) -> None:
        self._dataset = dataset
        self._source = source
        self._tiers = tiers
        self._strays = strays
        self._validated = validated
        self._count = count

    def evict(self, victim: Victim, make_room: Callable[[int], bool]) -> int | None:
        """Have the files of an example sink to the next tier, or go.

        Returns:
            The tier in which it is then; None if none of its files was there.

        Raises:
            OSError: The disk that they are on failed.
        """
        before, after = [], []
        tier = len(self._tiers)
        for absolute in self._paths(victim):
            found = self._tiers.peek(absolute)
            if found is None:
                tier = ABSENT
                continue
            before.append(found.stamp)
            if found.tier != victim.tier or file_id(absolute) in victim.kept:
                after.append(found.stamp)
                tier = min(tier, found.tier)
                continue
            staged = self._tiers.sink(absolute, found.tier, make_room)
            if staged is None:
                tier = ABSENT
                self._count()
            else:
                after.append(staged.stamp)
                tier = min(tier, staged.tier)
        index = victim.example
        was_validated = self._validated[index] == total(before)
        self._validated[index] = total(after) if was_validated and tier != ABSENT else 0
        return tier if before else None

    def evict_stray(self, tier: int, *, is_young: bool) -> bool:
        """Evict a file that no run uses, as :meth:`Strays.evict_one`."""
        is_evicted = self._strays[tier].evict_one(is_young=is_young)
        if is_evicted:
            self._count()
        return is_evicted

    @property
    def may_find_strays(self) -> bool:
        """Whether there may be files that no run uses."""
        return any(strays.may_find_more for strays in self._strays)

    def is_beyond_capacity(self, tier: int) -> bool:
        """Return whether a tier holds more than it may. Raises OSError."""
        return self._tiers.excess_bytes(tier) > 0

    @property
    def n_tiers(self) -> int:
        """How many tiers there are."""
        return len(self._tiers)

    def is_wanted_by_others(self, victim: Victim) -> bool:
        """Return whether another run is about to read a file of an example."""
        return self._tiers.is_wanted_by_others(self._paths(victim))

    def _paths(self, victim: Victim) -> Iterable[str]:
        if victim.paths:
            return victim.paths
        try:
            declared = declared_paths(self._dataset, victim.example) or []
        except Exception:  # user code: an example that cannot say what it reads is no victim
            return ()
        return {absolute for _, absolute in paths_below(self._source, declared)}


class RoomForPart:
    """The victims that a part may evict, shared by the threads that stage its examples.

    Args:
        evictor: Evicts them.
        victims: The victims.

    Attributes:
        moved: The victims that were, by index, with the tier of each afterwards; None for one
            that was not there.
    """

    def __init__(self, evictor: Evictor, victims: Iterable[Victim]) -> None:
        self._evictor = evictor
        self._lock = threading.Lock()
        self._victims: dict[int, list[Victim]] = {}
        for victim in victims:
            self._victims.setdefault(victim.tier, []).append(victim)
        for waiting in self._victims.values():
            waiting.reverse()  # the farthest next use comes first
        self.moved: dict[int, int | None] = {}

    @property
    def is_possible(self) -> bool:
        """Whether anything may go."""
        return any(self._victims.values()) or self._evictor.may_find_strays

    def make(self, tier: int) -> bool:
        """Free something in a tier; return False if there is nothing left that may go.

        Raises:
            OSError: Its disk failed.
        """
        if self._evictor.evict_stray(tier, is_young=False):
            return True
        with self._lock:
            victim = self._take(tier)
            if victim is not None:
                self.moved[victim.example] = ABSENT  # whatever comes of it
        if victim is None:
            return self._evictor.evict_stray(tier, is_young=True)
        self.moved[victim.example] = self._evictor.evict(victim, self.make)
        return True

    def shrink(self) -> None:
        """Free what may go where the capacity is exceeded, which was larger in an earlier run.

        Needed where all that is wanted is found, so that nobody asks for room.
        """
        with contextlib.suppress(OSError):  # whoever copies a file is told of it
            for tier in range(self._evictor.n_tiers):
                while self._evictor.is_beyond_capacity(tier) and self.make(tier):
                    pass

    def _take(self, tier: int) -> Victim | None:
        """Choose the farthest victim that nobody else wants, or else the farthest."""
        waiting = self._victims.get(tier)
        if not waiting:
            return None
        places = reversed(range(len(waiting)))
        spared = self._evictor.is_wanted_by_others
        place = next((place for place in places if not spared(waiting[place])), -1)
        return waiting.pop(place)


def file_id(absolute: str) -> int:
    """Return the number by which a file is known in this supervisor and its prefetchers."""
    return hash(absolute) & 0xFFFF_FFFF_FFFF_FFFF or 1


def total(stamps: Iterable[int]) -> int:
    """Return what stands for several stamps."""
    return sum(stamps) % 2**64
