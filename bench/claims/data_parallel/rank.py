"""One rank of data-parallel training with ChainerMN."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import overlapiter.mpi
from bench.claims.data_parallel import Options, places_of
from bench.harness.family import cpu_seconds, descendants
from bench.harness.files import copy_files, read_pairs
from bench.loaders.files import Heads
from bench.loaders.sources import Sources
from bench.slow import SlowStore, Store, crossed
from bench.slow.store import attach
from overlapiter.node import this_node
from overlapiter.scatter import ScatteredOrder

_N_PREPARED = 4
_LOCAL = ("local", "synthetic")
#: What the iterator counts: opens of staged copies and of source files, files and bytes staged.
_COUNTS = ("opens_staged", "opens_source", "files_staged", "bytes_staged")


def part_of(request: dict, comm: object) -> tuple:
    """Return the examples of a rank and what draws their order; collective, all ranks call it."""
    from chainer.datasets import LabeledImageDataset
    from chainer.iterators import ShuffleOrderSampler

    seed, root = request["seed"], request["local_root" if request["loader"] in _LOCAL else "root"]
    make = LabeledImageDataset if request["model"] else Heads
    dataset = make(read_pairs(request["pairs"], request["n_examples"]), root)
    if request["order"] == "apart":  # a rank that does not know what the others read
        return dataset, ScatteredOrder(comm.rank, comm.size, seed)
    if request["order"] != "shards":
        return dataset, overlapiter.scatter_order(comm, seed=seed)
    import chainermn

    shard = chainermn.scatter_dataset(dataset, comm, shuffle=True, seed=seed)
    return shard, ShuffleOrderSampler(np.random.RandomState([seed, comm.rank]))


def open_loader(
    request: dict, comm: object, part: tuple, store: Store, resources: contextlib.ExitStack
) -> tuple:
    """Return an iterator and the converter that belongs to it; ``resources`` end both."""
    from chainer.dataset import concat_examples
    from chainer.iterators import MultiprocessIterator

    (dataset, sampler), is_emulated = part, isinstance(store, SlowStore)
    usual = {"n_processes": request["n_readers"], "order_sampler": sampler}
    make, convert = MultiprocessIterator, concat_examples
    if request["loader"] == "overlap":
        make, convert = overlapiter.OverlapIterator, overlapiter.concat_examples
        usual["staging"] = overlapiter.Staging(
            _folder_of_node(request),
            source=request["root"],
            capacity=request.get("capacity"),
            peers=comm if request.get("has_peers") else None,
        )
        dataset = attach(dataset, store) if is_emulated else dataset
    elif is_emulated and request["loader"] != "local":  # its workers are forks of this process
        resources.enter_context(store.installed())
    if request["loader"] == "torch":
        return TorchBatches(request, comm, dataset), lambda arrays, _device: arrays
    iterator = make(dataset, request["batch_size"], **usual)
    resources.callback(iterator.finalize)
    return iterator, convert


def _folder_of_node(request: dict) -> str:
    folder = os.path.join(request["staging"], this_node().name)
    os.makedirs(folder, exist_ok=True)
    return folder


class TorchBatches:
    """The mini-batches of PyTorch's ``DataLoader`` with its ``DistributedSampler``."""

    def __init__(self, request: dict, comm: object, dataset: object) -> None:
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler

        self._sampler = DistributedSampler(dataset, comm.size, comm.rank, seed=request["seed"])
        options = {"num_workers": request["n_readers"], "persistent_workers": True}
        self._loader = DataLoader(dataset, request["batch_size"], sampler=self._sampler, **options)
        self._epoch = self._n_left = 0

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch ended an epoch."""
        return self._n_left == 0

    def __next__(self) -> list:
        if self._n_left == 0:
            self._sampler.set_epoch(self._epoch)
            self._epoch, self._n_left = self._epoch + 1, len(self._loader)
            self._batches = iter(self._loader)
        self._n_left -= 1
        return next(self._batches)


class Synthetic:
    """A few mini-batches, which were made before the clock started, again and again."""

    def __init__(self, request: dict, dataset: object, sampler: object, device: int) -> None:
        from chainer.dataset import concat_examples

        self._batch_size, self._n_examples = request["batch_size"], len(dataset)
        if hasattr(sampler, "of_epoch"):
            self._n_examples = len(sampler.of_epoch(0, len(dataset)))
        batch = [dataset[i % len(dataset)] for i in range(self._batch_size)]
        self._arrays = [concat_examples(batch, device) for _ in range(_N_PREPARED)]
        self._n_taken = 0

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch ended an epoch."""
        return self._n_taken % self._n_examples < self._batch_size

    def __next__(self) -> tuple:
        self._n_taken += self._batch_size
        return self._arrays[self._n_taken // self._batch_size % _N_PREPARED]


def training_step(request: dict, comm: object, device: int) -> Callable[[tuple], float]:
    """Return what trains the model of a run on a mini-batch and returns its loss."""
    import chainer
    import chainermn

    from bench.claims.data_parallel.models import MODELS

    np.random.seed(request["seed"])  # the weights are drawn from it
    model = chainer.links.Classifier(MODELS[request["model"]]())
    model.compute_accuracy = False
    if device >= 0:
        chainer.backends.cuda.get_device_from_id(device).use()
        model.to_gpu()
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=1e-3), comm)
    optimizer.setup(model)

    def step(arrays: tuple) -> float:
        optimizer.update(model, *arrays)
        return float(model.loss.array)

    return step


def train_epochs(
    request: dict, comm: object, step: Callable, device: int = -1, more: Callable = dict
) -> list[dict]:
    """Do one run, in which ``step`` trains on arrays and returns the loss; all ranks call it.

    The clock runs from before the iterator is made until the last update; Python's forkserver is
    running by then, since it is started before MPI.

    Returns:
        What each rank reports: ``rank``; ``node``, its name; ``start_seconds`` until the first
        mini-batch was there; ``epochs``, see :meth:`_Run.epoch`; ``pids`` of the rank and its
        workers; and what ``more`` tells before these end.
    """
    store, part = pickle.loads(bytes.fromhex(request["store"])), part_of(request, comm)
    _folder_of_node(request)
    prepared = ()
    if request["loader"] == "synthetic":
        prepared = Synthetic(request, *part, device), lambda arrays, _device: arrays
    comm.mpi_comm.Barrier()
    with contextlib.ExitStack() as resources:
        run = _Run(store)
        iterator, convert = prepared or open_loader(request, comm, part, store, resources)

        def update(batch: list) -> tuple[int, float]:
            arrays = convert(batch, device)
            return len(arrays[0]), step(arrays)

        epochs = [run.epoch(iterator, update) for _ in range(request["n_epochs"])]
        facts = {"rank": comm.rank, "node": this_node().name, "start_seconds": run.first_seconds}
        facts |= {"epochs": epochs, "pids": sorted(run.pids), **more()}
        comm.mpi_comm.Barrier()  # before a rank ends processes, which takes time of the others
    return comm.mpi_comm.allgather(facts)


def train(request: dict, comm: object) -> list[dict]:
    """Train the model of a run, see :func:`train_epochs`; all ranks call it."""
    _copy_to_local_disk(request)
    device = -1 if request["communicator"] == "naive" else this_node().local_rank
    return train_epochs(request, comm, training_step(request, comm, device), device)


class _Run:
    """Takes the time of what a rank does, from when it is made, and notes its processes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._totals = np.zeros(2 + len(_COUNTS))
        self.pids = {os.getpid()}
        self.first_seconds = 0.0
        self._since_last()
        self._start = self._mark = time.monotonic()

    def epoch(self, iterator: object, update: Callable[[list], tuple[int, float]]) -> dict:
        """Train for one epoch.

        Returns:
            ``start`` and ``end`` on the clock of the machine, the first one before the iterator is
            made; ``wait_seconds`` inside ``next()``, and at first in the constructor; ``n_images``;
            ``staged_share`` of the opens of source files, ``files_staged``, ``bytes_staged``, None
            for other loaders; the mean ``loss``; ``trainer_cpu_seconds``, in which the rank may
            have polled for others; ``workers_cpu_seconds`` of all that it has started;
            ``store_opens`` by all ranks until then, where the store counts them.
        """
        start, waited, updates = self._mark, 0.0, []
        asked, is_over = start, False  # the first wait of a run is that for the constructor, too
        while not is_over:
            batch = next(iterator)
            delivered = time.monotonic()
            waited += delivered - asked
            self.first_seconds = self.first_seconds or delivered - self._start
            updates.append(update(batch))
            del batch  # its memory is for the next ones
            is_over, asked = iterator.is_new_epoch, time.monotonic()
        sizes, losses = zip(*updates, strict=True)
        found = {"start": start, "end": asked, "wait_seconds": waited, "n_images": sum(sizes)}
        found |= {**self._since_last(iterator), "loss": sum(losses) / len(losses)}
        found |= crossed(self._store)
        self._mark = time.monotonic()  # looking at the processes has taken milliseconds
        return found

    def _since_last(self, iterator: object = None) -> dict[str, float | None]:
        """Return CPU times, and what was staged, since the last call."""
        stats = iterator.stats() if hasattr(iterator, "stats") else None
        totals = [time.process_time(), 0.0, *(getattr(stats, name, 0) for name in _COUNTS)]
        for process in descendants(os.getpid()):
            self.pids.add(process.pid)
            with contextlib.suppress(OSError):  # ended just now
                totals[1] += cpu_seconds(process.pid)
        own, of_workers, staged, source, *sizes = np.subtract(totals, self._totals).tolist()
        self._totals = totals
        values = (staged / max(staged + source, 1), *sizes) if stats else (None,) * 3
        found = {"trainer_cpu_seconds": own, "workers_cpu_seconds": of_workers}
        return found | dict(zip(("staged_share", *_COUNTS[2:]), values, strict=True))


def _copy_to_local_disk(request: dict) -> None:
    """Copy what of this rank's part of the files is not yet below the local root, if needed."""
    if request["loader"] in _LOCAL:
        paths = [path for path, _ in read_pairs(request["pairs"], request["n_examples"])]
        mine = paths[this_node().local_rank :: this_node().local_size]
        missing = [path for path in mine if not Path(request["local_root"], path).exists()]
        copy_files(missing, request["root"], request["local_root"], n_streams=16)


def train_rank(request: dict) -> dict | None:
    """Be one rank under a launcher; the first one returns what all ranks report."""
    comm = overlapiter.mpi.create_communicator(request["communicator"])
    ranks = train(request, comm)
    return {"ranks": ranks} if comm.rank == 0 else None


class Job:
    """The job of which this process is a rank; all ranks make one, and do all runs in it.

    In the same processes, so that only the first run of ours starts Python's forkserver.

    Attributes:
        comm: The communicator of all ranks.
        folder: That of the first rank on this node, for all ranks there.
    """

    def __init__(self, options: Options, scratch: Path) -> None:
        warnings.simplefilter("ignore")  # of Chainer about its dependencies
        self.comm, node = overlapiter.mpi.create_communicator(options.communicator), this_node()
        folders = self.comm.mpi_comm.allgather((node.name, scratch))
        self.folder = next(folder for name, folder in folders if name == node.name)
        options.nodes, options.ranks = [node.count], [node.local_size]
        options.readers = options.readers or node.cores
        self._numbers = itertools.count()

    def run(self, sources: Sources, asked: dict) -> list[dict]:
        """Do one run; return what each rank reports."""
        staging = self.folder / f"staging-{next(self._numbers)}"
        ranks = train({**places_of(sources, str(staging), None), **asked}, self.comm)
        if this_node().local_rank == 0:  # there may be room for one copy of the data alone
            shutil.rmtree(staging, ignore_errors=True)
        return ranks
