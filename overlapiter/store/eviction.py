"""Which staged files go when there is no room: those whose next use is farthest. Pure.

This is Belady's rule: L. A. Belady, "A study of replacement algorithms for a virtual-storage
computer", IBM Systems Journal 5 (1966). It can be followed because the order is known.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overlapiter.nextuse import NextUse, Served
from overlapiter.order import Indices
from overlapiter.store.owners import Owners

#: Victims of one queue in an offer, and examples passed over since others need their files sooner.
_MAX_LOOKED_AT = 512
#: Victims of one offer that are not known to be staged, where enough of the others are.
_MAX_GUESSES = 64
#: All are sorted anew once so many more than the data set has were added one by one.
_MORE_ADDED = 1024
_ABSENT, _UNKNOWN = -1, -2
#: So many examples may be left out, as a share of all.
_FEW_UNKNOWN = 0.01
#: Added to the next use of an example that another node keeps: it goes before all others.
_KEPT_ELSEWHERE = 2**61


class Victim(NamedTuple):
    """An example whose staged files may be evicted."""

    example: int  # its index
    tier: int  # where its files are; 0 is the fastest tier
    #: Those of its files, without any that another example needs sooner. None of them are known if
    #: this run has not looked it up: it is a guess, and may not be there.
    keys: tuple[int, ...] = ()
    size_bytes: int = 0  # about what evicting it gives back


class Eviction:
    """Knows which examples are staged, when each is read next, and so which ones to evict.

    An example that has been handed out, to be staged or read, is never a victim until its
    mini-batch is settled. One that this run has not looked up may be staged since an earlier run,
    in the slowest tier: some of these are offered beside those that are known, in one order with
    them. Positions are those of :class:`NextUse`.
    """

    def __init__(self, n_examples: int, n_tiers: int = 1) -> None:
        self._next_use = NextUse(n_examples)
        self._tiers = np.full(n_examples, _UNKNOWN, np.int8)
        self._handed_out = np.full(n_examples, -1, np.int64)  # the position at which it last was
        self._owners = Owners(n_examples, self._handed_out)
        self._elsewhere = np.zeros(n_examples, np.int64)  # to be added to the next use
        self._is_missing = np.ones(n_examples, bool)  # would be staged if there were room
        self._is_offered = np.zeros(n_examples, bool)
        self._keys = np.zeros(n_examples, np.int64)  # of the first file; 0 until it is known
        self._bytes = np.zeros(n_examples, np.int64)
        # The same memory, where one example is looked at: that takes a third of the time.
        self._tier_at, self._bytes_at = self._tiers.data, self._bytes.data
        self._handed_out_at, self._is_offered_at = self._handed_out.data, self._is_offered.data
        self._next_use_at, self._elsewhere_at = self._next_use.position.data, self._elsewhere.data
        self._key_at = self._keys.data
        self._window: collections.deque[tuple[int, list[int]]] = collections.deque()
        self._settled = 0
        # By tier; of those that are not known, which are in the slowest one, if anywhere, apart.
        self._farthest = {state: _Farthest() for state in (*range(n_tiers), _UNKNOWN)}
        self._several: dict[int, tuple[int, ...]] = {}  # the keys of all files of an example
        self._n_known = 0
        self._known_bytes = 0
        self._slowest = n_tiers - 1
        self._has_begun = False  # before the first offer, the order of victims is not kept
        self._is_guessing = True
        self._n_guesses = self._n_right = 0
        self._is_looked_up = np.zeros(n_examples, bool)
        self._is_left_to_others = np.zeros(n_examples, bool)  # nodes keep it, and look it up
        self._n_unknown = n_examples  # of which neither is so
        self._begun = -1  # the position at which this run has begun; negative before it has
        self._length = 0  # of an epoch
        self.n_in_window = 0  # examples that have been handed out and are not settled
        self.staged_bytes = 0  # of all examples that are staged
        self.largest_bytes = 0  # of the largest example so far

    @property
    def mean_bytes(self) -> float:
        """Bytes of files that an example stands for, on the average; 0 before any is known."""
        return self._known_bytes / max(self._n_known, 1)

    def files_in_use(self) -> NDArray[np.int64] | None:
        """Return the numbers of all files, sorted; None while examples are to be looked up."""
        if self._n_unknown_at_hand() != 0:
            return None
        several = [key for keys in self._several.values() for key in keys]
        return np.union1d(self._keys[self._keys != 0], np.array(several, np.int64))

    def will_soon_know_all(self) -> bool:
        """Return whether all examples that are to be looked up still are handed out."""
        return bool(self._n_unknown_at_hand())

    def _n_unknown_at_hand(self) -> int | None:
        """Return of how many examples that are handed out it is not known whether they are staged.

        None if there are others. After an epoch a few are no matter, at hand or not: files may fail
        each time that they are handed out, and an epoch may leave examples out.
        """
        is_over = self._begun >= 0 and self._settled - self._begun >= self._length
        few = _FEW_UNKNOWN * len(self._tiers) if is_over else 0
        if self._n_unknown <= few:
            return 0
        if self._n_unknown > few + self.n_in_window:
            return None  # without a look at each
        is_unknown = ~(self._is_looked_up | self._is_left_to_others)
        n_at_hand = int(np.count_nonzero(self._handed_out[is_unknown] >= self._settled))
        return None if self._n_unknown - n_at_hand > few else n_at_hand

    def count_missing(self, indices: list[int]) -> int:
        """Return how many examples have files that are not staged but could be, as far as known."""
        return int(self._is_missing[indices].sum())

    # --- what happens -------------------------------------------------------------------------

    def learn(
        self,
        orders: Mapping[int, Indices | None],
        others: Mapping[int, Indices] = MappingProxyType({}),
        served: Mapping[int, Served] = MappingProxyType({}),
    ) -> None:
        """Take note of the orders of epochs; None for ascending. Of each the first one counts.

        Costs some hundred milliseconds for a million examples. Others share the staging directory;
        what is served, other nodes read from this one: see :meth:`NextUse.learn`.
        """
        for order in orders.values():
            self._length = max(self._length, len(self._tiers) if order is None else len(order))
        learn = self._next_use.learn
        is_news = [learn(e, orders[e], others.get(e), served.get(e)) for e in sorted(orders)]
        if any(is_news):
            self._sort()

    def share_with_nodes(self, is_elsewhere: NDArray[np.bool_] | None) -> None:
        """Take note which examples another node keeps: they make room before any other does.

        None if the nodes do without each other: then what they read from this one is no use, too.
        """
        self._elsewhere[:] = 0 if is_elsewhere is None else is_elsewhere * _KEPT_ELSEWHERE
        self._is_left_to_others[:] = False if is_elsewhere is None else is_elsewhere
        is_known = self._is_looked_up | self._is_left_to_others
        self._n_unknown = len(is_known) - int(np.count_nonzero(is_known))
        self._next_use.count_served(is_wanted=is_elsewhere is not None)
        self._sort()

    def hand_out(self, position: int, indices: list[int]) -> None:
        """Take note that a part which begins at ``position`` is handed out to be staged."""
        if self._next_use.hand_out(position, indices):
            self._sort()
        if self._begun < 0:
            self._begun = position
        self._handed_out[indices] = range(position, position + len(indices))
        self._owners.hand_out(indices)
        self._window.append((position + len(indices), indices))
        self.n_in_window += len(indices)

    def settle(self, position: int) -> None:
        """Take note that all before ``position`` has been read, by others too."""
        self._settled = position
        by_others, served = self._next_use.pass_by(position)
        if len(by_others):
            self._leave_to_others(np.unique(by_others))  # two epochs may have the same one
        settled: list[int] = served.tolist() if self._has_begun else []
        n_served = len(settled)
        while self._window and self._window[0][0] <= position:
            settled += self._window.popleft()[1]
        self.n_in_window -= len(settled) - n_served
        if self._has_begun and settled:
            # A file goes with the example that needs it first, passed over while it was in use.
            firsts = self._owners.first_readers(settled, self._next_use.position, position)
            for index in {*settled, *firsts}:
                self._add(index)

    def _leave_to_others(self, indices: Indices) -> None:
        """Let those evict examples who have read them last, and know whether they are staged."""
        own = indices[self._tiers[indices] >= 0]
        self.staged_bytes -= int(self._bytes[own].sum())
        self._tiers[indices] = _ABSENT
        self._note_looked_up(indices)

    def _note_looked_up(self, indices: Indices) -> None:
        """Take note that this rank, or one beside it, knows whether examples are staged."""
        is_known = self._is_looked_up[indices] | self._is_left_to_others[indices]
        self._n_unknown -= len(is_known) - int(np.count_nonzero(is_known))
        self._is_looked_up[indices] = True

    def note(
        self,
        index: int,
        tier: int,
        files: Sequence[tuple[int, int]],
        *,
        is_missing: bool = False,
        is_complete: bool = True,
    ) -> None:
        """Take note of what is staged of an example.

        Args:
            index: The example.
            tier: The fastest tier that any of its files is in; negative if none is staged.
            files: Those of its files that are, each as its number and its size in bytes.
            is_missing: Whether there was no room for others.
            is_complete: Whether these are all its files. If not, and there was room, a file or a
                disk may have failed: unless any is staged, the example is to be looked up again,
                once.
        """
        is_known = is_complete or is_missing or tier >= 0 or self._tier_at[index] == _ABSENT
        if is_known and not self._is_looked_up[index]:
            self._note_looked_up(np.array([index]))
        if tier < 0:
            self.note_absent(index)
            self._is_missing[index] = is_missing
            return
        add = self._owners.add
        new_bytes = sum([n_bytes for file_id, n_bytes in files if add(index, file_id)])
        self._n_known += not self._key_at[index]
        keys = tuple(dict.fromkeys([file_id for file_id, _ in files]))
        self._key_at[index] = keys[0]
        self._several.pop(index, None)
        if len(keys) > 1:
            self._several[index] = keys
        self._bytes[index] += new_bytes  # before, there may have been room for some of its files
        self._known_bytes += new_bytes
        self.largest_bytes = max(self.largest_bytes, int(self._bytes[index]))
        is_staged = self._tiers[index] >= 0
        self.staged_bytes += new_bytes if is_staged else int(self._bytes[index])
        self.move(index, tier)
        self._is_missing[index] = is_missing

    def note_one_file_each(
        self,
        indices: NDArray[np.int64],
        tiers: NDArray[np.int64],
        file_ids: NDArray[np.int64],
        n_bytes: NDArray[np.int64],
    ) -> None:
        """Take note of several examples, none of them twice, each with its one file."""
        add = self._owners.add
        is_own = list(map(add, indices.tolist(), file_ids.tolist()))
        own_bytes = n_bytes[is_own]
        self._bytes[indices[is_own]] = own_bytes
        self._known_bytes += int(own_bytes.sum())
        self.largest_bytes = max(self.largest_bytes, *own_bytes.tolist(), 0)
        self._n_known += len(indices) - int(np.count_nonzero(self._keys[indices]))
        self._keys[indices] = file_ids
        for index in self._several.keys() & indices.tolist() if self._several else ():
            del self._several[index]
        self.staged_bytes += int(self._bytes[indices[self._tiers[indices] < 0]].sum())
        self._tiers[indices] = tiers
        self._note_looked_up(indices)
        self._is_offered[indices] = self._is_missing[indices] = False
        for index in indices.tolist() if self._has_begun else ():
            self._add(index)

    def move(self, index: int, tier: int) -> None:
        """Take note that the files of an example are in another tier than before."""
        self._tier_at[index] = tier
        self._is_offered_at[index] = False
        self._add(index)

    def note_absent(self, index: int) -> None:
        """Take note that no file of an example is staged."""
        self._is_missing[index] = True
        if self._tier_at[index] >= 0:
            self.staged_bytes -= self._bytes_at[index]
        self._tier_at[index] = _ABSENT
        self._is_offered_at[index] = False

    def note_evicted(self, victim: Victim, *, was_there: bool) -> list[int]:
        """Take note that a victim is gone, if it was there; return who has lost a file by it."""
        if not victim.keys and not was_there and not self._is_offered_at[victim.example]:
            return []  # it was staged after it had been looked up
        if self._tier_at[victim.example] == _UNKNOWN:
            self._n_guesses += 1
            self._n_right += was_there
        losers, keys = [victim.example], {*victim.keys}
        for file_id in self._owners.shared_files(victim.example):
            if not keys or file_id in keys:
                losers += self._owners.of(file_id)
        for index in losers:
            self.note_absent(index)
        return losers

    def stop_guessing(self) -> None:
        """Take note that the files of examples that this run has not looked up cannot be known."""
        self._is_guessing = False

    def restart(self) -> None:
        """Take note that the trainer starts anew somewhere; what is staged stays known."""
        self._next_use.restart()
        self._handed_out.fill(-1)
        self._owners.restart()
        self._is_offered.fill(False)
        self._window.clear()
        self.n_in_window = self._settled = 0
        self._begun = -1
        self._sort()

    # --- who goes -----------------------------------------------------------------------------

    def offer(self, tier: int, wanted_bytes: int, *, spares_kept: bool = False) -> list[Victim]:
        """Return victims that together free ``wanted_bytes``, or as far as there are any.

        ``spares_kept`` leaves those alone that no other node keeps.

        They are the caller's until it gives each of them back, or notes what became of it.
        """
        if not self._has_begun:
            self._has_begun = True
            self._sort()
        victims, lacking_bytes = self._take(tier, wanted_bytes)
        if tier == self._slowest and self._is_guessing:
            is_enough = lacking_bytes <= 0 and bool(victims)
            least = self._position(victims[-1].example) if is_enough else None
            guesses, _ = self._take(_UNKNOWN, wanted_bytes if is_enough else lacking_bytes, least)
            if guesses:
                victims += guesses
                victims.sort(key=lambda victim: self._position(victim.example), reverse=True)
        if spares_kept:
            self.give_back(v for v in victims if not self._elsewhere_at[v.example])
            return [v for v in victims if self._elsewhere_at[v.example]]
        return victims

    def _take(
        self, state: int, wanted_bytes: int, least: int | None = None
    ) -> tuple[list[Victim], int]:
        """Return victims that are needed after ``least``, and how many wanted bytes still lack."""
        victims: list[Victim] = []
        n_passed_over = 0
        is_guess = state == _UNKNOWN
        tier, farthest = self._slowest if is_guess else state, self._farthest[state]
        most = _MAX_LOOKED_AT if least is None else _MAX_GUESSES
        guessed_bytes = self.mean_bytes * (self._n_right + 1) / (self._n_guesses + 2)
        while wanted_bytes > 0 and n_passed_over + len(victims) < most:
            index = farthest.pop(lambda index, position: self._is_valid(index, position, state))
            if index is None:
                break
            if least is not None and self._position(index) <= least:
                farthest.add(index, self._position(index))
                break
            keys = self._keys_of(index)
            if kept := self._owners.needed_sooner(index, self._next_use.position, self._settled):
                keys = tuple([key for key in keys if key not in kept])
                if not keys:
                    n_passed_over += 1  # until its next use
                    continue
            self._is_offered_at[index] = True
            own_bytes = self._bytes_at[index]
            # A guess has none, nor has an example whose files count for another that reads them.
            size_bytes = own_bytes or int(self.mean_bytes)
            victims.append(Victim(index, tier, keys, size_bytes))
            wanted_bytes -= max(int(guessed_bytes) if is_guess else own_bytes, 1)
        return victims, wanted_bytes

    def give_back(self, victims: Iterable[Victim]) -> None:
        """Take back victims that were not needed."""
        for victim in victims:
            self._is_offered_at[victim.example] = False
            self._add(victim.example)

    def _keys_of(self, index: int) -> tuple[int, ...]:
        key = self._key_at[index]
        return self._several.get(index, (key,)) if key else ()

    def _is_valid(self, index: int, position: int, state: int) -> bool:
        return (
            self._tier_at[index] == state
            and self._position(index) == position
            and self._handed_out_at[index] < self._settled
            and not self._is_offered_at[index]
        )

    def _position(self, index: int) -> int:
        """Return where an example is needed next, for the order of victims."""
        return self._next_use_at[index] + self._elsewhere_at[index]

    def _add(self, index: int) -> None:
        state = self._tier_at[index]
        if self._has_begun and state != _ABSENT and self._handed_out_at[index] < self._settled:
            farthest = self._farthest[state]
            farthest.add(index, self._position(index))
            if farthest.n_added > len(self._tiers) + _MORE_ADDED:
                self._sort()  # the uses of most are over, and no news of an order comes

    def _sort(self) -> None:
        """Take note that next uses have changed otherwise than by being over."""
        self._owners.forget_uses()
        if not self._has_begun:
            return
        is_idle = (self._handed_out < self._settled) & ~self._is_offered
        for state, farthest in self._farthest.items():
            indices = np.flatnonzero(is_idle & (self._tiers == state))
            farthest.begin(indices, self._next_use.position[indices] + self._elsewhere[indices])


class _Farthest:
    """Gives examples by the position of their next use, the farthest first."""

    def __init__(self) -> None:
        self.begin(np.empty(0, np.intp), np.empty(0, np.int64))

    def begin(self, indices: NDArray[np.intp], positions: NDArray[np.int64]) -> None:
        """Forget everything, and begin with these."""
        by_position = np.argsort(positions, kind="stable")
        self._indices, self._positions = indices[by_position], positions[by_position]
        self._n_sorted = len(indices)
        self._heap: list[tuple[int, int]] = []  # what was added later

    @property
    def n_added(self) -> int:
        """How many were added since the beginning and not taken, whether they are valid or not."""
        return len(self._heap)

    def add(self, index: int, position: int) -> None:
        """Add an example."""
        heapq.heappush(self._heap, (-position, index))

    def pop(self, is_valid: Callable[[int, int], bool]) -> int | None:
        """Remove and return the farthest example that is valid; None if there is none."""
        while self._heap or self._n_sorted:
            last = self._n_sorted - 1
            if last < 0 or (self._heap and -self._heap[0][0] >= self._positions[last]):
                negative, index = heapq.heappop(self._heap)
                position = -negative
            else:
                index, position = int(self._indices[last]), int(self._positions[last])
                self._n_sorted = last
            if is_valid(index, position):
                return index
        return None
