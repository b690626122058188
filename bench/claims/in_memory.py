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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.options import CommonOptions, option, picked
from bench.harness.turns import call_in_turns, wrong_arrays

OF_CHAINER = {
    "overlap": "OverlapIterator and overlapiter.concat_examples",
    "multiprocess": "MultiprocessIterator and chainer.dataset.concat_examples",
}
MEANINGS = {**OF_CHAINER, "control": "a fixed piece of Python code, no loader"}
WARM_UP_BATCHES = 20
_SOURCE = "def f(a, b):\n    return [x + 1 for x in a if x > b]\n"


class Options(CommonOptions):
    examples: int = option(256, "examples in memory", quick=8)
    batch_size: int = option(32, "examples in a mini-batch", quick=4)
    batches: int = option(200, "mini-batches of a run", quick=5)
    readers: int = option(2, "file reader processes")
    compute_ms: float = option(40.0, "step in the second half")
    repeats: int = 5


def open_chainer(request: dict, dataset: object, **options: object) -> tuple[Any, Callable]:
    """Return an iterator with Chainer's interface, and the converter that belongs to it."""
    import chainer

    import overlapiter

    kind, convert = chainer.iterators.MultiprocessIterator, chainer.dataset.concat_examples
    if request["loader"] == "overlap":
        kind, convert = overlapiter.OverlapIterator, overlapiter.concat_examples
    return kind(dataset, request["batch_size"], n_processes=request["readers"], **options), convert


def timed(batches: Iterator, n_batches: int, step: Callable, synchronize: Callable = bool) -> dict:
    """Take mini-batches, of which the first ones only warm up, and do a step with each.

    Returns:
        Milliseconds for one until ``synchronize`` has returned, and of CPU of this process.
    """
    for position in range(WARM_UP_BATCHES + n_batches):
        if position == WARM_UP_BATCHES:
            synchronize()
            start, cpu_start = time.perf_counter(), time.process_time()
        batch = next(batches)
        step(batch)
    synchronize()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {"batch_ms": seconds / n_batches * 1e3, "trainer_cpu_ms": cpu_seconds / n_batches * 1e3}


def take(request: dict) -> dict:
    """Time one loader in this process.

    Returns:
        ``batch_ms`` and ``trainer_cpu_ms`` per mini-batch, the former without the time for
        computing, and ``step_ms`` with it: the list of all.
    """
    from chainer.dataset import concat_examples
    from chainer.datasets import TupleDataset

    images = np.random.default_rng(0).random((request["examples"], 3, 256, 256), np.float32)
    dataset = TupleDataset(images, np.arange(len(images), dtype=np.int32))
    if request["loader"] == "control":
        arrays = concat_examples(dataset[: request["batch_size"]])
        batches = (arrays for _ in itertools.count() if ast.unparse(ast.parse(_SOURCE)))
    else:
        iterator, convert = open_chainer(request, dataset, n_prefetch=1)
        batches = map(convert, iterator)
    ends: list[float] = []

    def step(_batch: tuple) -> None:
        if request["compute_ms"]:
            time.sleep(request["compute_ms"] / 1e3)
        ends.append(time.perf_counter())

    found = timed(batches, request["batches"], step)
    found["batch_ms"] -= request["compute_ms"]
    arrays = next(batches)
    is_same = len(arrays[0]) == request["batch_size"]
    is_same &= np.array_equal(arrays[0], images[arrays[1]])
    del arrays
    if request["loader"] != "control":
        iterator.finalize()
    step_ms = (np.diff(ends[WARM_UP_BATCHES - 1 :]) * 1e3).round(4).tolist()
    return {**found, "step_ms": step_ms, "is_same": is_same}


def measure(options: Options, _scratch: Path) -> dict:
    points = [
        {"loader": loader, "compute_ms": compute_ms}
        for compute_ms in (0.0, options.compute_ms)
        for loader in MEANINGS
    ]
    common = picked(options, ("examples", "batch_size", "readers", "batches"))
    call_in_turns(points, options.repeats, take, **common)
    return {"points": points}


def columns_of(meanings: Mapping[str, str], step: str, head: str) -> dict:
    """Return the columns of a table: what the loaders are, the key of the step, the main one."""
    return {
        "": lambda point: meanings[point["loader"]],
        "step, ms": f"{{{step}:g}}",
        head: "{batch_ms:.2f}",
        "min to max": "{batch_ms.min:.2f} to {batch_ms.max:.2f}",
        "trainer's CPU, ms": "{trainer_cpu_ms:.2f}",
    }


TABLES = {"in-memory": columns_of(MEANINGS, "compute_ms", "ms of a mini-batch, beyond the step")}
faults = wrong_arrays
