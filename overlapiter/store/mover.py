"""The mover: moves copies to a faster tier that has room, or to slower ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from overlapiter.origins.origin import LocalFile, Original

from .copier import Content, Copier, Room
from .extents import DamagedError, Extent, ExtentReader
from .outcome import MakeRoom, Outcome, Staged
from .store import Wanted
from .tiers import Copy, Tiers

#: So many files are read before they are written to another tier.
_AT_ONCE = 8


class Mover:
    """Has files rise and sink between tiers. Safe for threads."""

    def __init__(self, tiers: Tiers, copier: Copier) -> None:
        self._tiers = tiers
        self._copier = copier
        self._reader = ExtentReader([store.site.directory for store in tiers.stores])
        self._lock = threading.Lock()  # of the reader

    def is_right(self, extent: Extent, *, is_suspect: bool) -> bool:
        """Return whether the bytes of a copy are those that were staged; reads all of them."""
        with self._lock:
            if is_suspect:  # its segment may have been removed or replaced
                self._reader.close()
            return self._reader.is_right(extent)

    def lift(self, low: Mapping[Wanted, Extent]) -> tuple[dict[int, Staged], list[Wanted]]:
        """Have copies in slower tiers rise to the fastest one, as far as it has room.

        Returns the answers for those that lie there now, and the files that other processes copy.
        """
        tiers = self._tiers
        if not tiers.is_well(0):
            return {}, []
        try:
            claim = tiers.stores[0].claim([*low])
        except OSError as error:
            tiers.blame(0, error)
            return {}, []
        claimed = {*claim.mine}
        mine = {file: extent for file, extent in low.items() if file.key in claimed}
        left, copies = [*mine.items()], []
        while left and tiers.is_well(0):
            copies += self._copied(left[:_AT_ONCE], Room(range(1)))
            del left[:_AT_ONCE]
        failed = claimed - {copy.wanted.key for copy in copies}
        answers = tiers.publish(copies, [*failed], 0, is_moved=True)
        risen = {key: answer for key, answer in answers.items() if answer.extent is not None}
        tiers.drop([extent for file, extent in mine.items() if file.key in risen])
        risen |= {key: Staged.at(found.extent) for key, found in claim.found.items()}
        return risen, [file for file in low if file.key in claim.others]

    def evict(
        self, keys: Sequence[int], tier: int, make_room: MakeRoom | None
    ) -> dict[int, Staged | None]:
        """Have files sink from a tier to slower ones that have room, or go for good.

        Returns what became of the copy of each that was staged in the tier; None if there is none.
        """
        store = self._tiers.stores[tier]
        slower = range(tier + 1, len(self._tiers.stores))
        if not slower:
            return dict.fromkeys(store.evict(keys, keep_room=True))
        became: dict[int, Staged | None] = {}
        for first in range(0, len(keys), _AT_ONCE):  # the small ones lie in memory meanwhile
            here = store.files(keys[first : first + _AT_ONCE])
            copies = self._copied(here, Room(slower, make_room))
            answers = self._tiers.publish(copies, [], None, is_moved=True)
            there = [file.key for file, _ in here]
            store.evict(there, keep_room=True)
            became |= {key: answers.get(key) for key in there}
        return became

    def _copied(self, here: Sequence[tuple[Wanted, Extent]], room: Room) -> list[Copy]:
        """Copy files of a tier to others, as far as these have room; small ones together."""
        moved = [self._moved(file, extent, room) for file, extent in here]
        contents = [each for each in moved if isinstance(each, Content)]
        copies, _ = self._copier.write(contents, room)
        return copies + [each for each in moved if isinstance(each, Copy)]

    def _moved(self, file: Wanted, extent: Extent, room: Room) -> Content | Copy | None:
        """Return the content of a small file, the copy of a large one; None if there is none."""
        try:
            with self._lock:
                if not extent.is_whole:
                    data, found = self._reader.read(extent), Outcome.FOUND
                    return Content(file, data, extent.mtime, extent.checksum, found)
                # copy_long compares its bytes with the checksum, without the lock.
                source = LocalFile(file.path, self._reader.open_whole(extent))
        except (DamagedError, OSError):
            return None
        original = Original(extent.size, extent.mtime)
        with source:
            copied = self._copier.copy_long(
                file, source, original, room, extent.checksum, Outcome.FOUND
            )
        return None if isinstance(copied, Staged) else copied

    def close(self) -> None:
        """Close the segments that are open for reading."""
        with self._lock:
            self._reader.close()
