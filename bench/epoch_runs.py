"""Some epochs over a slow store: how long each takes, and what it reads from the store.

``bench.epoch_times``, ``bench.misses_measured``, ``bench.evicting`` and ``bench.large_files`` run
this in fresh processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from chainer.dataset import DatasetMixin
from chainer.datasets import LabeledImageDataset

from bench import isolated
from bench.bare_reader import BareReader
from bench.cpu import cpu_by_kind
from bench.slowstore import attach
from bench.spec import read_pairs
from bench.stores import crossed, emulated, open_store, root_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bench.slowmount import SlowMount
    from bench.slowstore import SlowStore

HEAD_BYTES = 64
BLOCK_BYTES = 4096


class Heads(DatasetMixin):
    """Gives ``(uint8 array, int32 index)``: the first bytes of each file, without decoding it.

    Args:
        pairs: ``(path, label)`` of each file.
        root: Directory that the paths are relative to.
    """

    def __init__(self, pairs: list[tuple[str, int]], root: str) -> None:
        self._paths = [os.path.join(root, path) for path, _ in pairs]

    def __len__(self) -> int:
        return len(self._paths)

    def source_paths(self, i: int) -> list[str]:
        """Return the files that an example reads."""
        return [self._paths[i]]

    def get_example(self, i: int) -> tuple:
        """Read a whole file and return its beginning."""
        with open(self._paths[i], "rb") as file:
            data = file.read()
        return np.frombuffer(data[:HEAD_BYTES], np.uint8), np.int32(i)


def measure(request: dict) -> dict:
    """Do one run in this process.

    Args:
        request: ``loader``: ``"overlap"`` or ``"multiprocess"``; ``root`` and ``pairs``: a set of
            ``bench.photographs``; ``n_examples``, ``batch_size``, ``n_epochs``, ``n_readers``,
            ``seed``; ``is_decoding``: whether examples are images; ``local``: a folder on the fast
            disk, where what was staged stays; ``fraction`` of the data set that the staging
            directory holds, None for all; ``mount``, ``open_seconds`` and ``bytes_per_second`` of
            the store; ``beside_fraction`` of the data set that one more process reads from the
            store in each epoch after the first, which ends when that has been done, too.

    Returns:
        For each epoch ``epoch_seconds``, the first one with the start of the workers, and
        ``store_opens`` and ``store_bytes``, of what is read ahead of the trainer too; ``cpu``, see
        :func:`bench.cpu.cpu_by_kind`; ``statistics``, what the iterator counts.
    """
    pairs = read_pairs(request["pairs"], request["n_examples"])
    make = LabeledImageDataset if request["is_decoding"] else Heads
    request = {
        **request,
        "staging": tempfile.mkdtemp(prefix="staged-", dir=request["local"]),
        "capacity": None,
    }
    if request["fraction"] is not None:  # looked up before the store is slow
        paths = (path for path, _ in pairs)
        request["capacity"] = capacity_of(request["root"], paths, request["fraction"])
    numbers = (request["open_seconds"], request["bytes_per_second"])
    mount_point = os.path.join(request["local"], "mount")
    with (
        open_store(request["mount"], request["root"], mount_point, *numbers) as store,
        _beside(request, pairs, store) as beside,
    ):
        marks = [(time.monotonic(), 0, 0)]
        root = root_of(store, request["root"])
        request["root"] = root
        with _iterator(request, make(pairs, root), emulated(store)) as iterator:
            for epoch in range(request["n_epochs"]):
                if epoch:
                    beside.start()
                _take_epoch(iterator)
                if epoch:
                    beside.wait()
                counts = crossed(store) or {"store_opens": 0, "store_bytes": 0}
                marks.append((time.monotonic(), counts["store_opens"], counts["store_bytes"]))
            cpu = cpu_by_kind()
            statistics = _statistics(iterator)
    seconds, opens, sizes = (np.diff(column).tolist() for column in zip(*marks, strict=True))
    return {
        "epoch_seconds": [round(second, 3) for second in seconds],
        "store_opens": opens,
        "store_bytes": sizes,
        "cpu": cpu,
        "statistics": statistics,
    }


class _Beside:
    """Reads a part of the data set from the store in another process, once in an epoch.

    Args:
        reader: That process.
        paths: The files, anew in another order each time.
        n_files: How many of them are read.
    """

    def __init__(self, reader: BareReader, paths: list[str], n_files: int) -> None:
        self._reader = reader
        self._paths = np.array(paths)
        self._n_files = n_files
        self._random = np.random.RandomState(0)

    def start(self) -> None:
        """Begin with as many files as an epoch has to read at the least."""
        self._reader.start(self._random.permutation(self._paths)[: self._n_files].tolist())

    def wait(self) -> None:
        """Block until they have been read."""
        self._reader.wait()


@contextlib.contextmanager
def _beside(
    request: dict, pairs: list[tuple[str, int]], store: SlowStore | SlowMount | None
) -> Iterator[_Beside]:
    reader = BareReader(root_of(store, request["root"]), emulated(store))
    try:
        n_files = round(request["beside_fraction"] * len(pairs))
        yield _Beside(reader, [path for path, _ in pairs], n_files)
    finally:
        reader.close()


def capacity_of(root: str, paths: Iterable[str], fraction: float) -> int:
    """Return the bytes that a part of some files takes, each in whole blocks of the disk."""
    sizes = (Path(root, path).stat().st_size for path in paths)
    blocks = sum(-(-size_bytes // BLOCK_BYTES) for size_bytes in sizes)
    return int(fraction * blocks) * BLOCK_BYTES


def _statistics(iterator: object) -> dict[str, float]:
    if not hasattr(iterator, "stats"):
        return {}
    found = dataclasses.asdict(iterator.stats())
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


def _take_epoch(iterator: object) -> None:
    while True:
        next(iterator)
        if iterator.is_new_epoch:
            return


@contextlib.contextmanager
def _iterator(request: dict, dataset: object, store: SlowStore | None) -> Iterator[object]:
    if request["loader"] == "multiprocess":
        from chainer.iterators import MultiprocessIterator

        np.random.seed(request["seed"])
        with store.installed() if store else contextlib.nullcontext():  # its workers are forks
            iterator = MultiprocessIterator(
                dataset, request["batch_size"], n_processes=request["n_readers"]
            )
            yield iterator
    else:
        import overlapiter

        staging = overlapiter.Staging(
            request["staging"], source=request["root"], capacity=request["capacity"]
        )
        iterator = overlapiter.OverlapIterator(
            attach(dataset, store) if store else dataset,
            request["batch_size"],
            n_processes=request["n_readers"],
            seed=request["seed"],
            staging=staging,
        )
        yield iterator
    iterator.finalize()


if __name__ == "__main__":
    isolated.serve(measure)
