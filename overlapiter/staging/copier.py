"""The copier: has files staged while the staging disk is well, and tells what is wrong with it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from overlapiter.origins.origin import Origin
from overlapiter.staging.breaker import Breaker
from overlapiter.staging.store import MakeRoom, Outcome, Staged, Store

#: Say nothing about the disk; the source may have a file where it had a directory.
_ABOUT_THE_PATH = {errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
#: The same, but of something that the user can do something about.
_ABOUT_THE_FILE = {errno.EFBIG: "it is beyond the limit of file sizes, ulimit -f"}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
_REFUSED = Staged(Outcome.REFUSED, None)
_FAILED = Staged(Outcome.FAILED, None)


class Copier:
    """Stages files. Safe for threads.

    While the staging disk is full or sick, files are not staged without asking it, and now and then
    one is tried, so that staging goes on by itself when the disk has recovered.

    Args:
        store: The store.
        tell: Called with what the user should know. The text does not depend on the file, so
            whoever leaves out what was told before says each thing once.
    """

    def __init__(self, store: Store, tell: Callable[[str], None]) -> None:
        self._store = store
        self._tell = tell
        self._sick = Breaker()
        self._full = Breaker()

    def copy(
        self, absolute: str, make_room: MakeRoom | None = None, origin: Origin | None = None
    ) -> Staged:
        """Copy a file to the staging directory, as :meth:`Store.fetch`; no disk makes it raise.

        Args:
            absolute: As for :meth:`Store.fetch`.
            make_room: The same; None if nothing can be done for a directory that is full.
            origin: The same.
        """
        now_seconds = time.monotonic()
        sick_ticket = self._sick.enter(now_seconds)
        full_ticket = 0 if make_room else self._full.enter(now_seconds)
        if sick_ticket is None:
            return _FAILED
        if full_ticket is None:
            return _REFUSED
        try:
            answer = self._fetch(absolute, make_room, origin)
        except OSError as error:
            if error.errno not in _ABOUT_THE_PATH and error.errno not in _ABOUT_THE_FILE:
                self._sick.failed(sick_ticket, time.monotonic())
            return self.blame(error)
        if answer.outcome is Outcome.COPIED:
            self._sick.succeeded(sick_ticket)
            self._full.succeeded(full_ticket)
        elif answer.outcome is Outcome.REFUSED:
            if make_room is None:
                self._full.failed(full_ticket, time.monotonic())
        elif answer.outcome is Outcome.TOO_LARGE:
            self._tell(
                f"a file is larger than all the room in {self._store.directory} and is read from "
                f"the source; raise Staging.capacity, or lower keep_free"
            )
        elif answer.outcome is Outcome.BUSY:
            self._tell(
                f"some files of {self._store.directory} are read from the source: another process "
                f"keeps them claimed and writes nothing, or is counting what lies there; if that "
                f"goes on, see whether the slow store stalls, or a job here was stopped or hangs"
            )
        return answer

    def _fetch(self, absolute: str, make_room: MakeRoom | None, origin: Origin | None) -> Staged:
        n_victims = 1
        while True:
            try:
                return self._store.fetch(absolute, make_room, origin)
            except OSError as error:  # somebody else fills the disk, or has a quota
                if error.errno not in _NO_ROOM:
                    raise
            # The file was read for nothing, so each time twice as many go.
            n_freed = 0 if make_room is None else sum(make_room() for _ in range(n_victims))
            if not n_freed:
                return _REFUSED
            n_victims *= 2

    def blame(self, error: OSError) -> Staged:
        """Return the answer for a file at which the staging disk failed, and tell of it."""
        if error.errno in _ABOUT_THE_FILE:
            self._tell(
                f"a file cannot be staged in {self._store.directory} ({error.strerror}) and is "
                f"read from the source: {_ABOUT_THE_FILE[error.errno]}"
            )
        elif error.errno not in _ABOUT_THE_PATH:
            advice = "see whether that disk is full or broken"
            if error.errno in _NO_DESCRIPTOR:
                advice = "raise the limit of open files (ulimit -n), or lower reads_in_flight"
            self._tell(
                f"staging in {self._store.directory} failed ({error.strerror or error}): files are "
                f"read from the source, and staging is tried again by itself; {advice}"
            )
        return _FAILED
