"""The slots that the trainer holds: lent to its mini-batches until nothing views them any more."""

from __future__ import annotations

import collections
import os
import weakref
from collections.abc import Sequence

from .layout import NO_LAYOUT, Array
from .pagelocks import PageLocks
from .segments import Segment, Slot
from .slots import FilledSlot, Report

#: Appends itself to the released slots when the last view of its slot, the key, is gone. It does so
#: without any code of Python's, in which an interrupt could arrive, to be printed and forgotten.
_Loan = weakref.KeyedRef[Slot, Array]


class LentSlots:
    """The slots of one supervisor. What is released after it has died is released here, in vain.

    Args:
        locks: Locks their pages; None as long as no device asks for it.
    """

    def __init__(self, locks: PageLocks | None = None) -> None:
        self.locks = locks
        self.layouts = {-1: NO_LAYOUT}
        self.segments: dict[int, Segment] = {}  # by their numbers, mapped
        # Filled by whichever thread drops the last view of a slot.
        self._released: collections.deque[Slot | _Loan] = collections.deque()
        self._loans: dict[Slot, _Loan] = {}

    def add_segment(self, segment_id: int, fd: int, size_bytes: int) -> None:
        """Map a segment whose descriptor has come, and close that."""
        if segment_id in self.segments:  # after a reset: a second mapping would not be locked
            os.close(fd)
            return
        segment = self.segments[segment_id] = Segment(fd, size_bytes)
        segment.close()  # the mapping is enough

    def forget(self, segment_id: int, layout_id: int) -> None:
        """Drop a segment, which stays mapped as long as it is viewed, and its layout."""
        if self.locks is not None:
            self.locks.unlock(segment_id)
        self.segments.pop(segment_id, None)
        self.layouts.pop(layout_id, None)

    def filled(
        self, layout_id: int, slot: Slot, reports: Sequence[tuple[int, int, Report]]
    ) -> FilledSlot:
        """Return a slot with a mini-batch in it, which is released with its last view."""
        segment = self.segments.get(slot.segment_id)
        filled = FilledSlot.of(self.layouts[layout_id], segment, slot, reports)
        if filled.root is None:
            self._released.append(slot)
        else:
            self._loans[slot] = weakref.KeyedRef(filled.root, self._released.append, slot)
            if self.locks is not None:
                self.locks.lock(slot, filled.root)
        return filled

    def release(self, slot: Slot) -> None:
        """Release a slot that was not viewed."""
        self._released.append(slot)

    def take_released(self) -> list[Slot]:
        """Return the slots that neither a mini-batch nor a device needs any more, each once."""
        slots = []
        while self._released:
            released = self._released.popleft()
            slots.append(released if isinstance(released, Slot) else released.key)
            self._loans.pop(slots[-1], None)
        return slots if self.locks is None else self.locks.drained(slots)

    def close(self) -> None:
        """Unlock the slots and forget them; what is viewed stays mapped."""
        if self.locks is not None:  # nothing global here: the interpreter may be ending
            self.locks.unlock()
        self.locks = None
        self.layouts.clear()
        self.segments.clear()
