"""Runs under mpiexec, on nodes that are names: what ``overlapiter.mpi`` sets up on each rank.

Arguments: the folder of images; a file with a pickled dataset of them, on a store that counts
opens.
"""

import dataclasses
import pickle
import sys
from pathlib import Path
from typing import Any

import psutil

import overlapiter
import overlapiter.mpi
from overlapiter.node import this_node
from overlapiter.workers.start.launch import launcher_variables
from tests.chainer.rank_side import forks, labels_of, report

modules = {"before": sorted({"chainer", "mpi4py.MPI"} & sys.modules.keys())}


def shared(comm: Any, images: Any) -> dict[str, Any]:
    """All ranks of a node read all images at once, each in an order of its own.

    The directory is the node's.
    """
    staging = overlapiter.Staging(f"staging-{this_node().name}", keep_free=0)
    with overlapiter.OverlapIterator(
        images, 8, seed=comm.rank, n_processes=1, repeat=False, staging=staging
    ) as iterator:
        comm.mpi_comm.Barrier()
        order = [label for batch in iterator for label in labels_of(batch)]
        counters = iterator.stats()
    return {
        "order": order,
        "files staged": counters.files_staged,
        "opens of the source": counters.opens_source,
    }


def supervised(images: Any) -> dict[str, Any]:
    """Return what an iterator with nothing but defaults has."""
    with overlapiter.OverlapIterator(
        images, 2, staging=overlapiter.Staging("defaults", keep_free=0)
    ) as iterator:
        next(iterator)
        return {
            "n_processes": iterator.n_processes,
            "reads in flight": iterator.stats().reads_in_flight,
        }


def is_forkserver(process: psutil.Process) -> bool:
    """Return whether it is not the resource tracker, which runs no code of the user."""
    return "multiprocessing.forkserver" in " ".join(process.cmdline())


def main() -> None:
    before = this_node()
    overlapiter.mpi.start_forkserver()
    told = launcher_variables()
    children = psutil.Process().children()
    modules["started"] = sorted({"chainer", "mpi4py.MPI"} & sys.modules.keys())
    comm = overlapiter.mpi.create_communicator("naive")
    node = this_node()

    from tests.chainer.iterator_datasets import numbered_images

    images = numbered_images(Path(sys.argv[1]), 64)
    results = {
        "shared": shared(comm, pickle.loads(Path(sys.argv[2]).read_bytes())),
        "defaults": supervised(images),
        "has new children": psutil.Process().children() != children,
        "forkservers": sum(map(is_forkserver, children)),
        "told by the launcher": sorted(
            name
            for child in children
            if is_forkserver(child)
            for name in child.environ()
            if name in told
        ),
    }
    half = comm.mpi_comm.Split(comm.rank // 3, comm.rank)
    other = overlapiter.mpi.create_communicator("naive", half, batched_copy=False)
    same = overlapiter.mpi.create_communicator(communicator_name="naive")
    results |= {
        "node by the launcher": dataclasses.asdict(before),
        "node": dataclasses.asdict(node),
        "node with another communicator": dataclasses.asdict(this_node()),
        "ChainerMN's node": [comm.intra_rank, comm.intra_size, comm.inter_rank, comm.inter_size],
        "communicators": [(type(c).__name__, c.rank, c.size) for c in (comm, other, same)],
        "modules": modules,
        "forks": forks,
    }
    report(comm, results)


if __name__ == "__main__":
    main()
