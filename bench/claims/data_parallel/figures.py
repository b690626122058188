"""Draws data-parallel training.

* ``...-epochs.png``: seconds per epoch over nodes and ranks, a panel for each epoch;
* ``...-waiting.png``: the share of its time that each rank waits for data, likewise.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from matplotlib.ticker import PercentFormatter

from bench.claims.data_parallel.summary import seconds_of, words_of
from bench.harness.figures import (
    BLUE,
    GREEN,
    GREY,
    RED,
    errors,
    grouped_bars,
    legend_below,
    plt,
    save,
)

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS = {
    "slow": ("MultiprocessIterator, slow store", RED),
    "overlap": ("OverlapIterator, nothing staged before", BLUE),
    "local": ("MultiprocessIterator, local disk", GREEN),
    "synthetic": ("data in memory, no loader", GREY),
}


_NAN = float("nan")
#: Where a loader did not run with some number of ranks.
_NOTHING = {"seconds": dict.fromkeys(("median", "min", "max"), _NAN), "wait_share": _NAN}


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
    by_key = {(p["loader"], p["n_nodes"], p["n_ranks"]): p for p in points}
    loaders = [name for name in _BARS if any(point["loader"] == name for point in points)]
    n_epochs = len(points[0]["summary"])
    shape = {"sharey": True, "squeeze": False, "figsize": (max(4.7 * n_epochs, 7.0), 4.3)}
    figure, grid = plt.subplots(1, n_epochs, **shape)
    for epoch, axes in enumerate(grid[0]):
        for number, loader in enumerate(loaders):
            label, colour = _BARS[loader]
            found = [by_key.get((loader, *size)) for size in sizes]
            over = [point["summary"][epoch] if point else _NOTHING for point in found]
            heights, bars = errors([each["seconds"] for each in over])
            if is_waiting:
                heights, bars = [each["wait_share"] for each in over], None
            style = {"color": colour, "label": label}
            words, place = [words_of(*size) for size in sizes], (number, len(loaders))
            middles = grouped_bars(axes, words, place, heights, bars, **style)
            if is_waiting:
                _mark_ranks(axes, middles, found, epoch)
        axes.set_title(f"Epoch {epoch + 1}: {title}", loc="left")
        if is_waiting:
            axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    legend_below(figure, *grid[0, 0].get_legend_handles_labels())
    return figure


def _mark_ranks(axes: Axes, places: np.ndarray, points: list, epoch: int) -> None:
    """Draw a mark for each rank: the median over the runs."""
    for place, point in zip(places, points, strict=True):
        runs = point["runs"] if point else ()
        by_run = [[rank["epochs"][epoch] for rank in run["ranks"]] for run in runs]
        shares = [[e["wait_seconds"] / seconds_of(e) for e in ranks] for ranks in by_run]
        medians = [median(of_rank) for of_rank in zip(*shares, strict=True)]
        axes.plot([place] * len(medians), medians, "k_", markersize=6)
