"""How many reads of each epoch cross the slow store when the staging directory holds a part.

Counted at an emulated slow store under the real pipeline, for orders that are shuffled anew in each
epoch; beside it what other policies miss of the same orders. A read of the first epoch that misses
had to, so counted are the later ones::

    python -m bench misses-measured
    python -m bench misses-node             # ranks that share it

The ranks, under ``mpiexec``, have the order of ``overlapiter.scatter_order``, in lockstep as in
data-parallel training: once as they are (``together``), and once such that none knows what the
others read (``apart``).

The files are the photographs of the other benchmarks; they are read, but not decoded. What is read
ahead of the trainer across the end of an epoch counts in the earlier one.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from bench.claims.peers import run_epochs
from bench.harness.options import option
from bench.harness.turns import take_turns
from bench.loaders.sources import EpochOptions, capacity_of, prepare, run_once
from overlapiter.order import seeded_order

Policy = Callable[[NDArray[np.intp], int], NDArray[np.bool_]]
FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9)
FRACTIONS_OF_RANKS = (0.25, 0.5, 0.75)
KINDS = ("together", "apart")
#: The names of what is compared, in tables and figures.
_NAMES = {
    "measured": "**OverlapIterator**",
    "together": "**ranks together**",
    "apart": "ranks apart",
    "belady": "optimum (Belady)",
    "fifo": "FIFO",
    "lru": "LRU",
}


class Options(EpochOptions):
    fixed = ("source",)  # a store of the user's counts no reads
    epochs: int = 4
    open_ms: float = 2.0
    mb_per_s: float = 1000.0
    repeats: int = 1
    ranks: int = option(0, "ranks of a node, 0 for a single process")


# --- other policies, each example being a file of the same size -----------------------------------


def _misses(
    order: NDArray[np.intp], room: int, priority_of: Callable[..., int]
) -> NDArray[np.bool_]:
    """Return for each read whether it misses, with a policy that evicts the least priority.

    ``priority_of`` takes the place of a read, the place at which its example is read next, and the
    priority that the example had, if it was staged.
    """
    reads = order.tolist()
    next_uses, later = [len(reads)] * len(reads), {}
    for place in reversed(range(len(reads))):
        next_uses[place] = later.get(reads[place], len(reads))
        later[reads[place]] = place
    staged: dict[int, int] = {}  # the priority of each example
    least: list[tuple[int, int]] = []  # the same as a heap, with entries that are outdated
    missed = np.zeros(len(reads), bool)
    for place, example in enumerate(reads):
        missed[place] = example not in staged
        staged[example] = priority_of(place, next_uses[place], staged.get(example, place))
        heapq.heappush(least, (staged[example], example))
        while len(staged) > room:
            priority, candidate = heapq.heappop(least)
            if staged.get(candidate) == priority:
                del staged[candidate]
    return missed


#: The policies by name. ``belady`` is the optimum, which no policy can beat: L. A. Belady, "A study
#: of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5 (1966). What is
#: read need not be kept. ``lru`` and ``fifo`` evict what was read, or staged, the longest time ago.
POLICIES: dict[str, Policy] = {
    "belady": functools.partial(_misses, priority_of=lambda _place, next_use, _before: -next_use),
    "lru": functools.partial(_misses, priority_of=lambda place, _next_use, _before: place),
    "fifo": functools.partial(_misses, priority_of=lambda _place, _next_use, before: before),
}


def simulated(options: Options, fraction: float, policy: str) -> list[float]:
    """Return the shares of reads that miss in each epoch."""
    orders = [seeded_order(options.seed, e, options.examples) for e in range(options.epochs)]
    missed = POLICIES[policy](np.concatenate(orders), int(fraction * options.examples))
    return missed.reshape(options.epochs, -1).mean(axis=1).round(6).tolist()


def measure(options: Options, scratch: Path) -> dict:
    base, facts = prepare(options, scratch, options.examples)
    base = replace(base, **options.usual, is_decoding=False)
    fractions, kinds, policies = FRACTIONS, ("measured",), tuple(POLICIES)
    if options.ranks:
        fractions, kinds, policies = FRACTIONS_OF_RANKS, KINDS, ("belady",)
    measured = [{"name": kind, "fraction": f} for f in fractions for kind in kinds]

    def reads(point: dict) -> list[int]:
        if options.ranks:
            part, order = point["fraction"], point["name"]
            return run_epochs(base, options.ranks, 1, part, order=order)["reads"]
        spec = replace(base, capacity=capacity_of(base, point["fraction"]))
        return [epoch["opens"] for epoch in run_once(spec)["epochs"]]

    take_turns(measured, options.repeats, reads)
    shares = {f: {policy: simulated(options, f, policy) for policy in policies} for f in fractions}
    for point in measured:
        means = np.mean(point["runs"], axis=0) / options.examples
        shares[point["fraction"]][point["name"]] = means.round(6).tolist()
    points = [{"fraction": f, "missed_by_epoch": each} for f, each in shares.items()]
    return {**facts, "points": points}


def later_share(point: dict, policy: str) -> float:
    """Return the share of reads of the second and later epochs that miss."""
    return mean(point["missed_by_epoch"][policy][1:])


def rows(result: dict) -> list[list[str]]:
    """Return a row for each policy: the misses of epoch 2 and later, in percent."""
    points = result["points"]
    lines = [["part", *(f"{100 * point['fraction']:g} %" for point in points)]]
    for name, meaning in _NAMES.items():
        if name in points[0]["missed_by_epoch"]:
            lines.append([meaning, *(f"{100 * later_share(point, name):.1f}" for point in points)])
    return lines


def marks(result: dict) -> list[tuple]:
    return [
        ("% of reads that miss after epoch 1, by room for % of the data", meaning.strip("*"),
         100 * point["fraction"], [100 * later_share(point, name)])
        for name, meaning in _NAMES.items()
        for point in result["points"] if name in point["missed_by_epoch"]
    ]  # fmt: skip


TABLES = {"misses": rows}
AXES = {"ylim": (0, None)}
