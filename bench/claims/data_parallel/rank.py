"""One rank of data-parallel training with ChainerMN."""

from __future__ import annotations

import os
import pickle
import shutil
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

import overlapiter.mpi
from bench.claims.data_parallel import request_of, result_of, summary
from bench.harness.files import copy_files, read_pairs
from bench.harness.turns import take_turns
from bench.loaders.sources import prepare, store_label
from bench.slow.store import attach
from overlapiter.node import this_node

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from bench.loaders.checks import Example
    from bench.slow.store import SlowStore

_N_PREPARED = 4


# --- the data ---------------------------------------------------------------------------------


class Part:
    """The examples of one rank; collective, all ranks make theirs.

    Attributes:
        dataset: The whole data set, or the shard of this rank.
        sampler: Draws the order of each epoch over what this rank takes of it.
        n_examples: How many it takes in an epoch.
    """

    def __init__(self, request: dict, root: str, comm: object) -> None:
        from chainer.datasets import LabeledImageDataset
        from chainer.iterators import ShuffleOrderSampler

        n_examples, seed = request["n_examples"], request["seed"]
        self.dataset = LabeledImageDataset(read_pairs(request["pairs"], n_examples), root)
        if request["order"] == "shards":
            import chainermn

            self.dataset = chainermn.scatter_dataset(self.dataset, comm, shuffle=True, seed=seed)
            self.sampler = ShuffleOrderSampler(np.random.RandomState([seed, comm.rank]))
            self.n_examples = len(self.dataset)
        else:
            self.sampler = overlapiter.scatter_order(comm, seed=seed)
            self.n_examples = len(self.sampler.of_epoch(0, n_examples))


class Loader:
    """An iterator with the converter that belongs to it.

    Args:
        request: See :func:`train`.
        part: What it iterates over.
        staging: The directory of this node.
        device: Where its arrays go; -1 for the CPU.
    """

    def __init__(self, request: dict, part: Part, staging: str, device: int) -> None:
        from chainer.dataset import concat_examples
        from chainer.iterators import MultiprocessIterator

        self._resources, self._device = ExitStack(), device
        store: SlowStore | None = None
        if request["store"] is not None and request["loader"] != "local":
            store = pickle.loads(Path(request["store"]).read_bytes())
        usual = {"n_processes": request["n_readers"], "order_sampler": part.sampler}
        if request["loader"] == "overlap":
            self._convert = overlapiter.concat_examples
            self.iterator = overlapiter.OverlapIterator(
                part.dataset if store is None else attach(part.dataset, store),
                request["batch_size"],
                staging=overlapiter.Staging(staging, source=request["root"]),
                **usual,
            )
        else:
            self._convert = concat_examples
            if store is not None:  # its workers are forks of this process
                self._resources.enter_context(store.installed())
            self.iterator = MultiprocessIterator(part.dataset, request["batch_size"], **usual)
        self.next_batch = self.iterator.__next__

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch ended an epoch."""
        return self.iterator.is_new_epoch

    def arrays(self, batch: list[Example]) -> tuple:
        """Return a mini-batch as arrays on the device of this rank."""
        return self._convert(batch, self._device)

    def counts(self) -> tuple[int, ...] | None:
        """Return opens of staged copies and of source files, files and bytes staged, so far."""
        if not hasattr(self.iterator, "stats"):
            return None
        found = self.iterator.stats()
        return found.opens_staged, found.opens_source, found.files_staged, found.bytes_staged

    def close(self) -> None:
        """End all processes."""
        self.iterator.finalize()
        self._resources.close()


class Synthetic:
    """A few mini-batches, which were made before the clock started, again and again."""

    def __init__(self, request: dict, part: Part, device: int) -> None:
        from chainer.dataset import concat_examples

        self._batch_size, self._n_examples = request["batch_size"], part.n_examples
        examples = [part.dataset[i % len(part.dataset)] for i in range(self._batch_size)]
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


def _maker(request: dict, part: Part, staging: str, device: int) -> Callable[[], object]:
    """Return what makes the loader of a run, once all that is to be there before is there."""
    if request["loader"] == "synthetic":
        loader = Synthetic(request, part, device)
        return lambda: loader
    return lambda: Loader(request, part, staging, device)


# --- training ---------------------------------------------------------------------------------


class Trainer:
    """Trains the model of a run on one rank, as ChainerMN's examples do."""

    def __init__(self, request: dict, comm: object, device: int) -> None:
        import chainer
        import chainermn

        from bench.claims.data_parallel.models import MODELS

        np.random.seed(request["seed"])  # the weights are drawn from it
        self._model = chainer.links.Classifier(MODELS[request["model"]]())
        self._model.compute_accuracy = False
        if device >= 0:
            chainer.backends.cuda.get_device_from_id(device).use()
            self._model.to_gpu()
        optimizer = chainer.optimizers.SGD(lr=1e-3)
        self._optimizer = chainermn.create_multi_node_optimizer(optimizer, comm)
        self._optimizer.setup(self._model)

    def step(self, arrays: tuple) -> float:
        """Train on one mini-batch and return its loss."""
        self._optimizer.update(self._model, *arrays)
        return float(self._model.loss.array)


def train(request: dict, comm: object) -> dict:
    """Do one run; all ranks of the communicator call it.

    The clock runs from before the iterator is made until the last update; Python's forkserver is
    running by then, since it is started before MPI.

    Returns:
        ``rank``; ``node``, its name; ``start_seconds`` until the first mini-batch was there;
        ``epochs``, see :meth:`_Run.epoch`; ``pids`` of the rank and its workers.
    """
    node = this_node()
    device = -1 if request["communicator"] == "naive" else node.local_rank
    trainer = Trainer(request, comm, device)
    is_local = request["loader"] in ("local", "synthetic")
    part = Part(request, request["local_root" if is_local else "root"], comm)
    staging = os.path.join(request["staging"], node.name)
    os.makedirs(staging, exist_ok=True)
    make = _maker(request, part, staging, device)
    family = _Family()
    comm.mpi_comm.Barrier()
    start = time.monotonic()
    run = _Run(make(), trainer, family, start)
    epochs = [run.epoch() for _ in range(request["n_epochs"])]
    comm.mpi_comm.Barrier()  # before a rank ends processes, which takes time of the others
    run.loader.close()
    facts = {"rank": comm.rank, "node": node.name, "start_seconds": run.first_seconds}
    return {**facts, "epochs": epochs, "pids": sorted(family.pids)}


class _Run:
    """Takes the time of what a rank does, from ``start`` on."""

    def __init__(self, loader: object, trainer: Trainer, family: _Family, start: float) -> None:
        self.loader = loader
        self._trainer = trainer
        self._family = family
        self._start = self._mark = start
        self._counts = np.zeros(4, int)
        self.first_seconds: float | None = None

    def epoch(self) -> dict:
        """Train for one epoch.

        Returns:
            ``start`` and ``end`` on the clock of the machine, the first one before the iterator is
            made; ``wait_seconds`` inside ``next()``, and at first in the constructor; ``n_images``;
            ``staged_share`` of the opens of source files, ``files_staged``, ``bytes_staged``, None
            for other loaders; the mean ``loss``; ``trainer_cpu_seconds``, in which the rank may
            have polled for others; ``workers_cpu_seconds`` of all that it has started.
        """
        start, waited, losses, n_images = self._mark, 0.0, [], 0
        asked = start  # the first wait of a run is that for the constructor, too
        while True:
            batch = self.loader.next_batch()
            delivered = time.monotonic()
            waited += delivered - asked
            if self.first_seconds is None:
                self.first_seconds = delivered - self._start
            arrays = self.loader.arrays(batch)
            losses.append(self._trainer.step(arrays))
            n_images += len(arrays[0])
            del batch, arrays  # their memory is for the next ones
            if self.loader.is_new_epoch:
                break
            asked = time.monotonic()
        end = time.monotonic()
        found = {"start": start, "end": end, "wait_seconds": waited, "n_images": n_images}
        found |= {**self._staged(), "loss": sum(losses) / len(losses), **self._family.cpu_seconds()}
        self._mark = time.monotonic()  # looking at the processes has taken milliseconds
        return found

    def _staged(self) -> dict[str, float | None]:
        """Return the staged share, and files and bytes staged, since the last call."""
        counts, names = self.loader.counts(), ("staged_share", "files_staged", "bytes_staged")
        if counts is None:
            return dict.fromkeys(names)
        staged, source, *others = np.subtract(counts, self._counts).tolist()
        self._counts = counts
        return dict(zip(names, (staged / max(staged + source, 1), *others), strict=True))


class _Family:
    """This process and those that it has started, however far down."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._before = (0.0, 0.0)
        self.cpu_seconds()

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time of this process and of the others since the last call."""
        this = psutil.Process()
        workers = this.children(recursive=True)
        self.pids.update(process.pid for process in (this, *workers))
        now = _cpu_seconds(this), sum(map(_cpu_seconds, workers))
        (own, of_workers), self._before = np.subtract(now, self._before).tolist(), now
        return {"trainer_cpu_seconds": own, "workers_cpu_seconds": of_workers}


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _copy_to_local_disk(request: dict) -> None:
    """Copy what of this rank's part of the files is not yet below the local root, if needed."""
    if request["loader"] in ("local", "synthetic"):
        paths = [path for path, _ in read_pairs(request["pairs"], request["n_examples"])]
        mine = paths[this_node().local_rank :: this_node().local_size]
        missing = [path for path in mine if not Path(request["local_root"], path).exists()]
        copy_files(missing, request["root"], request["local_root"], n_streams=16)


def train_rank(request: dict) -> dict | None:
    """Be one rank under a launcher; the first one returns what all ranks report."""
    warnings.simplefilter("ignore")  # of Chainer about its dependencies
    comm = overlapiter.mpi.create_communicator(request["communicator"])
    _copy_to_local_disk(request)
    found = comm.gather_obj(train(request, comm))
    return {"ranks": found} if comm.rank == 0 else None


def run_in_job(options: argparse.Namespace) -> dict | None:
    """Do all runs within one job; all ranks call it. Return the result on the first one, else None.

    In the same processes, so that only the first run of ours starts Python's forkserver.
    """
    warnings.simplefilter("ignore")  # of Chainer about its dependencies
    comm, node = overlapiter.mpi.create_communicator(options.communicator), this_node()
    number = comm.mpi_comm.bcast(os.getpid())
    # Beside the directories of other nodes, where the disk is one that they share.
    folder = Path(options.local, f"data-parallel-{number}-{node.name}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    size = {"n_nodes": node.count, "n_ranks": node.local_size}
    size["n_readers"] = options.readers or node.cores
    points = [{**size, "loader": loader} for loader in options.loaders]
    sources = prepare(options, folder, options.examples)

    def run(point: dict) -> dict:
        staging = folder / f"staging-{points.index(point)}-{len(point.get('runs', ()))}"
        request = request_of(point, options, sources, staging, None)
        _copy_to_local_disk(request)
        ranks = comm.mpi_comm.allgather(train(request, comm))
        if node.local_rank == 0:  # there may be room for one copy of the data alone
            shutil.rmtree(staging, ignore_errors=True)
        return {"ranks": ranks, "reads": summary.staged_by_node(ranks)}

    try:
        take_turns(points, options.repeats, run)
    finally:
        if node.local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    if comm.rank > 0:
        return None
    return result_of(points, sources.label, store_label(options))
