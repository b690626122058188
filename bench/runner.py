"""Does one run of one loader, in a process of its own that :func:`run_in_new_process` starts."""

from __future__ import annotations

import resource
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from chainer.datasets import LabeledImageDataset

from bench import isolated
from bench.checks import checksum, fingerprint
from bench.cpu import OTHER, cpu_by_kind
from bench.spec import KEPT_POSITIONS, RunResult, RunSpec, read_pairs
from bench.stores import crossed, emulated, root_of, slow_store

if TYPE_CHECKING:
    from bench.loaders import Loader
    from bench.slowmount import SlowMount
    from bench.slowstore import SlowStore


def run_in_new_process(spec: RunSpec) -> RunResult:
    """Do one run in a fresh process and return what it measured; blocks until it ended.

    Raises:
        isolated.RunFailedError: The run did not end well.
    """
    return RunResult.from_dict(isolated.call("bench.runner", asdict(spec)))


def run(spec: RunSpec) -> RunResult:
    """Do one run in this process."""
    if spec.loader in ("floor", "ceiling"):
        from bench.floor import run_floor

        return run_floor(spec)
    pairs = read_pairs(spec.pairs, spec.n_examples)
    with slow_store(spec) as store:
        spec = replace(spec, root=root_of(store, spec.root))
        return _drive(spec, LabeledImageDataset(pairs, spec.root), store)


def _drive(spec: RunSpec, dataset: object, store: SlowStore | SlowMount | None) -> RunResult:
    from bench.loaders import ADAPTERS

    waits, fingerprints, kept = [], [], {}
    cpu_start = _cpu_seconds()
    start = time.monotonic()
    loader: Loader = ADAPTERS[spec.loader](spec, dataset, emulated(store))
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
    trainer_cpu = _cpu_seconds() - cpu_start
    cpu = cpu_by_kind(OTHER if spec.loader.startswith("overlap") else "reader")
    cpu["trainer"] = {"n_processes": 1, "seconds": trainer_cpu}
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
        trainer_cpu_seconds=trainer_cpu,
        waits_seconds=[round(seconds, 6) for seconds in waits],
        parts=parts,
        rate_after_first=len(waits[1:]) * spec.batch_size / max(delivered - first_delivered, 1e-9),
        cpu=cpu,
        fingerprints=fingerprints,
        checksums=checksums,
        statistics=statistics,
        **crossed(store),
    )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _answer(request: dict) -> dict:
    return asdict(run(RunSpec(**request)))


if __name__ == "__main__":
    isolated.serve(_answer)
