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
import warnings
from dataclasses import replace
from pathlib import Path

from bench.claims.data_parallel import summary
from bench.harness.files import read_files
from bench.harness.options import OptionsError, option, picked
from bench.harness.turns import take_turns
from bench.loaders.ranks import run_rank, run_ranks
from bench.loaders.sources import EpochOptions, prepare

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


def train_rank(request: dict) -> dict | None:
    """Be one rank, which trains the model that is asked for."""
    import overlapiter.mpi
    from overlapiter.node import this_node

    comm = overlapiter.mpi.create_communicator(request["communicator"])
    from bench.claims.data_parallel.models import training_step

    device = -1 if request["communicator"] == "naive" else this_node().local_rank
    step = training_step(request["model"], request["spec"]["seed"], comm, device)
    return run_rank(request, comm, step, device=device)


def measure(options: Options, scratch: Path) -> dict | None:
    """Do all runs; within a job, None on all ranks but the first."""
    rank = 0
    if options.in_job:
        rank, scratch = _join(options, scratch)
    n_cores = len(os.sched_getaffinity(0))
    points = [
        {"n_nodes": n_nodes, "n_ranks": n_ranks, "loader": loader,
         "n_readers": options.readers or max(1, n_cores // (n_nodes * n_ranks))}
        for n_nodes in options.nodes for n_ranks in options.ranks for loader in options.loaders
    ]  # fmt: skip
    n_most = options.examples_of(max(options.nodes) * max(options.ranks))
    base, facts = prepare(options, scratch, n_most)

    def run(point: dict) -> dict:
        n_nodes, n_ranks = point["n_nodes"], point["n_ranks"]
        spec = replace(
            base, n_examples=options.examples_of(n_nodes * n_ranks), n_epochs=options.epochs,
            order=options.order, loader=point["loader"], n_readers=point["n_readers"],
        )  # fmt: skip
        if not options.source:
            read_files(spec.paths(), spec.root)
        asked = picked(options, ("model", "communicator"))
        size, n_threads = (n_ranks * (not options.in_job), n_nodes), n_cores // (n_nodes * n_ranks)
        threads = {"OMP_NUM_THREADS": str(max(1, n_threads))}
        ranks, opens = run_ranks(spec, train_rank, asked, *size, **threads)
        return {"ranks": ranks, "reads": summary.reads_by_node(ranks, opens)}

    take_turns(points, options.repeats, run)
    return {**facts, "points": points} if rank == 0 else None


def _join(options: Options, scratch: Path) -> tuple[int, Path]:
    """Take sizes from the job of which this process is a rank.

    Returns:
        The rank, and the folder of the first rank on this node, for all ranks there.
    """
    import overlapiter.mpi
    from overlapiter.node import this_node

    warnings.simplefilter("ignore")  # of Chainer about its dependencies
    comm, node = overlapiter.mpi.create_communicator(options.communicator), this_node()
    folders = comm.mpi_comm.allgather((node.name, scratch))
    options.nodes, options.ranks = [node.count], [node.local_size]
    options.readers = options.readers or node.cores
    return comm.rank, next(folder for name, folder in folders if name == node.name)


TABLES = summary.TABLES
draw_all = summary.draw_all
