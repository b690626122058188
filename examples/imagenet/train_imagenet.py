#!/usr/bin/env python3
"""Train a convolutional network on ImageNet, or on any list of labelled images.

The shape is that of Chainer's own ImageNet script. What overlapiter needs is in two places: the
iterator in ``make_iterator`` and the ``converter`` in ``make_trainer``. The dataset is left as it
was.
"""

from __future__ import annotations

import argparse
import random
import sys

import chainer
import models
import numpy as np
from chainer import training
from chainer.training import extensions
from preprocessing import PreprocessedDataset

import overlapiter
from overlapiter.scatter import ScatteredOrder


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``None`` takes that of the process."""
    parser = argparse.ArgumentParser(
        description="Train a convolutional network on a list of labelled images.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("train", help="training list: a file of 'path label' lines")
    add("val", help="validation list, in the same form")
    add("--root", "-R", default=".", help="directory that the paths in both lists start from")
    add("--mean", "-m", default="mean.npy", help="mean file, written by compute_mean.py")
    add("--arch", "-a", choices=("tiny", "alex", "resnet50"), default="resnet50", help="network")
    add("--batchsize", "-B", type=int, default=32, help="images in a mini-batch")
    add("--val_batchsize", "-b", type=int, default=250, help="images in a validation mini-batch")
    add("--epoch", "-E", type=int, default=10, help="sweeps over the training list")
    add("--learning_rate", type=float, default=0.01, help="step size of momentum SGD")
    add("--device", "-d", default="-1", help="'-1' for the CPU, '0' for GPU 0, or '@cupy:0'")
    add("--out", "-o", default="result", help="directory for the log and the snapshots")
    add("--resume", "-r", help="snapshot to continue from")
    add("--seed", type=int, help="seed of the weights, the order and the crops")
    add("--no-augment", action="store_true", help="cut out the centre; no flip")
    add("--test", action="store_true", help="three mini-batches, then one for validation")

    add = parser.add_argument_group("reading the images").add_argument
    choices = ("overlap", "multiprocess", "serial")
    add("--iterator", choices=choices, default="overlap", help="overlap is overlapiter's")
    add("--loaderjob", "-j", type=int, help="file reader processes; one per core if not given")
    add("--staging", metavar="DIR", help="directory on the node's own disk, to copy the files to")
    add("--source", metavar="DIR", help="slow store to copy from; --root if not given")
    add("--prefetchers", type=int, help="processes that copy; overlapiter's choice if not given")

    args = parser.parse_args(argv)
    if args.staging is None and (args.source is not None or args.prefetchers is not None):
        parser.error("--source and --prefetchers have no use without --staging")
    if args.staging is not None and args.iterator != "overlap":
        parser.error("--staging needs --iterator overlap")
    return args


def make_iterator(
    args: argparse.Namespace,
    dataset: chainer.dataset.DatasetMixin,
    batch_size: int,
    *,
    repeat: bool,
    shuffle: bool,
) -> chainer.dataset.Iterator:
    """Make the iterator that was asked for; the caller finalizes it."""
    if args.iterator == "overlap":
        staging = None
        if args.staging is not None:
            staging = overlapiter.Staging(
                args.staging, source=args.source or args.root, n_prefetchers=args.prefetchers
            )
        return overlapiter.OverlapIterator(
            dataset,
            batch_size,
            repeat,
            shuffle,
            n_processes=args.loaderjob,
            staging=staging,
            seed=args.seed if shuffle else None,
        )

    sampler = None
    if shuffle and args.seed is not None:
        sampler = ScatteredOrder(0, 1, args.seed)  # as OverlapIterator has it with that seed
    usual = (dataset, batch_size, repeat, None if sampler else shuffle)
    if args.iterator == "serial":
        return chainer.iterators.SerialIterator(*usual, order_sampler=sampler)
    return chainer.iterators.MultiprocessIterator(
        *usual, n_processes=args.loaderjob, order_sampler=sampler
    )


def make_trainer(
    args: argparse.Namespace,
    model: chainer.links.Classifier,
    train_iterator: chainer.dataset.Iterator,
    val_iterator: chainer.dataset.Iterator,
    device: chainer.backend.Device,
) -> training.Trainer:
    """Join network, optimizer and iterators; ``run`` of the result finalizes both iterators."""
    optimizer = chainer.optimizers.MomentumSGD(lr=args.learning_rate, momentum=0.9)
    optimizer.setup(model)
    convert = chainer.dataset.concat_examples
    if args.iterator == "overlap":
        convert = overlapiter.concat_examples  # hands on the mini-batch without a copy
    updater = training.updaters.StandardUpdater(
        train_iterator, optimizer, converter=convert, device=device
    )

    end, interval, log_interval = (args.epoch, "epoch"), (1, "epoch"), (1, "epoch")
    if args.test:
        end, interval, log_interval = (3, "iteration"), (3, "iteration"), (1, "iteration")
    trainer = training.Trainer(updater, end, args.out)

    evaluator = extensions.Evaluator(val_iterator, model, converter=convert, device=device)
    trainer.extend(evaluator, trigger=interval)
    trainer.extend(extensions.snapshot(), trigger=interval)
    trainer.extend(overlapiter.LoadingReport(trigger=log_interval))
    trainer.extend(extensions.LogReport(trigger=log_interval))
    columns = ["epoch", "iteration", "main/loss", "validation/main/loss"]
    columns += ["main/accuracy", "validation/main/accuracy", "elapsed_time"]
    columns += ["wait_share", "staged_share", "examples_per_second"]
    trainer.extend(extensions.PrintReport(columns), trigger=log_interval)
    if sys.stdout.isatty():
        trainer.extend(extensions.ProgressBar(update_interval=10))
    return trainer


def main() -> None:
    """Train as the command line says."""
    args = parse_arguments()
    device = chainer.get_device(args.device)
    device.use()
    if args.seed is not None:
        random.seed(args.seed)
        np.random.seed(args.seed)
    network = models.ARCHITECTURES[args.arch]()
    model = chainer.links.Classifier(network)
    model.to_device(device)

    mean = np.load(args.mean)
    train = PreprocessedDataset(
        args.train, args.root, mean, network.insize, augment=not args.no_augment
    )
    val = PreprocessedDataset(args.val, args.root, mean, network.insize, augment=False)
    if args.test:
        val = chainer.datasets.SubDataset(val, 0, min(args.val_batchsize, len(val)))

    # The with statement stops the worker processes, whatever happens before or while training.
    with (
        make_iterator(args, train, args.batchsize, repeat=True, shuffle=True) as train_iterator,
        make_iterator(args, val, args.val_batchsize, repeat=False, shuffle=False) as val_iterator,
    ):
        trainer = make_trainer(args, model, train_iterator, val_iterator, device)
        if args.resume:
            chainer.serializers.load_npz(args.resume, trainer)
        trainer.run()


if __name__ == "__main__":
    main()
