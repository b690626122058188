"""What the programs that run under mpiexec share; each process of theirs is a rank."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from chainer.iterators import SerialIterator

from overlapiter import OverlapIterator, Staging
from tests.chainer import fork_watch

KINDS = ("serial", "overlap", "staged")

#: How often this process forked from here on; vfork, as for the forkserver itself, is safe.
forks = fork_watch.copies
fork_watch.watch()


class Make:
    """Makes iterators of one kind, each with random numbers that start at a seed.

    Args:
        kind: One of ``KINDS``.
        staging: What a staged iterator uses.
    """

    def __init__(self, kind: str, staging: Staging) -> None:
        self.kind = kind
        self.staging = staging

    def __call__(
        self, dataset: Any, batch_size: int, *, random_seed: int = 0, **options: Any
    ) -> Any:
        np.random.seed(random_seed)
        if self.kind == "serial":
            return SerialIterator(dataset, batch_size, **options)
        if self.kind == "staged":
            options["staging"] = self.staging
        return OverlapIterator(dataset, batch_size, n_processes=1, **options)


def report(comm: Any, results: Any) -> None:
    """Write down what this rank found, for the test to read."""
    path = Path(f"rank-{comm.rank}.json")
    path.with_suffix(".new").write_text(json.dumps(results))
    path.with_suffix(".new").rename(path)  # at once: another rank may end the job


def labels_of(batch: list[Any]) -> list[int]:
    """Return the label of each example, which in these tests is its index."""
    return [int(example[1]) for example in batch]


def content(batch: list[Any]) -> str:
    """Return a digest of a mini-batch: of each number's bits as float32, and of its shape."""
    digest = hashlib.sha256()
    for example in batch:
        for leaf in example if isinstance(example, tuple) else (example,):
            array = np.asarray(leaf, np.float32)
            digest.update(repr(array.shape).encode() + array.tobytes())
    return digest.hexdigest()


def types(batch: list[Any]) -> list[str]:
    """Return the types of a mini-batch, of its first example and of what is in it."""
    first = batch[0]
    leaves = first if isinstance(first, tuple) else (first,)
    assert isinstance(batch, list)
    kinds = [f"{type(leaf).__name__} {getattr(leaf, 'dtype', '')}" for leaf in leaves]
    return [type(first).__name__, *kinds]


def position(iterator: Any) -> list[float]:
    """Return where an iterator stands, as far as every wrapper of ChainerMN's knows."""
    return [
        iterator.epoch,
        iterator.current_position,
        bool(iterator.is_new_epoch),
        iterator.epoch_detail,
    ]


def trail(iterator: Any, n_batches: int) -> list[Any]:
    """Take mini-batches; return the content, the types and the position, or the end, of each."""
    steps: list[Any] = []
    for _ in range(n_batches):
        try:
            batch = next(iterator)
        except StopIteration:
            steps.append(["end", "", position(iterator)])
        else:
            steps.append([content(batch), types(batch), position(iterator)])
    return steps


def one_epoch(iterator: Any) -> Iterator[list[Any]]:
    """Yield the mini-batches of the current epoch; the last one may reach into the next."""
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        if iterator.is_new_epoch and iterator.repeat:
            return
