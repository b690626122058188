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

from bench.claims.data_parallel.rank import train_rank
from bench.claims.data_parallel.summary import reads_by_node
from bench.claims.misses_measured import CLAIM as MEASURED
from bench.claims.misses_measured import MissesOptions, simulated
from bench.harness import isolated
from bench.harness.launching import YIELDS, launch
from bench.harness.options import option, picked
from bench.harness.turns import take_turns
from bench.loaders.sources import prepare, store_facts
from bench.slow.store import SlowStore

FRACTIONS = (0.25, 0.5, 0.75)
KINDS = ("together", "apart")


@dataclasses.dataclass
class NodeOptions(MissesOptions):
    """What is run."""

    epochs: int = 3
    batch_size: int = 8
    readers: int = 1
    ranks: int = option(4, "ranks of the node")


def measure(options: NodeOptions, scratch: Path) -> dict:
    """Do all runs."""
    sources = prepare(options, scratch, options.examples)
    asked = [{"name": kind, "fraction": f} for f in FRACTIONS for kind in KINDS]
    usual = {
        **picked(options, ("seed", "batch_size")),
        "loader": "overlap",
        "model": "",
        "communicator": "naive",
        "n_examples": options.examples,
        "n_epochs": options.epochs,
        "n_readers": options.readers,
        "pairs": sources.pairs,
        "root": sources.slow,
    }

    def run(point: dict) -> list[float]:
        with SlowStore(sources.slow, options.open_ms / 1e3, options.mb_per_s * 1e6) as store:
            (scratch / "store.pickle").write_bytes(pickle.dumps(store))
            request = {
                **usual,
                "store": str(scratch / "store.pickle"),
                "staging": str(scratch / f"staging-{point['fraction']}-{point['name']}"),
                "capacity": sources.capacity_of(point["fraction"], options.examples),
                "order": point["name"],
            }
            job = partial(launch, n_ranks=options.ranks)
            ranks = isolated.call(train_rank, request, job, **YIELDS)["ranks"]
            (node,) = reads_by_node(store.records(), ranks)
        return [round(n / options.examples, 6) for n in node["epoch_opens"][: options.epochs]]

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
