"""One run of one loader, in a process of its own."""

from __future__ import annotations

import contextlib
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
from bench.loaders.opening import crossed, emulated, root_of, slow_store
from bench.loaders.spec import KEPT_POSITIONS, RunResult, RunSpec
from bench.slow.bare_reader import BareReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.loaders.opening import Store

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


def run_in_new_process(spec: RunSpec) -> RunResult:
    """Do one run in a fresh process and return what it measured; blocks until it ended.

    Raises:
        isolated.RunFailedError: The run did not end well.
    """
    return RunResult.from_dict(isolated.call(run, asdict(spec)))


def run(request: dict) -> dict:
    """Do one run in this process."""
    spec = RunSpec(**request)
    if spec.loader in ("floor", "ceiling"):
        from bench.loaders.floor import run_floor

        return asdict(run_floor(spec))
    pairs = spec.examples()
    with slow_store(spec) as store, _beside(spec, pairs, store) as beside:
        spec = replace(spec, root=root_of(store, spec.root))
        make = LabeledImageDataset if spec.is_decoding else Heads
        return asdict(_drive(spec, make(pairs, spec.root), store, beside))


def _drive(spec: RunSpec, dataset: object, store: Store, beside: _Beside) -> RunResult:
    from bench.loaders.adapters import ADAPTERS

    result = RunResult(0.0, 0.0, 0.0, 0.0)
    kept, marks = {}, [(0.0, 0, 0)]
    cpu_start, start = time.process_time(), time.monotonic()
    loader = ADAPTERS[spec.loader](spec, dataset, emulated(store))
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
            beside.wait()
            counts = crossed(store).values()
            marks.append((time.monotonic() - start, *(counts or (0, 0))))
            if len(marks) > spec.n_epochs:
                break
            beside.begin()
        is_late = spec.seconds and delivered - first_delivered > spec.seconds
        if is_late or position + 1 == spec.n_batches:
            break
    result.trainer_cpu_seconds = time.process_time() - cpu_start
    unnamed = OTHER if spec.loader.startswith("overlap") else "reader"
    result.cpu = cpu_by_kind(unnamed)
    result.cpu["trainer"] = {"n_processes": 1, "seconds": result.trainer_cpu_seconds}
    if spec.measures_memory:
        result.private_bytes = private_bytes_by_kind(unnamed)
    result.parts = loader.parts(start, delivered)
    result.statistics = loader.statistics()
    result.checksums = {key: checksum(batch) for key, batch in kept.items()}
    del batch, kept
    closing = time.monotonic()
    loader.close()
    result.finalize_seconds = time.monotonic() - closing
    result.wall_seconds = delivered - start
    result.first_batch_seconds = first_delivered - start
    after_first = max(delivered - first_delivered, 1e-9)
    result.rate_after_first = (result.n_images - n_first) / after_first
    epochs = np.diff(marks, axis=0).tolist() if len(marks) > 1 else []
    names = ("seconds", "opens", "bytes")
    result.epochs = [dict(zip(names, epoch, strict=True)) for epoch in epochs]
    return replace(result, **crossed(store))


class _Beside:
    """Reads a part of the data set from the store in another process, once in an epoch.

    Args:
        reader: That process; None where nothing is to be read.
        paths: The files, anew in another order each time.
        n_files: How many of them are read.
    """

    def __init__(self, reader: BareReader | None, paths: list[str], n_files: int) -> None:
        self._reader = reader
        self._paths = np.array(paths)
        self._n_files = n_files
        self._random = np.random.RandomState(0)
        self._is_reading = False

    def begin(self) -> None:
        """Begin with as many files as an epoch has to read at the least."""
        if self._reader:
            self._reader.start(self._random.permutation(self._paths)[: self._n_files].tolist())
            self._is_reading = True

    def wait(self) -> None:
        """Block until they have been read."""
        if self._is_reading:
            self._reader.wait()
            self._is_reading = False


@contextlib.contextmanager
def _beside(spec: RunSpec, pairs: list[tuple[str, int]], store: Store) -> Iterator[_Beside]:
    with contextlib.ExitStack() as resources:
        reader = None
        if spec.beside_fraction:
            reader = BareReader(root_of(store, spec.root), emulated(store))
            resources.callback(reader.close)
        n_files = round(spec.beside_fraction * len(pairs))
        yield _Beside(reader, [path for path, _ in pairs] if reader else [], n_files)
