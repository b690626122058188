"""How many reads cross the slow store when the ranks of a node share a smaller staging directory.

As ``misses_measured``, for 4 ranks under ``mpiexec`` whose order is scattered by
``overlapiter.scatter_order``, in lockstep as in data-parallel training: once as it is
(``together``), and once with ranks that do not know what the others read (``apart``)::

    python -m bench misses-node
"""

from __future__ import annotations

import dataclasses
import pickle
from functools import partial
from pathlib import Path

import numpy as np

from bench.claims.misses_simulated import CLAIM as SIMULATED
from bench.claims.policies import belady, epoch_orders
from bench.harness import isolated
from bench.harness.files import read_pairs
from bench.harness.launching import YIELDS, launch
from bench.harness.options import option
from bench.harness.turns import take_turns
from bench.loaders.run import Heads
from bench.loaders.sources import EpochOptions, prepare, store_facts
from bench.slow.store import SlowStore, attach

FRACTIONS = (0.25, 0.5, 0.75)
KINDS = ("together", "apart")


@dataclasses.dataclass
class NodeOptions(EpochOptions):
    """What is run."""

    open_ms: float = 2.0
    mb_per_s: float = 1000.0
    batch_size: int = 8
    readers: int = 1
    repeats: int = 1
    ranks: int = option(4, "ranks of the node")


def take(request: dict) -> dict | None:
    """Be one rank: take the epochs; rank 0 tells how often the store was opened in each."""
    import overlapiter.mpi
    from overlapiter.scatter import ScatteredOrder

    comm = overlapiter.mpi.create_communicator("naive")
    store: SlowStore = pickle.loads(Path(request["store"]).read_bytes())
    sampler = overlapiter.scatter_order(comm, request["seed"])
    if not request["is_together"]:
        sampler = ScatteredOrder(comm.rank, comm.size, request["seed"])
    pairs, root = read_pairs(request["pairs"], request["n_examples"]), request["root"]
    opens = []
    with overlapiter.OverlapIterator(
        attach(Heads(pairs, root), store),
        request["batch_size"],
        n_processes=request["n_readers"],
        order_sampler=sampler,
        staging=overlapiter.Staging(request["staging"], source=root, capacity=request["capacity"]),
    ) as iterator:
        for _ in range(request["n_epochs"]):
            is_over = False
            while not is_over:
                next(iterator)
                comm.mpi_comm.Barrier()
                is_over = iterator.is_new_epoch
            opens.append(len(store.records()))
            comm.mpi_comm.Barrier()
    return {"opens": np.diff(opens, prepend=0).tolist()} if comm.rank == 0 else None


def measure(options: NodeOptions, scratch: Path) -> dict:
    """Do all runs."""
    sources = prepare(options, scratch, options.examples)
    orders = epoch_orders("shuffled", options.examples, options.epochs, options.seed)
    asked = [{"name": kind, "fraction": f} for f in FRACTIONS for kind in KINDS]
    numbers = {"seed": options.seed, "n_examples": options.examples, "n_epochs": options.epochs}
    numbers |= {"batch_size": options.batch_size, "n_readers": options.readers}

    def run(point: dict) -> list[float]:
        with SlowStore(sources.slow, options.open_ms / 1e3, options.mb_per_s * 1e6) as store:
            pickled = scratch / "store.pickle"
            pickled.write_bytes(pickle.dumps(store))
            request = {
                **numbers,
                "store": str(pickled),
                "staging": str(scratch / f"staging-{point['fraction']}-{point['name']}"),
                "pairs": sources.pairs,
                "root": sources.slow,
                "capacity": sources.capacity_of(point["fraction"], options.examples),
                "is_together": point["name"] == "together",
            }
            job = partial(launch, n_ranks=options.ranks)
            opens = isolated.call(take, request, job, **YIELDS)["opens"]
        return [round(n / options.examples, 6) for n in opens]

    take_turns(asked, 1, run)
    points = []
    for fraction in FRACTIONS:
        missed = belady(orders, int(fraction * options.examples))
        found = {"belady": missed.reshape(options.epochs, -1).mean(axis=1).round(6).tolist()}
        found |= {p["name"]: p["runs"][0] for p in asked if p["fraction"] == fraction}
        points.append({"order": "scattered", "fraction": fraction, "missed_by_epoch": found})
    facts = store_facts(options)
    words = f"{options.ranks} ranks, {options.examples:,} files, {options.epochs} epochs; "
    return {"words": words + facts["store"], "data": sources.label, **facts, "points": points}


CLAIM = dataclasses.replace(
    SIMULATED,
    about=__doc__,
    options=NodeOptions,
    measure=measure,
    quick={"examples": 320, "epochs": 2, "ranks": 2},
)
