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

from bench.claims.misses_measured import CLAIM as MEASURED
from bench.claims.misses_measured import MissesOptions, simulated
from bench.harness import isolated
from bench.harness.files import read_pairs
from bench.harness.launching import YIELDS, launch
from bench.harness.options import option, picked
from bench.harness.turns import take_turns
from bench.loaders.run import Heads
from bench.loaders.sources import prepare, store_facts
from bench.slow.store import SlowStore, attach

FRACTIONS = (0.25, 0.5, 0.75)
KINDS = ("together", "apart")


@dataclasses.dataclass
class NodeOptions(MissesOptions):
    """What is run."""

    epochs: int = 3
    batch_size: int = 8
    readers: int = 1
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
    pairs, root = read_pairs(request["pairs"], request["examples"]), request["root"]
    opens = []
    with overlapiter.OverlapIterator(
        attach(Heads(pairs, root), store),
        request["batch_size"],
        n_processes=request["readers"],
        order_sampler=sampler,
        staging=overlapiter.Staging(request["staging"], source=root, capacity=request["capacity"]),
    ) as iterator:
        for _ in range(request["epochs"]):
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
    asked = [{"name": kind, "fraction": f} for f in FRACTIONS for kind in KINDS]
    usual = picked(options, ("seed", "examples", "epochs", "batch_size", "readers"))
    usual |= {"pairs": sources.pairs, "root": sources.slow}

    def run(point: dict) -> list[float]:
        with SlowStore(sources.slow, options.open_ms / 1e3, options.mb_per_s * 1e6) as store:
            (scratch / "store.pickle").write_bytes(pickle.dumps(store))
            request = {
                **usual,
                "store": str(scratch / "store.pickle"),
                "staging": str(scratch / f"staging-{point['fraction']}-{point['name']}"),
                "capacity": sources.capacity_of(point["fraction"], options.examples),
                "is_together": point["name"] == "together",
            }
            opens = isolated.call(take, request, partial(launch, n_ranks=options.ranks), **YIELDS)
        return [round(n / options.examples, 6) for n in opens["opens"]]

    take_turns(asked, 1, run)
    points = []
    for fraction in FRACTIONS:
        found = {"belady": simulated(options, fraction)["belady"]}
        found |= {p["name"]: p["runs"][0] for p in asked if p["fraction"] == fraction}
        points.append({"fraction": fraction, "missed_by_epoch": found})
    return {"data": sources.label, **store_facts(options), "points": points}


CLAIM = dataclasses.replace(
    MEASURED,
    about=__doc__,
    options=NodeOptions,
    measure=measure,
    quick={"examples": 320, "epochs": 2, "ranks": 2},
)
