"""One run of one loader, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np
from chainer.dataset import DatasetMixin
from chainer.datasets import LabeledImageDataset

from bench.harness import isolated
from bench.harness.cpu import OTHER, cpu_by_kind, private_bytes_by_kind
from bench.loaders.checks import checksum, fingerprint
from bench.loaders.spec import KEPT_POSITIONS, OF_STORE, PACKAGES, RunResult, RunSpec
from bench.slow import SlowStore, crossed, slow_store
from bench.slow.bare_reader import BareReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.slow import Store

HEAD_BYTES = 64


class Heads(DatasetMixin):
    """Gives ``(uint8 array, int32 label)``: the first bytes of each file, without decoding it.

    Args:
        pairs: ``(path, label)`` of each file.
        root: Directory that the paths are relative to.
    """

    def __init__(self, pairs: list[tuple[str, int]], root: str) -> None:
        self._pairs = pairs
        self._root = root

    def __len__(self) -> int:
        return len(self._pairs)

    def source_paths(self, i: int) -> list[str]:
        """Return the files that an example reads."""
        return [os.path.join(self._root, self._pairs[i][0])]

    def get_example(self, i: int) -> tuple:
        """Read a whole file and return its beginning."""
        with open(self.source_paths(i)[0], "rb") as file:
            data = file.read()
        return np.frombuffer(data[:HEAD_BYTES], np.uint8), np.int32(self._pairs[i][1])


def run_in_new_process(spec: RunSpec) -> dict:
    """Do one run in a fresh process and return its result as JSON has it; blocks until it ended.

    Raises:
        isolated.RunFailedError: The run did not end well.
    """
    return isolated.call(run, asdict(spec))


def run(request: dict) -> dict:
    """Do one run in this process."""
    spec = RunSpec(**request)
    if spec.loader in ("floor", "ceiling"):
        from bench.loaders.floor import run_floor

        return run_floor(spec).as_dict()
    pairs, kind = spec.examples(), spec.mount if spec.loader in OF_STORE else "given"
    with slow_store(spec, kind) as store:
        if isinstance(store, SlowStore):
            store.install()
        spec = replace(spec, root=store.root if store else spec.root)
        with _beside(spec, [path for path, _ in pairs], store) as beside:
            make = LabeledImageDataset if spec.is_decoding else Heads
            return _drive(spec, make(pairs, spec.root), store, beside).as_dict()


def _drive(spec: RunSpec, dataset: object, store: Store, beside: Iterator[None]) -> RunResult:
    """Time one loader.

    Args:
        spec: What is asked.
        dataset: What it reads.
        store: The slow store, if it is not given.
        beside: Has another process begin and end its reading, by turns.
    """
    from bench.loaders.adapters import adapter_of

    if "torch" in spec.loader:  # a script has imported it before
        importlib.import_module("torch.utils.data")
    elif spec.loader in PACKAGES:
        importlib.import_module(PACKAGES[spec.loader])
    result, kept, marks = RunResult(), {}, [(0.0, 0, 0)]
    cpu_start, start = time.process_time(), time.monotonic()
    loader = adapter_of(spec.loader)(spec, dataset, store if isinstance(store, SlowStore) else None)
    result.constructor_seconds = time.monotonic() - start
    for position in itertools.count():
        asked = time.monotonic()
        batch = loader.next_batch()
        delivered = time.monotonic()
        result.waits_seconds.append(round(delivered - asked, 6))
        result.n_images += len(batch)
        if position == 0:
            first_delivered, n_first = delivered, len(batch)
        result.fingerprints.append(fingerprint(batch))
        if position in KEPT_POSITIONS:
            kept[position] = batch
        if spec.compute_seconds:
            time.sleep(spec.compute_seconds)
        if spec.seconds:
            result.reads_in_flight.append(loader.statistics()["reads_in_flight"])
        if spec.n_epochs and loader.is_new_epoch:
            next(beside)
            marks.append((time.monotonic() - start, *(crossed(store).values() or (0, 0))))
            if len(marks) > spec.n_epochs:
                break
            next(beside)
        is_late = spec.seconds and delivered - first_delivered > spec.seconds
        if is_late or position + 1 == spec.n_batches:
            break
    result.trainer_cpu_seconds = time.process_time() - cpu_start
    unnamed = OTHER if spec.loader.startswith("overlap") else "reader"
    result.cpu = cpu_by_kind(unnamed)
    result.cpu["trainer"] = {"n_processes": 1, "seconds": result.trainer_cpu_seconds}
    if spec.measures_memory:
        result.private_bytes = private_bytes_by_kind(unnamed)
    result.parts, result.statistics = loader.parts(start, delivered), loader.statistics()
    result.checksums = {key: checksum(batch) for key, batch in kept.items()}
    del batch, kept
    closing = time.monotonic()
    loader.close()
    result.finalize_seconds = time.monotonic() - closing
    result.wall_seconds = delivered - start
    result.first_batch_seconds = first_delivered - start
    after_first = max(delivered - first_delivered, 1e-9)
    result.rate_after_first = (result.n_images - n_first) / after_first
    epochs, names = np.diff(marks, axis=0).tolist(), ("seconds", "opens", "bytes")
    result.epochs = [dict(zip(names, epoch, strict=True)) for epoch in epochs]
    return replace(result, **crossed(store))


@contextlib.contextmanager
def _beside(spec: RunSpec, paths: list[str], store: Store) -> Iterator[Iterator[None]]:
    """Have another process read a part of the data set in each epoch after the first.

    Yields:
        An iterator whose steps wait until it has read, if it does, and begin again, by turns.
    """
    if not spec.beside_fraction:
        yield itertools.repeat(None)
        return
    reader = BareReader(spec.root, store if isinstance(store, SlowStore) else None)
    random, n_files = np.random.RandomState(0), round(spec.beside_fraction * len(paths))

    def steps() -> Iterator[None]:
        yield  # nothing is read in the first epoch
        while True:
            reader.start(random.permutation(paths)[:n_files].tolist())
            yield
            reader.wait()
            yield

    try:
        yield steps()
    finally:
        reader.close()
