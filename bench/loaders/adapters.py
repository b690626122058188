"""One adapter per opponent, so that one loop drives and times them all."""

from __future__ import annotations

import dataclasses

import numpy as np

from bench.harness.files import copy_files
from bench.loaders.checks import Example
from bench.loaders.files import Images
from bench.loaders.spec import PARTS, RunSpec
from bench.slow.store import SlowStore, attach

_COPY_STREAMS = 64


class Iterating:
    """What the adapters of Chainer's iterators have in common."""

    def __init__(self, spec: RunSpec, make: type, dataset: object, **options: object) -> None:
        if spec.order == "fixed":
            indices = spec.indices()  # they may be fewer than the data set has
            options |= {"repeat": False, "order_sampler": lambda *_state: indices}
        elif "seed" not in options:
            options["shuffle"] = spec.order == "own"
        self._iterator = make(dataset, spec.batch_size, n_processes=spec.n_readers, **options)
        self.next_batch = self._iterator.__next__

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch ended an epoch."""
        return self._iterator.is_new_epoch

    def statistics(self) -> dict[str, float]:
        """Return nothing: it counts nothing."""
        return {}

    def close(self) -> None:
        """End all processes."""
        self._iterator.finalize()


class Overlap(Iterating):
    """``overlapiter.OverlapIterator``."""

    def __init__(self, spec: RunSpec, dataset: object, store: SlowStore | None) -> None:
        import overlapiter

        options: dict[str, object] = {"seed": spec.seed} if spec.order == "own" else {}
        if spec.loader != "overlap-local":
            names = ("n_prefetchers", "reads_in_flight", "capacity")
            chosen = {name: getattr(spec, name) for name in names}
            options["staging"] = overlapiter.Staging(spec.staging, source=spec.root, **chosen)
        dataset = dataset if store is None else attach(dataset, store)
        super().__init__(spec, overlapiter.OverlapIterator, dataset, **options)

    def parts(self, _start: float, _end: float, /) -> dict[str, float]:
        """Return the sums of the snapshot, divided by the number of readers."""
        found = self._iterator.stats()
        names = ("initialize", "dequeue", "fetch", "other")
        seconds = (getattr(found, f"{name}_seconds") / found.n_readers for name in names)
        return dict(zip(PARTS, seconds, strict=True))

    def statistics(self) -> dict[str, float]:
        """Return the numbers of the snapshot."""
        found = dataclasses.asdict(self._iterator.stats())
        return {name: value for name, value in found.items() if isinstance(value, (int, float))}


class Stock(Iterating):
    """``chainer.iterators.MultiprocessIterator``."""

    def __init__(self, spec: RunSpec, dataset: object, _store: SlowStore | None) -> None:
        from chainer.iterators import MultiprocessIterator

        from bench.loaders.stock_timing import StockTiming

        np.random.seed(spec.seed)
        self._timing = StockTiming(spec.n_readers)
        self._timing.install()
        self.parts = self._timing.parts
        super().__init__(spec, MultiprocessIterator, dataset)

    def close(self) -> None:
        """End the pool."""
        super().close()
        self._timing.uninstall()


class CopyFirst(Stock):
    """Copies every file of the run, then reads the copies with MultiprocessIterator."""

    def __init__(self, spec: RunSpec, dataset: object, store: SlowStore | None) -> None:
        from chainer.datasets import LabeledImageDataset

        pairs = dataset._pairs  # not from the list file, which lies in the slow store
        paths = [pairs[index][0] for index in spec.indices()]
        copy_files(paths, spec.root, spec.staging, _COPY_STREAMS)
        super().__init__(spec, LabeledImageDataset(pairs, spec.staging), store)


class Torch:
    """``torch.utils.data.DataLoader``."""

    is_new_epoch = False

    def __init__(self, spec: RunSpec, dataset: object, _store: SlowStore | None) -> None:
        from torch.utils.data import DataLoader

        images = Images(dataset._pairs, spec.root)
        self._open(DataLoader(images, batch_sampler=spec.batches(), num_workers=spec.n_readers))

    def _open(self, loader: object) -> None:
        self._iterator = loader
        self._batches = iter(loader)

    def next_batch(self) -> list[Example]:
        """Return views of the collated tensors."""
        images, labels = next(self._batches)
        return list(zip(images.numpy(), labels.numpy(), strict=True))

    def parts(self, _start: float, _end: float, /) -> None:
        """Return None: these workers cannot be observed."""

    statistics = Iterating.statistics

    def close(self) -> None:
        """End the workers."""
        del self._batches


class OverlapTorch(Torch):
    """``overlapiter.torch.DataLoader``."""

    def __init__(self, spec: RunSpec, dataset: object, store: SlowStore | None) -> None:
        import overlapiter

        kind = Images
        if spec.loader == "overlap-torch-importing":
            from bench.loaders.torch_images import TorchImages as kind
        images = kind(dataset._pairs, spec.root)
        images = images if store is None else attach(images, store)
        options = {"batch_sampler": spec.batches(), "num_workers": spec.n_readers}
        options["staging"] = overlapiter.Staging(spec.staging, source=spec.root)
        self._open(overlapiter.torch.DataLoader(images, **options))

    statistics = Overlap.statistics

    def close(self) -> None:
        """End the workers."""
        super().close()
        self._iterator.close()


_OURS = ("overlap", "overlap-staged", "overlap-local", "overlap-from-local")
ADAPTERS = dict.fromkeys(_OURS, Overlap) | {
    "slow": Stock, "fast": Stock, "copy": CopyFirst, "torch": Torch, "torch-local": Torch,
    "overlap-torch": OverlapTorch, "overlap-torch-staged": OverlapTorch,
    "overlap-torch-importing": OverlapTorch,
}  # fmt: skip


def adapter_of(loader: str) -> type:
    """Return what drives a loader."""
    if loader in ADAPTERS:
        return ADAPTERS[loader]
    from bench.loaders import rivals

    return {"dali": rivals.Dali, "dali-files": rivals.DaliFiles, "spdl": rivals.Spdl}[loader]
