"""What a rank uses is curves of its trace: cores, memory, and a GPU where there is one."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlapiter.mpi.training.monitor import Monitor, gpu_of
from overlapiter.tracing import begin_trace


class NVMLError(Exception):
    """As NVIDIA's library raises it."""


class Nvml:
    """Two GPUs, of which the second one does not tell how busy it is, or no driver at all."""

    NVMLError = NVMLError

    def __init__(self, *, has_driver: bool = True) -> None:
        self._has_driver = has_driver
        self.n_begun = 0

    def nvmlInit(self) -> None:  # its name
        if not self._has_driver:
            raise NVMLError("Driver Not Loaded")
        self.n_begun += 1

    def nvmlShutdown(self) -> None:  # its name
        self.n_begun -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # its name
        if index > 1:
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:  # its name
        return {"GPU-a": 0, "GPU-b": 1}[name]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # its name
        return SimpleNamespace(used=(handle + 1) * 10**9)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # its name
        if handle == 1:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=75)


def curves_of(tmp_path: Path, device: str) -> dict[str, list[float]]:
    """Return the values of each curve that a rank with a device writes."""
    trace = begin_trace(tmp_path / "trace.json")
    with trace, Monitor(trace, device):
        pass  # it looks a last time
    found: dict[str, list[float]] = defaultdict(list)
    for event in json.loads((tmp_path / "trace.json").read_text().rstrip().rstrip(",") + "]"):
        if event["ph"] == "C":
            found[event["name"]].append(event["args"]["used"])
    return dict(found)


def test_a_rank_without_a_gpu_shows_cores_and_memory(tmp_path: Path) -> None:
    curves = curves_of(tmp_path, "cpu")
    assert curves.keys() == {"CPU, cores", "memory, MB"}
    assert curves["memory, MB"][-1] > 10


@pytest.mark.parametrize("device", ["0", "@cupy:0", "cuda", "cuda:0"])
def test_a_rank_with_a_gpu_shows_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    curves = curves_of(tmp_path, device)
    assert curves["GPU, MB"][-1] == 1000
    assert curves["GPU, %"][-1] == 75
    assert not nvml.n_begun


@pytest.mark.parametrize("visible", ["1", "GPU-b", "1,0"])
def test_the_gpu_is_the_one_that_the_job_sees(
    monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    gpu = gpu_of("cuda:0", {"CUDA_VISIBLE_DEVICES": visible})
    assert gpu is not None
    assert gpu.look() == {"MB": 2000}


@pytest.mark.parametrize("device", ["cpu", "-1", "@numpy", "native:0", "cuda:7"])
def test_without_such_a_gpu_nothing_is_said(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_of(device, {}) is None
    assert not nvml.n_begun


def test_without_a_driver_or_the_library_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(has_driver=False))
    assert gpu_of("cuda:0", {}) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_of("cuda:0", {}) is None
