"""Data-parallel training with ChainerMN, several ranks per node, from a slow store.

Every rank trains the same small model for two epochs, with each loader: OverlapIterator with
staging on the slow store, MultiprocessIterator on the slow store, and MultiprocessIterator on the
local disk where the files are already. Without a slow store at hand one is emulated, whose
latency and bandwidth all ranks share, and several nodes are groups of ranks on this machine, each
with a staging directory of its own::

    python -m bench data-parallel                              # 1, 2 and 4 ranks on one node
    python -m bench data-parallel --nodes 1,2 --ranks 2        # two nodes as well
    python -m bench data-parallel --model compute --ranks 2    # ours against data in memory

On a cluster it runs in a job of yours, on all its ranks and nodes, and emulates nothing::

    srun -N 4 --ntasks-per-node 4 python -m bench data-parallel --in-job --communicator pure_nccl \
        --model resnet50 --source /lustre/imagenet --pairs /lustre/imagenet/train.txt \
        --local /nvme/me --examples 1281167 --out results/4-nodes.json

All loaders have the same number of file readers and train on the same mini-batches in the same
order. The runs are interleaved. ``python -m bench figures --together`` draws several such files.
"""

from __future__ import annotations

import math
import os
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.claims.data_parallel import summary
from bench.harness import isolated
from bench.harness.claim import Claim
from bench.harness.files import read_files, read_pairs
from bench.harness.launching import YIELDS, launch
from bench.harness.turns import take_turns
from bench.loaders.sources import check_source_options, names_of, numbers, prepare, store_label
from bench.slow.store import SlowStore

if TYPE_CHECKING:
    import argparse

    from bench.loaders.sources import Sources

MODELS = ("data", "compute", "resnet50")
_ON_LOCAL_DISK = ("local", "synthetic")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is trained, where and how often."""
    add = parser.add_argument
    loaders = ",".join(summary.LOADERS)
    add("--ranks", type=numbers, default=[1, 2, 4], help="per node (1,2,4)")
    add("--nodes", type=numbers, default=[1], help="groups of ranks that share a directory (1)")
    add("--loaders", type=names_of(summary.LOADERS), help=f"of {loaders} (what the model is for)")
    add("--model", choices=MODELS, default="data", help="data: next to no computing (%(default)s)")
    add("--order", choices=("global", "shards"), default="global", help="of examples (%(default)s)")
    add("--examples", type=int, default=4096, help="images (%(default)s)")
    add("--batch-size", type=int, default=32, help="images of a rank's mini-batch (%(default)s)")
    add("--epochs", type=int, default=2, help="epochs (%(default)s)")
    add("--readers", type=int, help="file readers of a rank (its share of the cores)")
    add("--open-ms", type=float, default=10.0, help="emulated latency (%(default)s)")
    add("--mb-per-s", type=float, default=100.0, help="emulated bandwidth (%(default)s)")
    add("--source", type=Path, help="directory of the files on a real slow store: no emulation")
    add("--root", type=Path, help="directory of the files on the local disk, for emulation")
    add("--pairs", type=Path, help="list file of 'path label' lines (default: made images)")
    add("--in-job", action="store_true", help="this is a rank of a job that a launcher started")
    add("--communicator", default="naive", help="ChainerMN's name; GPUs unless %(default)s")
    add("--mpiexec", default="", help="the launcher and its options (Open MPI's mpiexec)")


def check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Complete the options."""
    usual = ["overlap", "slow", "local"] if options.model == "data" else ["overlap", "synthetic"]
    options.loaders = options.loaders or usual
    check_source_options(options, parser)
    if options.in_job and not options.source:
        parser.error("--in-job needs --source and --pairs: the emulated store is for one machine")
    if options.epochs < 2:
        parser.error("--epochs: give at least 2: the first one has the start of the workers")


def request_of(
    point: dict, options: argparse.Namespace, sources: Sources, staging: Path, store: Path | None
) -> dict:
    """Return what all ranks of a run are asked for.

    Args:
        point: Of the table.
        options: Of the command line.
        sources: Where the images are.
        staging: Directory on the local disk, below which each node has one of its own.
        store: A pickled emulated store; None where the store is real.
    """
    names = ("model", "batch_size", "order", "seed", "communicator")
    return {
        **{name: getattr(options, name) for name in names},
        **{name: point[name] for name in ("loader", "n_readers")},
        "pairs": sources.pairs,
        "n_examples": options.examples,
        "root": sources.slow,
        "local_root": sources.local,
        "staging": str(staging),
        "store": None if store is None else str(store),
        "n_epochs": options.epochs,
    }


def measure(options: argparse.Namespace, scratch: Path) -> dict | None:
    """Do all runs; within a job, None on all ranks but the first."""
    if options.in_job:
        from bench.claims.data_parallel.rank import run_in_job

        return run_in_job(options)
    n_cores = len(os.sched_getaffinity(0))
    points = [
        {"n_nodes": n_nodes, "n_ranks": n_ranks, "loader": loader,
         "n_readers": options.readers or max(1, n_cores // (n_nodes * n_ranks))}
        for n_nodes in options.nodes for n_ranks in options.ranks for loader in options.loaders
    ]  # fmt: skip
    sources = prepare(options, scratch, options.examples)
    paths = [path for path, _ in read_pairs(sources.pairs, options.examples)]
    bandwidth = options.mb_per_s * 1e6 if options.mb_per_s > 0 else math.inf
    pickled = None if options.source else scratch / "store.pickle"
    with SlowStore(sources.slow, options.open_ms / 1e3, bandwidth) as store:
        if pickled is not None:
            pickled.write_bytes(pickle.dumps(store))

        def run(point: dict) -> dict:
            number = len(point.get("runs", ()))
            staging = scratch / f"staging-{points.index(point)}-{number}"
            if pickled is not None:
                read_files(paths, sources.slow)
            store.reset()
            request = request_of(point, options, sources, staging, pickled)
            ranks = run_ranks(request, point, options.mpiexec)
            if pickled is not None:
                return {"ranks": ranks, "reads": summary.reads_by_node(store.records(), ranks)}
            # A data set is large, and there may be room for one copy alone.
            shutil.rmtree(staging, ignore_errors=True)
            return {"ranks": ranks, "reads": summary.staged_by_node(ranks)}

        take_turns(points, options.repeats, run)
    return result_of(points, sources.label, store_label(options))


def run_ranks(request: dict, point: dict, launcher: str) -> list[dict]:
    """Run all ranks of one run and return what each reports; blocks until they have ended."""
    from bench.claims.data_parallel.rank import train_rank

    n_nodes, n_ranks = point["n_nodes"], point["n_ranks"]
    n_threads = max(1, len(os.sched_getaffinity(0)) // (n_nodes * n_ranks))
    job = partial(launch, n_ranks=n_ranks, n_nodes=n_nodes, launcher=launcher)
    return isolated.call(train_rank, request, job, **YIELDS, OMP_NUM_THREADS=str(n_threads))[
        "ranks"
    ]


def result_of(points: list[dict], data: str, store: str) -> dict:
    """Return the result of points that have been run."""
    for point in points:
        point["summary"] = summary.summarize(point["runs"])
    facts = {"data": data, "store": store}
    return {**facts, "overheads": summary.overheads(points), "points": points}


CLAIM = Claim(
    __doc__,
    add_options,
    measure,
    summary.show,
    quick={"ranks": [2], "examples": 48, "batch_size": 4, "repeats": 1},
    check=check,
    tables={
        "training": summary.training_rows,
        "node-reads": summary.node_read_rows,
        "overheads": summary.overhead_rows,
    },
    figures="bench.claims.data_parallel.figures",
)
