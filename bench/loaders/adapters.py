"""One adapter per opponent, so that one loop drives and times them all."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from bench.harness.files import copy_files
from bench.loaders.spec import PARTS, FixedOrder
from bench.slow.store import attach

if TYPE_CHECKING:
    from bench.loaders.checks import Example
    from bench.loaders.spec import RunSpec
    from bench.slow.store import SlowStore


class Iterating:
    """What the adapters of Chainer's iterators have in common."""

    def __init__(self, spec: RunSpec, make: type, dataset: object, **options: object) -> None:
        if spec.order == "fixed":
            options |= {"repeat": False, "order_sampler": FixedOrder(spec.indices())}
        elif "seed" not in options:
            options["shuffle"] = spec.order == "own"
        options |= {"n_processes": spec.n_readers, "n_prefetch": spec.n_prefetch}
        self._iterator = make(dataset, spec.batch_size, **options)
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
        copy_files(paths, spec.root, spec.staging, spec.copy_streams)
        super().__init__(spec, LabeledImageDataset(pairs, spec.staging), store)


class Torch:
    """``torch.utils.data.DataLoader``."""

    is_new_epoch = False

    def __init__(self, spec: RunSpec, dataset: object, _store: SlowStore | None) -> None:
        from torch.utils.data import DataLoader

        order = spec.indices().reshape(spec.n_batches, spec.batch_size).tolist()
        sized = _Images(dataset._pairs, spec.root)
        self._batches = iter(DataLoader(sized, batch_sampler=order, num_workers=spec.n_readers))

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

        order = spec.indices().reshape(spec.n_batches, spec.batch_size).tolist()
        kind = _Images
        if spec.loader == "overlap-torch-importing":
            from bench.loaders.torch_images import TorchImages as kind
        sized = kind(dataset._pairs, spec.root)
        sized = sized if store is None else attach(sized, store)
        staging = overlapiter.Staging(spec.staging, source=spec.root)
        self._loader = overlapiter.torch.DataLoader(
            sized, batch_sampler=order, num_workers=spec.n_readers, staging=staging
        )
        self._batches = iter(self._loader)

    statistics = Overlap.statistics

    @property
    def _iterator(self) -> object:
        return self._loader

    def close(self) -> None:
        """End the workers."""
        super().close()
        self._loader.close()


class _Images:
    """A map-style data set for PyTorch, with the examples of Chainer's, but without Chainer.

    Args:
        pairs: ``(path, label)`` of each file.
        root: Directory that the paths are relative to.
    """

    def __init__(self, pairs: list[tuple[str, int]], root: str) -> None:
        self._pairs = pairs
        self._root = root

    def __len__(self) -> int:
        return len(self._pairs)

    def source_paths(self, index: int) -> list[str]:
        """Return the files of an example."""
        return [os.path.join(self._root, self._pairs[index][0])]

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32]:
        path, label = self._pairs[index]
        with open(os.path.join(self._root, path), "rb") as file, Image.open(file) as image:
            return np.asarray(image, np.float32).transpose(2, 0, 1), np.int32(label)


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
