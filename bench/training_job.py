"""All runs of data-parallel training within one job that a launcher has started on every rank."""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import overlapiter.mpi
from bench.training_plan import Point, Sources, interleaved, sources_of, spec_of
from bench.training_rank import copy_to_local_disk, train
from bench.training_reads import staged_by_node
from bench.training_spec import RankResult
from overlapiter.node import this_node

if TYPE_CHECKING:
    import argparse


class Found(NamedTuple):
    """What the first rank knows in the end: the points, and the runs of each."""

    sources: Sources
    points: list[Point]
    runs: list[list[dict]]


def run(options: argparse.Namespace) -> Found | None:
    """Do all runs; all ranks call it. Return what was found on the first one, else None.

    In the same processes, so that only the first run of ours starts Python's forkserver.
    """
    warnings.simplefilter("ignore")  # of Chainer about its dependencies
    comm = overlapiter.mpi.create_communicator(options.communicator)
    number = comm.mpi_comm.bcast(os.getpid())
    # Beside the directories of other nodes, where the disk is one that they share.
    scratch = Path(options.staging, f"data-parallel-{number}-{this_node().name}")
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        return _run_all(options, comm, scratch)
    finally:
        if this_node().local_rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)


def _run_all(options: argparse.Namespace, comm: object, scratch: Path) -> Found | None:
    node = this_node()
    n_readers = options.readers or node.cores
    size = (node.count, node.local_size)
    points = [Point(*size, loader, n_readers) for loader in options.loaders]
    sources = sources_of(options, scratch)
    found: list[list[dict]] = [[] for _ in points]
    for number, point in interleaved(points, options.repeats):
        staging = scratch / f"staging-{number}-{len(found[number])}"
        spec = spec_of(point, options, sources, staging, None)
        if spec.loader in ("local", "synthetic"):
            copy_to_local_disk(spec)
        ranks = comm.mpi_comm.allgather(asdict(train(spec, comm)))
        reads = staged_by_node([RankResult.from_dict(rank) for rank in ranks])
        found[number].append({"ranks": ranks, "reads": reads})
        if node.local_rank == 0:  # a data set is large, and there may be room for one copy alone
            shutil.rmtree(staging, ignore_errors=True)
    return Found(sources, points, found) if comm.rank == 0 else None
