"""One run of one loader, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
from chainer.datasets import LabeledImageDataset

from bench.harness import isolated
from bench.harness.family import OTHER, cpu_by_kind, private_bytes_by_kind
from bench.loaders.checks import fingerprint
from bench.loaders.files import Heads
from bench.loaders.spec import OF_LOCAL_DISK, PACKAGES, RunSpec, result_of_run
from bench.slow import SlowStore, Store, crossed, slow_store
from bench.slow.bare_reader import BareReader


def run_in_new_process(spec: RunSpec, most_seconds: float | None = None) -> dict:
    """Do one run in a fresh process and return its result as JSON has it; blocks until it ended."""
    return isolated.call(run, asdict(spec), most_seconds=most_seconds)


def run(request: dict) -> dict:
    """Do one run in this process."""
    spec = RunSpec(**request)
    if spec.loader in ("floor", "ceiling"):
        from bench.loaders.floor import run_floor

        return run_floor(spec)
    pairs, kind = spec.examples(), "given" if spec.loader in OF_LOCAL_DISK else spec.mount
    with slow_store(spec, kind) as store:
        if isinstance(store, SlowStore):
            store.install()
        spec = replace(spec, root=store.root if store else spec.root)
        with _beside(spec, [path for path, _ in pairs], store) as beside:
            make = LabeledImageDataset if spec.is_decoding else Heads
            return _drive(spec, make(pairs, spec.root), store, beside)


def _drive(spec: RunSpec, dataset: object, store: Store, beside: Iterator[None]) -> dict:
    """Time one loader; ``beside`` has another process begin and end its reading, by turns."""
    from bench.loaders.adapters import ADAPTERS

    package = "torch.utils.data" if "torch" in spec.loader else PACKAGES.get(spec.loader)
    if package:  # a script has imported it before
        importlib.import_module(package)
    waits, sizes, fingerprints, reads, marks = [], [], [], [], [(0.0, 0, 0)]
    cpu_start, start = time.process_time(), time.monotonic()
    loader = ADAPTERS[spec.loader](spec, dataset, store if isinstance(store, SlowStore) else None)
    constructor_seconds, first_delivered = time.monotonic() - start, 0.0
    for position in itertools.count(1):
        asked = time.monotonic()
        batch = loader.next_batch()
        delivered = time.monotonic()
        first_delivered = first_delivered or delivered
        waits.append(round(delivered - asked, 6))
        sizes.append(len(batch))
        if spec.order == "fixed":  # the same for all
            fingerprints.append(fingerprint(batch))
        if spec.compute_seconds:
            time.sleep(spec.compute_seconds)
        if spec.seconds:
            reads.append(loader.statistics()["reads_in_flight"])
        if spec.n_epochs and loader.is_new_epoch:
            next(beside)
            marks.append((time.monotonic() - start, *(crossed(store).values() or (0, 0))))
            if len(marks) > spec.n_epochs:
                break
            next(beside)
        is_late = spec.seconds and delivered - first_delivered > spec.seconds
        if is_late or position == spec.n_batches:
            break
    trainer_cpu_seconds = time.process_time() - cpu_start
    parts, statistics = loader.parts(start, delivered), loader.statistics()
    unnamed = OTHER if spec.loader.startswith("overlap") else "reader"
    cpu = cpu_by_kind(unnamed)
    cpu["trainer"] = {"n_processes": 1, "seconds": trainer_cpu_seconds}
    private_bytes = private_bytes_by_kind(unnamed) if spec.measures_memory else {}
    del batch
    closing = time.monotonic()
    loader.close()
    epochs, names = np.diff(marks, axis=0).tolist(), ("seconds", "opens", "bytes")
    return result_of_run(
        wall_seconds=delivered - start,
        first_batch_seconds=first_delivered - start,
        n_images=sum(sizes),
        images_per_second=sum(sizes) / (delivered - start),
        rate_after_first=sum(sizes[1:]) / max(delivered - first_delivered, 1e-9),
        parts=parts,
        cpu=cpu,
        fingerprints=fingerprints,
        constructor_seconds=constructor_seconds,
        finalize_seconds=time.monotonic() - closing,
        trainer_cpu_seconds=trainer_cpu_seconds,
        waits_seconds=waits,
        epochs=[dict(zip(names, epoch, strict=True)) for epoch in epochs],
        reads_in_flight=reads,
        private_bytes=private_bytes,
        statistics=statistics,
        **crossed(store),
    )


@contextlib.contextmanager
def _beside(spec: RunSpec, paths: list[str], store: Store) -> Iterator[Iterator[None]]:
    """Have another process read a part of the data set in each epoch after the first.

    Yields:
        An iterator whose steps wait until it has read, if it does, and begin again, by turns.
    """
    if not spec.beside_fraction:
        yield itertools.repeat(None)
        return
    random, n_files = np.random.RandomState(0), round(spec.beside_fraction * len(paths))

    def steps() -> Iterator[None]:
        yield  # nothing is read in the first epoch
        while True:
            reader.start(random.permutation(paths)[:n_files].tolist())
            yield
            reader.wait()
            yield

    with contextlib.closing(BareReader(spec.root, store)) as reader:
        yield steps()
