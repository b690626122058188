"""How many reads miss a staging directory smaller than the data set: ours, LRU, FIFO and the best.

The policies are simulated, each on the same orders, with files of one size; which are compared is
in ``bench.claims.policies``. A read of the first epoch that misses had to, so counted are the later
ones::

    python -m bench misses-simulated

``misses_measured`` counts the same in the pipeline itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.claims.policies import ORDER_KINDS, POLICIES, WINDOW_SHARE, epoch_orders
from bench.harness.claim import Claim
from bench.harness.options import Options, option
from bench.harness.text import aligned
from bench.harness.turns import progress_bar
from bench.loaders.sources import check_epochs

if TYPE_CHECKING:
    from pathlib import Path

FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9)
_TITLES = {
    "shuffled": "shuffled anew in each epoch",
    "drawn": "drawn with replacement",
    "ascending": "ascending",
}
_NAMES = {
    "measured": "**OverlapIterator**",
    "ours": "**overlapiter, simulated**",
    "together": "**ranks together**",
    "apart": "ranks apart",
    "belady": "optimum (Belady)",
    "fifo": "FIFO",
    "lru": "LRU",
}


@dataclass
class SimulationOptions(Options):
    """What is simulated."""

    examples: int = option(20_000, "examples in the dataset")
    epochs: int = option(6, "epochs, at least 2")

    def check(self) -> None:
        """Refuse a single epoch."""
        check_epochs(self.epochs)


def simulate(kind: str, fraction: float, n_examples: int, n_epochs: int, seed: int) -> dict:
    """Return the shares of reads that miss, by policy, each epoch from the first on.

    Args:
        kind: How the orders come about, one of ``ORDER_KINDS``.
        fraction: Of the data set, what the staging directory holds.
        n_examples: Examples in the dataset.
        n_epochs: Epochs.
        seed: The orders follow from it.
    """
    orders = epoch_orders(kind, n_examples, n_epochs, seed)
    room = int(fraction * n_examples)
    shares = {}
    for name, policy in POLICIES.items():
        by_epoch = policy(orders, room).reshape(n_epochs, n_examples).mean(axis=1)
        shares[name] = [round(float(share), 6) for share in by_epoch]
    return {"order": kind, "fraction": fraction, "room": room, "missed_by_epoch": shares}


def measure(options: SimulationOptions, _scratch: Path) -> dict:
    """Simulate all."""
    cases = [(kind, fraction) for kind in ORDER_KINDS for fraction in FRACTIONS]
    sizes, points = (options.examples, options.epochs, options.seed), []
    with progress_bar(len(cases), "case") as progress:
        for case in cases:
            points.append(simulate(*case, *sizes))
            progress.update()
    words = f"simulated: {options.examples:,} files of one size, {options.epochs} epochs"
    return {"window_share": WINDOW_SHARE, "words": words, "points": points}


def later_share(point: dict, policy: str) -> float:
    """Return the share of reads of the second and later epochs that miss."""
    later = point["missed_by_epoch"][policy][1:]
    return sum(later) / len(later)


def rows(result: dict) -> list[list[str]]:
    """Return a row for each policy: the misses of epoch 2 and later, in percent."""
    points = result["points"]
    several = len({point["order"] for point in points}) > 1
    words = [f"{p['order']}, " * several + f"{100 * p['fraction']:g} %" for p in points]
    table = [["part", *words]]
    for name, meaning in _NAMES.items():
        if name in points[0]["missed_by_epoch"]:
            table.append([meaning, *(f"{100 * later_share(point, name):.1f}" for point in points)])
    return table


def show(result: dict) -> str:
    """Return what is printed."""
    columns = [list(column) for column in zip(*rows(result), strict=True)]  # many points
    return f"Reads that miss, epoch 2 and later, in percent.\n\n{aligned(columns)}"


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw the shares that miss over the size of the staging directory, a panel for each order."""
    from bench.harness.figures import BLACK, BLUE, GREEN, ORANGE, RED, legend_below, plt, save

    lines = {
        "fifo": ("first in, first out", ORANGE, "v--"),
        "lru": ("least recently used", RED, "^--"),
        "apart": ("ranks apart", ORANGE, "v--"),
        "together": ("ranks together", BLUE, "o-"),
        "ours": ("overlapiter", BLUE, "o-"),
        "measured": ("overlapiter, measured", GREEN, "s-"),
        "belady": ("Belady's optimum", BLACK, "x:"),
    }
    kinds = list(dict.fromkeys(point["order"] for point in result["points"]))
    size = (max(8.6, 3.1 * len(kinds)), 4.3)
    figure, grid = plt.subplots(1, len(kinds), sharey=True, squeeze=False, figsize=size)
    for axes, kind in zip(grid[0], kinds, strict=True):
        points = [point for point in result["points"] if point["order"] == kind]
        points.sort(key=lambda point: point["fraction"])
        percents = [100 * point["fraction"] for point in points]
        for policy, (label, colour, style) in lines.items():
            if policy in points[0]["missed_by_epoch"]:
                shares = [100 * later_share(point, policy) for point in points]
                axes.plot(percents, shares, style, color=colour, label=label, markersize=5)
        axes.set_xticks(percents)
        axes.set_ylim(0, 103)
        axes.set_xlabel("staging directory, % of the data set")
        axes.set_title(_TITLES.get(kind, kind), loc="left")
    grid[0, 0].set_ylabel("reads that miss, epoch 2 and later, %")
    legend_below(figure, *grid[0, 0].get_legend_handles_labels(), n_columns=5)
    first = "not counted is the first epoch, in which every first read misses"
    path = stem.with_suffix(".png")
    return [save(figure, path, result, result["words"], first, space_inches=0.8)]


CLAIM = Claim(
    __doc__,
    SimulationOptions,
    measure,
    show,
    quick={"examples": 60, "epochs": 2},
    tables={"misses": rows},
    figures=__name__,
)
