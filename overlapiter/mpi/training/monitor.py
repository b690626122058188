"""Curves in the trace of what a rank uses: cores, memory, and the GPU of its model."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from overlapiter.tracing import Tracing

_PAUSE_SECONDS = 0.25
_MB = 1e6


def memory_bytes() -> int:
    """Return how much of the memory this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Monitor:
    """A thread that looks at this process four times a second; a context manager that ends it."""

    def __init__(self, trace: Tracing, device: str) -> None:
        self._trace = trace
        self._gpu = gpu_of(device, os.environ)
        self._at = time.monotonic(), time.process_time()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def _run(self) -> None:
        while not self._is_closed.wait(_PAUSE_SECONDS):
            self._look()

    def _look(self) -> None:
        before, self._at = self._at, (time.monotonic(), time.process_time())
        cores = (self._at[1] - before[1]) / max(self._at[0] - before[0], 1e-9)
        self._trace.counter("CPU, cores", used=round(cores, 2))
        self._trace.counter("memory, MB", used=round(memory_bytes() / _MB, 1))
        if self._gpu is not None:
            for name, value in self._gpu.look().items():
                self._trace.counter(f"GPU, {name}", used=value)

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_closed.set()
        self._thread.join()
        self._look()
        if self._gpu is not None:
            self._gpu.nvml.nvmlShutdown()


class Gpu(NamedTuple):
    """A GPU, as NVIDIA's management library sees it, whatever framework uses it."""

    nvml: Any  # the module pynvml, begun
    handle: Any

    def look(self) -> dict[str, float]:
        """Return its memory, and the share of time in which it computed, as far as it tells."""
        found: dict[str, float] = {}
        with contextlib.suppress(self.nvml.NVMLError):  # a part of a GPU has no such share
            found["MB"] = round(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used / _MB, 1)
            found["%"] = self.nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu
        return found


def gpu_of(device: str, environment: Mapping[str, str]) -> Gpu | None:
    """Return the GPU that a device of Chainer's or PyTorch's names, or None.

    There is none without nvidia-ml-py, or a driver. ``CUDA_VISIBLE_DEVICES`` in the environment
    says which GPU has which number.
    """
    match = re.fullmatch(r"(?:@cupy|@chainerx|cuda|:)*(\d*)", device)
    if match is None or not device:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    number = int(match[1] or 0)
    visible = [word for word in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
    try:
        name = visible[number] if visible else str(number)
        pynvml.nvmlInit()
    except (pynvml.NVMLError, IndexError):
        return None
    try:
        if name.isdecimal():
            return Gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(name)))
        return Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
    except pynvml.NVMLError:
        pynvml.nvmlShutdown()
        return None
