"""The copier: has files staged while the staging disk is well, and tells what is wrong with it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from .breaker import Breaker
from .store import Outcome, Staged, Store

#: Say nothing about the disk; the source may have a file where it had a directory.
_ABOUT_THE_PATH = {errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
#: The same, but of something that the user can do something about.
_ABOUT_THE_FILE = {errno.EFBIG: "it is beyond the limit of file sizes, ulimit -f"}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
_REFUSED = Staged(Outcome.REFUSED, None)


class Copier:
    """Stages files. Safe for threads.

    While the staging disk is full or sick, files are refused without asking it, and now and then
    one is tried, so that staging goes on by itself when the disk has recovered.

    Args:
        store: The store.
        tell: Called with what the user should know. The text does not depend on the file, so
            whoever leaves out what was told before says each thing once.
    """

    def __init__(self, store: Store, tell: Callable[[str], None]) -> None:
        self._store = store
        self._tell = tell
        self._breaker = Breaker()

    def copy(self, absolute: str) -> Staged:
        """Copy a file to the staging directory, as :meth:`Store.fetch`; no disk makes it raise."""
        ticket = self._breaker.enter(time.monotonic())
        if ticket is None:
            return _REFUSED
        try:
            answer = self._store.fetch(absolute)
        except OSError as error:
            if error.errno not in _ABOUT_THE_PATH and error.errno not in _ABOUT_THE_FILE:
                self._breaker.failed(ticket, time.monotonic())
            return self.blame(error)
        if answer.outcome is Outcome.COPIED:
            self._breaker.succeeded(ticket)
        elif answer.outcome is Outcome.REFUSED:
            self._breaker.failed(ticket, time.monotonic())
            self._tell_full()
        elif answer.outcome is Outcome.BUSY:
            self._tell(
                f"another process keeps files in {self._store.directory} claimed and writes "
                f"nothing: they are read from the source; see whether the slow store stalls, or a "
                f"job on this node was stopped or hangs"
            )
        return answer

    def blame(self, error: OSError) -> Staged:
        """Return the answer for a file at which the staging disk failed, and tell of it."""
        if error.errno in _NO_ROOM:
            self._tell_full()
        elif error.errno in _ABOUT_THE_FILE:
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
        return _REFUSED

    def _tell_full(self) -> None:
        self._tell(
            f"the staging directory {self._store.directory} is full: further files are read from "
            f"the source until there is room; raise Staging.capacity, lower keep_free, or free "
            f"space on the disk"
        )
