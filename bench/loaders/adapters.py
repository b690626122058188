"""One adapter per opponent, so that one loop drives and times them all.

Each takes what is asked, the data set, the emulated store if there is one, and of a rank its part.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bench.harness.files import copy_files
from bench.harness.options import picked
from bench.loaders.checks import Example
from bench.loaders.files import Images, images_of
from bench.loaders.spec import PARTS, RunSpec
from bench.slow.store import SlowStore, attach

_COPY_STREAMS = 64
_N_PREPARED = 4


class Part(NamedTuple):
    """What a rank is told of the order of its examples, and by which communicator."""

    comm: Any
    sampler: Any


class Loader:
    """What an adapter tells; a loader that cannot be observed tells nothing."""

    is_new_epoch: bool = False  # whether the last mini-batch ended an epoch

    def parts(self, _start: float, _end: float, /) -> dict[str, float] | None:
        """Return the parts of the mean reader's time within these seconds of the clock."""
        return None

    def statistics(self) -> dict[str, float]:
        """Return what the loader itself counts."""
        return {}

    def close(self) -> None:
        """End all processes."""


class Iterating(Loader):
    """What the adapters of Chainer's iterators have in common."""

    def __init__(
        self, spec: RunSpec, make: type, dataset: object, part: Part | None, **options: object
    ) -> None:
        if part:
            options["order_sampler"] = part.sampler
        elif spec.order == "fixed":
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

    def close(self) -> None:
        """End all processes."""
        self._iterator.finalize()


class Overlap(Iterating):
    """``overlapiter.OverlapIterator``."""

    def __init__(
        self, spec: RunSpec, dataset: object, store: SlowStore | None, part: Part | None = None
    ) -> None:
        import overlapiter

        self.concat = overlapiter.concat_examples
        options: dict[str, object] = {"seed": spec.seed} if spec.order == "own" else {}
        if spec.loader != "overlap-local":
            chosen = picked(spec, ("n_prefetchers", "reads_in_flight", "capacity"))
            chosen["peers"] = part.comm if spec.has_peers else None
            options["staging"] = overlapiter.Staging(spec.staging, source=spec.root, **chosen)
        dataset = dataset if store is None else attach(dataset, store)
        super().__init__(spec, overlapiter.OverlapIterator, dataset, part, **options)

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

    def __init__(
        self, spec: RunSpec, dataset: object, _store: object, part: Part | None = None
    ) -> None:
        from chainer.dataset import concat_examples
        from chainer.iterators import MultiprocessIterator

        from bench.loaders.stock_timing import TimedDataset

        self.concat = concat_examples
        np.random.seed(spec.seed)
        timed = TimedDataset(dataset, spec.n_readers)
        self.parts = timed.parts
        super().__init__(spec, MultiprocessIterator, timed, part)


class CopyFirst(Stock):
    """Copies every file of the run, then reads the copies with MultiprocessIterator."""

    def __init__(self, spec: RunSpec, dataset: object, store: SlowStore | None) -> None:
        pairs = dataset._pairs  # not from the list file, which lies in the slow store
        paths = [pairs[index][0] for index in spec.indices()]
        copy_files(paths, spec.root, spec.staging, _COPY_STREAMS)
        super().__init__(spec, images_of(pairs, spec.staging), store)


class Synthetic(Loader):
    """A few mini-batches, which are made before the clock starts, again and again."""

    def __init__(self, spec: RunSpec, dataset: object, part: Part, device: int) -> None:
        from chainer.dataset import concat_examples

        self._n_examples = len(dataset)
        if hasattr(part.sampler, "of_epoch"):
            self._n_examples = len(part.sampler.of_epoch(0, len(dataset)))
        self._batch = [dataset[i % len(dataset)] for i in range(spec.batch_size)]
        self._arrays = [concat_examples(self._batch, device) for _ in range(_N_PREPARED)]
        self._n_taken = 0

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch ended an epoch."""
        return self._n_taken * len(self._batch) % self._n_examples < len(self._batch)

    def next_batch(self) -> list[Example]:
        """Return the examples of which all mini-batches are."""
        self._n_taken += 1
        return self._batch

    def concat(self, _batch: list[Example], _device: int) -> tuple:
        """Return arrays that have not been used for a while."""
        return self._arrays[self._n_taken % _N_PREPARED]


class Torch(Loader):
    """``torch.utils.data.DataLoader``, in a rank with its ``DistributedSampler``."""

    def __init__(
        self, spec: RunSpec, dataset: object, _store: object, part: Part | None = None
    ) -> None:
        from torch.utils.data import DataLoader

        if part:
            self._batches = self._epochs(spec, dataset, part.comm)
        else:
            images = Images(dataset._pairs, spec.root)
            self._open(DataLoader(images, batch_sampler=spec.batches(), num_workers=spec.n_readers))

    def _open(self, loader: object) -> None:
        self._iterator = loader
        self._batches = iter(loader)

    def _epochs(self, spec: RunSpec, dataset: object, comm: Any) -> Iterator[list]:
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler

        sampler = DistributedSampler(dataset, comm.size, comm.rank, seed=spec.seed)
        options = {"num_workers": spec.n_readers, "persistent_workers": True, "sampler": sampler}
        loader = DataLoader(dataset, spec.batch_size, **options)
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            for number, batch in enumerate(loader, 1):
                self.is_new_epoch = number == len(loader)
                yield batch

    def next_batch(self) -> list[Example]:
        """Return views of the collated tensors."""
        images, labels = next(self._batches)
        return list(zip(images.numpy(), labels.numpy(), strict=True))

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


# --- other loaders of C++ and of threads ----------------------------------------------------------


class Dali(Loader):
    """DALI, whose own worker processes read the files; its threads decode, one for each core."""

    def __init__(self, spec: RunSpec, dataset: object, _store: None) -> None:
        from nvidia.dali import fn, types
        from nvidia.dali.pipeline import Pipeline

        pairs = [dataset._pairs[index] for index in spec.indices()]
        self._labels = np.array([label for _, label in pairs])
        self._batch_size, self._n_given = spec.batch_size, 0
        self._paths = [os.path.join(spec.root, path) for path, _ in pairs]
        self._pipeline = Pipeline(
            spec.batch_size,
            num_threads=len(os.sched_getaffinity(0)),
            device_id=None,
            py_num_workers=spec.n_readers,
            py_start_method="fork",
            prefetch_queue_depth=2,
        )
        with self._pipeline:
            image = fn.decoders.image(self._encoded(), device="cpu", output_type=types.RGB)
            floats = fn.cast(image, dtype=types.FLOAT)
            self._pipeline.set_outputs(fn.transpose(floats, perm=[2, 0, 1]))
        self._pipeline.build()

    def _encoded(self) -> object:
        from nvidia.dali import fn

        read = _Read(self._paths)
        return fn.external_source(source=read, parallel=True, batch=False, prefetch_queue_depth=4)

    def next_batch(self) -> list[Example]:
        """Return copies: a mini-batch of DALI's is valid until the next one only."""
        (images,) = self._pipeline.run()
        labels = self._labels[self._n_given :][: self._batch_size]
        self._n_given += self._batch_size
        return list(zip(images.as_array().copy(), labels, strict=True))

    def close(self) -> None:
        """End the workers."""
        del self._pipeline


class DaliFiles(Dali):
    """DALI with its own reader of files, one thread."""

    def _encoded(self) -> object:
        from nvidia.dali import fn

        return fn.readers.file(files=self._paths, prefetch_queue_depth=4)[0]


class _Read:
    """Reads a file, in a worker process of DALI's."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __call__(self, sample: object) -> np.ndarray:
        return np.fromfile(self._paths[sample.idx_in_epoch % len(self._paths)], np.uint8)


class Spdl(Loader):
    """SPDL, whose threads each call ``dataset[i]``."""

    def __init__(self, spec: RunSpec, dataset: object, _store: None) -> None:
        from spdl.pipeline import PipelineBuilder

        images = Images(dataset._pairs, spec.root)
        self._pipeline = (
            PipelineBuilder()
            .add_source(spec.indices().tolist())
            .pipe(images.__getitem__, concurrency=spec.n_readers, output_order="input")
            .aggregate(spec.batch_size)
            .pipe(_collated)
            .add_sink(3)
            .build(num_threads=spec.n_readers)
        )
        self._pipeline.start()
        self._batches = self._pipeline.get_iterator()

    def next_batch(self) -> list[Example]:
        """Return views of the collated arrays."""
        return list(zip(*next(self._batches), strict=True))

    def close(self) -> None:
        """End the threads."""
        self._pipeline.stop()


def _collated(examples: list[Example]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*examples, strict=True)
    return np.stack(images), np.array(labels)


_OURS = ("overlap", "overlap-staged", "overlap-local", "overlap-from-local")
#: What drives each loader.
ADAPTERS = dict.fromkeys(_OURS, Overlap) | {
    "slow": Stock, "fast": Stock, "local": Stock, "copy": CopyFirst,
    "torch": Torch, "torch-local": Torch,
    "overlap-torch": OverlapTorch, "overlap-torch-staged": OverlapTorch,
    "overlap-torch-importing": OverlapTorch, "dali": Dali, "dali-files": DaliFiles, "spdl": Spdl,
}  # fmt: skip
