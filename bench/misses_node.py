"""How many reads cross the slow store when the ranks of a node share a smaller staging directory.

As ``bench.misses_measured``, for 4 ranks under ``mpiexec`` whose order is scattered by
``overlapiter.scatter_order``, in lockstep as in data-parallel training: once as it is
(``together``), and once with ranks that do not know what the others read (``apart``)::

    python -m bench.misses_node

It writes ``bench/results/misses-node.json``.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.data_parallel import command_of
from bench.epoch_options import parse, parser_for, request_for, scratch, store_label, write
from bench.epoch_runs import Heads, capacity_of
from bench.isolated import CHECKOUT, RunFailedError
from bench.misses import table
from bench.policies import belady, epoch_orders
from bench.progress import progress_bar
from bench.slowstore import SlowStore, attach
from bench.spec import read_pairs
from bench.training_plan import Point

NAME = "misses-node"
FRACTIONS = (0.25, 0.5, 0.75)
KINDS = ("together", "apart")
_RANK = "--rank"


def take(request: dict, answer: Path) -> None:
    """Be one rank: take the epochs; rank 0 writes how often the store was opened in each."""
    import overlapiter.mpi
    from overlapiter.scatter import ScatteredOrder

    comm = overlapiter.mpi.create_communicator("naive")
    store: SlowStore = pickle.loads(Path(request["store"]).read_bytes())
    sampler = overlapiter.scatter_order(comm, request["seed"])
    if not request["is_together"]:
        sampler = ScatteredOrder(comm.rank, comm.size, request["seed"])
    pairs = read_pairs(request["pairs"], request["n_examples"])
    root = request["root"]
    capacity = capacity_of(root, (path for path, _ in pairs), request["fraction"])
    opens = []
    with overlapiter.OverlapIterator(
        attach(Heads(pairs, root), store),
        request["batch_size"],
        n_processes=request["n_readers"],
        order_sampler=sampler,
        staging=overlapiter.Staging(request["staging"], source=root, capacity=capacity),
    ) as iterator:
        for _ in range(request["n_epochs"]):
            is_over = False
            while not is_over:
                next(iterator)
                comm.mpi_comm.Barrier()
                is_over = iterator.is_new_epoch
            opens.append(len(store.records()))
            comm.mpi_comm.Barrier()
    if comm.rank == 0:
        answer.write_text(json.dumps(np.diff(opens, prepend=0).tolist()))


def measure(request: dict, n_ranks: int) -> list[float]:
    """Run a job; return the share of the examples of each epoch that crossed the slow store.

    Raises:
        RunFailedError: The job did not end well.
    """
    slow = request["root"], request["open_seconds"], request["bytes_per_second"]
    with (
        SlowStore(*slow) as store,
        tempfile.TemporaryDirectory(prefix="bench-node-", dir=request["local"]) as folder,
    ):
        handed_over, asked, answer = (Path(folder, name) for name in ("store", "asked", "answer"))
        handed_over.write_bytes(pickle.dumps(store))
        request |= {"store": str(handed_over), "staging": str(Path(folder, "staging"))}
        asked.write_text(json.dumps(request))
        program = [sys.executable, "-W", "ignore", "-m", "bench.misses_node", _RANK]
        point = Point(1, n_ranks, "overlap", request["n_readers"])
        command = command_of(point, None, [*program, str(asked), str(answer)])
        environment = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
        done = subprocess.run(command, cwd=CHECKOUT, env=environment, check=False)
        if done.returncode != 0:
            raise RunFailedError(f"{command} ended with {done.returncode}")
        return [round(n / request["n_examples"], 6) for n in json.loads(answer.read_text())]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = parser_for(
        __doc__, NAME, epochs=4, open_ms=2.0, bandwidth=1000.0, batch_size=8, readers=1
    )
    parser.add_argument("--ranks", type=int, default=4, help="ranks of the node (%(default)s)")
    options = parse(parser, arguments)
    orders = epoch_orders("shuffled", options.examples, options.epochs, options.seed)
    points = []
    n_runs = len(FRACTIONS) * len(KINDS)
    with scratch(options) as local, progress_bar(n_runs, "run") as progress:
        for fraction in FRACTIONS:
            missed = belady(orders, int(fraction * options.examples))
            found = {"belady": missed.reshape(options.epochs, -1).mean(axis=1).round(6).tolist()}
            for kind in KINDS:
                request = request_for(options, "overlap", fraction, local, is_decoding=False)
                request["is_together"] = kind == "together"
                found[kind] = measure(request, options.ranks)
                progress.update()
            points.append({"order": "scattered", "fraction": fraction, "missed_by_epoch": found})
    words = f"{options.ranks} ranks, {options.examples:,} files, {options.epochs} epochs; "
    write(options, NAME, words=words + store_label(options), points=points)
    print(table(points, "together"))


if __name__ == "__main__":
    if sys.argv[1:2] == [_RANK]:
        take(json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
    else:
        main()
