"""Room in the staging directory: the capacity, and what is kept free on the disk.

Bytes in use are counted in the usage file that all processes of the node share (see
:mod:`.usage`), whether they have a capacity or not. What is granted is counted, and becomes the
size of the partial file, before the first byte is written; what is removed is removed before it is
counted as free. So the count is never too low, and the capacity is never exceeded, at any moment.
A process that is killed in between leaves the count too high; that, and what users remove by hand,
is mended by counting anew when there is no room, now and then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import os
import threading
import time
from collections.abc import Callable

from overlapiter.errors import StagingError
from overlapiter.staging.advance import (
    ADVANCE_BYTES,
    ADVANCE_INODES,
    Advance,
    amount,
    grant,
    n_out,
    seconds_to_end,
)
from overlapiter.staging.amounts import bytes_below, is_empty, partials, to_come_bytes
from overlapiter.staging.holder import boot_number
from overlapiter.staging.usage import BusyError, Usage, UsageFile

#: The disk is looked at anew when 1/256 of what it had to spare has been granted.
_SHARES = 256
#: Or after so long, for others may write to it.
_FRESH_SECONDS = 1
#: A file takes whole blocks of the disk, and so does each directory on its way.
_BLOCK_BYTES = 4096
#: Partial files come into being before there is a grant for them: one for each read in flight.
_INODES_IN_FLIGHT = 256
#: Counting takes a while, so it is done so seldom, and takes at most this share of the time.
_RECOUNT_SECONDS = 600
_RECOUNT_SHARE = 200
#: While nobody has counted: after how long another process takes over from one that was killed.
_COUNTING_SECONDS = 60
#: How long a request waits for a recount: few files are counted at once.
_RECOUNT_WAIT_SECONDS = 0.5


class _Answer(enum.Enum):
    GRANTED = "granted"
    DISK_FULL = "the disk has nothing to spare"
    FULL = "the capacity is reached"
    UNCOUNTED = "nobody has counted"


#: After which answers the files are counted anew, and how long nobody else does so then.
_PAUSES_SECONDS = {_Answer.FULL: _RECOUNT_SECONDS, _Answer.UNCOUNTED: _COUNTING_SECONDS}


class Room:
    """Decides whether a file fits into the staging directory. Safe for threads.

    Args:
        directory: The staging directory.
        capacity_bytes: Most bytes of staged files and partial files, by their sizes; None for no
            limit.
        keep_free_bytes: Free space to leave on the disk.
        keep_free_inodes: Free inodes to leave, where the file system has a fixed number of them.
        advance: Has room for small files granted in advance; :meth:`rest` is to be called when
            nothing is reserved for a while, and in the end.
    """

    def __init__(
        self,
        directory: str,
        capacity_bytes: int | None,
        keep_free_bytes: int,
        keep_free_inodes: int = 0,
        *,
        advance: Advance | None = None,
    ) -> None:
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._keep_free_bytes = keep_free_bytes
        self._keep_free_inodes = keep_free_inodes
        self._most_bytes: int | None = None
        self._advance = advance
        self._turn = threading.Lock()
        self._file = UsageFile(directory)
        # Bytes not counted as free yet, if they are known, and recounts by then.
        self._owed: list[tuple[int | None, int]] = []

    def prepare(self) -> None:
        """Make the usage file; an empty staging directory is counted at once. Walks nothing.

        Raises:
            StagingError: The directory cannot be read or written.
        """
        try:
            with contextlib.suppress(BusyError), self._file.hold() as usage:
                if not usage.boot and is_empty(self._directory):
                    usage.boot = boot_number()
        except OSError as error:
            message = f"cannot count what is staged ({error.strerror})"
            raise StagingError(self._directory, message) from error

    # --- granting -----------------------------------------------------------------------------

    def can_hold(self, size_bytes: int) -> bool:
        """Return whether a file would fit if nothing else were there. Raises OSError as reserve."""
        if self._most_bytes is None:
            disk = os.statvfs(self._directory)
            self._most_bytes = disk.f_blocks * disk.f_frsize - self._keep_free_bytes
            if self._capacity_bytes is not None:
                self._most_bytes = min(self._most_bytes, self._capacity_bytes)
        return size_bytes <= self._most_bytes

    def excess_bytes(self) -> int:
        """Return by how much the capacity is exceeded, as counted: it was larger, or given by few.

        Costs a look at the usage file; 0 if nobody can tell. Raises OSError as reserve.
        """
        if self._capacity_bytes is not None:
            with contextlib.suppress(BusyError):
                usage = self._file.look()
                if usage.boot == boot_number():
                    return max(0, usage.used_bytes - self._capacity_bytes)
        return 0

    def reserve(self, size_bytes: int, *, n_inodes: int = 1, fd: int | None = None) -> bool:
        """Set ``size_bytes`` aside for a file; return False if they do not fit.

        May count the files anew, if nobody has or when they do not fit; waits for half a second of
        that at most, the rest is done by a thread.

        Args:
            size_bytes: Size of the file.
            n_inodes: Files and directories that may be made for it.
            fd: The partial file, which is given that size, so that others see what it will take.

        Raises:
            OSError: The disk does not answer.
            BusyError: Nobody can tell, for another process keeps the count to itself.
        """
        if self._take(size_bytes, n_inodes, fd):
            return True
        with self._turn:
            if self._take(size_bytes, n_inodes, fd):  # of what another thread has just got
                return True
            answer, is_count_due = self._ask(size_bytes, n_inodes, fd)
        if is_count_due and self._count():
            with self._turn:
                answer, _ = self._ask(size_bytes, n_inodes, fd)
        if answer is _Answer.UNCOUNTED:
            raise BusyError
        return answer is _Answer.GRANTED

    def _take(self, size_bytes: int, n_inodes: int, fd: int | None) -> bool:
        advance = self._advance
        return advance is not None and fd is not None and advance.fill(fd, size_bytes, n_inodes)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is left of what was granted in advance."""
        return self._advance is None or self._advance.is_empty

    def rest(self) -> None:
        """Count as free what is left of what was granted in advance, if that can be done now."""
        advance = self._advance
        if advance is not None and not advance.is_empty:
            with contextlib.suppress(OSError, BusyError), self._turn, self._file.hold() as usage:
                advance.end(usage)

    def _ask(self, size_bytes: int, n_inodes: int, fd: int | None) -> tuple[_Answer, bool]:
        """Return the answer, and whether the caller is to count anew, which nobody else does."""
        advance_bytes = 0
        with self._file.hold() as usage:
            self._settle(usage)
            if self._advance is not None:
                self._advance.end(usage)
            answer = self._decide(usage, size_bytes, n_inodes)
            if answer is _Answer.GRANTED:
                if fd is not None:  # in this order: a kill in between counts too much
                    usage.otherwise = usage.packed()
                    usage.afterwards.append(functools.partial(os.ftruncate, fd, size_bytes))
                usage.used_bytes += size_bytes
                usage.granted_bytes += size_bytes
                usage.granted_inodes += n_inodes
                if fd is not None and self._advance is not None:
                    advance_bytes = self._grant_advance(usage, size_bytes)
            is_count_due = answer in _PAUSES_SECONDS and _is_count_due(usage)
            if is_count_due:
                usage.recount_due_seconds = int(time.time()) + _PAUSES_SECONDS[answer]
        if self._advance is not None and advance_bytes:
            self._advance.begin(usage, advance_bytes)
        return answer, is_count_due

    def _grant_advance(self, usage: Usage, size_bytes: int) -> int:
        """Grant an advance, if it is worth it beside such a file; return how many bytes."""
        advance_bytes = amount(usage, size_bytes, self._capacity_bytes)
        if advance_bytes and self._is_plenty(usage, advance_bytes, ADVANCE_INODES):
            grant(usage, advance_bytes)
            return advance_bytes
        return 0

    def _decide(self, usage: Usage, size_bytes: int, n_inodes: int) -> _Answer:
        if self._capacity_bytes is not None:
            if usage.boot != boot_number():
                return _Answer.UNCOUNTED
            if usage.used_bytes + size_bytes > self._capacity_bytes:
                return _Answer.FULL
        if not self._is_disk_roomy(usage, size_bytes, n_inodes):
            return _Answer.DISK_FULL
        return _Answer.GRANTED

    def _is_disk_roomy(self, usage: Usage, size_bytes: int, n_inodes: int) -> bool:
        """Ask the disk, or go by what it said while that leaves plenty for everybody."""
        if self._is_plenty(usage, size_bytes, n_inodes):
            return True
        self._look(usage)
        if size_bytes + n_inodes * _BLOCK_BYTES > usage.disk_bytes - self._keep_free_bytes:
            return False
        return usage.disk_inodes < 0 or n_inodes <= usage.disk_inodes - self._keep_free_inodes

    def _is_plenty(self, usage: Usage, size_bytes: int, n_inodes: int) -> bool:
        """Return whether the disk had plenty, and not long ago."""
        if not self._keep_free_bytes and not self._keep_free_inodes:
            return True
        is_fresh = abs(int(time.time()) - usage.looked_seconds) <= _FRESH_SECONDS
        new_inodes = usage.granted_inodes - usage.looked_inodes + n_inodes
        new_bytes = usage.granted_bytes - usage.looked_bytes + new_inodes * _BLOCK_BYTES
        spare_bytes = usage.disk_bytes - self._keep_free_bytes
        spare_inodes = usage.disk_inodes - self._keep_free_inodes
        are_inodes_fine = usage.disk_inodes < 0 or new_inodes <= spare_inodes // _SHARES
        return is_fresh and are_inodes_fine and new_bytes + size_bytes <= spare_bytes // _SHARES

    def _look(self, usage: Usage) -> None:
        """Note what the disk has free, less what files being copied will still take of it."""
        n_advances = n_out(usage)  # nobody knows of how much of these there are files already
        on_the_way_bytes = n_advances * (ADVANCE_BYTES + ADVANCE_INODES * _BLOCK_BYTES)
        on_the_way_bytes += sum(to_come_bytes(entry) for entry in partials(self._directory))
        disk = os.statvfs(self._directory)  # afterwards, else what is written now is in neither
        usage.disk_bytes = disk.f_bavail * disk.f_frsize - on_the_way_bytes
        usage.disk_inodes = -1
        if disk.f_files:
            in_flight = min(_INODES_IN_FLIGHT, disk.f_files // 8)
            in_flight += n_advances * ADVANCE_INODES
            usage.disk_inodes = max(0, disk.f_favail - in_flight)
        usage.looked_bytes = usage.granted_bytes
        usage.looked_inodes = usage.granted_inodes
        usage.looked_seconds = int(time.time())

    # --- giving back --------------------------------------------------------------------------

    def free(self, remove: Callable[[], int | None]) -> int:
        """Have files removed, and count what they took as free; return how much that is.

        Args:
            remove: Removes files, or parts of them, and returns as how many bytes they were
                counted. If it returns None, since nobody knows, nothing is counted as free before
                the next recount, for which there is no pause then.

        Raises:
            OSError: From ``remove``, or the disk does not answer.
        """
        n_recounts = -1  # nobody can tell: what is removed counts until the next recount
        with contextlib.suppress(BusyError):
            n_recounts = self._file.look().n_recounts
        size_bytes = remove()
        if size_bytes != 0:
            self._owed.append((size_bytes, n_recounts))
            with contextlib.suppress(BusyError), self._file.hold() as usage:
                self._settle(usage)  # else at the next occasion
        return size_bytes or 0

    def _settle(self, usage: Usage) -> None:
        """Count as free what this process has removed."""
        while self._owed:
            size_bytes, n_recounts = self._owed.pop()
            if size_bytes is None:
                usage.recount_due_seconds = 0
            # What was removed before a recount may be missing from it, so that one stands.
            elif n_recounts == usage.n_recounts:
                usage.used_bytes = max(0, usage.used_bytes - size_bytes)

    # --- counting -----------------------------------------------------------------------------

    def counts(self) -> tuple[int | None, int]:
        """Return the bytes in use as counted, None if nobody has, and as the files have them.

        Walks the staging directory. The two differ while others use it, and after some were killed.

        Raises:
            OSError: The disk does not answer.
            BusyError: Another process keeps the count to itself.
        """
        with self._file.hold() as usage:
            self._settle(usage)
        is_counted = usage.boot == boot_number()
        return (usage.used_bytes if is_counted else None), bytes_below(self._directory)

    def recount(self) -> None:
        """Count the bytes in use anew, from the files themselves. Walks the staging directory.

        Others may go on meanwhile. What they are granted is added, and what they remove may have
        been seen, so the result may be too high, never too low. Files that have grown by hand are
        noticed as far as nobody is granted as much meanwhile.

        Raises:
            OSError: The disk does not answer.
            BusyError: Another process keeps the count to itself.
        """
        with self._file.hold() as usage:
            before = dataclasses.replace(usage)
        time.sleep(seconds_to_end(before))
        start_seconds = time.monotonic()
        found_bytes = bytes_below(self._directory)
        took_seconds = time.monotonic() - start_seconds
        with self._file.hold() as usage:
            self._settle(usage)
            granted_bytes = usage.granted_bytes - before.granted_bytes
            most_bytes = found_bytes + granted_bytes
            # Whatever was found was counted before, or has been granted since.
            was_too_low = found_bytes > before.used_bytes + granted_bytes
            if usage.boot == boot_number() and not was_too_low:
                most_bytes = min(most_bytes, usage.used_bytes)
            usage.used_bytes = most_bytes
            usage.boot = boot_number()
            usage.n_recounts += 1
            pause_seconds = max(_RECOUNT_SECONDS, _RECOUNT_SHARE * took_seconds)
            usage.recount_due_seconds = int(time.time() + pause_seconds)

    def _count(self) -> bool:
        """Count anew in a thread; return whether it was done in no time."""
        thread = threading.Thread(target=self._recount_quietly, daemon=True)
        try:
            thread.start()  # ends with its process, at any point
        except RuntimeError:  # the limit of processes and threads
            self._recount_quietly()
            return True
        thread.join(_RECOUNT_WAIT_SECONDS)
        return not thread.is_alive()

    def _recount_quietly(self) -> None:
        with contextlib.suppress(OSError, BusyError):  # whoever needs room meets the same
            self.recount()


def _is_count_due(usage: Usage) -> bool:
    now = int(time.time())
    latest = now + _RECOUNT_SHARE * _RECOUNT_SECONDS  # beyond it, the clock was set back
    return not now < usage.recount_due_seconds <= latest
