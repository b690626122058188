"""Does one run of one loader, in a process of its own that :func:`run_in_new_process` starts."""

from __future__ import annotations

import resource
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from bench import isolated
from bench.checks import checksum, fingerprint
from bench.spec import KEPT_POSITIONS, RunResult, RunSpec

if TYPE_CHECKING:
    from bench.loaders import Loader
    from bench.slowstore import SlowStore

_OF_A_STORE = ("overlap", "slow", "copy", "torch")


def run_in_new_process(spec: RunSpec) -> RunResult:
    """Do one run in a fresh process and return what it measured; blocks until it ended.

    Raises:
        isolated.RunFailedError: The run did not end well.
    """
    return RunResult.from_dict(isolated.call("bench.runner", asdict(spec)))


def run(spec: RunSpec) -> RunResult:
    """Do one run in this process."""
    from chainer.datasets import LabeledImageDataset

    dataset = LabeledImageDataset(read_pairs(spec.pairs, spec.n_examples), spec.root)
    if spec.loader == "floor":
        from bench.floor import run_floor

        return run_floor(spec, dataset)
    with ExitStack() as resources:
        store = None
        if spec.is_emulated and spec.loader in _OF_A_STORE:
            from bench.slowstore import SlowStore

            store = SlowStore(spec.root, spec.open_seconds, spec.bytes_per_second)
            resources.enter_context(store)
            resources.enter_context(store.installed())
        return _drive(spec, dataset, store)


def read_pairs(path: str, count: int) -> list[tuple[str, int]]:
    """Return the first ``count`` pairs of a file of ``path label`` lines."""
    pairs = []
    with open(path) as file:
        for line, _ in zip(file, range(count), strict=False):
            name, label = line.rsplit(maxsplit=1)
            pairs.append((name, int(label)))
    return pairs


def _drive(spec: RunSpec, dataset: object, store: SlowStore | None) -> RunResult:
    from bench.loaders import ADAPTERS

    waits, fingerprints, kept = [], [], {}
    cpu_start = _cpu_seconds()
    start = time.monotonic()
    loader: Loader = ADAPTERS[spec.loader](spec, dataset, store)
    for position in range(spec.n_batches):
        asked = time.monotonic()
        batch = loader.next_batch()
        delivered = time.monotonic()
        waits.append(delivered - asked)
        if position == 0:
            first_delivered = delivered
        fingerprints.append(fingerprint(batch))
        if position in KEPT_POSITIONS:
            kept[position] = batch
        if spec.compute_seconds:
            time.sleep(spec.compute_seconds)
    cpu_end = _cpu_seconds()
    parts = loader.parts(start, delivered)
    statistics = loader.statistics()
    checksums = {key: checksum(batch) for key, batch in kept.items()}
    del batch, kept
    closing = time.monotonic()
    loader.close()
    return RunResult(
        wall_seconds=delivered - start,
        first_batch_seconds=first_delivered - start,
        finalize_seconds=time.monotonic() - closing,
        trainer_cpu_seconds=cpu_end - cpu_start,
        waits_seconds=[round(seconds, 6) for seconds in waits],
        parts=parts,
        store_opens=None if store is None else store.opens,
        store_bytes=None if store is None else store.bytes_read,
        fingerprints=fingerprints,
        checksums=checksums,
        statistics=statistics,
    )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _answer(request: dict) -> dict:
    return asdict(run(RunSpec(**request)))


if __name__ == "__main__":
    isolated.serve(_answer)
