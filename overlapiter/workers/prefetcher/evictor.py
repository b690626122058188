"""Making room for a task: victims that the supervisor named are evicted, as many as it takes."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable

import numpy as np

from overlapiter.sources import Dataset, declared_paths, paths_below
from overlapiter.store.eviction import Victim
from overlapiter.store.extents import packed
from overlapiter.store.stager import Stager
from overlapiter.store.store import Store, Wanted

#: What became of victims, by their examples: where their files are now, packed; nothing if they
#: are gone, None if they were not there.
Moved = dict[int, bytes | None]

#: So many files that no run uses are evicted in one transaction.
_STRAYS_AT_ONCE = 32
#: After a search in vain for files that no run uses, a pause of so many times as long as it took.
_SEARCH_PAUSES = 100
#: When to look again for dead processes, and try again to tell an index what is of use.
_PAUSE_SECONDS = 1.0


class Evictor:
    """Evicts the files of examples, and what no run uses; counts them. Safe for threads."""

    def __init__(self, dataset: Dataset, stager: Stager, count: Callable[[int], None]) -> None:
        self._dataset = dataset
        self.stores = stager.stores
        self._stager = stager
        self._count = count
        self._next_search: dict[object, float] = {}
        self._searching = threading.Lock()  # one thread at a time looks for what no run uses
        self._keys_to_tell: list[int] = []  # the last ones that the indexes were to be told

    def evict(
        self, victims: list[Victim], tier: int, make_room: Callable[[int, int], bool]
    ) -> Moved:
        """Move the files of examples to the next tier, or evict them for good.

        Raises:
            OSError: The disk that they are on failed, or its index is locked.
        """
        keys = dict.fromkeys(key for victim in victims for key in victim.keys)
        moved = self._stager.evict([*keys], tier, make_room)
        self._count(sum(extent is None for extent in moved.values()))
        answer: Moved = {}
        for victim in victims:
            there = [moved[key] for key in victim.keys if key in moved]
            answer[victim.example] = packed(filter(None, there)) if there else None
        return answer

    def evict_strays(self, tier: int, *, are_young_spared: bool) -> bool:
        """Evict some files that no run uses; return whether there were any."""
        with self._searching:
            return self._evict_strays(tier, are_young_spared=are_young_spared)

    def _evict_strays(self, tier: int, *, are_young_spared: bool) -> bool:
        search, begun = (tier, are_young_spared), time.monotonic()
        if begun < self._next_search.get(search, 0.0):
            return False
        store = self.stores[tier]
        keys = store.neighbours.strays(are_young_spared=are_young_spared, limit=_STRAYS_AT_ONCE)
        if not keys:
            ended = time.monotonic()
            self._next_search[search] = ended + _SEARCH_PAUSES * (ended - begun)
            return False
        self._count(len(store.evict(keys, keep_room=True)))
        return True

    def tell_uses(self, packed_keys: bytes, needs_room: bool) -> None:
        """Have the indexes say which files are of use to this run: what else is staged may go.

        Blocks until each has said so, or this is called again.
        """
        keys = self._keys_to_tell = np.frombuffer(packed_keys, np.int64).tolist()
        untold = [*self.stores]
        while True:
            untold = [store for store in untold if not _has_told(store, keys, needs_room)]
            self._next_search.clear()
            if not untold or self._keys_to_tell is not keys:
                return
            time.sleep(_PAUSE_SECONDS)

    def take_over(self, tier: int, *, is_last_resort: bool = False) -> bool:
        """Give back what processes that have ended held; return whether that was anything."""
        if time.monotonic() < self._next_search.get(tier, 0.0) and not is_last_resort:
            return False
        self._next_search[tier] = time.monotonic() + _PAUSE_SECONDS
        return self.stores[tier].take_over() > 0

    def wanted_by_others(self, tier: int, victims: list[Victim]) -> set[int]:
        """Return the examples of those victims that other runs are about to read."""
        neighbours = self.stores[tier].neighbours
        if neighbours.is_alone():
            return set()
        wanted = neighbours.wanted_by_others([*{key for victim in victims for key in victim.keys}])
        return {victim.example for victim in victims if not wanted.isdisjoint(victim.keys)}

    def look_up(self, tier: int, guesses: list[Victim]) -> dict[int, tuple[int, ...]]:
        """Return for the examples of guesses the keys of those files that a tier has."""
        files = {victim.example: self._declared(victim.example) for victim in guesses}
        found = self.stores[tier].look([file for own in files.values() for file in own])
        return {
            example: tuple(file.key for file in own if file.key in found)
            for example, own in files.items()
        }

    def _declared(self, example: int) -> list[Wanted]:
        store = self.stores[0]
        try:
            declared = declared_paths(self._dataset, example) or []
            paths = dict.fromkeys(path for _, path in paths_below(store.source, declared))
            return [Wanted(store.key_of(path), path) for path in paths]
        except Exception:  # user code, or a path that no file can have: it is no victim
            return []


class RoomForTask:
    """The victims that a task may evict, shared by the threads that stage its files.

    Those with the farthest next use come first; None if there is no need to evict any, as far as
    the supervisor knows.
    """

    def __init__(self, evictor: Evictor, victims: Iterable[Victim] | None) -> None:
        self._evictor = evictor
        self._lock = threading.RLock()  # held while files are evicted: one thread at a time
        self._n_made = 0
        self._victims: dict[int, list[Victim]] = {}
        for victim in victims or ():
            self._victims.setdefault(victim.tier, []).append(victim)
        self.moved: Moved = {}  # what became of those that were evicted, or were not there

    def make(self, tier: int, size_bytes: int) -> bool:
        """Free about so much in a tier; return False if there is nothing left that may go.

        Not more, since what is evicted too early is read again.

        Raises:
            OSError: Its disk failed, or its index is locked.
        """
        n_made = self._n_made
        with self._lock:
            if self._n_made == n_made and not self._make(tier, size_bytes):
                return False
            self._n_made += 1  # those that have waited try again before they evict more
            return True

    def _make(self, tier: int, size_bytes: int) -> bool:
        evictor = self._evictor
        if evictor.take_over(tier) or evictor.evict_strays(tier, are_young_spared=True):
            return True
        victims = self._take(tier, size_bytes)
        if victims:
            for victim in victims:
                self.moved[victim.example] = b""  # gone, should evicting fail
            self.moved |= evictor.evict(victims, tier, self.make)
            return True
        if evictor.evict_strays(tier, are_young_spared=False):
            return True
        return evictor.take_over(tier, is_last_resort=True)

    def _take(self, tier: int, size_bytes: int) -> list[Victim]:
        """Choose the farthest victims that no other run wants, or else the farthest."""
        waiting = self._without_wrong_guesses(tier, size_bytes)
        chosen = waiting[: _n_enough(waiting, size_bytes)]
        spared = self._evictor.wanted_by_others(tier, chosen) if chosen else set()
        if len(spared) < len(chosen):
            chosen = [victim for victim in chosen if victim.example not in spared]
        taken = {victim.example for victim in chosen}
        self._victims[tier] = [victim for victim in waiting if victim.example not in taken]
        return chosen

    def _without_wrong_guesses(self, tier: int, size_bytes: int) -> list[Victim]:
        """Return the victims of a tier that are left; what is not there is not evicted one by one.

        Guesses are looked up together, once one of them is among the next to go.
        """
        waiting = self._victims.get(tier, [])
        if all(victim.keys for victim in waiting[: _n_enough(waiting, size_bytes)]):
            return waiting
        found = self._evictor.look_up(tier, [victim for victim in waiting if not victim.keys])
        self.moved |= dict.fromkeys(example for example, keys in found.items() if not keys)
        known = [v if v.keys else v._replace(keys=found[v.example]) for v in waiting]
        return [victim for victim in known if victim.keys]

    def shrink(self) -> None:
        """Evict victims from tiers that hold more than their capacity, which was larger before.

        While every wanted file is found, nothing else asks for room.
        """
        with contextlib.suppress(OSError):  # copying meets the same and reports it
            for tier, store in enumerate(self._evictor.stores):
                while (excess_bytes := store.excess_bytes()) and self.make(tier, excess_bytes):
                    pass


def _has_told(store: Store, keys: list[int], needs_room: bool) -> bool:
    """Return whether an index has been told; not if it is locked, or its disk is full or sick."""
    try:
        store.neighbours.tell_uses(keys, needs_room=needs_room)
    except OSError:
        return False
    return True


def _n_enough(victims: Iterable[Victim], size_bytes: int) -> int:
    """Return how many of the first victims free so much; more than there are if all do not."""
    freed_bytes = itertools.accumulate(victim.size_bytes for victim in victims)
    return 1 + sum(n_bytes < size_bytes for n_bytes in freed_bytes)
