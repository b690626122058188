"""One adapter per opponent, so that one loop drives and times them all.

Each takes what is asked, the data set, and of a rank its part.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bench.harness.options import picked
from bench.loaders.files import Example, copy_files
from bench.loaders.spec import RunSpec

_COPY_STREAMS = 64
_N_PREPARED = 4
#: Of staging, what a run may have chosen.
_CHOSEN = ("n_prefetchers", "reads_in_flight", "capacity")


class Part(NamedTuple):
    """What a rank is told: its communicator, the order of its examples, and its device."""

    comm: Any
    sampler: Any
    device: int


@dataclasses.dataclass
class Loader:
    """A loader at work; one that cannot be observed tells nothing."""

    next_batch: Callable[[], list[Example]]
    close: Callable[[], object]  # ends all processes
    # Whether the last mini-batch ended an epoch: asked once after each, if at all.
    is_new_epoch: Callable[[], bool] = lambda: False
    statistics: Callable[[], dict[str, float]] = dict  # what it counts itself
    concat: Callable[[list[Example], int], tuple] | None = None


# --- of Chainer -----------------------------------------------------------------------------------


def open_overlap(spec: RunSpec, dataset: Any, part: Part | None = None) -> Loader:
    """Make an ``overlapiter.OverlapIterator``."""
    import overlapiter

    options: dict[str, object] = {"seed": spec.seed} if spec.order == "own" else {}
    if spec.loader != "overlap-local":
        options["staging"] = _staging(spec, peers=part.comm if spec.has_peers else None)
    iterator = _iterator(spec, overlapiter.OverlapIterator, dataset, part, **options)
    return _of_chainer(iterator, overlapiter.concat_examples, lambda: iterator.stats().as_dict())


def open_stock(spec: RunSpec, dataset: Any, part: Part | None = None) -> Loader:
    """Make a ``chainer.iterators.MultiprocessIterator``."""
    from chainer.dataset import concat_examples
    from chainer.iterators import MultiprocessIterator

    np.random.seed(spec.seed)
    return _of_chainer(_iterator(spec, MultiprocessIterator, dataset, part), concat_examples)


def open_copied(spec: RunSpec, dataset: Any, part: Part | None = None) -> Loader:
    """Copy every file of the run, then make a MultiprocessIterator over the copies."""
    pairs = dataset._pairs  # not from the list file, which lies in the slow store
    paths = [pairs[index][0] for index in spec.indices()]
    copy_files(paths, spec.root, spec.staging, _COPY_STREAMS)
    return open_stock(spec, type(dataset)(pairs, spec.staging), part)


def _iterator(spec: RunSpec, make: type, dataset: Any, part: Part | None, **options: Any) -> Any:
    """Make an iterator of Chainer's kind over examples in the order that is asked for."""
    if part:
        options["order_sampler"] = part.sampler
    elif spec.order == "fixed":
        indices = spec.indices()  # they may be fewer than the data set has
        options |= {"repeat": False, "order_sampler": lambda *_state: indices}
    elif "seed" not in options:
        options["shuffle"] = spec.order == "own"
    return make(dataset, spec.batch_size, n_processes=spec.n_readers, **options)


def _of_chainer(iterator: Any, concat: Callable, statistics: Callable = dict) -> Loader:
    ends = iterator.finalize, lambda: iterator.is_new_epoch
    return Loader(iterator.__next__, *ends, statistics, concat)


def _staging(spec: RunSpec, **others: object) -> Any:
    import overlapiter

    return overlapiter.Staging(spec.staging, source=spec.root, **picked(spec, _CHOSEN), **others)


def open_synthetic(spec: RunSpec, dataset: Any, part: Part) -> Loader:
    """Make a few mini-batches, which come again and again; to be done before the clock starts."""
    from chainer.dataset import concat_examples

    n_examples = len(dataset)
    if hasattr(part.sampler, "of_epoch"):
        n_examples = len(part.sampler.of_epoch(0, len(dataset)))
    batch = [dataset[i % len(dataset)] for i in range(spec.batch_size)]
    # Each of them has not been used for a while.
    arrays = itertools.cycle([concat_examples(batch, part.device) for _ in range(_N_PREPARED)])
    n_taken = itertools.count(len(batch), len(batch))
    told = {"is_new_epoch": lambda: next(n_taken) % n_examples < len(batch)}
    told["concat"] = lambda _batch, _device: next(arrays)
    return Loader(lambda: batch, lambda: None, **told)


# --- of PyTorch -----------------------------------------------------------------------------------


def open_torch(spec: RunSpec, dataset: Any, part: Part | None = None) -> Loader:
    """Make a ``torch.utils.data.DataLoader``, in a rank with its ``DistributedSampler``."""
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    options: dict[str, object] = {"num_workers": spec.n_readers}
    if not part:
        return _collated(DataLoader(dataset, batch_sampler=spec.batches(), **options))
    sampler = DistributedSampler(dataset, part.comm.size, part.comm.rank, seed=spec.seed)
    options |= {"persistent_workers": True, "sampler": sampler}
    loader, is_last = DataLoader(dataset, spec.batch_size, **options), False

    def batches() -> Iterator[list]:
        nonlocal is_last
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            for number, batch in enumerate(loader, 1):
                is_last = number == len(loader)
                yield batch

    return _collated(batches(), is_new_epoch=lambda: is_last)


def open_overlap_torch(spec: RunSpec, dataset: Any, _part: None = None) -> Loader:
    """Make an ``overlapiter.torch.DataLoader``."""
    import overlapiter

    options = {"batch_sampler": spec.batches(), "num_workers": spec.n_readers}
    loader = overlapiter.torch.DataLoader(dataset, staging=_staging(spec), **options)
    return _collated(loader, loader.close, statistics=lambda: loader.stats().as_dict())


def _collated(batches: Iterable, end: Callable = lambda: None, **told: Callable) -> Loader:
    """Return what gives views of collated arrays; its ``end`` is called when it is closed."""
    held = [iter(batches)]  # the only reference: with it the workers end

    def next_batch() -> list[Example]:
        return list(zip(*map(np.asarray, next(held[0])), strict=True))

    def close() -> None:
        held.clear()
        end()

    return Loader(next_batch, close, **told)


# --- other loaders of C++ and of threads ----------------------------------------------------------


def open_dali(spec: RunSpec, dataset: Any, _part: None = None) -> Loader:
    """Make a pipeline of DALI's, whose threads decode; workers of its own, or one thread, read."""
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    pairs = [dataset._pairs[index] for index in spec.indices()]
    labels = np.array([label for _, label in pairs]).reshape(-1, spec.batch_size)
    paths, ahead = [os.path.join(spec.root, p) for p, _ in pairs], {"prefetch_queue_depth": 4}
    how = {"device_id": None, "py_start_method": "fork", "py_num_workers": spec.n_readers}
    how |= {"num_threads": len(os.sched_getaffinity(0)), "prefetch_queue_depth": 2}
    with Pipeline(spec.batch_size, **how) as pipeline:
        if spec.loader == "dali-files":
            encoded = fn.readers.file(files=paths, **ahead)[0]
        else:
            encoded = fn.external_source(source=_Read(paths), parallel=True, batch=False, **ahead)
        image = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        floats = fn.cast(image, dtype=types.FLOAT)
        pipeline.set_outputs(fn.transpose(floats, perm=[2, 0, 1]))
    pipeline.build()

    def batches() -> Iterator[tuple]:
        for some in labels:
            (images,) = pipeline.run()  # valid until the next one only, so they are copied
            yield images.as_array().copy(), some

    return _collated(batches())


class _Read:
    """Reads a file, in a worker process of DALI's."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __call__(self, sample: object) -> np.ndarray:
        return np.fromfile(self._paths[sample.idx_in_epoch % len(self._paths)], np.uint8)


def open_spdl(spec: RunSpec, dataset: Any, _part: None = None) -> Loader:
    """Make a pipeline of SPDL's, whose threads each call ``dataset[i]``."""
    from spdl.pipeline import PipelineBuilder

    def arrays_of(examples: list[Example]) -> tuple[np.ndarray, np.ndarray]:
        images, labels = zip(*examples, strict=True)
        return np.stack(images), np.array(labels)

    builder, size = PipelineBuilder().add_source(spec.indices().tolist()), spec.n_readers
    builder.pipe(dataset.__getitem__, concurrency=size, output_order="input")
    builder.aggregate(spec.batch_size).pipe(arrays_of).add_sink(3)
    pipeline = builder.build(num_threads=size)
    pipeline.start()
    return _collated(pipeline.get_iterator(), pipeline.stop)


_OURS = ("overlap", "overlap-staged", "overlap-local", "overlap-from-local")
#: What opens each loader.
ADAPTERS: dict[str, Callable[..., Loader]] = dict.fromkeys(_OURS, open_overlap) | {
    "slow": open_stock, "fast": open_stock, "local": open_stock, "copy": open_copied,
    "synthetic": open_synthetic, "torch": open_torch, "torch-local": open_torch,
    "overlap-torch": open_overlap_torch, "overlap-torch-staged": open_overlap_torch,
    "overlap-torch-importing": open_overlap_torch, "dali": open_dali, "dali-files": open_dali,
    "spdl": open_spdl,
}  # fmt: skip
