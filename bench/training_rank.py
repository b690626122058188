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

import overlapiter.mpi
from bench.copying import copy_files
from bench.runner import read_pairs
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
    comm.mpi_comm.Barrier()
    start = time.monotonic()
    loader = make()
    run = _Run(loader, trainer, start, spec.batch_size)
    epochs = [run.epoch() for _ in range(spec.n_epochs)]
    pids = _family()
    comm.mpi_comm.Barrier()  # before anybody ends processes, which takes time of the others
    loader.close()
    return RankResult(comm.rank, node.name, run.first_seconds, epochs, pids)


class _Run:
    """Takes the time of what a rank does.

    Attributes:
        first_seconds: From the start until the first mini-batch was there; None before.
    """

    def __init__(self, loader: Loader, trainer: Trainer, start: float, batch_size: int) -> None:
        self._loader = loader
        self._trainer = trainer
        self._start = self._mark = start
        self._batch_size = batch_size
        self._counts = np.zeros(4, int)
        self.first_seconds: float | None = None

    def epoch(self) -> EpochResult:
        """Train for one epoch."""
        start = asked = self._mark  # the first wait of a run is that for the constructor, too
        waited, losses = 0.0, []
        while True:
            batch = self._loader.next_batch()
            delivered = time.monotonic()
            waited += delivered - asked
            if self.first_seconds is None:
                self.first_seconds = delivered - self._start
            losses.append(self._trainer.step(self._loader.arrays(batch)))
            del batch
            if self._loader.is_new_epoch:
                break
            asked = time.monotonic()
        self._mark = end = time.monotonic()
        n_images = len(losses) * self._batch_size
        mean = sum(losses) / len(losses)
        return EpochResult(start, end, waited, n_images, *self._staged(), mean)

    def _staged(self) -> tuple[float | None, int | None, int | None]:
        """Return the staged share, and files and bytes staged, since the last call."""
        counts = self._loader.counts()
        if counts is None:
            return None, None, None
        staged, source, files, n_bytes = np.subtract(counts, self._counts).tolist()
        self._counts = counts
        return staged / max(staged + source, 1), files, n_bytes


def copy_to_local_disk(spec: TrainingSpec) -> None:
    """Copy what of this rank's part of the files is not yet below the local root."""
    paths = [path for path, _ in read_pairs(spec.pairs, spec.n_examples)]
    mine = paths[this_node().local_rank :: this_node().local_size]
    missing = [path for path in mine if not Path(spec.local_root, path).exists()]
    copy_files(missing, spec.root, spec.local_root, n_streams=16)


def _family() -> list[int]:
    import psutil

    return [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]


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
