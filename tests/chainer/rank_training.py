"""Runs under mpiexec: trains with ChainerMN's optimizer and extensions.

Arguments: what to do, the folder of images.
"""

import hashlib
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import chainer
import chainermn
import numpy as np
from chainer import training
from chainer.training import extensions
from chainermn.extensions import AllreducePersistent, GenericMultiNodeEvaluator, multi_node_snapshot

import overlapiter
import overlapiter.mpi
from overlapiter import Staging
from tests.chainer.iterator_datasets import numbered_images
from tests.chainer.rank_side import KINDS, Make, forks, labels_of, report

warnings.simplefilter("ignore")  # that ChainerMN finds its own checkpointer out of date

FOLDER = Path(sys.argv[2])
N_TRAIN, N_VAL, BATCH_SIZE = 36, 10, 2
LAST_CHECKPOINT, DEATH = 3, 5  # iterations; the former is amid the first epoch


class Classifier(chainer.Chain):
    """Has parameters that begin differently on every rank, and persistent values."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.normalize = chainer.links.BatchNormalization(3 * 32 * 32)
            self.linear = chainer.links.Linear(3 * 32 * 32, N_TRAIN)

    def forward(self, pixels: Any, labels: Any) -> Any:
        flat = chainer.functions.reshape(pixels / 255, (len(pixels), -1))
        loss = chainer.functions.softmax_cross_entropy(self.linear(self.normalize(flat)), labels)
        chainer.report({"loss": loss}, self)
        return loss


class Losses(GenericMultiNodeEvaluator):
    """Collects the loss of each mini-batch of every rank."""

    def calc_local(self, *args: Any) -> float:
        return float(self._targets["main"](*args).array)


class Training:
    """A training whose parts and random numbers are the same for every kind of iterator.

    Attributes:
        seen: The labels of each mini-batch that was trained on.
    """

    def __init__(self, comm: Any, make: Make, n_iterations: int, **options: Any) -> None:
        self.seen: list[list[int]] = []
        whole = numbered_images(FOLDER, N_TRAIN) if comm.rank == 0 else None
        part = chainermn.scatter_dataset(whole, comm, shuffle=True, seed=2)
        np.random.seed(comm.rank)
        self.model = Classifier()
        self.optimizer = chainermn.create_multi_node_optimizer(
            chainer.optimizers.MomentumSGD(lr=0.01), comm
        ).setup(self.model)
        iterator = make(part, BATCH_SIZE, random_seed=10 + comm.rank, **options)
        updater = training.StandardUpdater(iterator, self.optimizer, converter=self._convert)
        self.trainer = training.Trainer(updater, (n_iterations, "iteration"), out="out")

    def _convert(self, batch: list[Any], device: Any = None) -> Any:
        self.seen.append(labels_of(batch))
        return overlapiter.concat_examples(batch, device)

    def parameters(self) -> str:
        return digest(parameter.array for _, parameter in sorted(self.model.namedparams()))

    def persistents(self) -> str:
        return digest([self.model.normalize.avg_mean, self.model.normalize.avg_var])


def digest(arrays: Any) -> str:
    """Return a digest of the bits of some arrays."""
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


# --- a whole training -------------------------------------------------------------------------


def trained(comm: Any, make: Make) -> Any:
    job = Training(comm, make, 20)
    val = numbered_images(FOLDER, N_VAL) if comm.rank == 0 else None
    part = chainermn.scatter_dataset(val, comm)
    evaluator = extensions.Evaluator(make(part, 2, repeat=False, shuffle=False), job.model)
    job.trainer.extend(AllreducePersistent(job.model, comm), trigger=(5, "iteration"))
    job.trainer.extend(
        chainermn.create_multi_node_evaluator(evaluator, comm), trigger=(5, "iteration")
    )
    job.trainer.extend(extensions.LogReport(trigger=(5, "iteration")))
    job.trainer.run()
    log = job.trainer.get_extension("LogReport").log
    return {
        "seen": job.seen,
        "parameters": job.parameters(),
        "persistents": job.persistents(),
        "training losses": [entry["main/loss"] for entry in log],
        "validation losses": [entry["validation/main/loss"] for entry in log],
        "collected losses": collected_losses(comm, make, job.model),
    }


def collected_losses(comm: Any, make: Make, model: Any) -> Any:
    """Evaluate parts of which some are longer, twice, as after two epochs."""
    whole = numbered_images(FOLDER, N_VAL + 1) if comm.rank == 0 else None
    part = chainermn.scatter_dataset(whole, comm, force_equal_length=False)
    iterator = make(part, 1, repeat=False, shuffle=False)
    evaluator = Losses(comm, iterator, model)
    with chainer.using_config("train", False):
        results = [evaluator(None) for _ in range(2)]
    iterator.finalize()
    return results


# --- snapshots --------------------------------------------------------------------------------


def snapshot_resumed(comm: Any, make: Make) -> Any:
    """Train on from a snapshot of one rank, which all ranks load by themselves."""
    seen = []
    for n_iterations in (2, 4):
        job = Training(comm, make, n_iterations)
        job.trainer.out = f"out-{make.kind}"
        snapshot = extensions.snapshot(autoload=True)
        job.trainer.extend(multi_node_snapshot(comm, snapshot, []), trigger=(2, "iteration"))
        job.trainer.run()
        seen.append(job.seen)
    return {"seen": seen, "parameters": job.parameters()}


def whole(comm: Any, makers: dict[str, Make]) -> Any:
    results = {kind: {"trained": trained(comm, make)} for kind, make in makers.items()}
    for kind in ("serial", "staged"):
        results[kind]["snapshot_resumed"] = snapshot_resumed(comm, makers[kind])
    return results


# --- checkpoints ------------------------------------------------------------------------------


def checkpointer(comm: Any) -> Any:
    return chainermn.create_multi_node_checkpointer("run", comm, path="checkpoints")


def killed(comm: Any, makers: dict[str, Make]) -> Any:
    """Train with checkpoints until the last rank is killed amid the first epoch."""
    job = Training(comm, makers["staged"], 2 * DEATH, seed=5)

    @training.make_extension(trigger=(DEATH, "iteration"))
    def die(_: Any) -> None:
        report(comm, {"seen": job.seen})
        comm.mpi_comm.Barrier()  # the death of one ends all
        if comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    job.trainer.extend(checkpointer(comm), trigger=(LAST_CHECKPOINT, "iteration"))
    job.trainer.extend(die)
    job.trainer.run()


def resumed(comm: Any, makers: dict[str, Make]) -> Any:
    """Train on from the last checkpoint; and train without interruption, to compare.

    A multi-node optimizer uses its first mini-batch to make the parameters equal on all ranks, and
    so does a resumed one. The uninterrupted one is made to do so at the same place.
    """

    @training.make_extension(trigger=lambda trainer: trainer.updater.iteration == LAST_CHECKPOINT)
    def start_anew(trainer: training.Trainer) -> None:
        trainer.updater.get_optimizer("main").__dict__["target_params"] = []

    results = {}
    for name, kind, seed in (
        ("resumed", "staged", {"seed": 5}),
        ("resumed serially", "serial", {}),
        ("uninterrupted", "overlap", {"seed": 5}),
    ):
        job = Training(comm, makers[kind], 2 * DEATH, **seed)
        if name.startswith("resumed"):
            checkpointer(comm).maybe_load(job.trainer, job.optimizer)
        else:
            job.trainer.extend(start_anew)
        results[name] = {"iteration": job.trainer.updater.iteration}
        job.trainer.run()
        results[name] |= {"seen": job.seen, "parameters": job.parameters()}
    return results


def main() -> None:
    comm = overlapiter.mpi.create_communicator("naive")
    staging = Staging("staging", source=FOLDER, n_prefetchers=1, keep_free=0)
    makers = {kind: Make(kind, staging) for kind in KINDS}
    deed = {"whole": whole, "killed": killed, "resumed": resumed}[sys.argv[1]]
    report(comm, {**deed(comm, makers), "forks": forks})


if __name__ == "__main__":
    main()
