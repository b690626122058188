"""The cost of the loader itself: examples that are in memory already and need no decoding.

Each example is a float32 array of 3x256x256 and an int32 label, so a mini-batch of 32 is 24 MiB.
Reported are milliseconds per mini-batch, with ``concat_examples``, and the milliseconds of CPU
that the trainer process spends on it in all its threads, flat out and beside an emulated training
step::

    python -m bench.in_memory
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from statistics import median

from bench import isolated
from bench.machine import machine_facts
from bench.progress import progress_bar
from bench.summary import aligned, spread

LOADERS = ("overlap", "multiprocess")
MEANINGS = {
    "overlap": "OverlapIterator and overlapiter.concat_examples",
    "multiprocess": "MultiprocessIterator and chainer.dataset.concat_examples",
}
_WARM_UP_BATCHES = 20


def measure(request: dict) -> dict:
    """Time one loader in this process.

    Args:
        request: ``loader``, ``n_examples``, ``batch_size``, ``n_readers``, ``n_batches`` and
            ``compute_ms``.

    Returns:
        ``batch_ms`` and ``trainer_cpu_ms`` per mini-batch, without the time for computing, and
        ``step_ms`` with it: the list of all.
    """
    import numpy as np
    from chainer.datasets import TupleDataset

    shape = (request["n_examples"], 3, 256, 256)
    images = np.random.default_rng(0).random(shape, np.float32)
    dataset = TupleDataset(images, np.arange(len(images), dtype=np.int32))
    iterator, concat_examples = _open(request, dataset)
    compute_seconds = request["compute_ms"] / 1e3
    steps = []
    for position in range(_WARM_UP_BATCHES + request["n_batches"]):
        if position == _WARM_UP_BATCHES:
            cpu_start = _cpu_seconds()
        start = time.perf_counter()
        arrays = concat_examples(next(iterator))
        if compute_seconds:
            time.sleep(compute_seconds)
        steps.append((time.perf_counter() - start) * 1e3)
        if arrays[0].shape != (request["batch_size"], *shape[1:]):
            raise ValueError(f"a mini-batch has the shape {arrays[0].shape}")
    cpu_seconds = _cpu_seconds() - cpu_start
    same = bool(np.array_equal(arrays[0], images[arrays[1]]))
    del arrays
    iterator.finalize()
    timed = steps[_WARM_UP_BATCHES:]
    return {
        "batch_ms": sum(timed) / len(timed) - request["compute_ms"],
        "trainer_cpu_ms": cpu_seconds / len(timed) * 1e3,
        "step_ms": [round(step, 4) for step in timed],
        "is_same": same,
    }


def _open(request: dict, dataset: object) -> tuple:
    """Return the iterator and the converter that belongs to it."""
    if request["loader"] == "overlap":
        import overlapiter

        make, concat_examples = overlapiter.OverlapIterator, overlapiter.concat_examples
    else:
        from chainer.dataset import concat_examples
        from chainer.iterators import MultiprocessIterator as make
    options = {"n_processes": request["n_readers"], "n_prefetch": request["n_prefetch"]}
    return make(dataset, request["batch_size"], **options), concat_examples


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--examples", type=int, default=256, help="examples in memory (%(default)s)")
    add("--batch-size", type=int, default=32, help="examples in a mini-batch (%(default)s)")
    add("--batches", type=int, default=200, help="mini-batches of a run (%(default)s)")
    add("--readers", type=int, default=2, help="file reader processes (%(default)s)")
    add("--n-prefetch", type=int, default=1, help="this argument of both (%(default)s)")
    add("--compute-ms", type=float, default=40.0, help="step in the second half (%(default)s)")
    add("--repeats", type=int, default=5, help="runs of each (%(default)s)")
    add("--out", type=Path, default=isolated.CHECKOUT / "bench/results/in-memory.json")
    options = parser.parse_args(arguments)
    points = [
        {"loader": loader, "compute_ms": compute_ms, "runs": []}
        for compute_ms in (0.0, options.compute_ms)
        for loader in LOADERS
    ]
    common = {
        "n_examples": options.examples,
        "batch_size": options.batch_size,
        "n_readers": options.readers,
        "n_prefetch": options.n_prefetch,
        "n_batches": options.batches,
    }
    with progress_bar(len(points) * options.repeats, "run") as progress:
        for point in points * options.repeats:
            request = {"loader": point["loader"], "compute_ms": point["compute_ms"], **common}
            point["runs"].append(isolated.call("bench.in_memory", request))
            progress.update()
    result = {
        "benchmark": "in-memory",
        "machine": machine_facts(),
        "options": {key: value for key, value in vars(options).items() if key != "out"},
        "points": points,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    print(_table(points))


def _table(points: list[dict]) -> str:
    rows = [["loader", "step ms", "ms per mini-batch", "[min, max]", "trainer CPU ms", "right"]]
    for point in points:
        cost = spread(run["batch_ms"] for run in point["runs"])
        cpu = median(run["trainer_cpu_ms"] for run in point["runs"])
        right = all(run["is_same"] for run in point["runs"])
        extremes = f"[{cost['min']:.2f}, {cost['max']:.2f}]"
        row = [point["loader"], f"{point['compute_ms']:g}", f"{cost['median']:.2f}", extremes]
        rows.append([*row, f"{cpu:.2f}", "yes" if right else "NO"])
    meanings = "\n".join(f"{loader}: {MEANINGS[loader]}" for loader in LOADERS)
    return f"Without the step itself, with concat_examples.\n{meanings}\n\n{aligned(rows)}\n"


if __name__ == "__main__":
    if isolated.is_child():
        isolated.serve(measure)
    else:
        main()
