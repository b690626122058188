"""The floor and the ceiling, what no loader can beat: see bench/results/README.md, the pipeline."""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from bench.harness.family import MOUNT, cpu_by_kind
from bench.loaders.files import fingerprint, for_each, images_of
from bench.loaders.spec import NOT_MEASURED, RunSpec, rates
from bench.slow import SlowStore, Store, slow_store


def run_floor(spec: RunSpec) -> dict:
    """Build all mini-batches of ``spec`` and return how long that took; blocks until then."""
    if spec.loader == "floor":
        start = time.monotonic()
        return _result(spec, start, _run_loops(spec))
    paths = spec.paths()
    # The store is slow in the reader alone: the loops read local files.
    with slow_store(spec) as store, bare_reader(store) as reader:
        start = time.monotonic()
        reading = reader.submit(read_all, store.root if store else spec.root, paths)
        reports, read = _run_loops(spec), reading.result()
        result = _result(spec, start, reports, read["end"])
        result |= store.counts() if store else {}
        result["cpu"]["bare reader"] = {"n_processes": 1, "seconds": read["seconds"]}
        result["cpu"] |= {kind: used for kind, used in cpu_by_kind().items() if kind == MOUNT}
        return {**result, "statistics": {"bare_reader_seconds": read["end"] - start}}


def _run_loops(spec: RunSpec) -> list[tuple]:
    """Return what each of the loops reports; blocks until all end."""
    dataset = images_of(spec.examples(), spec.local)
    # Each builds two at least: the first mini-batch of one alone is no pace.
    n_loops = max(min(len(os.sched_getaffinity(0)), spec.n_batches // 2), 1)
    parts = [range(first, spec.n_batches, n_loops) for first in range(n_loops)]
    with ProcessPoolExecutor(n_loops, get_context("fork")) as pool:
        return list(pool.map(_build, [spec] * n_loops, [dataset] * n_loops, parts))


def _result(spec: RunSpec, start: float, reports: list[tuple], read_end: float = 0.0) -> dict:
    firsts, lasts, used, prints = zip(*reports, strict=True)
    end, n_loops = max(read_end, *lasts), len(reports)
    n_images = spec.n_batches * spec.batch_size
    n_later = n_images - n_loops * spec.batch_size  # from when each loop has built one mini-batch
    return NOT_MEASURED | {
        **rates(start, min(firsts), end, n_images),
        "rate_after_first": n_later / max(end - max(firsts), 1e-9),
        "cpu": {"loop": {"n_processes": n_loops, "seconds": sum(used)}},
        "fingerprints": [prints[at % n_loops][at] for at in range(spec.n_batches)],
    }


def _build(spec: RunSpec, dataset: Any, positions: range) -> tuple:
    """Build the mini-batches at ``positions`` one after the other; return what that took.

    It is when the first and the last one were there, the seconds of CPU, and the fingerprints.
    """
    cpu_begin, check_seconds, batches = time.process_time(), 0.0, spec.batches()
    images, labels = None, np.empty(spec.batch_size, np.int32)
    first_end, fingerprints = 0.0, {}
    for position in positions:
        for row, index in enumerate(batches[position]):
            image, labels[row] = dataset[index]
            if images is None:
                images = np.empty((spec.batch_size, *image.shape), image.dtype)
            images[row] = image
        first_end = first_end or time.monotonic()
        # The trainer of a loader does this check, so it counts in none of the readers.
        before_check = time.process_time()
        fingerprints[position] = fingerprint(list(zip(images, labels, strict=True)))
        check_seconds += time.process_time() - before_check
    cpu_seconds = time.process_time() - cpu_begin - check_seconds
    return first_end, time.monotonic(), cpu_seconds, fingerprints


def bare_reader(store: Store) -> ProcessPoolExecutor:
    """Return one more process, forked already, for :func:`read_all`, in which the store is slow."""
    install = store.install if isinstance(store, SlowStore) else None
    process = ProcessPoolExecutor(1, get_context("fork"), install)
    process.submit(os.getpid).result()  # forks now, before anything is timed
    return process


def read_all(root: str, paths: list[str]) -> dict[str, float]:
    """Read files below the root by 64 threads, in this order, and forget them.

    Returned are when that was done, on the monotonic clock, and the CPU seconds of the process.
    """
    before = time.process_time()
    for_each(paths, root, lambda file, _path: file.read())
    return {"end": time.monotonic(), "seconds": time.process_time() - before}
