"""Some epochs over an emulated slow store: how long each takes, and what it reads from the store.

``bench.epoch_times`` and ``bench.misses_measured`` run this in fresh processes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from chainer.dataset import DatasetMixin
from chainer.datasets import LabeledImageDataset

from bench import isolated
from bench.slowstore import SlowStore, attach
from bench.spec import read_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD_BYTES = 64


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
            disk; ``fraction`` of the data set that the staging directory holds, None for all;
            ``open_seconds`` and ``bytes_per_second`` of the store.

    Returns:
        For each epoch ``epoch_seconds``, the first one with the start of the workers, and
        ``store_opens`` and ``store_bytes``, of what is read ahead of the trainer too.
    """
    pairs = read_pairs(request["pairs"], request["n_examples"])
    make = LabeledImageDataset if request["is_decoding"] else Heads
    with (
        SlowStore(request["root"], request["open_seconds"], request["bytes_per_second"]) as store,
        tempfile.TemporaryDirectory(prefix="bench-epochs-", dir=request["local"]) as staging,
    ):
        marks = [(time.monotonic(), 0, 0)]
        with _iterator(request, make(pairs, request["root"]), store, staging, pairs) as iterator:
            for _ in range(request["n_epochs"]):
                _take_epoch(iterator)
                records = store.records()
                n_bytes = sum(record.size_bytes for record in records)
                marks.append((time.monotonic(), len(records), n_bytes))
    seconds, opens, sizes = (np.diff(column).tolist() for column in zip(*marks, strict=True))
    rounded = [round(second, 3) for second in seconds]
    return {"epoch_seconds": rounded, "store_opens": opens, "store_bytes": sizes}


def _take_epoch(iterator: object) -> None:
    while True:
        next(iterator)
        if iterator.is_new_epoch:
            return


@contextlib.contextmanager
def _iterator(
    request: dict, dataset: object, store: SlowStore, staging: str, pairs: list[tuple[str, int]]
) -> Iterator[object]:
    if request["loader"] == "multiprocess":
        from chainer.iterators import MultiprocessIterator

        np.random.seed(request["seed"])
        with store.installed():  # its workers are forks of this process
            iterator = MultiprocessIterator(
                dataset, request["batch_size"], n_processes=request["n_readers"]
            )
            yield iterator
    else:
        import overlapiter

        root, fraction = Path(request["root"]), request["fraction"]
        capacity = None
        if fraction is not None:
            capacity = int(fraction * sum((root / path).stat().st_size for path, _ in pairs))
        iterator = overlapiter.OverlapIterator(
            attach(dataset, store),
            request["batch_size"],
            n_processes=request["n_readers"],
            seed=request["seed"],
            staging=overlapiter.Staging(staging, source=root, capacity=capacity),
        )
        yield iterator
    iterator.finalize()


if __name__ == "__main__":
    isolated.serve(measure)
