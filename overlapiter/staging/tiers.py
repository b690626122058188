"""The tiers of a staging directory: RAM above NVMe, say. A copy lies in one of them.

A file enters at the fastest tier. When there is no room, files sink: the one whose next use is
farthest goes to the next tier, from the last one it goes for good. So what is needed soon or often
stays on top.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from overlapiter.origins.origin import LocalOrigin, Original, OriginalFile
from overlapiter.sources import stamp_of
from overlapiter.staging.copier import Copier
from overlapiter.staging.interest import INTEREST_FILE, Interest
from overlapiter.staging.store import Outcome, Staged, Store

#: Why another tier is tried; of several reasons the first one counts, for it may pass.
_NOT_HERE = (Outcome.REFUSED, Outcome.FAILED, Outcome.TOO_LARGE)

#: Asked to free something in a tier; says whether it could.
MakeRoomIn = Callable[[int], bool]


class Found(NamedTuple):
    """A copy, valid or not.

    Attributes:
        copy: What is known of it.
        tier: The tier that it is in.
    """

    copy: os.stat_result
    tier: int

    @property
    def stamp(self) -> int:
        """Its stamp."""
        return stamp_of(self.copy)


class Tiers:
    """The stores of one source root, the fastest first. Safe for threads and processes.

    Args:
        stores: One for each tier.
        tell: Called with what the user should know; see :class:`Copier`.
        who: A number of this run, the same in all its processes.
    """

    def __init__(self, stores: Sequence[Store], tell: Callable[[str], None], who: int) -> None:
        self._stores = stores
        interest = Interest(os.path.join(stores[-1].base, INTEREST_FILE), who)
        self.want = interest.want
        self.is_wanted_by_others = interest.is_wanted_by_others
        self._copiers = [Copier(store, tell) for store in stores]

    def __len__(self) -> int:
        return len(self._stores)

    def excess_bytes(self, tier: int) -> int:
        """Return by how much the capacity of a tier is exceeded. Raises OSError."""
        return self._stores[tier].excess_bytes()

    def peek(self, absolute: str) -> Found | None:
        """Look for a copy of a file; None if there is none. Asks no source, and never raises."""
        for tier, (store, copier) in enumerate(zip(self._stores, self._copiers, strict=True)):
            try:
                copy = store.peek(absolute)
            except OSError as error:
                copier.blame(error)
            else:
                if copy is not None:
                    return Found(copy, tier)
        return None

    def compare(self, absolute: str, found: Found, *, stamp: int = 0) -> Staged | None:
        """Return the copy that :meth:`peek` found if it is valid, as :meth:`Store.compare`."""
        answer = self._stores[found.tier].compare(absolute, found.copy, stamp=stamp)
        return answer and answer._replace(tier=found.tier)

    def copy(self, absolute: str, make_room: MakeRoomIn | None) -> Staged:
        """Copy a file to the fastest tier that takes it. No disk makes it raise.

        Args:
            absolute: Normalised absolute path below the source.
            make_room: Asked while a tier has no room; None if nothing can be done.
        """
        if len(self._stores) > 1:  # another process may have put it into a slower one meanwhile
            found = self.peek(absolute)
            answer = None if found is None else self.compare(absolute, found)
            if answer is not None:
                return answer
        answers = []
        for tier, copier in enumerate(self._copiers):
            answer = copier.copy(absolute, make_room and _in_tier(make_room, tier))
            if answer.outcome not in _NOT_HERE:
                self._drop_others(absolute, tier)
                return answer._replace(tier=tier)
            answers.append(answer)
        return min(answers, key=lambda answer: _NOT_HERE.index(answer.outcome))

    def _drop_others(self, absolute: str, tier: int) -> None:
        """Remove outdated copies in slower tiers, which nobody would look at."""
        if tier + 1 == len(self._stores):
            return
        for copier, store in zip(self._copiers[tier + 1 :], self._stores[tier + 1 :], strict=True):
            try:
                store.evict(absolute)
            except OSError as error:
                copier.blame(error)

    def sink(self, absolute: str, tier: int, make_room: MakeRoomIn | None) -> Staged | None:
        """Move the copy of a file from ``tier`` to the next one that takes it.

        Returns:
            Where it is now; None if it is gone for good.

        Raises:
            OSError: The disk of its tier failed.
        """
        store = self._stores[tier]
        origin = _Above(store)
        answer = None
        slower = range(tier + 1, len(self._stores))
        for lower in slower if store.is_intact(absolute) else ():
            room = make_room and _in_tier(make_room, lower)
            answer = self._copiers[lower].copy(absolute, room, origin)
            if answer.path is not None:
                answer = answer._replace(tier=lower)
                break
            answer = None
        store.evict(absolute)
        return answer


class _Above:
    """The origin of a file that sinks: its copy in the tier above."""

    is_local = True

    def __init__(self, store: Store) -> None:
        self._store = store
        self._local = LocalOrigin()

    def stat(self, path: str) -> Original:
        return self._local.stat(self._store.staged_path(path))

    def open(self, path: str) -> contextlib.AbstractContextManager[OriginalFile]:
        return self._local.open(self._store.staged_path(path))


def _in_tier(make_room: MakeRoomIn, tier: int) -> Callable[[], bool]:
    return lambda: make_room(tier)
