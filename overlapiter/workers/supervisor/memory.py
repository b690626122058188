"""The slots of mini-batches, in the supervisor, which tells processes of layouts and segments."""

from __future__ import annotations

from collections.abc import Iterable

from overlapiter.sharedmem.layout import Layout
from overlapiter.sharedmem.segments import Slot, SlotPool
from overlapiter.workers.supervisor.contact import Contact

#: The slot of mini-batches without arrays.
NO_MEMORY = Slot(-1, 0)


class SlotKeeper:
    """Keeps the slots. Each layout has a pool of its own; old ones go when they are idle."""

    def __init__(self, n_expected: int) -> None:
        self._n_expected = n_expected  # slots in use in steady state
        self._keeps_memory = False
        self._pools: dict[int, SlotPool] = {}  # by layout
        self._next_segment_id = 0
        self.layout_id = -1  # until an example has been seen

    def adopt(self, layout: Layout) -> None:
        """Use a layout from now on."""
        self.layout_id += 1
        self._pools[self.layout_id] = SlotPool(
            layout, self._n_expected, keeps_memory=self._keeps_memory
        )

    def keep_memory(self) -> None:
        """Free no memory of a pool that is in use from now on: the trainer locks its pages."""
        self._keeps_memory = True
        for pool in self._pools.values():
            pool.keeps_memory = True

    def widen(self, layout_id: int, wanted_row_bytes: list[int]) -> None:
        """Use wider rows from now on, unless that has been done since ``layout_id``."""
        if layout_id == self.layout_id:
            self.adopt(self._pools[layout_id].layout.widened(wanted_row_bytes))

    def acquire(self, n_rows: int) -> Slot:
        """Return a free slot of the current layout, lengthened to at least ``n_rows`` examples.

        Its rows are to be reserved.

        Raises:
            SharedMemoryError: The limit of address space or of descriptors is reached.
        """
        layout = self._pools[self.layout_id].layout
        if layout.n_rows < n_rows:
            self.adopt(layout.lengthened(n_rows))
        if not layout.slot_bytes:
            return NO_MEMORY
        pool = self._pools[self.layout_id]
        if pool.is_used_up():
            pool.add_segment(self._next_segment_id)
            self._next_segment_id += 1
        return pool.acquire()

    def reserve(self, layout_id: int, slot: Slot, rows: range) -> None:
        """Have rows of a slot of this layout backed by memory.

        Raises:
            SharedMemoryError: There is no memory for them.
        """
        if slot.segment_id >= 0:
            self._pools[layout_id].reserve(slot, rows)

    def release(self, slot: Slot, contacts: Iterable[Contact]) -> None:
        """Take a slot back; memory of old layouts that is idle is dropped by all."""
        for pool in self._pools.values():
            if slot.segment_id in pool.segments:
                pool.release(slot)
        for layout_id, pool in [*self._pools.items()]:
            if layout_id != self.layout_id and pool.segments and pool.is_idle():
                for segment_id in pool.segments:
                    for contact in contacts:
                        contact.send(("forget", segment_id, layout_id))
                        contact.segments.discard(segment_id)
                        contact.layouts.discard(layout_id)
                del self._pools[layout_id]
                pool.close()

    def make_known(self, contact: Contact, layout_id: int, slot: Slot) -> None:
        """Send a process the layout and the segment of a slot, unless it knows them."""
        if layout_id not in contact.layouts:
            contact.layouts.add(layout_id)
            contact.send(("layout", layout_id, self._pools[layout_id].layout))
        if slot.segment_id >= 0 and slot.segment_id not in contact.segments:
            contact.segments.add(slot.segment_id)
            segment = self._pools[layout_id].segments[slot.segment_id]
            contact.send(("segment", slot.segment_id, segment.size_bytes), (segment.fd,))

    def close(self) -> None:
        """Drop all memory here; other processes keep what they have mapped."""
        for pool in self._pools.values():
            pool.close()
