"""``overlapiter.torch.DataLoader`` beside PyTorch's own: the same mini-batches of images.

PyTorch's reads the slow store with 2 to 64 workers, and the local disk with 2; ours has 2 workers,
with nothing staged before and with everything::

    python -m bench pytorch
    python -m bench pytorch --mount fuse

``import torch`` is done before the clock starts. Our workers are not forked from the trainer; they
import it, too, while the clock runs, if the data set does: that is a line of its own.

On the FUSE mount NVIDIA DALI's CPU pipeline and Meta's SPDL do the same work, where they are
installed: ``pip install nvidia-dali-cuda120 nvidia-nvimgcodec-cu12`` (1 GB), ``pip install spdl``.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from bench.harness import isolated
from bench.harness.claim import Claim
from bench.harness.options import numbers, option
from bench.harness.targets import target_of, target_rows
from bench.loaders import report
from bench.loaders.sources import MountOptions
from bench.loaders.spec import PACKAGES

if TYPE_CHECKING:
    from pathlib import Path

#: How long a run may take, many times what it does: other loaders may hang.
MOST_SECONDS = 180.0


@dataclass
class PytorchOptions(MountOptions):
    """What is run."""

    batches: int = option(200, "mini-batches of ours, and of PyTorch's on the local disk")
    slow_batches: int = option(50, "of PyTorch's on the slow store with 2 workers")
    batch_size: int = option(32, "images in a mini-batch")
    readers: list[int] = option([2, 8, 16, 32, 64], "workers of PyTorch's", type=numbers)
    repeats: int = 3


def import_torch(_request: dict) -> dict:
    """Return how long ``import torch`` takes in this process, in seconds."""
    start = time.monotonic()
    importlib.import_module("torch")
    return {"seconds": time.monotonic() - start}


class Blank:
    """Images in memory, all black; a map-style data set."""

    def __len__(self) -> int:
        return 3200

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.zeros((3, 256, 256), np.float32), index


def trainer_cpu(request: dict) -> dict:
    """Return the microseconds of CPU that taking a mini-batch costs the trainer, and no more."""
    import torch

    import overlapiter

    kind = overlapiter.torch if request["is_ours"] else torch.utils.data
    batches = iter(kind.DataLoader(Blank(), 32, num_workers=2))
    next(batches)
    start = time.process_time()
    n_batches = sum(1 for _ in batches)
    return {"us": (time.process_time() - start) / n_batches * 1e6}


def measure(options: PytorchOptions, scratch: Path) -> dict:
    """Do all runs."""
    ours = {"n_readers": 2, "n_batches": options.batches}
    points: list[dict] = [
        {"loader": "overlap-torch", **ours},
        {"loader": "overlap-torch-staged", **ours},
        {"loader": "torch-local", **ours},
        {"loader": "ceiling", **ours},
        {"loader": "overlap-torch-importing", **ours},
        *({"loader": "torch", "n_readers": n_readers, "name": f"torch, {n_readers} workers",
           "n_batches": options.slow_batches if n_readers == 2 else options.batches}
          for n_readers in options.readers),
    ]  # fmt: skip
    rivals, absent = rivals_of(options)
    points += rivals
    n_examples = options.batches * options.batch_size
    usual = {"batch_size": options.batch_size}
    result = report.measure_points(options, scratch, points, n_examples, MOST_SECONDS, **usual)
    imports = [isolated.call(import_torch, {})["seconds"] for _ in range(options.repeats)]
    cpu = [
        tuple(isolated.call(trainer_cpu, {"is_ours": is_ours})["us"] for is_ours in (True, False))
        for _ in range(options.repeats)
    ]
    found = targets(result["points"], imports, cpu)
    return {**result, "targets": found, "absent": absent}


def rivals_of(options: PytorchOptions) -> tuple[list[dict], str]:
    """Return the lines of DALI and SPDL, and a sentence on those that are left out."""
    if options.mount != "fuse":
        return [], "DALI and SPDL are compared on a mount alone (--mount fuse): DALI opens in C."
    lines = [("dali", 2), ("dali", 16), ("dali-files", 2), ("spdl", 16), ("spdl", 64)]
    absent = {name for name, _ in lines if not is_installed(PACKAGES[name])}
    points = [
        {"loader": name, "n_readers": n_readers, "name": f"{name}, {n_readers} workers",
         "n_batches": options.batches if n_readers > 2 else options.slow_batches}
        for name, n_readers in lines if name not in absent
    ]  # fmt: skip
    words = f"{', '.join(sorted(absent))} left out: not installed." if absent else ""
    return points, words


def is_installed(module: str) -> bool:
    """Return whether a module can be found."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor its parent
        return False


def show(result: dict) -> str:
    """Return what is printed."""
    return "\n\n".join(filter(None, (report.show(result), result["absent"])))


def targets(
    points: list[dict], import_seconds: list[float], cpu: list[tuple[float, ...]]
) -> list[dict]:
    """Compare the runs of each repeat, of those points that have run."""
    runs = {(point["loader"], point["n_readers"]): point["runs"] for point in points}
    stock = [key for key in runs if key[0] == "torch"]
    found = []
    for what, wanted, ours, others, value_of in _TARGETS:
        keys = stock if others is None else [(other, 2) for other in others]
        if (ours, 2) in runs and keys and all(key in runs for key in keys):
            columns = zip(runs[ours, 2], *(runs[key] for key in keys), strict=True)
            found.append(target_of(what, "", wanted, [value_of(*row) for row in columns]))
    for loader, what, before in (
        (_IMPORTING, "first mini-batch beyond import torch, imported", import_seconds),
        (_COLD, "first mini-batch, not imported", [0.0] * len(import_seconds)),
    ):
        firsts = [run["first_batch_seconds"] for run in runs.get((loader, 2), [])]
        if firsts:
            beyond = [first - more for first, more in zip(firsts, before, strict=True)]
            found.append(target_of(what, "s", 0.5, beyond))
    return [
        *found,
        target_of("import torch", "s", None, import_seconds),
        target_of("CPU of PyTorch's trainer beside ours", "", 10,
                  [theirs / ours for ours, theirs in cpu]),
        target_of("CPU of ours for a mini-batch", "µs", None, [ours for ours, _ in cpu]),
    ]  # fmt: skip


def _times(run: dict, *others: dict) -> float:
    """Return how many times as fast a run is as the best of the others, all included."""
    return run["images_per_second"] / max(other["images_per_second"] for other in others)


def _times_after(run: dict, other: dict) -> float:
    return run["rate_after_first"] / other["rate_after_first"]


def _less_cpu(run: dict, limit: dict) -> float:
    """Return the CPU of all processes for an image of ``limit``, as a share of that of ``run``."""
    used = [
        sum(kind["seconds"] for kind in each["cpu"].values()) / each["n_images"]
        for each in (limit, run)
    ]
    return used[0] / used[1]


_COLD, _IMPORTING = "overlap-torch", "overlap-torch-importing"
# What it is, what is wanted, ours, those it is compared with (None: PyTorch's with each
# number of workers), and the number. The loops of the ceiling are forked from a process that has
# imported everything; workers that start by themselves are what the first mini-batch waits for.
_TARGETS: tuple[tuple[str, float | None, str, list[str] | None, Callable[..., float]], ...] = (
    ("times PyTorch's, 2 workers each, cold", 10, _COLD, ["torch"], _times),
    ("the same, a data set that imports PyTorch", None, _IMPORTING, ["torch"], _times),
    ("times PyTorch's best, cold", 1.7, _COLD, None, _times),
    ("of the ceiling, cold, all included", 0.85, _COLD, ["ceiling"], _times),
    ("of the ceiling, cold, after the first", 0.85, _COLD, ["ceiling"], _times_after),
    ("of the ceiling, cold, by CPU of all", None, _COLD, ["ceiling"], _less_cpu),
    ("times PyTorch's on the local disk", 1.8, f"{_COLD}-staged", ["torch-local"], _times),
)


CLAIM = Claim(
    __doc__,
    PytorchOptions,
    measure,
    show=show,
    faults=report.faults,
    quick={"batches": 8, "slow_batches": 4, "readers": [2], "repeats": 1},
    tables={"pytorch": report.rate_rows, "pytorch-targets": target_rows},
)
