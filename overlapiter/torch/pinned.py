"""Page-locked slots for PyTorch: ``pin_memory=True`` without a further copy."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

#: Flag of cudaHostRegister: page-locked for every device of the process.
_PORTABLE = 1


class TorchLocker:
    """Locks pages by cudaHostRegister; those that it cannot lock PyTorch copies, as ever."""

    def __init__(self) -> None:
        self._is_refused = False

    def lock(self, address: int, length_bytes: int) -> bool:
        """Lock a range of pages. Blocks for some milliseconds; the first refusal is the last."""
        if self._is_refused:
            return False
        code = int(torch.cuda.cudart().cudaHostRegister(address, length_bytes, _PORTABLE))
        if code:
            self._is_refused = True
            warnings.warn(
                f"CUDA cannot lock the memory of mini-batches (error {code}), so each is copied "
                "to memory that it can; `ulimit -l unlimited` may help",
                RuntimeWarning,
                stacklevel=2,
            )
        return not code

    def unlock(self, address: int) -> None:
        """Wait for the devices, and unlock the pages."""
        for device in _devices():
            torch.cuda.synchronize(device)
        torch.cuda.cudart().cudaHostUnregister(address)

    def mark(self) -> Callable[[], bool]:
        """Record an event on the current stream of each device that the program uses.

        A copy in another stream is done by then only if the current one waits for that stream.
        """
        events = []
        for device in _devices():
            with torch.cuda.device(device):
                events.append(torch.cuda.Event())
                events[-1].record()
        return lambda: all(event.query() for event in events)


def _devices() -> list[int]:
    count = torch.cuda.device_count()
    return [device for device in range(count) if torch._C._cuda_hasPrimaryContext(device)]
