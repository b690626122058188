"""The floor: what no loader can beat on this machine.

As many processes as there are cores call the same ``dataset[i]`` on local files and put each
image into its row of one array per process. There is no queue, no order and no trainer.
"""

from __future__ import annotations

import os
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np

from bench.checks import checksum, fingerprint
from bench.spec import KEPT_POSITIONS, Parts, RunResult

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from chainer.datasets import LabeledImageDataset

    from bench.spec import RunSpec


def run_floor(spec: RunSpec, dataset: LabeledImageDataset) -> RunResult:
    """Build all mini-batches of ``spec`` and return how long that took; blocks until then."""
    n_processes = len(os.sched_getaffinity(0))
    context = get_context("fork")
    start = time.monotonic()
    workers = []
    for first in range(n_processes):
        receive, send = context.Pipe(duplex=False)
        arguments = (spec, dataset, range(first, spec.n_batches, n_processes), start, send)
        process = context.Process(target=_build, args=arguments)
        process.start()
        send.close()
        workers.append((process, receive))
    reports = [receive.recv() for _, receive in workers]
    for process, _ in workers:
        process.join()
    wall = max(report["end"] for report in reports) - start
    fingerprints: dict[int, int] = {}
    checksums: dict[int, int] = {}
    for report in reports:
        fingerprints.update(report["fingerprints"])
        checksums.update(report["checksums"])
    initialize = float(np.mean([report["initialize"] for report in reports]))
    fetch = float(np.mean([report["fetch"] for report in reports]))
    return RunResult(
        wall_seconds=wall,
        first_batch_seconds=min(report["first_end"] for report in reports) - start,
        finalize_seconds=0.0,
        trainer_cpu_seconds=0.0,
        parts=Parts(initialize, 0.0, fetch, wall - initialize - fetch),
        fingerprints=[fingerprints[position] for position in range(spec.n_batches)],
        checksums=checksums,
    )


def _build(
    spec: RunSpec,
    dataset: LabeledImageDataset,
    positions: range,
    start: float,
    send: Connection,
) -> None:
    """Build the mini-batches at ``positions`` one after the other, and report to ``send``."""
    begin = time.monotonic()
    order, size = spec.order(), spec.batch_size
    images, labels = None, np.empty(size, np.int32)
    fetch_seconds, first_end, fingerprints, kept = 0.0, 0.0, {}, {}
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
        fingerprints[position] = fingerprint(list(zip(images, labels, strict=True)))
        if position in KEPT_POSITIONS:
            kept[position] = (images, labels)
            images, labels = np.empty_like(images), np.empty_like(labels)
    end = time.monotonic()
    send.send(
        {
            "initialize": begin - start,
            "fetch": fetch_seconds,
            "first_end": first_end or end,
            "end": end,
            "fingerprints": fingerprints,
            "checksums": {
                key: checksum(list(zip(*batch, strict=True))) for key, batch in kept.items()
            },
        }
    )
