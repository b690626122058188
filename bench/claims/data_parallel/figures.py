"""Draws data-parallel training.

* ``...-epochs.png``: seconds per epoch over nodes and ranks, a panel for each epoch;
* ``...-waiting.png``: the share of its time that each rank waits for data, likewise.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import PercentFormatter

from bench.claims.data_parallel.summary import seconds_of, words_of
from bench.harness.figures import BLUE, GREEN, GREY, RED, errors, legend_below, plt, save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS = {
    "slow": ("MultiprocessIterator, slow store", RED),
    "overlap": ("OverlapIterator, nothing staged before", BLUE),
    "local": ("MultiprocessIterator, local disk", GREEN),
    "synthetic": ("data in memory, no loader", GREY),
}


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw both figures, and return the files written."""
    options, points = result["options"], result["points"]
    readers = " or ".join(map(str, sorted({point["n_readers"] for point in points})))
    lines = [
        f"{result['store']}; {result['data']}; model '{options['model']}', mini-batches of "
        f"{options['batch_size']}, {readers} file readers per rank for every loader",
        f"median of {options['repeats']} interleaved runs; epoch 1 with the start of the workers",
    ]
    written = []
    for name, title in (("epochs", "seconds per epoch"), ("waiting", "time waiting for data")):
        figure = _draw(points, title, is_waiting=name == "waiting")
        path = stem.with_name(f"{stem.name}-{name}.png")
        written.append(save(figure, path, result, *lines, space_inches=0.9))
    return written


def _draw(points: list[dict], title: str, *, is_waiting: bool) -> Figure:
    """Draw a panel for each epoch with groups of bars: a group is a number of nodes and ranks."""
    sizes = sorted({(point["n_nodes"], point["n_ranks"]) for point in points})
    loaders = [name for name in _BARS if any(point["loader"] == name for point in points)]
    n_epochs, width = len(points[0]["summary"]), 0.8 / len(loaders)
    shape = {"sharey": True, "squeeze": False, "figsize": (max(4.7 * n_epochs, 7.0), 4.3)}
    figure, grid = plt.subplots(1, n_epochs, **shape)
    for epoch, axes in enumerate(grid[0]):
        for number, loader in enumerate(loaders):
            found = [point for point in points if point["loader"] == loader]
            groups = [sizes.index((point["n_nodes"], point["n_ranks"])) for point in found]
            places = np.array(groups) + (number - (len(loaders) - 1) / 2) * width
            label, colour = _BARS[loader]
            bars = {"width": width, "color": colour, "label": label}
            (_draw_waiting if is_waiting else _draw_seconds)(axes, places, found, epoch, bars)
        axes.set_xticks(range(len(sizes)), [words_of(*size) for size in sizes])
        axes.grid(visible=False, axis="x")
        axes.set_title(f"Epoch {epoch + 1}: {title}", loc="left")
        if is_waiting:
            axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    legend_below(figure, *grid[0, 0].get_legend_handles_labels())
    return figure


def _draw_seconds(
    axes: Axes, places: np.ndarray, points: list[dict], epoch: int, bars: dict
) -> None:
    """Draw the median over the runs, with minimum and maximum."""
    middle, spread = errors([point["summary"][epoch]["seconds"] for point in points])
    axes.bar(places, middle, yerr=spread, capsize=3, **bars)


def _draw_waiting(
    axes: Axes, places: np.ndarray, points: list[dict], epoch: int, bars: dict
) -> None:
    """Draw the mean over the ranks, and each rank as a mark; medians over the runs."""
    axes.bar(places, [point["summary"][epoch]["wait_share"] for point in points], **bars)
    for place, point in zip(places, points, strict=True):
        by_run = [[rank["epochs"][epoch] for rank in run["ranks"]] for run in point["runs"]]
        shares = [[e["wait_seconds"] / seconds_of(e) for e in ranks] for ranks in by_run]
        medians = [median(of_rank) for of_rank in zip(*shares, strict=True)]
        axes.plot([place] * len(medians), medians, "k_", markersize=6)
