"""How many reads cross the slow store when the ranks of a node share a smaller staging directory.

As ``misses_measured``, for 4 ranks under ``mpiexec`` whose order is scattered by
``overlapiter.scatter_order``, in lockstep as in data-parallel training: once as it is
(``together``), and once with ranks that do not know what the others read (``apart``)::

    python -m bench misses-node
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.claims import misses_measured
from bench.claims.peers import run_epochs
from bench.harness.options import option
from bench.harness.turns import take_turns
from bench.loaders.sources import prepare

FRACTIONS = (0.25, 0.5, 0.75)
KINDS = ("together", "apart")


class Options(misses_measured.Options):
    """What is run."""

    epochs: int = 3
    batch_size: int = 8
    readers: int = 1
    ranks: int = option(4, "ranks of the node", quick=2)


def measure(options: Options, scratch: Path) -> dict:
    """Do all runs."""
    base, facts = prepare(options, scratch, options.examples)
    base = replace(base, **options.usual)
    asked = [{"order": kind, "fraction": f} for f in FRACTIONS for kind in KINDS]

    def run(point: dict) -> list[float]:
        found = run_epochs(base, options.ranks, 1, point["fraction"], order=point["order"])
        reads = found["reads"]
        return [round(n / options.examples, 6) for n in reads]

    take_turns(asked, 1, run)
    points = []
    for fraction in FRACTIONS:
        found = {"belady": misses_measured.simulated(options, fraction)["belady"]}
        found |= {p["order"]: p["runs"][0] for p in asked if p["fraction"] == fraction}
        points.append({"fraction": fraction, "missed_by_epoch": found})
    return {**facts, "points": points}


TABLES = misses_measured.TABLES
draw_all = misses_measured.draw_all
