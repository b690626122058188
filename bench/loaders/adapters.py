"""One adapter per opponent, so that one loop drives and times them all."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from bench.harness.files import copy_files
from bench.loaders.spec import FixedOrder, Parts
from bench.slow.store import attach

if TYPE_CHECKING:
    from bench.loaders.checks import Example
    from bench.loaders.spec import RunSpec
    from bench.slow.store import SlowStore

    Snapshot = dict[str, float]


def order_options(spec: RunSpec) -> dict[str, object]:
    """Return the arguments of an iterator for the order of a run."""
    if spec.order == "fixed":
        return {"repeat": False, "order_sampler": FixedOrder(spec.indices())}
    return {"shuffle": spec.order == "own"}


class Overlap:
    """``overlapiter.OverlapIterator``."""

    def __init__(self, spec: RunSpec, dataset: object, store: SlowStore | None) -> None:
        import overlapiter

        options = order_options(spec)
        if spec.order == "own":
            options = {"seed": spec.seed}
        if spec.loader != "overlap-local":
            options["staging"] = overlapiter.Staging(
                spec.staging,
                source=spec.root,
                n_prefetchers=spec.n_prefetchers,
                reads_in_flight=spec.reads_in_flight,
                capacity=spec.capacity,
            )
        self._iterator = overlapiter.OverlapIterator(
            dataset if store is None else attach(dataset, store),
            spec.batch_size,
            n_processes=spec.n_readers,
            n_prefetch=spec.n_prefetch,
            **options,
        )
        self.next_batch = self._iterator.__next__
        self.close = self._iterator.finalize

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch ended an epoch."""
        return self._iterator.is_new_epoch

    def parts(self, _start: float, _end: float, /) -> Parts:
        """Return the sums of the snapshot, divided by the number of readers."""
        found = self._iterator.stats()
        names = ("initialize", "dequeue", "fetch", "other")
        return Parts(*(getattr(found, f"{name}_seconds") / found.n_readers for name in names))

    def statistics(self) -> Snapshot:
        """Return the numbers of the snapshot."""
        found = dataclasses.asdict(self._iterator.stats())
        return {name: value for name, value in found.items() if isinstance(value, (int, float))}


class Stock:
    """``chainer.iterators.MultiprocessIterator``."""

    def __init__(self, spec: RunSpec, dataset: object, _store: SlowStore | None) -> None:
        from chainer.iterators import MultiprocessIterator

        from bench.loaders.stock_timing import StockTiming

        np.random.seed(spec.seed)
        self._resources = ExitStack()
        self._timing = StockTiming(spec.n_readers)
        self._resources.enter_context(self._timing.installed())
        self._iterator = MultiprocessIterator(
            dataset,
            spec.batch_size,
            n_processes=spec.n_readers,
            n_prefetch=spec.n_prefetch,
            **order_options(spec),
        )
        self.next_batch = self._iterator.__next__
        self.parts = self._timing.parts

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch ended an epoch."""
        return self._iterator.is_new_epoch

    def statistics(self) -> Snapshot:
        """Return nothing: it counts nothing."""
        return {}

    def close(self) -> None:
        """End the pool."""
        self._iterator.finalize()
        self._resources.close()


class CopyFirst(Stock):
    """Copies every file of the run, then reads the copies with MultiprocessIterator."""

    def __init__(self, spec: RunSpec, dataset: object, store: SlowStore | None) -> None:
        from chainer.datasets import LabeledImageDataset

        pairs = dataset._pairs  # not from the list file, which lies in the slow store
        paths = [pairs[index][0] for index in spec.indices()]
        copy_files(paths, spec.root, spec.staging, spec.copy_streams)
        super().__init__(spec, LabeledImageDataset(pairs, spec.staging), store)


class Torch:
    """``torch.utils.data.DataLoader`` with a data set that returns what Chainer's does."""

    is_new_epoch = False

    def __init__(self, spec: RunSpec, dataset: object, _store: SlowStore | None) -> None:
        from torch.utils.data import DataLoader

        order = spec.indices().reshape(spec.n_batches, spec.batch_size).tolist()
        sized = _Sized(dataset, spec.n_examples)
        self._batches = iter(DataLoader(sized, batch_sampler=order, num_workers=spec.n_readers))

    def next_batch(self) -> list[Example]:
        """Return views of the collated tensors."""
        images, labels = next(self._batches)
        return list(zip(images.numpy(), labels.numpy(), strict=True))

    def parts(self, _start: float, _end: float, /) -> None:
        """Return None: these workers cannot be observed."""

    def statistics(self) -> Snapshot:
        """Return nothing: it counts nothing."""
        return {}

    def close(self) -> None:
        """End the workers."""
        del self._batches


class _Sized:
    """A map-style data set for PyTorch, whose examples are collated into tensors."""

    def __init__(self, dataset: object, length: int) -> None:
        self._dataset = dataset
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image, label = self._dataset[index]
        return image, np.int32(label)


_OURS = ("overlap", "overlap-staged", "overlap-local", "overlap-from-local")
ADAPTERS = dict.fromkeys(_OURS, Overlap) | {
    "slow": Stock, "fast": Stock, "copy": CopyFirst, "torch": Torch,
}  # fmt: skip
