"""The iterators over the examples of one rank that ``bench.data_parallel`` compares."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from chainer.dataset import concat_examples
from chainer.datasets import LabeledImageDataset
from chainer.iterators import MultiprocessIterator, ShuffleOrderSampler

import overlapiter
from bench.slowstore import attach
from bench.spec import read_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.checks import Example
    from bench.slowstore import SlowStore
    from bench.training_spec import TrainingSpec

_N_PREPARED = 4


class Loader(Protocol):
    """What a rank takes its mini-batches from."""

    is_new_epoch: bool

    def next_batch(self) -> list[Example]:
        """Return the next mini-batch; blocks until it is there."""

    def arrays(self, batch: list[Example]) -> tuple:
        """Return a mini-batch as arrays on the device of this rank."""

    def counts(self) -> tuple[int, int, int, int] | None:
        """Return opens of staged copies and of source files, files and bytes staged, so far."""

    def close(self) -> None:
        """End all processes."""


class Part:
    """The examples of one rank; collective, all ranks make theirs.

    Attributes:
        dataset: The whole data set, or the shard of this rank.
        sampler: Draws the order of each epoch over what this rank takes of it.
        n_examples: How many it takes in an epoch.
    """

    def __init__(self, spec: TrainingSpec, root: str, comm: object) -> None:
        self.dataset = LabeledImageDataset(read_pairs(spec.pairs, spec.n_examples), root)
        if spec.order == "shards":
            import chainermn

            self.dataset = chainermn.scatter_dataset(
                self.dataset, comm, shuffle=True, seed=spec.seed
            )
            self.sampler = ShuffleOrderSampler(np.random.RandomState([spec.seed, comm.rank]))
            self.n_examples = len(self.dataset)
        else:
            self.sampler = overlapiter.scatter_order(comm, seed=spec.seed)
            self.n_examples = len(self.sampler.of_epoch(0, spec.n_examples))


class Overlap:
    """``overlapiter.OverlapIterator`` with staging."""

    def __init__(self, spec: TrainingSpec, part: Part, staging: str, device: int) -> None:
        store = _store(spec)
        self._iterator = overlapiter.OverlapIterator(
            part.dataset if store is None else attach(part.dataset, store),
            spec.batch_size,
            n_processes=spec.n_readers,
            order_sampler=part.sampler,
            staging=overlapiter.Staging(staging, source=spec.root),
        )
        self._convert, self._device = overlapiter.concat_examples, device
        self.next_batch = self._iterator.__next__
        self.close = self._iterator.finalize

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch ended an epoch."""
        return self._iterator.is_new_epoch

    def arrays(self, batch: list[Example]) -> tuple:
        """Return the arrays that the mini-batch lies in."""
        return self._convert(batch, self._device)

    def counts(self) -> tuple[int, int, int, int]:
        """Return numbers of the snapshot."""
        found = self._iterator.stats()
        return found.opens_staged, found.opens_source, found.files_staged, found.bytes_staged


class Stock:
    """``chainer.iterators.MultiprocessIterator``."""

    def __init__(self, spec: TrainingSpec, part: Part, _staging: str, device: int) -> None:
        self._resources = ExitStack()
        store = _store(spec) if spec.loader == "slow" else None
        if store is not None:  # its workers are forks of this process
            self._resources.enter_context(store.installed())
        self._iterator = MultiprocessIterator(
            part.dataset,
            spec.batch_size,
            n_processes=spec.n_readers,
            order_sampler=part.sampler,
        )
        self._convert, self._device = concat_examples, device
        self.next_batch = self._iterator.__next__

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch ended an epoch."""
        return self._iterator.is_new_epoch

    def arrays(self, batch: list[Example]) -> tuple:
        """Return copies of the examples in one array each."""
        return self._convert(batch, self._device)

    def counts(self) -> None:
        """Return None: it counts nothing."""
        return

    def close(self) -> None:
        """End the pool."""
        self._iterator.finalize()
        self._resources.close()


class Synthetic:
    """A few mini-batches, which were made before the clock started, again and again."""

    def __init__(self, spec: TrainingSpec, part: Part, device: int) -> None:
        self._batch_size, self._n_examples = spec.batch_size, part.n_examples
        examples = [part.dataset[i % len(part.dataset)] for i in range(spec.batch_size)]
        batch = concat_examples(examples, device)
        self._arrays = [tuple(array.copy() for array in batch) for _ in range(_N_PREPARED)]
        self._n_taken = 0

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch ended an epoch."""
        return self._n_taken % self._n_examples < self._batch_size

    def next_batch(self) -> list[Example]:
        """Return nothing: the arrays are there."""
        self._n_taken += self._batch_size
        return []

    def arrays(self, _batch: list[Example]) -> tuple:
        """Return prepared arrays."""
        return self._arrays[self._n_taken // self._batch_size % _N_PREPARED]

    def counts(self) -> None:
        """Return None: there is nothing to count."""
        return

    def close(self) -> None:
        """Do nothing: there are no processes."""


_ADAPTERS = {"overlap": Overlap, "slow": Stock, "local": Stock}


def prepare(spec: TrainingSpec, part: Part, staging: str, device: int) -> Callable[[], Loader]:
    """Return what makes the loader of a run, once all that is to be there before is there."""
    if spec.loader == "synthetic":
        loader = Synthetic(spec, part, device)
        return lambda: loader
    return partial(_ADAPTERS[spec.loader], spec, part, staging, device)


def _store(spec: TrainingSpec) -> SlowStore | None:
    """Return the store that all processes of the machine share, not yet installed."""
    return None if spec.store is None else pickle.loads(Path(spec.store).read_bytes())
