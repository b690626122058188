"""The mover: publishes copies, and moves them to a faster tier that has room, or to slower ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from overlapiter.origins.origin import LocalFile, Original

from .copier import Content, Copier, Copy
from .extents import DamagedError, Extent, ExtentReader
from .health import Health
from .index import IndexBusyError
from .outcome import MakeRoom, Outcome, Staged
from .store import Store, Wanted

#: So many files are read before they are written to another tier.
_AT_ONCE = 8


class Mover:
    """Publishes copies, and has files rise and sink between tiers. Safe for threads."""

    def __init__(self, stores: Sequence[Store], copier: Copier, health: Health) -> None:
        self._stores = stores
        self._copier = copier
        self._health = health
        self._reader = ExtentReader([store.site.directory for store in stores])
        self._lock = threading.Lock()  # of the reader

    def is_right(self, extent: Extent, *, is_suspect: bool) -> bool:
        """Return whether the bytes of a copy are those that were staged; reads all of them."""
        with self._lock:
            if is_suspect:  # its segment may have been removed or replaced
                self._reader.close()
            return self._reader.is_right(extent)

    def make_known(
        self, copies: Sequence[Copy], home: int | None, failed: Sequence[int]
    ) -> dict[int, Staged]:
        """Publish copies, a transaction for each tier; the claims end last.

        Args:
            copies: The copies.
            home: The tier that has the claims; None if there are none.
            failed: Keys of files that were claimed and not copied.

        Returns:
            The answer for each copy.
        """
        answers: dict[int, Staged] = {}
        for tier, store in reversed([*enumerate(self._stores)]):
            here = [copy for copy in copies if copy.extent.tier == tier]
            ended: list[int] = []
            if tier == home:  # the claims lie there, wherever the bytes are
                ended = [*failed, *(c.wanted.key for c in copies if c.extent.tier != tier)]
            if not here and not ended:
                continue
            try:
                is_published = store.publish([copy[:3] for copy in here], ended)
            except (OSError, IndexBusyError) as error:
                answer = self._health.blame(tier, error)
                answers |= {copy.wanted.key: answer for copy in here}
                continue
            self._health.sick[tier].succeeded()
            gone = None if is_published else Staged(Outcome.FAILED)
            answers |= {copy.wanted.key: gone or copy.answer for copy in here}
        return answers

    def lift(self, low: Mapping[Wanted, Extent]) -> tuple[dict[int, Staged], list[Wanted]]:
        """Have copies in slower tiers rise to the fastest one, as far as it has room.

        Returns:
            The answers for those that lie there now, and the files that other processes copy.
        """
        if not self._health.is_well(0):
            return {}, []
        try:
            claim = self._stores[0].claim([*low], self._copier.expected_bytes(len(low)))
        except (OSError, IndexBusyError) as error:
            self._health.blame(0, error)
            return {}, []
        claimed = {*claim.mine}
        mine = {file: extent for file, extent in low.items() if file.key in claimed}
        left, copies = [*mine.items()], []
        while left and self._health.is_well(0):
            copies += self._copied(left[:_AT_ONCE], range(1), None)
            del left[:_AT_ONCE]
        failed = claimed - {copy.wanted.key for copy in copies}
        answers = self.make_known(copies, 0, [*failed])
        risen = {key: answer for key, answer in answers.items() if answer.extent is not None}
        for tier, store in enumerate(self._stores):
            try:
                store.drop([e for file, e in mine.items() if file.key in risen and e.tier == tier])
            except (OSError, IndexBusyError) as error:
                self._health.blame(tier, error)
        risen |= {key: Staged.at(found.extent) for key, found in claim.found.items()}
        return risen, [file for file in low if file.key in claim.others]

    def evict(
        self, files: Sequence[Wanted], tier: int, make_room: MakeRoom | None
    ) -> dict[int, Staged | None]:
        """Have files sink from a tier to slower ones that have room, or go for good.

        Returns:
            For each key that was staged in the tier: what became of its copy; None if there is
            none.
        """
        store = self._stores[tier]
        tiers = range(tier + 1, len(self._stores))
        if not tiers:
            return dict.fromkeys(store.evict([file.key for file in files], keep_room=True))
        became: dict[int, Staged | None] = {}
        for first in range(0, len(files), _AT_ONCE):  # the small ones lie in memory meanwhile
            some = files[first : first + _AT_ONCE]
            found = store.look(some)
            here = [(file, found[file.key].extent) for file in some if file.key in found]
            answers = self.make_known(self._copied(here, tiers, make_room), None, [])
            store.evict(list(found), keep_room=True)
            became |= {key: answers.get(key) for key in found}
        return became

    def _copied(
        self, here: Sequence[tuple[Wanted, Extent]], tiers: range, make_room: MakeRoom | None
    ) -> list[Copy]:
        """Copy files of a tier to others, as far as these have room; small ones together."""
        moved = [self._moved(file, extent, tiers, make_room) for file, extent in here]
        contents = [each for each in moved if isinstance(each, Content)]
        copies, _ = self._copier.write(contents, tiers, make_room)
        return copies + [each for each in moved if isinstance(each, Copy)]

    def _moved(
        self, file: Wanted, extent: Extent, tiers: range, make_room: MakeRoom | None
    ) -> Content | Copy | None:
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
        original, expected = Original(extent.size, extent.mtime), (extent.checksum, Outcome.FOUND)
        with source:
            copied = self._copier.copy_long(
                file, source, original, tiers, make_room, None, expected
            )
        return None if isinstance(copied, Staged) else copied

    def close(self) -> None:
        """Close the segments that are open for reading."""
        with self._lock:
            self._reader.close()
