#!/usr/bin/env python3
"""Train a convolutional network on ImageNet with several processes, by ChainerMN.

The shape is that of ChainerMN's own ImageNet script; start it with ``mpiexec``. What overlapiter
needs is in two places: ``create_communicator`` in ``main`` and the iterator in ``make_iterator``.
Every rank reads the lists, and nothing is scattered.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
from typing import Any

import chainer
import models
import numpy as np
from chainer import training
from chainer.training import extensions
from preprocessing import PreprocessedDataset

import overlapiter
import overlapiter.mpi

# ChainerMN is imported below, in functions: to import it starts MPI. Chainer's own iterator, for
# one, has its workers import this script.


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``None`` takes that of the process."""
    parser = argparse.ArgumentParser(
        description="Train a convolutional network with ChainerMN, one process per GPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("train", help="training list: a file of 'path label' lines")
    add("val", help="validation list, in the same form")
    add("--communicator", default="pure_nccl", help="ChainerMN's; 'naive' trains on the CPU")
    add("--root", "-R", default=".", help="directory that the paths in both lists start from")
    add("--mean", "-m", default="mean.npy", help="mean file, written by compute_mean.py")
    add("--arch", "-a", choices=("tiny", "alex", "resnet50"), default="resnet50", help="network")
    add("--batchsize", "-B", type=int, default=32, help="images in a mini-batch of each rank")
    add("--val_batchsize", "-b", type=int, default=250, help="the same, for validation")
    add("--epoch", "-E", type=int, default=10, help="sweeps over the training list")
    add("--learning_rate", type=float, default=0.01, help="step size of momentum SGD")
    add("--out", "-o", default="result", help="directory for the log and the snapshots")
    add("--resume", "-r", help="snapshot to continue from, 'snapshot_iter_N' without the rank")
    add("--seed", type=int, help="seed of the weights, the order and the crops")
    add("--no-augment", action="store_true", help="cut out the centre; no flip")
    add("--test", action="store_true", help="three mini-batches, then one for validation")

    add = parser.add_argument_group("reading the images").add_argument
    choices = ("overlap", "multiprocess", "serial")
    add("--iterator", choices=choices, default="overlap", help="overlap is overlapiter's")
    add("--loaderjob", "-j", type=int, help="file readers of each rank; its cores if not given")
    add("--staging", metavar="DIR", help="directory on the node's own disk, to copy the files to")
    add("--capacity", help="how much of it may be used, by all ranks: '200GB' or '50%%'")
    add("--source", metavar="DIR", help="slow store to copy from; --root if not given")

    args = parser.parse_args(argv)
    if args.staging is None and (args.source is not None or args.capacity is not None):
        parser.error("--source and --capacity have no use without --staging")
    if args.staging is not None and args.iterator != "overlap":
        parser.error("--staging needs --iterator overlap")
    return args


def make_iterator(
    args: argparse.Namespace,
    comm: Any,
    dataset: chainer.dataset.DatasetMixin,
    batch_size: int,
    *,
    is_training: bool,
) -> chainer.dataset.Iterator:
    """Make the iterator that was asked for, over this rank's part; the caller finalizes it."""
    # For training all ranks have equally many mini-batches; for validation no image comes twice.
    remainder = "fill" if is_training else "uneven"
    sampler = overlapiter.scatter_order(
        comm, seed=args.seed, shuffle=is_training, remainder=remainder
    )
    if args.iterator == "serial":
        return chainer.iterators.SerialIterator(
            dataset, batch_size, is_training, order_sampler=sampler
        )
    if args.iterator == "multiprocess":
        return chainer.iterators.MultiprocessIterator(
            dataset, batch_size, is_training, n_processes=args.loaderjob, order_sampler=sampler
        )
    staging = None
    if args.staging is not None:
        staging = overlapiter.Staging(
            args.staging, source=args.source or args.root, capacity=args.capacity
        )
    return overlapiter.OverlapIterator(
        dataset,
        batch_size,
        is_training,
        n_processes=args.loaderjob,
        order_sampler=sampler,
        staging=staging,
        seed=args.seed,  # for the crops
    )


def make_optimizer(args: argparse.Namespace, comm: Any, model: chainer.Link) -> chainer.Optimizer:
    """Make an optimizer that averages the gradients of all ranks, with the weights of rank 0."""
    import chainermn

    optimizer = chainermn.create_multi_node_optimizer(
        chainer.optimizers.MomentumSGD(lr=args.learning_rate, momentum=0.9), comm
    )
    optimizer.setup(model)
    # The first update does nothing but send the weights. Made here, it costs no mini-batch.
    optimizer.update()
    return optimizer


def make_trainer(
    args: argparse.Namespace,
    comm: Any,
    model: chainer.links.Classifier,
    train_iterator: chainer.dataset.Iterator,
    val_iterator: chainer.dataset.Iterator,
    device: chainer.backend.Device,
) -> training.Trainer:
    """Join network, optimizer and iterators; ``run`` of the result finalizes both iterators."""
    import chainermn

    convert = chainer.dataset.concat_examples
    if args.iterator == "overlap":
        convert = overlapiter.concat_examples  # hands on the mini-batch without a copy
    updater = training.updaters.StandardUpdater(
        train_iterator, make_optimizer(args, comm, model), converter=convert, device=device
    )

    end, interval, log_interval = (args.epoch, "epoch"), (1, "epoch"), (1, "epoch")
    if args.test:
        end, interval, log_interval = (3, "iteration"), (3, "iteration"), (1, "iteration")
    trainer = training.Trainer(updater, end, args.out)

    evaluator = extensions.Evaluator(val_iterator, model, converter=convert, device=device)
    evaluator = chainermn.create_multi_node_evaluator(evaluator, comm)
    trainer.extend(evaluator, trigger=interval)
    # Before it, as each rank has averages of its own in the layers that normalize batches.
    averaging = chainermn.extensions.AllreducePersistent(model, comm)
    trainer.extend(averaging, trigger=interval)
    # From one snapshot overlapiter's iterator finds the part of any rank of any number. Chainer's
    # iterators find their part in a snapshot of their own.
    apart = [] if args.iterator == "overlap" else range(comm.size)
    snapshot = chainermn.extensions.multi_node_snapshot(comm, extensions.snapshot(), apart)
    # Last of all, as Chainer's own: else the log would be saved without this interval.
    trainer.extend(snapshot, trigger=interval, priority=-100)
    extend_by_reports(trainer, comm, log_interval)
    return trainer


def extend_by_reports(trainer: training.Trainer, comm: Any, interval: tuple[int, str]) -> None:
    """Have rank 0 write and print what all ranks found."""

    def average(entry: dict[str, float]) -> None:
        for name in ("main/loss", "main/accuracy"):
            entry[name] = comm.allreduce_obj(entry[name]) / comm.size

    is_first = comm.rank == 0
    trainer.extend(overlapiter.LoadingReport(comm, trigger=interval))
    # On all ranks, as it averages over them; one of them writes the file.
    log = extensions.LogReport(
        trigger=interval, postprocess=average, log_name="log" if is_first else None
    )
    trainer.extend(log)
    if is_first:
        columns = ["epoch", "iteration", "main/loss", "validation/main/loss"]
        columns += ["main/accuracy", "validation/main/accuracy", "elapsed_time"]
        columns += ["wait_share", "wait_share/worst", "staged_share", "examples_per_second/total"]
        trainer.extend(extensions.PrintReport(columns), trigger=interval)


def resume(args: argparse.Namespace, comm: Any, trainer: training.Trainer) -> None:
    """Load a snapshot into the trainers of all ranks."""
    rank = 0 if args.iterator == "overlap" else comm.rank
    chainer.serializers.load_npz(f"{args.resume}.{rank}", trainer)


def set_seed(seed: int) -> None:
    """Begin the random numbers of this process anew."""
    random.seed(seed)
    np.random.seed(seed)


def main() -> None:
    """Train as the command line says."""
    args = parse_arguments()
    if args.iterator == "multiprocess":
        multiprocessing.set_start_method("forkserver")  # it would fork this process, and so MPI
    # Before anything that imports MPI: the workers' forkserver starts first.
    comm = overlapiter.mpi.create_communicator(args.communicator)
    device = chainer.get_device(-1 if args.communicator == "naive" else comm.intra_rank)
    device.use()

    if args.seed is not None:
        set_seed(args.seed)
    network = models.ARCHITECTURES[args.arch]()
    model = chainer.links.Classifier(network)
    model.to_device(device)
    if args.seed is not None:
        set_seed(args.seed + 1 + comm.rank)  # what is drawn from here on differs between ranks

    mean = np.load(args.mean)
    train = PreprocessedDataset(
        args.train, args.root, mean, network.insize, augment=not args.no_augment
    )
    val = PreprocessedDataset(args.val, args.root, mean, network.insize, augment=False)
    if args.test:
        val = chainer.datasets.SubDataset(val, 0, min(args.val_batchsize * comm.size, len(val)))

    # The with statement stops the worker processes, whatever happens before or while training.
    with (
        make_iterator(args, comm, train, args.batchsize, is_training=True) as train_iterator,
        make_iterator(args, comm, val, args.val_batchsize, is_training=False) as val_iterator,
    ):
        trainer = make_trainer(args, comm, model, train_iterator, val_iterator, device)
        if args.resume:
            resume(args, comm, trainer)
        trainer.run()


if __name__ == "__main__":
    main()
