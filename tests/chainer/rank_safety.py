"""Runs under mpiexec: processes of iterators are killed under load, before MPI starts and after.

Arguments: "early" for the forkserver before MPI, "late" for MPI before all else; the folder of
images.
"""

import itertools
import os
import signal
import sys
import types
import warnings
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import Any

import numpy as np
import psutil

import overlapiter.mpi
from overlapiter import OverlapIterator, Staging
from tests.chainer import fork_watch
from tests.chainer.iterator_datasets import indices_of, numbered_images
from tests.chainer.rank_side import report
from tests.chainer.scripts import wait_until, workers

warnings.simplefilter("ignore")

N_IMAGES, BATCH_SIZE = 20, 4
READER, PREFETCHER, SUPERVISOR = "ovl-reader", "ovl-prefetcher", "ovl-supervisor"


def iterator(staging: Staging | None = None) -> OverlapIterator:
    images = numbered_images(sys.argv[2], N_IMAGES)
    return OverlapIterator(images, BATCH_SIZE, shuffle=False, n_processes=1, staging=staging)


def staging() -> Staging:
    return Staging("staging", source=sys.argv[2], n_prefetchers=1, keep_free=0)


def kill(name: str, iterator: Any) -> None:
    """Kill one of this rank's processes, which may just be about to come into being."""
    if name == SUPERVISOR:
        child = iterator._pipeline._service._child
        child.is_forked(10.0)
        child.kill()
    else:
        found: list[psutil.Process] = []
        wait_until(lambda: found.extend(workers().get(name, [])) or found)
        found[0].kill()


def storm(iterator: OverlapIterator, mpi_comm: Any, *names: str) -> bool:
    """Take mini-batches while the ranks communicate and processes die; say whether all is right."""
    expected = batches()
    gradient = np.ones(100_000, np.float32)
    is_right = True
    for name in ("", *names):
        if name:
            kill(name, iterator)
        for _ in range(4):
            is_right &= indices_of(next(iterator)) == next(expected)
            if mpi_comm is not None:
                mpi_comm.Allreduce(gradient.copy(), gradient)
    return is_right


def batches() -> Iterator[list[int]]:
    """Yield what an iterator gives from its start on."""
    for begin in itertools.cycle(range(0, N_IMAGES, BATCH_SIZE)):
        yield list(range(begin, begin + BATCH_SIZE))


def early() -> dict[str, Any]:
    """Start the forkserver and an iterator before MPI, another one after."""
    overlapiter.mpi.start_forkserver()
    before = iterator(staging())
    comm = overlapiter.mpi.create_communicator("naive")
    fork_watch.forbid_processes()
    children = psutil.Process().children()
    after = iterator()
    is_right = [
        storm(before, comm.mpi_comm, READER, PREFETCHER, SUPERVISOR),
        storm(after, comm.mpi_comm),
    ]
    before.finalize()
    after.reset()
    is_right.append(storm(after, comm.mpi_comm, READER, SUPERVISOR))
    is_right.append(storm(iterator(staging()), comm.mpi_comm, PREFETCHER))
    return {"is right": is_right, "same children": psutil.Process().children() == children}


def late() -> dict[str, Any]:
    """Start MPI first; lose the forkserver, too; go on after MPI has ended."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    children = psutil.Process().children()
    first, second = iterator(staging()), iterator()
    is_right = [storm(first, comm, READER, PREFETCHER), storm(second, comm, READER)]
    server: Any = forkserver._forkserver
    os.kill(server._forkserver_pid, signal.SIGKILL)
    for each in (first, second):
        each.reset()
        is_right.append(storm(each, comm, SUPERVISOR))
    MPI.Finalize()
    is_right.append(storm(iterator(), None, READER))
    return {"is right": is_right, "same children": psutil.Process().children() == children}


def main() -> None:
    results = {"early": early, "late": late}[sys.argv[1]]()
    rank = types.SimpleNamespace(rank=int(os.environ["OMPI_COMM_WORLD_RANK"]))
    report(rank, results | {"copies": fork_watch.copies, "starts": fork_watch.starts})


if __name__ == "__main__":
    main()
