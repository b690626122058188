"""Mini-batches on their way to a GPU: page-locked slots beside a copy by the trainer.

Examples that need no reading and no decoding, of 3 x 224 x 224 float32, in mini-batches of 64,
flat out and beside a step of the GPU, of which the copy to it is a part::

    python -m bench gpu

Which frameworks are compared depends on what is installed: PyTorch, Chainer with CuPy, or both.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.claims.in_memory import OF_CHAINER, WARM_UP_BATCHES, columns_of, open_chainer, timed
from bench.harness import isolated
from bench.harness.machine import is_installed
from bench.harness.options import CommonOptions, NotPossibleError, option, picked
from bench.harness.tables import Wanted
from bench.harness.turns import call_in_turns, wrong_arrays

MEANINGS = {
    "overlap-torch": "ours for PyTorch, slots page-locked",
    "overlap-torch-unlocked": "ours for PyTorch, pin_memory=False",
    "torch": "PyTorch's, pin_memory=True",
    "torch-unlocked": "PyTorch's, pin_memory=False",
    **OF_CHAINER,
}
_SHAPE = (3, 224, 224)
#: Side of the square matrices whose product the step repeats.
_SIDE = 4096


class Options(CommonOptions):
    loaders: list[str] = option([*MEANINGS], f"of {', '.join(MEANINGS)}", known=MEANINGS)
    batch_size: int = option(64, "examples in a mini-batch", quick=4)
    batches: int = option(200, "mini-batches of a run", quick=5)
    readers: int = option(8, "reader processes")
    step_ms: float = option(25.0, "step of the GPU in the second half")


class Numbered:
    """Examples whose elements all are their index, with the index as label."""

    def __init__(self, n_examples: int) -> None:
        self._n_examples = n_examples

    def __len__(self) -> int:
        return self._n_examples

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.full(_SHAPE, index, np.float32), index


def frameworks(_request: dict) -> dict:
    """Return the libraries that see a GPU here, of PyTorch and CuPy, and what the GPU is called."""
    known, found, gpu = {"torch": ["torch"], "cupy": ["cupy", "chainer"]}, [], ""
    for name in [name for name, needed in known.items() if all(map(is_installed, needed))]:
        cuda = importlib.import_module(name).cuda
        if cuda.is_available():
            found.append(name)
            gpu = cuda.get_device_name(0) if name == "torch" else gpu or _name_for_cupy(cuda)
    return {"found": found, "gpu": gpu}


def _name_for_cupy(cuda: Any) -> str:
    return cuda.runtime.getDeviceProperties(0)["name"].decode()


def take(request: dict) -> dict:
    """Have one loader send its mini-batches to the GPU; return milliseconds for each."""
    of_torch = "torch" in request["loader"]
    xp = importlib.import_module("torch" if of_torch else "cupy")
    place = {"device": "cuda"} if of_torch else {}
    factor = xp.full((_SIDE, _SIDE), 1 / _SIDE, dtype=xp.float32, **place)
    n_products = _products(factor, request["step_ms"])
    wrong = xp.zeros(1, dtype=xp.int64, **place)

    def step(batch: tuple) -> None:
        nonlocal factor, wrong
        images, labels = batch
        wrong += (images[:, 0, 0, 0] != labels).sum() + (images[:, -1, -1, -1] != labels).sum()
        for _ in range(n_products):
            factor = factor @ factor

    # Not asked for more than these: a loader that ends its workers is no part of a mini-batch.
    dataset = Numbered((WARM_UP_BATCHES + request["batches"]) * request["batch_size"])
    batches = (_of_torch if of_torch else _of_chainer)(request, dataset)
    found = timed(batches, request["batches"], step, lambda: int(wrong))  # which waits for the GPU
    return {**found, "is_same": int(wrong) == 0}


def _products(factor: Any, step_ms: float) -> int:
    """Return how many products of matrices take this long on the GPU."""

    def seconds(n_products: int) -> float:
        start = time.perf_counter()
        for _ in range(n_products):
            product = factor @ factor
        float(product[0, 0])
        return time.perf_counter() - start

    seconds(5)
    return round(step_ms / 1e3 / (seconds(20) / 20)) if step_ms else 0


def _of_torch(request: dict, dataset: Numbered) -> Iterator[tuple]:
    """Yield images and labels on the GPU, as PyTorch's examples send them."""
    import torch

    import overlapiter.torch

    kind = overlapiter.torch if request["loader"].startswith("overlap") else torch.utils.data
    is_pinned = not request["loader"].endswith("unlocked")
    loader = kind.DataLoader(
        dataset, request["batch_size"], num_workers=request["readers"], pin_memory=is_pinned
    )
    for images, labels in loader:
        yield images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)


def _of_chainer(request: dict, dataset: Numbered) -> Iterator[tuple]:
    """Yield images and labels on the GPU, as an updater of Chainer does."""
    import chainer

    device = chainer.get_device("@cupy:0")
    device.use()
    iterator, convert = open_chainer(request, dataset, repeat=False, shuffle=False)
    for batch in iterator:
        yield convert(batch, device)


def measure(options: Options, _scratch: Path) -> dict:
    there = isolated.call(frameworks, {})
    if not there["found"]:
        raise NotPossibleError("there is no GPU, or neither PyTorch nor CuPy can use it")
    points = [
        {"loader": loader, "name": f"{loader}, {half}", "step_ms": step_ms}
        for half, step_ms in zip(_HALVES, (0.0, options.step_ms), strict=True)
        for loader in options.loaders
        if ("torch" if "torch" in loader else "cupy") in there["found"]
    ]
    common = picked(options, ("batch_size", "batches", "readers"))
    call_in_turns(points, options.repeats, take, **common)
    megabytes = options.batch_size * np.zeros(_SHAPE, np.float32).nbytes / 1e6
    return {"points": points, "data": f"mini-batches of {megabytes:.1f} MB to {there['gpu']}"}


def _times(key: str) -> Any:
    return lambda ours, theirs: theirs[key] / ours[key]


_HALVES = ("flat out", "with a step")
_PAIRS = [("PyTorch's", "overlap-torch", "torch"), ("Chainer's", "overlap", "multiprocess")]
TARGETS: list[Wanted] = [
    (f"{words} {name}, {half}", "", None, [f"{loader}, {half}" for loader in pair], _times(key))
    for name, *pair in _PAIRS
    for half in _HALVES
    for words, key in (("times as fast as", "batch_ms"), ("trainer's CPU beside", "trainer_cpu_ms"))
]
TABLES = {"gpu": columns_of(MEANINGS, "step_ms", "ms for a mini-batch")}
faults = wrong_arrays
