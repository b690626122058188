"""Which tiers may be asked: those that are full or sick are left alone for a while, and why."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence

from .breaker import Breaker
from .index import IndexBusyError
from .outcome import Outcome, Staged
from .segments import NO_ROOM
from .store import Store

_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
#: What to do about an error that is not the disk's.
_ADVICE = {
    **dict.fromkeys(_NO_DESCRIPTOR, "raise the limit of open files (ulimit -n), or lower "
                                    "reads_in_flight"),
    errno.ENOENT: "see whether something removes files there",
    errno.ENOSYS: "have /proc mounted in this container",
}  # fmt: skip


class Health:
    """What each tier has refused lately. Safe for threads.

    Attributes:
        sick: For each tier, whether its disk may be asked.
        full: For each tier, whether it may be asked for room.
    """

    def __init__(self, stores: Sequence[Store], warn: Callable[[str], None]) -> None:
        self._stores = stores
        self._warn = warn
        self.sick = [Breaker() for _ in stores]
        self.full = [Breaker() for _ in stores]

    def is_well(self, tier: int) -> bool:
        """Return whether nothing is known to be the matter with a tier."""
        return self.sick[tier].is_closed and self.full[tier].is_closed

    def blame(self, tier: int, error: OSError | IndexBusyError) -> Staged:
        """Return the answer for a file at which a tier failed, and tell the user why."""
        directory = self._stores[tier].site.directory
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
        return Staged(Outcome.SOURCE_FAILED)

    def say_busy(self, tier: int) -> None:
        """Tell the user that other processes keep files, or the index, for too long."""
        self._warn(
            f"some files of {self._stores[tier].site.directory} are read from the source: another "
            f"process keeps them claimed and writes nothing, or keeps the index locked; if that "
            f"goes on, see whether the slow store stalls, or a job here was stopped or hangs"
        )

    def say_too_large(self, tiers: range) -> None:
        """Tell the user that a file is larger than all the room of each of some tiers."""
        where = " and in ".join(self._stores[tier].site.directory for tier in tiers)
        self._warn(
            f"a file is larger than all the room in {where} and is read from the source; raise "
            f"the capacity there, or lower keep_free"
        )
