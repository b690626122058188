"""Segments: anonymous shared memory that several processes map, and the slots in them.

A segment has no name (``memfd_create``): the kernel frees it with its last user, and the size of
/dev/shm does not limit it. Every row of a slot is reserved before its first use, so that a lack of
memory, as of descriptors or address space, raises a SharedMemoryError here, from whatever makes,
maps or reserves something, and never a bus error in the middle of a copy.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING, NamedTuple

from overlapiter.errors import SharedMemoryError

if TYPE_CHECKING:  # a trainer makes no pools
    from overlapiter.sharedmem.layout import Layout


class Slot(NamedTuple):
    """The memory of one mini-batch: a range of a segment.

    Messages have it as a plain tuple, which is pickled in a quarter of the time.
    """

    segment_id: int
    offset_bytes: int


#: The limits that cause these errors.
_LIMITS = {
    errno.EMFILE: "the limit of open files, ulimit -n",
    errno.EFBIG: "the limit of file sizes, ulimit -f",
    errno.ENOMEM: "the memory of the job, or the limit of address space, ulimit -v",
}


class Segment:
    """One piece of shared memory, mapped; it closes the descriptor."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        try:
            self.memory = mmap.mmap(fd, size_bytes)
        except (OSError, ValueError, OverflowError) as error:
            os.close(fd)
            raise SharedMemoryError(size_bytes, _reason(error)) from error

    @classmethod
    def create(cls, size_bytes: int) -> Segment:
        """Make a segment that takes no memory yet; see :meth:`reserve`."""
        fd = -1
        try:
            fd = os.memfd_create("overlapiter-slots", os.MFD_CLOEXEC)
            os.ftruncate(fd, size_bytes)
        except (OSError, ValueError, OverflowError) as error:
            if fd >= 0:
                os.close(fd)
            raise SharedMemoryError(size_bytes, _reason(error)) from error
        return cls(fd, size_bytes)

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:
        """Allocate the memory of a range, zeroed."""
        try:
            os.posix_fallocate(self.fd, offset_bytes, length_bytes)
        except OSError as error:
            raise SharedMemoryError(length_bytes, _reason(error)) from error

    def forget(self, offset_bytes: int, length_bytes: int) -> None:
        """Free the memory of a page-aligned range; its content is lost."""
        self.memory.madvise(mmap.MADV_REMOVE, offset_bytes, length_bytes)

    def close(self) -> None:
        """Close the descriptor; the mapping ends with its last view."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _reason(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    text = os.strerror(number) if number else str(error)
    return f"{text}: see {_LIMITS[number]}" if number in _LIMITS else text


class SlotPool:
    """Slots of one layout, in segments of doubling size, so that few segments hold many slots.

    Args:
        layout: The layout.
        n_expected: Slots in use in steady state; the memory of more free slots is freed.
    """

    def __init__(self, layout: Layout, n_expected: int, *, keeps_memory: bool = False) -> None:
        #: Whether no memory is freed, since its pages are locked for a device.
        self.keeps_memory = keeps_memory
        self.layout = layout
        self._stride_bytes = -(-layout.slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._n_expected = n_expected
        self.segments: dict[int, Segment] = {}
        self._warm: list[Slot] = []  # with memory; last in, first out, for the processor's cache
        self._cold: list[Slot] = []  # without memory
        self._lacking: dict[Slot, set[int]] = {}  # rows without memory, of slots that were cold
        self._n_slots = 0

    def is_used_up(self) -> bool:
        """Return whether no slot is free, so that a segment must be added."""
        return not self._warm and not self._cold

    def is_idle(self) -> bool:
        """Return whether every slot is free."""
        return len(self._warm) + len(self._cold) == self._n_slots

    def add_segment(self, segment_id: int) -> None:
        """Add a segment, with as many slots as there are already."""
        n_new = max(self._n_expected, self._n_slots)
        self.segments[segment_id] = Segment.create(n_new * self._stride_bytes)
        starts = range((n_new - 1) * self._stride_bytes, -1, -self._stride_bytes)
        self._cold.extend(Slot(segment_id, start) for start in starts)
        self._n_slots += n_new

    def acquire(self) -> Slot:
        """Return a free slot; its rows are to be reserved before they are written."""
        if self._warm:
            return self._warm.pop()
        slot = self._cold.pop()
        self._lacking[slot] = set(range(self.layout.n_rows))
        return slot

    def reserve(self, slot: Slot, rows: range) -> None:
        """Allocate the memory of rows of a slot, unless they have it.

        It takes a millisecond for 3 MB, so that of a whole mini-batch would hold up its first part.

        Args:
            slot: One that was acquired.
            rows: The rows; not none.
        """
        lacking = self._lacking.get(slot)
        if lacking is None or lacking.isdisjoint(rows):
            return
        for column in self.layout.columns:
            if column.row_bytes:
                start_bytes = column.offset_bytes + rows.start * column.row_bytes
                self.segments[slot.segment_id].reserve(
                    slot.offset_bytes + start_bytes, len(rows) * column.row_bytes
                )
        lacking.difference_update(rows)
        if not lacking:
            del self._lacking[slot]

    def release(self, slot: Slot) -> None:
        """Take back a slot that has no views any more."""
        if len(self._warm) < self._n_expected or self.keeps_memory:
            self._warm.append(slot)
        else:
            self.segments[slot.segment_id].forget(slot.offset_bytes, self._stride_bytes)
            self._lacking.pop(slot, None)
            self._cold.append(slot)

    def close(self) -> None:
        """Close all segments in this process; other processes keep what they have mapped."""
        for segment in self.segments.values():
            segment.close()
        self.segments.clear()
