"""Data-parallel training with ChainerMN, several ranks per node, from a slow store.

Every rank trains the same small model for two epochs, with each loader: OverlapIterator with
staging on the slow store, MultiprocessIterator on the slow store, and MultiprocessIterator on the
local disk where the files are already. Without a slow store at hand one is emulated, whose
latency and bandwidth all ranks share, and several nodes are groups of ranks on this machine, each
with a staging directory of its own::

    python -m bench data-parallel                              # 1, 2 and 4 ranks on one node
    python -m bench data-parallel --nodes 1,2 --ranks 2        # two nodes as well
    python -m bench data-parallel --model waits --ranks 2,4 --iterations 200 --batch-size 4

The last one measures what loading adds where data are not the bottleneck, beside mini-batches that
lie in memory: its step waits, as a rank does for its accelerator, so the cores are free. With
``--model compute`` training keeps them busy itself, and decoding an image takes 2 ms of a core away
from it: how much that is says how long the step was made, and little of the loader.

On a cluster it runs in a job of yours, on all its ranks and nodes, and emulates nothing::

    srun -N 4 --ntasks-per-node 4 python -m bench data-parallel --in-job --communicator pure_nccl \
        --model resnet50 --source /lustre/imagenet --pairs /lustre/imagenet/train.txt \
        --local /nvme/me --examples 1281167 --out results/4-nodes.json

All loaders have the same number of file readers and train on the same mini-batches in the same
order. The runs are interleaved. ``python -m bench figures --together`` draws several such files.
"""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.claims.data_parallel import summary
from bench.harness import isolated
from bench.harness.claim import Claim
from bench.harness.files import read_files, read_pairs
from bench.harness.launching import YIELDS, launch
from bench.harness.options import OptionsError, names_of, option, picked
from bench.harness.turns import take_turns
from bench.loaders.sources import SourceOptions, Sources, prepare, store_label
from bench.slow.store import SlowStore

MODELS = ("data", "waits", "compute", "resnet50")
_KNOWN = names_of(summary.LOADERS)


@dataclass
class TrainingOptions(SourceOptions):
    """What is trained, where and how often."""

    ranks: list[int] = option([1, 2, 4], "per node")
    nodes: list[int] = option([1], "groups of ranks that share a directory")
    loaders: list[str] = option([], f"of {', '.join(summary.LOADERS)}", type=_KNOWN)
    model: str = option("data", "data: next to no computing (data)", choices=MODELS)
    order: str = option("global", "of examples (global)", choices=("global", "shards"))
    examples: int = option(4096, "images")
    iterations: int = option(0, "of an epoch, whatever the number of ranks: sets --examples")
    batch_size: int = option(32, "images of a rank's mini-batch")
    epochs: int = option(2, "epochs")
    readers: int | None = option(None, "readers of a rank (its share of the cores)", type=int)
    in_job: bool = option(False, "this is a rank of a job that a launcher started")
    communicator: str = option("naive", "ChainerMN's name; another one has GPUs")
    mpiexec: str = option("", "the launcher and its options (Open MPI's mpiexec)")

    def check(self) -> None:
        """Complete the options."""
        usual = ["overlap", "slow", "local"] if self.model == "data" else ["overlap", "synthetic"]
        self.loaders = self.loaders or usual
        super().check()
        if self.in_job and not self.source:
            raise OptionsError("--in-job needs --source, --pairs: emulation is for one machine")
        if self.epochs < 2:
            raise OptionsError("--epochs: give at least 2: the first has the start of the workers")

    def examples_of(self, n_ranks: int) -> int:
        """Return how many images so many ranks train on in an epoch."""
        return self.iterations * self.batch_size * n_ranks or self.examples


def request_of(
    point: dict, options: TrainingOptions, sources: Sources, staging: Path, store: Path | None
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
        **picked(options, names),
        **{name: point[name] for name in ("loader", "n_readers")},
        "pairs": sources.pairs,
        "n_examples": options.examples_of(point["n_nodes"] * point["n_ranks"]),
        "root": sources.slow,
        "local_root": sources.local,
        "staging": str(staging),
        "store": None if store is None else str(store),
        "n_epochs": options.epochs,
    }


def measure(options: TrainingOptions, scratch: Path) -> dict | None:
    """Do all runs; within a job, None on all ranks but the first."""
    from bench.claims.data_parallel.rank import run_in_job, train_rank

    if options.in_job:
        return run_in_job(options)
    n_cores = len(os.sched_getaffinity(0))
    points = [
        {"n_nodes": n_nodes, "n_ranks": n_ranks, "loader": loader,
         "n_readers": options.readers or max(1, n_cores // (n_nodes * n_ranks))}
        for n_nodes in options.nodes for n_ranks in options.ranks for loader in options.loaders
    ]  # fmt: skip
    n_most = options.examples_of(max(options.nodes) * max(options.ranks))
    sources = prepare(options, scratch, n_most)
    paths = [path for path, _ in read_pairs(sources.pairs, n_most)]
    pickled = None if options.source else scratch / "store.pickle"
    with SlowStore(sources.slow, options.open_ms / 1e3, options.bytes_per_second) as store:
        if pickled:
            pickled.write_bytes(pickle.dumps(store))

        def run(point: dict) -> dict:
            staging = scratch / f"staging-{points.index(point)}-{len(point.get('runs', ()))}"
            if pickled:
                read_files(paths, sources.slow)
            store.reset()
            size = {name: point[name] for name in ("n_nodes", "n_ranks")}
            n_threads = max(1, n_cores // (size["n_nodes"] * size["n_ranks"]))
            ranks = isolated.call(
                train_rank,
                request_of(point, options, sources, staging, pickled),
                partial(launch, **size, launcher=options.mpiexec),
                **YIELDS,
                OMP_NUM_THREADS=str(n_threads),
            )["ranks"]
            if pickled:
                return {"ranks": ranks, "reads": summary.reads_by_node(store.records(), ranks)}
            # A data set is large, and there may be room for one copy alone.
            shutil.rmtree(staging, ignore_errors=True)
            return {"ranks": ranks, "reads": summary.staged_by_node(ranks)}

        take_turns(points, options.repeats, run)
    return result_of(points, sources, options)


def result_of(points: list[dict], sources: Sources, options: TrainingOptions) -> dict:
    """Return the result of points that have been run."""
    for point in points:
        point["summary"] = summary.summarize(point["runs"])
    facts = {"data": sources.label, "store": store_label(options)}
    facts |= {"overheads": summary.overheads(points), "costs": summary.costs(points)}
    return {**facts, "points": points}


CLAIM = Claim(
    __doc__,
    TrainingOptions,
    measure,
    quick={"ranks": [2], "examples": 48, "iterations": 0, "batch_size": 4, "repeats": 1},
    tables={
        "training": summary.training_rows,
        "node-reads": summary.node_read_rows,
        "overheads": summary.overhead_rows,
        "costs": summary.cost_rows,
    },
    figures=summary.__name__,
)
