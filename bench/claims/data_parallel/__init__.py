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
lie in memory: its step waits, as a rank does for its accelerator, so the cores are free.

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
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.claims.data_parallel import summary
from bench.harness import isolated
from bench.harness.files import read_files, read_pairs
from bench.harness.launching import YIELDS, launch
from bench.harness.options import OptionsError, option, picked
from bench.harness.turns import take_turns
from bench.loaders.sources import EpochOptions, MountOptions, Sources, facts_of, prepare, spec_of
from bench.slow import SlowStore, Store, slow_store
from bench.slow.ledger import OpenRecord

MODELS = ("data", "waits", "resnet50")


class Options(EpochOptions):
    """What is trained, where and how often."""

    ranks: list[int] = option([1, 2, 4], "per node", quick=[2])
    nodes: list[int] = option([1], "groups of ranks that share a directory")
    loaders: list[str] = option([], f"of {', '.join(summary.LOADERS)}", known=summary.LOADERS)
    model: str = option("data", "data: next to no computing (data)", choices=MODELS)
    order: str = option("global", "of examples (global)", choices=("global", "shards"))
    examples: int = option(4096, "images", quick=48)
    iterations: int = option(0, "of an epoch for each rank: sets --examples", quick=0)
    epochs: int = 2
    readers: int | None = option(None, "readers of a rank (its share of the cores)")
    in_job: bool = option(False, "this is a rank of a job that a launcher started")
    communicator: str = option("naive", "ChainerMN's name; another one has GPUs")

    def check(self) -> None:
        """Complete the options."""
        usual = ["overlap", "slow", "local"] if self.model == "data" else ["overlap", "synthetic"]
        self.loaders = self.loaders or usual
        super().check()
        if self.in_job and not self.source:
            raise OptionsError("--in-job needs --source, --pairs: emulation is for one machine")

    def examples_of(self, n_ranks: int) -> int:
        """Return how many images so many ranks train on in an epoch."""
        return self.iterations * self.batch_size * n_ranks or self.examples


def places_of(sources: Sources, staging: str, store: Store) -> dict:
    """Return where the files are, and below what each node has a staging directory of its own.

    The ``store`` is pickled: None where it is given.
    """
    root = store.root if store else sources.slow
    places = {"pairs": sources.pairs, "local_root": sources.local, "staging": staging, "root": root}
    return {**places, "store": pickle.dumps(store).hex()}


def run_ranks(
    options: MountOptions, sources: Sources, function: Callable, asked: dict, job: Callable,
    **environment: str,
) -> tuple[list[dict], list[OpenRecord] | None]:  # fmt: skip
    """Run the ranks of a job over a slow store of its own.

    Returns:
        What each rank reports, and each open of the store if it is emulated.
    """
    staging = tempfile.mkdtemp(prefix="staging-", dir=sources.scratch)
    spec = spec_of(options, sources, "overlap")
    with slow_store(spec, spec.mount) as store:
        request = {**places_of(sources, staging, store), **asked}
        ranks = isolated.call(function, request, job, **YIELDS, **environment)["ranks"]
        opens = store.records() if isinstance(store, SlowStore) else None
    if options.source:  # a data set is large, and there may be room for one copy alone
        shutil.rmtree(staging, ignore_errors=True)
    return ranks, opens


def measure(options: Options, scratch: Path) -> dict | None:
    """Do all runs; within a job, None on all ranks but the first."""
    from bench.claims.data_parallel.rank import Job, train_rank

    job = Job(options, scratch) if options.in_job else None
    n_cores = len(os.sched_getaffinity(0))
    points = [
        {"n_nodes": n_nodes, "n_ranks": n_ranks, "loader": loader,
         "n_readers": options.readers or max(1, n_cores // (n_nodes * n_ranks))}
        for n_nodes in options.nodes for n_ranks in options.ranks for loader in options.loaders
    ]  # fmt: skip
    n_most = options.examples_of(max(options.nodes) * max(options.ranks))
    sources = prepare(options, job.folder if job else scratch, n_most)
    paths = [path for path, _ in read_pairs(sources.pairs, n_most)]

    def run(point: dict) -> dict:
        n_nodes, n_ranks = point["n_nodes"], point["n_ranks"]
        asked = picked(options, ("model", "batch_size", "order", "seed", "communicator"))
        asked |= {**point, "runs": None, "n_epochs": options.epochs}
        asked["n_examples"] = options.examples_of(n_nodes * n_ranks)
        if job:
            ranks, opens = job.run(sources, asked), None
        else:
            if not options.source:
                read_files(paths, sources.slow)
            launcher = partial(launch, n_ranks=n_ranks, n_nodes=n_nodes)
            threads = {"OMP_NUM_THREADS": str(max(1, n_cores // (n_nodes * n_ranks)))}
            ranks, opens = run_ranks(options, sources, train_rank, asked, launcher, **threads)
        return {"ranks": ranks, "reads": summary.reads_by_node(ranks, opens)}

    take_turns(points, options.repeats, run)
    if job and job.comm.rank > 0:
        return None
    for point in points:
        point["summary"] = summary.summarize(point["runs"])
    return {**facts_of(options, sources), "points": points}


TABLES = summary.TABLES
draw_all = summary.draw_all
