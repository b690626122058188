"""The floor and the ceiling: what no loader can beat on this machine.

The floor: as many processes as there are cores call the same ``dataset[i]`` on local files and put
each image into its row of one array per process. There is no queue, no order and no trainer.

The ceiling: the same while 64 threads of one more process read every file once from the slow store
and forget it. It ends when both have ended, since a loader has to do both, too.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np
from chainer.datasets import LabeledImageDataset

from bench.harness.cpu import MOUNT, cpu_by_kind
from bench.loaders.checks import checksum, fingerprint
from bench.loaders.spec import KEPT_POSITIONS, RunResult
from bench.slow import SlowStore, crossed, slow_store
from bench.slow.bare_reader import BareReader

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from bench.loaders.spec import RunSpec

LOOP, BARE_READER = "loop", "bare reader"


def run_floor(spec: RunSpec) -> RunResult:
    """Build all mini-batches of ``spec`` and return how long that took; blocks until then."""
    if spec.loader == "floor":
        return _summary(spec, *_run_loops(spec))
    with slow_store(replace(spec, root=spec.slow_root or spec.root), spec.mount) as store:
        # Installed in that process alone: the loops read local files.
        is_emulated = isinstance(store, SlowStore)
        reader = BareReader(store.root if store else spec.slow_root, store if is_emulated else None)
        try:
            paths = spec.paths()
            start = time.monotonic()
            reader.start(paths)
            _, reports = _run_loops(spec)
            read = reader.wait()
            cpu = cpu_by_kind()
        finally:
            reader.close()
        result = replace(_summary(spec, start, reports, read["end"]), **crossed(store))
        result.cpu[BARE_READER] = {"n_processes": 1, "seconds": read["seconds"]}
        result.cpu |= {MOUNT: cpu[MOUNT]} if MOUNT in cpu else {}
        result.statistics["bare_reader_seconds"] = read["end"] - start
        return result


def _run_loops(spec: RunSpec) -> tuple[float, list[dict]]:
    """Return when the loops were started, and what each of them reports; blocks until all end."""
    dataset = LabeledImageDataset(spec.examples(), spec.root)
    n_processes = len(os.sched_getaffinity(0))
    context = get_context("fork")
    start = time.monotonic()
    workers = []
    for first in range(n_processes):
        receive, send = context.Pipe(duplex=False)
        arguments = (spec, dataset, range(first, spec.n_batches, n_processes), send)
        process = context.Process(target=_build, args=arguments)
        process.start()
        send.close()
        workers.append((process, receive))
    reports = [receive.recv() for _, receive in workers]
    for process, _ in workers:
        process.join()
    return start, reports


def _summary(spec: RunSpec, start: float, reports: list[dict], read_end: float = 0.0) -> RunResult:
    end, n_loops = max(read_end, *(report["end"] for report in reports)), len(reports)
    fingerprints = {key: value for each in reports for key, value in each["fingerprints"].items()}
    initialize, fetch = (float(np.mean([r[name] for r in reports])) for name in ("begin", "fetch"))
    initialize -= start
    # From when each loop has built one mini-batch: the first of one alone is no pace.
    n_images = max(spec.n_batches - n_loops, 0) * spec.batch_size
    firsts = [report["first_end"] for report in reports]
    others = end - start - initialize - fetch
    cpu_seconds = sum(report["cpu_seconds"] for report in reports)
    return RunResult(
        wall_seconds=end - start,
        first_batch_seconds=min(firsts) - start,
        n_images=spec.n_batches * spec.batch_size,
        parts={"initialize": initialize, "dequeue": 0.0, "fetch": fetch, "others": others},
        rate_after_first=n_images / max(end - max(firsts), 1e-9),
        cpu={LOOP: {"n_processes": n_loops, "seconds": cpu_seconds}},
        fingerprints=[fingerprints[position] for position in range(spec.n_batches)],
        checksums={key: value for each in reports for key, value in each["checksums"].items()},
    )


def _build(spec: RunSpec, dataset: LabeledImageDataset, positions: range, send: Connection) -> None:
    """Build the mini-batches at ``positions`` one after the other, and report to ``send``."""
    begin, cpu_begin = time.monotonic(), time.process_time()
    order, size = spec.indices(), spec.batch_size
    images, labels = None, np.empty(size, np.int32)
    fetch_seconds, check_seconds, first_end, fingerprints, kept = 0.0, 0.0, 0.0, {}, {}
    for position in positions:
        for row, index in enumerate(order[position * size : (position + 1) * size]):
            before = time.monotonic()
            image, label = dataset[index]
            fetch_seconds += time.monotonic() - before
            if images is None:
                images = np.empty((size, *image.shape), image.dtype)
            images[row] = image
            labels[row] = label
        first_end = first_end or time.monotonic()
        # The trainer of a loader does this check, so it counts in none of the readers.
        before_check = time.process_time()
        fingerprints[position] = fingerprint(list(zip(images, labels, strict=True)))
        check_seconds += time.process_time() - before_check
        if position in KEPT_POSITIONS:
            kept[position] = list(zip(images, labels, strict=True))
            images, labels = np.empty_like(images), np.empty_like(labels)
    end, cpu_end = time.monotonic(), time.process_time()
    send.send(
        {
            "begin": begin,
            "fetch": fetch_seconds,
            "first_end": first_end or end,
            "end": end,
            "cpu_seconds": cpu_end - cpu_begin - check_seconds,
            "fingerprints": fingerprints,
            "checksums": {key: checksum(batch) for key, batch in kept.items()},
        }
    )
