"""Page-locked slots for CuPy: CUDA reads them directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chainer

cuda = chainer.backends.cuda  # CuPy, where it is installed

_CURRENT = 0  # flag of cudaHostRegister: nothing special


class CupyLocker:
    """Locks pages by cudaHostRegister.

    Args:
        device: The ``cupy.cuda.Device`` that mini-batches go to, on its current stream.
    """

    def __init__(self, device: Any) -> None:
        self._device = device

    def lock(self, address: int, length_bytes: int) -> None:
        """Lock a range of pages; CuPy's error of CUDA is a RuntimeError."""
        with self._device:
            cuda.cupy.cuda.runtime.hostRegister(address, length_bytes, _CURRENT)

    def unlock(self, address: int) -> None:
        """Wait for the device, and unlock the pages."""
        with self._device:
            self._device.synchronize()
            cuda.cupy.cuda.runtime.hostUnregister(address)

    def mark(self) -> Callable[[], bool]:
        """Record an event on the current stream."""
        with self._device:
            event = cuda.cupy.cuda.Event(block=False, disable_timing=True)
            event.record()
        return lambda: bool(event.done)
