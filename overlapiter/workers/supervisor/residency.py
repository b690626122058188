"""Residency: which examples are staged, how far to stage ahead, and what may be evicted. Pure.

It is the supervisor's knowledge of what its prefetchers have done. Files that other processes
stage or evict meanwhile become known when they are looked at.
"""

from __future__ import annotations

import collections
import mmap
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from overlapiter.order import Indices
from overlapiter.store.elsewhere import Holders
from overlapiter.store.eviction import Eviction, Victim
from overlapiter.store.extents import EXTENT_BYTES, Extent, unpacked
from overlapiter.store.segments import aligned
from overlapiter.words import size_words
from overlapiter.workers.prefetcher.evictor import Moved
from overlapiter.workers.prefetcher.tasks import Finding
from overlapiter.workers.supervisor.schedule import Part

if TYPE_CHECKING:  # the module is imported with the plan, if there is one
    from overlapiter.peers.holders import Sharing

#: Files that all ranks of a node stage ahead take up to this share of the directory. What they
#: take is lost to files that are kept for the next epoch: with a share ``f`` of the data set
#: staged, at most ``f (1 - f) / 16`` of the reads, 1.6 %, miss that would not otherwise.
_AHEAD_SHARE = 1 / 16
#: The same where nodes hold files for each other: nearly all that a rank stages ahead is held by
#: another node, so it takes room here even if the job has all files. With room for 60 % of them
#: 0.8 % of the reads miss that would not otherwise.
_AHEAD_SHARE_OF_HOLDERS = 1 / 64
#: Victims are offered for so many times the bytes that are expected, and the largest file.
_GENEROSITY = 1.25
#: How often a part is staged again since there was no room; then it is read from the source.
_MAX_TRIES = 4
#: From this share of the capacity on, parts get victims, which they may not need.
_NEARLY_FULL = 0.9
#: So few parts read unstaged for lack of room are not worth a warning.
_FEW_PARTS = 16
_FEW_SHARE = 0.02
#: What a file takes of a disk is a multiple of this.
_BLOCK_BYTES = 4096
_EXTENT = np.dtype([(name, "<i8") for name in Extent._fields])
#: Of what is known of an example: nothing, its one file, or the one that it had.
_NOTHING, _ONE_FILE, _GONE = 0, 1, 2


class Residency:
    """What is staged, for one iterator."""

    def __init__(
        self, n_examples: int, n_tiers: int, capacity_bytes: int | None, n_sharers: int = 1
    ) -> None:
        self._n_examples = n_examples
        self._n_tiers = n_tiers
        self._capacity_bytes = capacity_bytes  # of all tiers together; None for no limit
        self._n_sharers = n_sharers  # ranks of this node, which stage ahead into one directory
        self._eviction = Eviction(n_examples, n_tiers)
        self._known = _KnownExtents(n_examples)
        self._suspects: set[int] = set()
        self._holders: Sharing | None = None
        self._are_nodes_asked = True
        self._do_others_evict = n_sharers > 1
        # More than once where the trainer has started anew in between.
        self._on_offer: collections.Counter[int] = collections.Counter()
        self._handed_out_id = self._settled_position = -1
        self.is_full = False  # whether files are evicted, or soon will be
        self._has_told_uses = False
        self._n_parts = self._n_unstaged = self._n_evicted = 0

    @property
    def is_short_of_room(self) -> bool:
        """Whether the user should know that more than a few parts are unstaged for lack of room."""
        is_rare = self._n_unstaged <= max(_FEW_PARTS, _FEW_SHARE * self._n_parts)
        return self._n_unstaged > 0 and not (is_rare and self._n_evicted)

    @property
    def limit_words(self) -> str:
        """What limits the room, for people to read."""
        if self._capacity_bytes is None:
            return "the disk has no more to spare (keep_free)"
        return f"the capacity is {size_words(self._capacity_bytes)}, or the disk has no more"

    # --- the order ----------------------------------------------------------------------------

    def learn(
        self,
        orders: dict[int, Indices | None],
        others: dict[int, Indices],
        sharing: Sharing | None = None,
    ) -> None:
        """Take note of the orders of epochs, and of what other ranks read meanwhile."""
        if sharing is not None:
            self._holders = sharing
            self._share_with_nodes()
        self._eviction.learn(orders, others, {} if sharing is None else sharing.served)

    def ask_nodes(self, *, is_wanted: bool) -> None:
        """Have other nodes asked for what they hold, or have this one do without them."""
        self._are_nodes_asked = is_wanted
        if self._holders is not None:
            self._share_with_nodes()

    def _share_with_nodes(self) -> None:
        asked = self._asked
        self._eviction.share_with_nodes(None if asked is None else asked.is_elsewhere())

    @property
    def _asked(self) -> Sharing | None:
        """What the nodes hold for each other, while they are asked."""
        return self._holders if self._are_nodes_asked else None

    def settle(self, position: int) -> None:
        """Take note that all before ``position`` has been read."""
        if position != self._settled_position:
            self._settled_position = position
            self._eviction.settle(position)

    def restart(self) -> None:
        """Take note that the trainer starts anew somewhere."""
        self._eviction.restart()
        self._settled_position = -1

    # --- parts --------------------------------------------------------------------------------

    def look_up(self, part: Part) -> tuple[list[int], bytes]:
        """Return the examples of a part that a prefetcher is to look at, and the known extents.

        There are none if this run has compared all of them, and no other process evicts here.
        """
        known = list(map(self._known.get, self._plain(part.indices)))
        extents = b"".join(filter(None, known))
        if self._do_others_evict and self.is_full:
            return [*dict.fromkeys(part.indices)], extents
        if None not in known:
            return [], extents
        missing = (i for i, one in zip(part.indices, known, strict=True) if one is None)
        return [*dict.fromkeys(missing)], extents

    def trusted(self, indices: list[int]) -> bytes:
        """Return the extents that this run has compared with their sources already, packed.

        They may have been evicted since: then they tell what another node has to send.
        """
        look = self._known.get if self._holders is None else self._known.last
        return b"".join(filter(None, map(look, self._plain(indices))))

    def holders_of(self, indices: list[int], position: int) -> dict[int, Holders]:
        """Return which nodes may hold which of some examples, read from a position on."""
        asked = self._asked
        if asked is None:
            return {}
        found = asked.of(self._plain(indices), position, self._settled_position)
        return {i: holders for i, holders in zip(indices, found, strict=True) if holders}

    def suspects_among(self, indices: list[int]) -> list[int]:
        """Return those examples of which a file reader has found a copy damaged or gone."""
        if not self._suspects:
            return []
        plain = zip(indices, self._plain(indices), strict=True)
        return [index for index, p in plain if p in self._suspects]

    def forget(self) -> None:
        """Have the files of all examples looked at again: what was staged is gone."""
        self._known.forget_all()
        self.tell_uses_again()

    def suspect(self, indices: list[int]) -> None:
        """Have the files of examples looked at again, since a copy could not be read."""
        self._do_others_evict = True  # or damage: looking does no harm
        for index in self._plain(indices):
            self._known.forget(index)
            self._suspects.add(index)

    @property
    def n_staged(self) -> float:
        """About how many examples are staged."""
        return self._eviction.staged_bytes / max(self._eviction.mean_bytes, 1)

    def may_run_ahead(self) -> bool:
        """Return whether to stage more than what is needed at once."""
        if self._capacity_bytes is not None:
            own_bytes = self._capacity_bytes / self._n_sharers
        elif self.is_full:
            own_bytes = self._eviction.staged_bytes  # so much the disk has room for, of this rank's
        else:
            return True
        share = _AHEAD_SHARE if self._asked is None else _AHEAD_SHARE_OF_HOLDERS
        return self._eviction.mean_bytes > 0 and self._ahead_bytes() < share * own_bytes

    def _ahead_bytes(self) -> float:
        return self._eviction.n_in_window * self._eviction.mean_bytes

    def choose_victims(self, indices: list[int]) -> list[Victim] | None:
        """Return what may be evicted for examples until it is taken back; None without need."""
        if not self.is_full and not self._is_nearly_full():
            return None
        eviction = self._eviction
        n_missing = eviction.count_missing(self._plain(indices))
        if not n_missing:
            return None
        wanted_bytes = int(_GENEROSITY * n_missing * eviction.mean_bytes + eviction.largest_bytes)
        # What an earlier run has left makes room in a moment, before what is kept for other nodes.
        is_untold = self._asked is not None and not self._has_told_uses
        spares_kept = is_untold and eviction.will_soon_know_all()
        victims = [
            victim
            for tier in range(self._n_tiers)
            for victim in eviction.offer(tier, max(wanted_bytes, 1), spares_kept=spares_kept)
        ]
        self._on_offer.update(victim.example for victim in victims)
        return victims

    def is_on_offer(self, part: Part) -> bool:
        """Return whether an example of a part may be evicted, or moved, at this moment."""
        return bool(self._on_offer) and not self._on_offer.keys().isdisjoint(
            self._plain(part.indices)
        )

    def _is_nearly_full(self) -> bool:
        """Foresee that there will be no room: to be refused costs a read of the slow store."""
        if self._capacity_bytes is not None:
            expected_bytes = self._eviction.staged_bytes + self._ahead_bytes()
            own_bytes = self._capacity_bytes / self._n_sharers
            self.is_full = expected_bytes >= _NEARLY_FULL * own_bytes
        return self.is_full

    def hand_out(self, part: Part) -> None:
        """Take note that a part is handed out, to be staged or read."""
        if part.part_id > self._handed_out_id:  # not one that is done again
            self._handed_out_id = part.part_id
            self._n_parts += 1
            self._eviction.hand_out(part.position, self._plain(part.indices))

    def hear(self, findings: Iterable[Finding]) -> set[int]:
        """Take note of what became of examples; return those refused for lack of room."""
        refused = set()
        usual: dict[int, bytes] = {}
        for example, extents, is_complete, was_refused, is_discovered in findings:
            index = example % self._n_examples
            self._suspects.discard(index)
            if is_discovered:
                self._eviction.stop_guessing()
            if is_complete and len(extents) == EXTENT_BYTES:
                usual[index] = extents
                continue
            self._note(index, extents, is_complete=is_complete, was_refused=was_refused)
            if is_complete:
                self._known.put(index, extents)
            if was_refused:
                refused.add(example)
        if usual:
            self._note_usual(usual)
        self.is_full |= bool(refused)
        return refused

    def _note_usual(self, found: dict[int, bytes]) -> None:
        """Take note of examples that have one file each, all at once: that costs a quarter."""
        indices, packed = np.fromiter(found, np.int64), b"".join(found.values())
        table = np.frombuffer(packed, _EXTENT)
        n_bytes = -(-table["size"] // _BLOCK_BYTES) * _BLOCK_BYTES
        self._eviction.note_one_file_each(indices, table["tier"], table["key"], n_bytes)
        self._known.put_one_file_each(indices, packed)

    def _note(self, index: int, packed: bytes, *, is_complete: bool, was_refused: bool) -> None:
        extents = unpacked(packed).values()
        files = [(extent.key, aligned(extent.size, _BLOCK_BYTES)) for extent in extents]
        tier = min((extent.tier for extent in extents), default=-1)
        self._eviction.note(index, tier, files, is_missing=was_refused, is_complete=is_complete)

    def take_back(self, victims: list[Victim] | None, moved: Moved) -> None:
        """Take note of what became of the victims of a task; those not in ``moved`` stay."""
        if not victims:
            return
        self._on_offer -= collections.Counter(victim.example for victim in victims)
        unused = []
        for victim in victims:
            if victim.example not in moved:
                unused.append(victim)
                continue
            extents = moved[victim.example]
            self._known.forget(victim.example)
            if extents:
                tier = min(extent.tier for extent in unpacked(extents).values())
                self._eviction.move(victim.example, tier)
                continue
            for index in self._eviction.note_evicted(victim, was_there=extents is not None):
                self._known.forget(index)
            self._n_evicted += extents is not None
        self._eviction.give_back(unused)

    def uses_to_tell(self) -> tuple[bytes, bool] | None:
        """Return the keys of all files, and whether the room of others is needed; else None.

        That is once, when all examples have been looked up. With other nodes it is: what one keeps
        for all of them is not to make room for what an earlier run has left.
        """
        keys = None if self._has_told_uses else self._eviction.files_in_use()
        if keys is None:
            return None
        self._has_told_uses = True
        return keys.tobytes(), self._asked is not None

    def tell_uses_again(self) -> None:
        """Take note that the keys of all files may not have been told."""
        self._has_told_uses = False

    def is_to_be_tried_again(self, part: Part, *, had_victims: bool) -> bool:
        """Return whether to stage a part again, for which there was no room."""
        part.n_refused += 1
        # What its victims freed others may have taken; without a victim there is no hope.
        may_try_again = part.n_refused < _MAX_TRIES and had_victims
        self._n_unstaged += not may_try_again
        return may_try_again

    def _plain(self, indices: list[int]) -> list[int]:
        """Return indices that count from the start, as others that name the same examples."""
        if min(indices) >= 0 and max(indices) < self._n_examples:
            return indices
        return [index % self._n_examples for index in indices]


class _KnownExtents:
    """The packed extents of every example that needs no prefetcher: it can be read at once.

    Most examples read one file: theirs lie in one piece of memory, which takes 56 bytes for each
    example once it is used.
    """

    def __init__(self, n_examples: int) -> None:
        self._state_array = np.zeros(n_examples, np.uint8)
        self._states = self._state_array.data
        self._memory = mmap.mmap(-1, max(1, n_examples) * EXTENT_BYTES)
        self._table = np.frombuffer(self._memory, f"V{EXTENT_BYTES}")
        self._others: dict[int, bytes] = {}  # of examples that read none, or several

    def put(self, index: int, extents: bytes) -> None:
        """Note the extents of an example that reads no file, or several."""
        self._others[index] = extents
        self._states[index] = _NOTHING

    def put_one_file_each(self, indices: NDArray[np.int64], extents: bytes) -> None:
        """Note the extents of several examples, each of which has one file."""
        self._table[indices] = np.frombuffer(extents, self._table.dtype)
        self._state_array[indices] = _ONE_FILE

    def get(self, index: int) -> bytes | None:
        """Return the extents of an example; None if they are not known."""
        if self._states[index] == _ONE_FILE:
            return self._memory[index * EXTENT_BYTES : (index + 1) * EXTENT_BYTES]
        return self._others.get(index)

    def last(self, index: int) -> bytes:
        """Return the extents that an example has or had; nothing if they are not known."""
        if self._states[index] == _GONE:
            return self._memory[index * EXTENT_BYTES : (index + 1) * EXTENT_BYTES]
        return self.get(index) or b""

    def forget(self, index: int) -> None:
        """Have an example looked at by a prefetcher the next time."""
        if self._states[index] == _ONE_FILE:
            self._states[index] = _GONE
        self._others.pop(index, None)

    def forget_all(self) -> None:
        """Have every example looked at by a prefetcher the next time."""
        self._state_array[self._state_array == _ONE_FILE] = _GONE
        self._others.clear()
