"""Residency: which examples are staged, how far to stage ahead, and who may go. Pure.

It is the supervisor's knowledge of what its prefetchers have done. Files that other processes
stage or evict meanwhile become known when they are looked at.
"""

from __future__ import annotations

from overlapiter.order import Indices
from overlapiter.store.eviction import Eviction, Victim
from overlapiter.workers.prefetcher.evictor import ABSENT
from overlapiter.workers.prefetcher.staging_work import Finding
from overlapiter.workers.supervisor.schedule import Part

#: Files that all ranks of a node stage ahead take up to this share of the directory. What they
#: take is lost to files that are kept for the next epoch: with a share ``f`` of the data set
#: staged, at most ``f (1 - f) / 16`` of the reads, 1.6 %, miss that would not otherwise.
_AHEAD_SHARE = 1 / 16
#: Victims are offered for so many times the bytes that are expected, and the largest file.
_GENEROSITY = 1.25
#: How often a part is staged again since there was no room; then it is read from the source.
_MAX_TRIES = 4
#: From this share of the capacity on, parts get victims, which they may not need.
_NEARLY_FULL = 0.9
#: So many parts read unstaged for lack of room are nothing to tell of.
_FEW_PARTS = 16
_FEW_SHARE = 0.02


class Residency:
    """What is staged, for one iterator.

    Args:
        n_examples: Examples in the dataset.
        n_tiers: Tiers of the staging directory.
        capacity_bytes: What they hold together; None if that is not limited.
        n_sharers: Ranks of this node, each of which stages ahead into the same directory.
    """

    def __init__(
        self, n_examples: int, n_tiers: int, capacity_bytes: int | None, n_sharers: int = 1
    ) -> None:
        self._n_examples = n_examples
        self._n_tiers = n_tiers
        self._capacity_bytes = capacity_bytes
        self._n_sharers = n_sharers
        self._eviction = Eviction(n_examples, n_tiers)
        self._offers: dict[int, list[Victim] | None] = {}
        self._n_refusals: dict[int, int] = {}  # of parts
        self._handed_out_id = -1
        self._is_full = False
        self._n_parts = self._n_unstaged = self._n_evicted = 0

    @property
    def is_short_of_room(self) -> bool:
        """Whether the user should know that parts are read unstaged for lack of room.

        A few may be where victims are many; there is nothing to be done about these.
        """
        is_rare = self._n_unstaged <= max(_FEW_PARTS, _FEW_SHARE * self._n_parts)
        return self._n_unstaged > 0 and not (is_rare and self._n_evicted)

    @property
    def limit_words(self) -> str:
        """What limits the room, for people to read."""
        if self._capacity_bytes is None:
            return "the disk has no more to spare (keep_free)"
        return f"the capacity is {self._capacity_bytes / 1e6:,.1f} MB, or the disk has no more"

    # --- the order ----------------------------------------------------------------------------

    def learn(self, orders: dict[int, Indices | None], others: dict[int, Indices]) -> None:
        """Take note of the orders of epochs, and of what the node's other ranks read meanwhile."""
        self._eviction.learn(orders, others)

    def settle(self, position: int) -> None:
        """Take note that all before ``position`` has been read."""
        self._eviction.settle(position)

    def restart(self) -> None:
        """Take note that the trainer starts anew somewhere."""
        self._eviction.restart()
        self._n_refusals.clear()

    # --- parts --------------------------------------------------------------------------------

    def may_run_ahead(self) -> bool:
        """Return whether to stage more than what is needed at once."""
        if self._capacity_bytes is not None:
            own_bytes = self._capacity_bytes / self._n_sharers
        elif self._is_full:
            own_bytes = self._eviction.staged_bytes  # so much the disk has room for, of this rank's
        else:
            return True
        return self._eviction.mean_bytes > 0 and self._ahead_bytes() < _AHEAD_SHARE * own_bytes

    def _ahead_bytes(self) -> float:
        return self._eviction.n_in_window * self._eviction.mean_bytes

    def choose_victims(self, part: Part) -> list[Victim] | None:
        """Return what may be evicted for a part; the caller hands it out, or gives them back.

        Returns:
            None if nothing needs to be: there has always been room, or all of it is staged.
        """
        if not self._is_full and not self._is_nearly_full():
            return None
        eviction = self._eviction
        n_missing = eviction.count_missing(self._plain(part.indices))
        if not n_missing:
            return None
        wanted_bytes = int(_GENEROSITY * n_missing * eviction.mean_bytes + eviction.largest_bytes)
        tiers = range(self._n_tiers)
        return [victim for tier in tiers for victim in eviction.offer(tier, max(wanted_bytes, 1))]

    def _is_nearly_full(self) -> bool:
        """Foresee that there will be no room: to be refused costs a read of the slow store."""
        if self._capacity_bytes is not None:
            expected_bytes = self._eviction.staged_bytes + self._ahead_bytes()
            own_bytes = self._capacity_bytes / self._n_sharers
            self._is_full = expected_bytes >= _NEARLY_FULL * own_bytes
        return self._is_full

    def tiers_of(self, part: Part) -> list[int]:
        """Return the tier of each example of a part; negative if nothing of it is known there."""
        return self._eviction.tiers_of(self._plain(part.indices))

    def hand_out(self, part: Part, victims: list[Victim] | None) -> None:
        """Take note that a part is handed out, and what may be evicted for it."""
        if part.part_id > self._handed_out_id:  # not one that is done again
            self._handed_out_id = part.part_id
            self._n_parts += 1
            self._eviction.hand_out(part.position, self._plain(part.indices))
        self._offers[part.part_id] = victims

    def hear(self, part: Part, findings: list[Finding], moved: dict[int, int | None]) -> bool:
        """Take note of what became of a part.

        Args:
            part: The part.
            findings: What is new of its examples.
            moved: The tier of each victim that was evicted from where it was; None for one that
                was not there.

        Returns:
            Whether to have it staged again, since there was no room, but can be.
        """
        victims = self._offers.pop(part.part_id, None)
        unused = []
        for victim in victims or ():
            tier = moved.get(victim.example, ABSENT)
            if victim.example not in moved:
                unused.append(victim)
            elif tier is None or tier == ABSENT:
                self._eviction.note_evicted(victim, was_there=tier is not None)
                self._n_evicted += tier is not None
            else:
                self._eviction.move(victim.example, tier)
        self._eviction.give_back(unused)
        for finding in findings:
            (example,) = self._plain([finding.example])
            self._eviction.note(
                example,
                finding.tier,
                finding.files,
                finding.paths,
                is_missing=finding.was_refused,
            )
        n_refusals = self._n_refusals.pop(part.part_id, 0)
        if not any(finding.was_refused for finding in findings):
            return False
        self._is_full = True
        # What its victims freed others may have taken; without a victim there is no hope.
        may_try_again = n_refusals + 1 < _MAX_TRIES and victims != []
        if may_try_again:
            self._n_refusals[part.part_id] = n_refusals + 1
        self._n_unstaged += not may_try_again
        return may_try_again

    def lose(self, part: Part) -> None:
        """Take note that the prefetcher that had a part has died."""
        self._eviction.give_back(self._offers.pop(part.part_id, None) or ())

    def _plain(self, indices: list[int]) -> list[int]:
        """Return indices that count from the start, as others that name the same examples."""
        return indices if min(indices) >= 0 else [index % self._n_examples for index in indices]
