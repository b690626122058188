"""The tiers: one that is full or sick is left alone for a while, and the user is told why."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from overlapiter.origins.origin import SizeUntoldError

from .breaker import Breaker
from .extents import Extent
from .index import IndexBusyError
from .outcome import Outcome, Staged
from .segments import NO_ROOM
from .store import Claim, Found, Place, Store, Wanted

_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
#: What to do about an error that is not the disk's.
_ADVICE = {
    **dict.fromkeys(_NO_DESCRIPTOR, "raise the limit of open files (ulimit -n), or lower "
                                    "reads_in_flight"),
    errno.ENOENT: "see whether something removes files there",
    errno.ENOSYS: "have /proc mounted in this container",
}  # fmt: skip


class Copy(NamedTuple):
    """A copy that is complete and not published; the answer is for when it is."""

    wanted: Wanted
    place: Place
    extent: Extent
    answer: Staged


class Tiers:
    """The stores of all tiers, and what each has refused lately. Safe for threads.

    No method raises what a disk does: where a store fails, its tier is blamed.

    Attributes:
        stores: One for each tier, the fastest first.
        sick: For each tier, whether its disk may be asked.
        full: For each tier, whether it may be asked for room.
    """

    def __init__(self, stores: Sequence[Store], warn: Callable[[str], None]) -> None:
        self.stores = stores
        self._warn = warn
        self.sick = [Breaker() for _ in stores]
        self.full = [Breaker() for _ in stores]

    def is_well(self, tier: int) -> bool:
        """Return whether nothing is known to be the matter with a tier."""
        return self.sick[tier].is_closed and self.full[tier].is_closed

    def blame(self, tier: int, error: OSError) -> Staged:
        """Return the answer for a file at which a tier failed, and tell the user why."""
        directory = self.stores[tier].site.directory
        if isinstance(error, IndexBusyError):
            self.say_busy(tier)
            return Staged(Outcome.BUSY)
        if error.errno == errno.EFBIG:  # which says nothing about the disk
            self._warn(
                f"a file cannot be staged in {directory} ({error.strerror}): it is beyond the "
                f"limit of file sizes, ulimit -f"
            )
            return Staged(Outcome.FAILED)
        if error.errno in NO_ROOM:  # for the index: as if there were none for the file
            self.full[tier].failed(time.monotonic())
            return Staged(Outcome.REFUSED)
        self.sick[tier].failed(time.monotonic())
        advice = _ADVICE.get(error.errno or 0, "see whether that disk is broken")
        self._warn(
            f"staging in {directory} failed ({error.strerror or error}): files are read from the "
            f"source, and staging is tried again by itself; {advice}"
        )
        return Staged(Outcome.FAILED)

    def blame_source(self, tier: int, error: Exception) -> Staged:
        """Return the answer for a source file that cannot be opened, on its way to a tier.

        It is the matter of the file reader, which meets the same; that this process has no
        descriptor left is none of the file's.
        """
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
            return self.blame(tier, error)
        if isinstance(error, SizeUntoldError):
            self._warn(
                "the slow store does not tell the size of some files: they are read there, and not "
                "staged; have the server send their length (Content-Length)"
            )
            return Staged(Outcome.FAILED)
        return Staged(Outcome.SOURCE_FAILED)

    def say_busy(self, tier: int) -> None:
        """Tell the user that other processes keep files, or the index, for too long."""
        self._warn(
            f"some files of {self.stores[tier].site.directory} are read from the source: another "
            f"process keeps them claimed and writes nothing, or keeps the index locked; if that "
            f"goes on, see whether the slow store stalls, or a job here was stopped or hangs"
        )

    def say_too_large(self, tiers: range) -> None:
        """Tell the user that a file is larger than all the room of each of some tiers."""
        where = " and in ".join(self.stores[tier].site.directory for tier in tiers)
        self._warn(
            f"a file is larger than all the room in {where} and is read from the source; raise "
            f"the capacity there, or lower keep_free"
        )

    # --- what is staged -----------------------------------------------------------------------

    def look(self, wanted: Sequence[Wanted], unseen: dict[int, Staged]) -> dict[int, Found]:
        """Return what is staged of some files, in the fastest tier that has each.

        ``unseen`` are tiers that do not answer, and why: they are not asked, and others are added.
        """
        found: dict[int, Found] = {}
        for tier, store in enumerate(self.stores):
            left = [file for file in wanted if file.key not in found] if found else wanted
            if not left:
                break
            if tier in unseen:
                continue
            try:
                found |= store.look(left)
            except OSError as error:
                unseen[tier] = self.blame(tier, error)
        return found

    def claim(
        self,
        files: Sequence[Wanted],
        outdated: Sequence[Extent],
        unseen: Mapping[int, Staged],
        home: int | None,
    ) -> tuple[Claim, int] | Staged:
        """Claim files in the fastest tier that is well, or at ``home``, where others of a part are.

        Outdated copies are dropped in each tier. Returns the claim and its tier, or the answer for
        all files.
        """
        claimed, answer = None, Staged(Outcome.FAILED)
        for tier, store in enumerate(self.stores):
            if tier in unseen:  # a copy that is there now may not have been compared
                answer = unseen[tier]
                continue
            if not self.sick[tier].is_passable(time.monotonic()):
                continue
            try:
                store.drop(extent for extent in outdated if extent.tier == tier)
                if claimed is None and home in (None, tier):
                    claimed = store.claim(files), tier
            except OSError as error:
                answer = self.blame(tier, error)
        return claimed or answer

    def publish(
        self,
        copies: Sequence[Copy],
        failed: Sequence[int],
        home: int | None,
        *,
        is_moved: bool = False,
    ) -> dict[int, Staged]:
        """Publish copies, a transaction for each tier; return the answer for each.

        ``failed`` are keys of files that were claimed and not copied. ``home`` is the tier that has
        the claims, which end last; None if there are none. ``is_moved`` is that of
        :meth:`.Store.publish`.
        """
        answers: dict[int, Staged] = {}
        for tier, store in reversed([*enumerate(self.stores)]):
            here = [copy for copy in copies if copy.extent.tier == tier]
            ended: list[int] = []
            if tier == home:  # the claims lie there, wherever the bytes are
                ended = [*failed, *(c.wanted.key for c in copies if c.extent.tier != tier)]
            if not here and not ended:
                continue
            try:
                is_published = store.publish([copy[:3] for copy in here], ended, is_moved=is_moved)
            except OSError as error:
                answer = self.blame(tier, error)
                answers |= {copy.wanted.key: answer for copy in here}
                continue
            self.sick[tier].succeeded()
            gone = None if is_published else Staged(Outcome.FAILED)
            answers |= {copy.wanted.key: gone or copy.answer for copy in here}
        return answers

    def drop(self, extents: Sequence[Extent]) -> None:
        """Evict copies, unless others have taken their places meanwhile."""
        self._each(extents, lambda store, own: store.drop(own))

    def note_verified(self, extents: Sequence[Extent]) -> None:
        """Note that copies were read since the node was booted; else they are verified again."""
        self._each(extents, lambda store, own: store.note_verified([e.key for e in own]))

    def _each(self, extents: Sequence[Extent], act: Callable[[Store, list[Extent]], None]) -> None:
        for tier, store in enumerate(self.stores):
            own = [extent for extent in extents if extent.tier == tier]
            try:
                if own:
                    act(store, own)
            except OSError as error:
                self.blame(tier, error)

    def give_up(self, tier: int, place: Place) -> None:
        """Give up a place whose copy is not to be published."""
        try:
            self.stores[tier].give_up(place)
        except OSError as error:
            self.blame(tier, error)
