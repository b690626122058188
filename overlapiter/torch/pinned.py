"""Page-locked slots for PyTorch: ``pin_memory=True`` without a further copy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

#: Flag of cudaHostRegister: page-locked for every device of the process.
_PORTABLE = 1
#: How many streams PyTorch has of each priority; it gives them in turn.
_POOL_STREAMS = 32
#: Where a device has fewer, the last of them stands for the rest.
_PRIORITIES = (0, -1, -2, -3)


class TorchLocker:
    """Locks pages by cudaHostRegister; those that it cannot lock PyTorch copies, as ever."""

    def __init__(self) -> None:
        self._streams_of: dict[int, list[torch.cuda.Stream]] = {}

    def lock(self, address: int, length_bytes: int) -> None:
        """Lock a range of pages."""
        with _any_device():
            code = int(torch.cuda.cudart().cudaHostRegister(address, length_bytes, _PORTABLE))
            if code:
                # CUDA keeps the error for who asks next, which would be the user's own code.
                with contextlib.suppress(RuntimeError):
                    torch.ones((), device="cuda")
                raise RuntimeError(f"error {code}")

    def unlock(self, address: int) -> None:
        """Wait for the devices, and unlock the pages."""
        with _any_device():
            for device in _devices():
                torch.cuda.synchronize(device)
            torch.cuda.cudart().cudaHostUnregister(address)

    def mark(self) -> Callable[[], bool]:
        """Record an event on each stream of PyTorch's that is at work, on all devices in use.

        Which stream a mini-batch was copied on is not known: PyTorch tells only its own allocator.
        """
        streams = [
            stream
            for device in _devices()
            for stream in {torch.cuda.current_stream(device), *self._streams(device)}
        ]
        events = [stream.record_event() for stream in streams if not stream.query()]
        return lambda: all(event.query() for event in events)

    def _streams(self, device: int) -> list[torch.cuda.Stream]:
        """Return the default stream of a device and those that PyTorch gives in turn."""
        if device not in self._streams_of:
            given = [
                torch.cuda.Stream(device, p) for p in _PRIORITIES for _ in range(_POOL_STREAMS)
            ]
            self._streams_of[device] = [torch.cuda.default_stream(device), *dict.fromkeys(given)]
        return self._streams_of[device]


def _any_device() -> torch.cuda.device:
    """Return a context in which a device is current that is in use, if there is one.

    To begin with another one would cost memory of it.
    """
    return torch.cuda.device(next(iter(_devices()), torch.cuda.current_device()))


def _devices() -> list[int]:
    count = torch.cuda.device_count()
    return [device for device in range(count) if torch._C._cuda_hasPrimaryContext(device)]
