"""Page-locked slots: a GPU reads them without a copy by the processor, while the trainer goes on.

A device may still be reading a slot when the trainer has dropped its last view: the copy to the
device was only queued. So a slot is given back when the device has done all that was queued before,
and a trainer that queues faster than the device computes waits here: else it would take a new slot
for each mini-batch, and locking one takes milliseconds.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

from overlapiter.errors import warn

from .layout import Array
from .segments import Slot

#: Releases of slots that the device may be behind: enough for it to have work all the time.
_MOST_BEHIND = 3
_LOOK_AFTER_SECONDS = 0.0002
#: The device may wait for something that the trainer does only later.
_PATIENCE_SECONDS = 10.0


class PageLocker(Protocol):
    """The driver of a device, in the trainer process."""

    def lock(self, address: int, length_bytes: int) -> None:
        """Lock the pages of a range of memory. Blocks for some milliseconds.

        Raises:
            RuntimeError: It cannot.
        """

    def unlock(self, address: int) -> None:
        """Unlock the range that begins at this address, after the device has done with it.

        Raises:
            RuntimeError: It cannot: after an error on a device CUDA does nothing more.
        """

    def mark(self) -> Callable[[], bool]:
        """Return a function that tells whether all that is queued on the device now is done."""


class PageLocks:
    """The slots of one iterator whose pages are locked."""

    def __init__(self, locker: PageLocker) -> None:
        self._locker = locker
        self._owner_pid = os.getpid()
        self._is_refused = False
        self._addresses: dict[Slot, int] = {}
        self._draining: collections.deque[tuple[Callable[[], bool], list[Slot]]] = (
            collections.deque()
        )

    def lock(self, slot: Slot, memory: Array) -> None:
        """Lock the pages of a slot, which are ``memory`` here, if they are not locked yet.

        After the first refusal it asks no more, and warns of that.
        """
        if slot in self._addresses or self._is_refused:
            return
        address = memory.__array_interface__["data"][0]
        length_bytes = -(-memory.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self._addresses[slot] = address  # first: an interruption is not to leave it locked
            self._locker.lock(address, length_bytes)
        except RuntimeError as error:
            del self._addresses[slot]
            self._is_refused = True
            warn(
                f"CUDA cannot lock the memory of mini-batches ({error}), so the processor copies "
                "them on their way to the GPU; `ulimit -l unlimited` may help",
                RuntimeWarning,
            )

    def drained(self, slots: list[Slot]) -> list[Slot]:
        """Return the slots that the device has done with, of these without views and of earlier.

        Blocks while it is far behind.
        """
        if slots:
            self._draining.append((self._locker.mark(), slots))
        done: list[Slot] = []
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._draining:
            is_done, slots = self._draining[0]
            if is_done():
                done += slots
                self._draining.popleft()
            elif len(self._draining) <= _MOST_BEHIND or time.monotonic() > deadline:
                break
            else:
                time.sleep(_LOOK_AFTER_SECONDS)
        return done

    def unlock(
        self,
        segment_id: int | None = None,
        is_ending: Callable[[], bool] = sys.is_finalizing,
        getpid: Callable[[], int] = os.getpid,
    ) -> None:
        """Unlock the slots of a segment, or all of them, which then are never given back.

        Unlocks nothing where the interpreter is ending, since the driver may be gone, and the
        kernel frees the memory; nor in a forked child, where the driver does not work. To find that
        out it names nothing global: modules may have lost their names.
        """
        if is_ending() or getpid() != self._owner_pid:
            return
        if segment_id is None:
            self._draining.clear()  # unlocking waits for the device
        for slot in [s for s in self._addresses if segment_id in (None, s.segment_id)]:
            with contextlib.suppress(RuntimeError):  # the user's code has met the device's error
                self._locker.unlock(self._addresses.pop(slot))
