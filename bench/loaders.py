"""One adapter per opponent, so that one loop drives and times them all."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bench.copying import copy_files
from bench.slowstore import attach
from bench.spec import FixedOrder

if TYPE_CHECKING:
    from bench.checks import Example
    from bench.slowstore import SlowStore
    from bench.spec import Parts, RunSpec


class Loader(Protocol):
    """What is timed."""

    def next_batch(self) -> list[Example]:
        """Return the next mini-batch; blocks until it is there."""

    def parts(self, start: float, end: float, /) -> Parts | None:
        """Return the mean parts of a reader's time, for a run from ``start`` to ``end``."""

    def statistics(self) -> dict[str, float]:
        """Return what the loader itself counts."""

    def close(self) -> None:
        """End all processes."""


class Overlap:
    """``overlapiter.OverlapIterator``."""

    def __init__(self, spec: RunSpec, dataset: object, store: SlowStore | None) -> None:
        import overlapiter

        self._iterator = overlapiter.OverlapIterator(
            dataset if store is None else attach(dataset, store),
            spec.batch_size,
            repeat=False,
            n_processes=spec.n_readers,
            n_prefetch=spec.n_prefetch,
            order_sampler=FixedOrder(spec.order()),
            staging=None
            if spec.loader == "overlap-local"
            else overlapiter.Staging(
                spec.staging, source=spec.root, n_prefetchers=spec.n_prefetchers
            ),
        )
        self.next_batch = self._iterator.__next__
        self.close = self._iterator.finalize

    def parts(self, _start: float, _end: float, /) -> Parts:
        """Return the sums of the snapshot, divided by the number of readers."""
        from bench.spec import Parts

        found = self._iterator.stats()
        seconds = (
            found.initialize_seconds,
            found.dequeue_seconds,
            found.fetch_seconds,
            found.other_seconds,
        )
        return Parts(*(part / found.n_readers for part in seconds))

    def statistics(self) -> dict[str, float]:
        """Return the numbers of the snapshot."""
        found = dataclasses.asdict(self._iterator.stats())
        return {name: value for name, value in found.items() if isinstance(value, (int, float))}


class Stock:
    """``chainer.iterators.MultiprocessIterator``."""

    def __init__(self, spec: RunSpec, dataset: object, _store: SlowStore | None) -> None:
        from chainer.iterators import MultiprocessIterator

        from bench.stock_timing import StockTiming

        self._resources = ExitStack()
        self._timing = StockTiming(spec.n_readers)
        self._resources.enter_context(self._timing.installed())
        self._iterator = MultiprocessIterator(
            dataset,
            spec.batch_size,
            repeat=False,
            n_processes=spec.n_readers,
            n_prefetch=spec.n_prefetch,
            order_sampler=FixedOrder(spec.order()),
        )
        self.next_batch = self._iterator.__next__

    def parts(self, start: float, end: float, /) -> Parts:
        """Return what was measured in the workers of the pool."""
        return self._timing.parts(start, end)

    def statistics(self) -> dict[str, float]:
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

        pairs = dataset._pairs
        paths = [pairs[index][0] for index in spec.order()]
        copy_files(paths, spec.root, spec.staging, spec.copy_streams)
        super().__init__(spec, LabeledImageDataset(pairs, spec.staging), store)


class Torch:
    """``torch.utils.data.DataLoader`` with a data set that returns what Chainer's does."""

    def __init__(self, spec: RunSpec, dataset: object, _store: SlowStore | None) -> None:
        from torch.utils.data import DataLoader

        order = spec.order().reshape(spec.n_batches, spec.batch_size)
        loader = DataLoader(
            _Sized(dataset, spec.n_examples),
            batch_sampler=[indices.tolist() for indices in order],
            num_workers=spec.n_readers,
        )
        self._batches = iter(loader)

    def next_batch(self) -> list[Example]:
        """Return views of the collated tensors."""
        images, labels = next(self._batches)
        return list(zip(images.numpy(), labels.numpy(), strict=True))

    def parts(self, _start: float, _end: float, /) -> None:
        """Return None: these workers cannot be observed."""

    def statistics(self) -> dict[str, float]:
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


ADAPTERS = {
    "overlap": Overlap,
    "overlap-staged": Overlap,
    "overlap-local": Overlap,
    "overlap-from-local": Overlap,
    "slow": Stock,
    "fast": Stock,
    "copy": CopyFirst,
    "torch": Torch,
}
