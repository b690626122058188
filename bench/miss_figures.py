"""Draws which reads miss a staging directory, from the JSON of ``bench.misses``, as PNG next to it.

Run it after that, or after ``bench.misses_measured``::

    python -m bench.miss_figures bench/results/misses-simulated.json

A panel for each kind of order shows the share of the reads that miss in the second epoch and
later, over the size of the staging directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # draws into files, with or without a display

import matplotlib.pyplot as plt

from bench.figures import caption, draw_from_command_line, save
from bench.misses import later_share
from bench.policies import ORDER_KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES = {
    "shuffled": "shuffled anew in each epoch",
    "drawn": "drawn with replacement",
    "ascending": "ascending",
}
# The label, the colour and the mark of each policy; the palette of the other figures.
_LINES = {
    "fifo": ("first in, first out", "#E69F00", "v--"),
    "lru": ("least recently used", "#D55E00", "^--"),
    "ours": ("overlapiter", "#0072B2", "o-"),
    "measured": ("overlapiter, measured", "#009E73", "s-"),
    "belady": ("Belady's optimum", "#000000", "x:"),
}


def draw(result: dict) -> Figure | None:
    """Draw the panels; None if there is nothing to draw."""
    points = sorted(result["points"], key=lambda point: point["fraction"])
    kinds = [kind for kind in ORDER_KINDS if any(point["order"] == kind for point in points)]
    if not kinds:
        return None
    figure, grid = plt.subplots(
        1, len(kinds), sharey=True, squeeze=False, figsize=(max(8.6, 3.1 * len(kinds)), 4.3)
    )
    for axes, kind in zip(grid[0], kinds, strict=True):
        _panel(axes, [point for point in points if point["order"] == kind])
        axes.set_title(_TITLES[kind], loc="left")
    grid[0, 0].set_ylabel("reads that miss, epoch 2 and later, %")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    height = figure.get_figheight()
    figure.legend(
        handles, labels, loc="lower center", ncols=len(labels), bbox_to_anchor=(0.5, 0.3 / height)
    )
    first = "not counted is the first epoch, in which every first read misses"
    caption(figure, result["words"], first, space_inches=0.7)
    return figure


def _panel(axes: Axes, points: list[dict]) -> None:
    percents = [100 * point["fraction"] for point in points]
    for policy, (label, colour, style) in _LINES.items():
        if all(policy in point["missed_by_epoch"] for point in points):
            shares = [100 * later_share(point, policy) for point in points]
            axes.plot(percents, shares, style, color=colour, label=label, markersize=5)
    axes.set_xticks(percents)
    axes.set_ylim(0, 103)
    axes.set_xlabel("staging directory, % of the data set")


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw the figure, if ``result`` has data for it, and return the files written."""
    return save(draw(result), stem.with_name(f"{stem.name}.png"))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    draw_from_command_line(__doc__, "misses-simulated", draw_all, arguments)


if __name__ == "__main__":
    main()
