"""One rank of data-parallel training with ChainerMN, for ``bench.data_parallel``.

That starts it under mpiexec: ``python -m bench.training_rank SPEC ANSWER``, two JSON files. What
the ranks measured is gathered by the first one, which writes it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

import overlapiter.mpi
from bench.copying import copy_files
from bench.spec import read_pairs
from bench.training_spec import EpochResult, RankResult, TrainingSpec
from overlapiter.node import this_node

if TYPE_CHECKING:
    from bench.training_loaders import Loader


class Trainer:
    """Trains the model of a run on one rank, as ChainerMN's examples do."""

    def __init__(self, spec: TrainingSpec, comm: object, device: int) -> None:
        import chainer
        import chainermn

        from bench.training_models import MODELS

        np.random.seed(spec.seed)  # the weights are drawn from it
        self._model = chainer.links.Classifier(MODELS[spec.model]())
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


def train(spec: TrainingSpec, comm: object) -> RankResult:
    """Do one run; all ranks of the communicator call it.

    The clock runs from before the iterator is made until the last update; Python's forkserver is
    running by then, since it is started before MPI.
    """
    from bench.training_loaders import Part, prepare

    node = this_node()
    device = -1 if spec.communicator == "naive" else node.local_rank
    trainer = Trainer(spec, comm, device)
    root = spec.local_root if spec.loader in ("local", "synthetic") else spec.root
    part = Part(spec, root, comm)
    staging = os.path.join(spec.staging, node.name)
    os.makedirs(staging, exist_ok=True)
    make = prepare(spec, part, staging, device)
    family = Family()
    comm.mpi_comm.Barrier()
    start = time.monotonic()
    run = _Run(make(), trainer, family, start)
    epochs = [run.epoch() for _ in range(spec.n_epochs)]
    comm.mpi_comm.Barrier()  # before anybody ends processes, which takes time of the others
    run.loader.close()
    return RankResult(comm.rank, node.name, run.first_seconds, epochs, sorted(family.pids))


class _Run:
    """Takes the time of what a rank does, from ``start`` on.

    Attributes:
        loader: What it takes mini-batches from.
        first_seconds: From the start until the first mini-batch was there; None before.
    """

    def __init__(self, loader: Loader, trainer: Trainer, family: Family, start: float) -> None:
        self.loader = loader
        self._trainer = trainer
        self._family = family
        self._start = self._mark = start
        self._counts = np.zeros(4, int)
        self.first_seconds: float | None = None

    def epoch(self) -> EpochResult:
        """Train for one epoch."""
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
        loss = sum(losses) / len(losses)
        staged, cpu_seconds = self._staged(), self._family.cpu_seconds()
        self._mark = time.monotonic()  # looking at the processes has taken milliseconds
        return EpochResult(start, end, waited, n_images, *staged, loss, *cpu_seconds)

    def _staged(self) -> tuple[float | None, int | None, int | None]:
        """Return the staged share, and files and bytes staged, since the last call."""
        counts = self.loader.counts()
        if counts is None:
            return None, None, None
        staged, source, files, n_bytes = np.subtract(counts, self._counts).tolist()
        self._counts = counts
        return staged / max(staged + source, 1), files, n_bytes


class Family:
    """This process and those that it has started, however far down.

    Attributes:
        pids: Of all that have been seen.
    """

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._before = (0.0, 0.0)
        self.cpu_seconds()

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the CPU time of this process and of the others since the last call."""
        this = psutil.Process()
        workers = this.children(recursive=True)
        self.pids.update(process.pid for process in (this, *workers))
        now = _cpu_seconds(this), sum(map(_cpu_seconds, workers))
        before, self._before = self._before, now
        return now[0] - before[0], now[1] - before[1]


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def copy_to_local_disk(spec: TrainingSpec) -> None:
    """Copy what of this rank's part of the files is not yet below the local root."""
    paths = [path for path, _ in read_pairs(spec.pairs, spec.n_examples)]
    mine = paths[this_node().local_rank :: this_node().local_size]
    missing = [path for path in mine if not Path(spec.local_root, path).exists()]
    copy_files(missing, spec.root, spec.local_root, n_streams=16)


def main(spec_path: str, answer_path: str) -> None:
    """Do the run that a JSON file describes, and write what all ranks report."""
    warnings.simplefilter("ignore")  # of Chainer about its dependencies
    spec = TrainingSpec(**json.loads(Path(spec_path).read_text()))
    comm = overlapiter.mpi.create_communicator(spec.communicator)
    if spec.loader in ("local", "synthetic"):
        copy_to_local_disk(spec)
    found = comm.gather_obj(asdict(train(spec, comm)))
    if comm.rank == 0:
        Path(answer_path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
