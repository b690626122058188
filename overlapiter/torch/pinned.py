"""Slots that CUDA has page-locked, so that ``pin_memory=True`` costs no copy."""

from __future__ import annotations

import collections
import mmap
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from overlapiter.pipeline import Views
from overlapiter.sharedmem.layout import Array, Layout
from overlapiter.sharedmem.segments import Segment, Slot
from overlapiter.sharedmem.slots import Report

#: Page-locked for every device of the process; from <driver_types.h> of CUDA.
_HOST_REGISTER_PORTABLE = 1


def can_register() -> bool:
    """Return whether there is a CUDA that can page-lock memory of ours."""
    return torch.cuda.is_available() and hasattr(torch.cuda.cudart(), "cudaHostRegister")


class PinnedMemory(mmap.mmap):
    """Shared memory that CUDA has page-locked, until it is unmapped with its last view."""

    _address = 0
    _owner_pid = 0

    def register(self) -> int:
        """Have CUDA page-lock the memory; return its error number, 0 for success."""
        address = np.frombuffer(self, np.uint8).ctypes.data
        code = torch.cuda.cudart().cudaHostRegister(address, len(self), _HOST_REGISTER_PORTABLE)
        if int(code) == 0:
            self._address, self._owner_pid = address, os.getpid()
        return int(code)

    def __del__(self) -> None:
        """Have CUDA let go of the memory; the kernel unmaps it afterwards."""
        if self._address and self._owner_pid == os.getpid() and not sys.is_finalizing():
            torch.cuda.cudart().cudaHostUnregister(self._address)
            self._address = 0


class PinnedViews(Views):
    """Shows slots in page-locked memory; does not have one reused while a device copies from it.

    Args:
        inner: Shows what is in them.
    """

    def __init__(self, inner: Views) -> None:
        self._inner = inner
        self._has_warned = False
        self.forget()

    def forget(self) -> None:
        """Forget the slots of a supervisor that has died."""
        #: Slots without views, with the events before which devices may still read them.
        self._in_use: collections.deque[tuple[list[torch.cuda.Event], list[Slot]]]
        self._in_use = collections.deque()

    def map(self, fd: int, size_bytes: int) -> Segment:
        """Map and page-lock a segment; where CUDA refuses that, PyTorch copies as ever."""
        segment = Segment(fd, size_bytes, PinnedMemory)
        segment.close()
        code = segment.memory.register()  # type: ignore[attr-defined]  # a PinnedMemory
        if code and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"CUDA cannot page-lock the {size_bytes / 1e6:.0f} MB of the mini-batches (error "
                f"{code}), so each is copied to memory that it can; look at the limit of locked "
                f"memory (ulimit -l)",
                RuntimeWarning,
                stacklevel=8,
            )
        return segment

    def view(
        self,
        layout: Layout,
        segment: Segment | None,
        slot: Slot,
        reports: Sequence[tuple[int, int, Report]],
        lend: Callable[[Array | None], None],
    ) -> Any:
        """Return the mini-batch."""
        return self._inner.view(layout, segment, slot, reports, lend)

    def view_empty(self, reports: Sequence[tuple[int, int, Report]]) -> Any:
        """Return a mini-batch without examples."""
        return self._inner.view_empty(reports)

    def reusable(self, slots: list[Slot]) -> list[Slot]:
        """Return the slots that no device reads any more.

        A copy with ``non_blocking=True`` may go on after its tensor is gone. It is done once the
        device has done all that the program has asked of its current stream up to now; a copy in
        another stream is, too, if the current one has been told to wait for that.
        """
        if slots:
            self._in_use.append((_events_now(), slots))
        done: list[Slot] = []
        while self._in_use and all(event.query() for event in self._in_use[0][0]):
            done += self._in_use.popleft()[1]
        return done


def _events_now() -> list[torch.cuda.Event]:
    """Return an event for the current stream of each device that the program uses."""
    events = []
    for device in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(device):
            events.append(torch.cuda.Event())
            events[-1].record(torch.cuda.current_stream(device))
    return events
