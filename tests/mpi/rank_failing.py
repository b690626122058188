"""Runs under mpiexec: the last rank fails amid training, while the others wait for that rank.

Arguments: how it fails, the folder of images.
"""

from mpi4py import MPI  # isort: skip  # first, as in many a program: MPI runs before all else

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from chainer.datasets import LabeledImageDataset

import overlapiter.mpi
from overlapiter import OverlapIterator, Staging
from tests.chainer.iterator_datasets import Culprit, numbered_images
from tests.chainer.rank_side import forks, report

DEED = sys.argv[1]


def communicator() -> Any:
    if DEED != "with ChainerMN alone":
        return overlapiter.mpi.create_communicator("naive")
    import chainermn

    chainermn.global_except_hook.add_hook()
    return chainermn.create_communicator("naive")


def dataset(is_culprit: bool) -> Any:
    if is_culprit and DEED == "a reader dies":
        return Culprit(12, 5, "exits_hard")
    if is_culprit and DEED in ("a file is missing", "with ChainerMN alone"):
        pairs = [("missing.jpg" if i == 5 else f"{i:05}.jpg", i) for i in range(12)]
        return LabeledImageDataset(pairs, sys.argv[2])
    return numbered_images(Path(sys.argv[2]), 12)


def fail() -> None:
    if DEED == "sys.exit":
        sys.exit(3)
    if DEED == "raise SystemExit":
        raise SystemExit(3)
    if DEED == "an exception":
        raise ArithmeticError("the loss is not finite")
    if DEED == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if DEED == "is interrupted":
        os.kill(os.getpid(), signal.SIGINT)
    if DEED == "a thread raises":
        threading.Thread(target=divide, name="watcher").start()
        MPI.COMM_WORLD.recv(source=0, tag=99)  # which no rank sends


def divide() -> float:
    return 1 / 0


def main() -> None:
    assert MPI.Is_initialized()
    comm = communicator()
    is_culprit = comm.rank == comm.size - 1
    staging = Staging("staging", source=sys.argv[2], n_prefetchers=1, keep_free=0)
    iterator = OverlapIterator(
        dataset(is_culprit), 2, shuffle=False, n_processes=1, staging=staging
    )
    for step in range(6):
        if is_culprit and step == 3:
            fail()
        next(iterator)
        comm.mpi_comm.Barrier()
    report(comm, {"files staged": iterator.stats().files_staged, "forks": forks})


if __name__ == "__main__":
    main()
