"""The cost of the loader itself: examples that are in memory already and need no decoding.

A mini-batch of 32 is 24 MiB. Reported are milliseconds per mini-batch, with ``concat_examples``,
and of CPU of the trainer process, flat out and beside an emulated training step::

    python -m bench in-memory

Code that runs after a pause finds cold caches and costs several times as much CPU; how much, shows
the ``control``: a piece of Python code that is always the same.
"""

from __future__ import annotations

import ast
import itertools
import time
from pathlib import Path

import numpy as np

from bench.harness.options import CommonOptions, option, picked
from bench.harness.turns import call_in_turns, wrong_arrays

MEANINGS = {
    "overlap": "OverlapIterator and overlapiter.concat_examples",
    "multiprocess": "MultiprocessIterator and chainer.dataset.concat_examples",
    "control": "a fixed piece of Python code, no loader",
}
_SOURCE = "def f(a, b):\n    return [x + 1 for x in a if x > b]\n"
_WARM_UP_BATCHES = 20


class Options(CommonOptions):
    examples: int = option(256, "examples in memory", quick=8)
    batch_size: int = option(32, "examples in a mini-batch", quick=4)
    batches: int = option(200, "mini-batches of a run", quick=5)
    readers: int = option(2, "file reader processes")
    compute_ms: float = option(40.0, "step in the second half")
    repeats: int = 5


def take(request: dict) -> dict:
    """Time one loader in this process.

    Returns:
        ``batch_ms`` and ``trainer_cpu_ms`` per mini-batch, without the time for computing, and
        ``step_ms`` with it: the list of all.
    """
    from chainer.datasets import TupleDataset

    images = np.random.default_rng(0).random((request["examples"], 3, 256, 256), np.float32)
    dataset = TupleDataset(images, np.arange(len(images), dtype=np.int32))
    iterator, concat_examples = _open(request, dataset)
    steps = []
    for position in range(_WARM_UP_BATCHES + request["batches"]):
        if position == _WARM_UP_BATCHES:
            cpu_start = time.process_time()
        start = time.perf_counter()
        arrays = concat_examples(next(iterator))
        if request["compute_ms"]:
            time.sleep(request["compute_ms"] / 1e3)
        steps.append((time.perf_counter() - start) * 1e3)
    cpu_seconds = time.process_time() - cpu_start
    is_same = bool(np.array_equal(arrays[0], images[arrays[1]]))
    is_same &= len(arrays[0]) == request["batch_size"]
    del arrays
    if request["loader"] != "control":
        iterator.finalize()
    timed = steps[_WARM_UP_BATCHES:]
    return {
        "batch_ms": sum(timed) / len(timed) - request["compute_ms"],
        "trainer_cpu_ms": cpu_seconds / len(timed) * 1e3,
        "step_ms": [round(step, 4) for step in timed],
        "is_same": is_same,
    }


def _open(request: dict, dataset: object) -> tuple:
    """Return the iterator and the converter that belongs to it."""
    options = {"n_processes": request["readers"], "n_prefetch": 1}
    if request["loader"] == "overlap":
        import overlapiter

        iterator = overlapiter.OverlapIterator(dataset, request["batch_size"], **options)
        return iterator, overlapiter.concat_examples
    from chainer.dataset import concat_examples
    from chainer.iterators import MultiprocessIterator

    if request["loader"] == "multiprocess":
        return MultiprocessIterator(dataset, request["batch_size"], **options), concat_examples
    arrays = concat_examples(dataset[: request["batch_size"]])
    return (arrays for _ in itertools.count() if ast.unparse(ast.parse(_SOURCE))), tuple


def measure(options: Options, _scratch: Path) -> dict:
    points = [
        {"loader": loader, "compute_ms": compute_ms}
        for compute_ms in (0.0, options.compute_ms)
        for loader in MEANINGS
    ]
    common = picked(options, ("examples", "batch_size", "readers", "batches"))
    call_in_turns(points, options.repeats, take, **common)
    return {"points": points}


_COLUMNS = {
    "": lambda point: MEANINGS[point["loader"]],
    "step, ms": "{compute_ms:g}",
    "ms of a mini-batch, beyond the step": "{batch_ms:.2f}",
    "min to max": "{batch_ms.min:.2f} to {batch_ms.max:.2f}",
    "trainer's CPU, ms": "{trainer_cpu_ms:.2f}",
}
TABLES = {"in-memory": _COLUMNS}
faults = wrong_arrays
