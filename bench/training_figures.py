"""Draws the figures of data-parallel training from its JSON files, as PNG next to the first one.

Run it after ``bench.data_parallel``; the points of several files, of jobs of several sizes for
example, come into the same figures::

    python -m bench.training_figures bench/results/data-parallel.json

* ``...-epochs.png``: seconds per epoch over nodes and ranks, a panel for each epoch;
* ``...-waiting.png``: the share of its time that each rank waits for data, likewise.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # draws into files, with or without a display

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import PercentFormatter

from bench.figures import STYLE, caption, save
from bench.training_table import read_results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The label and the colour of each loader; the palette of the other figures.
_BARS = {
    "slow": ("MultiprocessIterator, slow store", "#D55E00"),
    "overlap": ("OverlapIterator, nothing staged before", "#0072B2"),
    "local": ("MultiprocessIterator, local disk", "#009E73"),
    "synthetic": ("data in memory, no loader", "#999999"),
}
_Draw = "Callable[[Axes, np.ndarray, Sequence[dict], int, dict], None]"


def draw_all(results: Sequence[dict], stem: Path) -> list[Path]:
    """Draw both figures of the points of all results, and return the files written."""
    points = [point for result in results for point in result["points"]]
    figures = {
        "epochs": _draw(points, "seconds per epoch", _draw_seconds),
        "waiting": _draw(points, "time waiting for data", _draw_waiting),
    }
    for axes in figures["waiting"].axes:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    written = []
    for name, figure in figures.items():
        _caption(figure, results)
        written += save(figure, stem.with_name(f"{stem.name}-{name}.png"))
    return written


def _draw(points: Sequence[dict], title: str, draw_bars: _Draw) -> Figure:
    """Draw a panel for each epoch with groups of bars: a group is a number of nodes and ranks."""
    sizes = sorted({(point["n_nodes"], point["n_ranks"]) for point in points})
    loaders = [name for name in _BARS if any(point["loader"] == name for point in points)]
    n_epochs = len(points[0]["summary"])
    figure, grid = plt.subplots(
        1, n_epochs, sharey=True, squeeze=False, figsize=(max(4.7 * n_epochs, 7.0), 4.3)
    )
    width = 0.8 / len(loaders)
    for epoch, axes in enumerate(grid[0]):
        for number, loader in enumerate(loaders):
            label, colour = _BARS[loader]
            found = [point for point in points if point["loader"] == loader]
            groups = [sizes.index((point["n_nodes"], point["n_ranks"])) for point in found]
            places = np.array(groups) + (number - (len(loaders) - 1) / 2) * width
            shape = {"width": width, "color": colour, "label": label}
            draw_bars(axes, places, found, epoch, shape)
        axes.set_xticks(range(len(sizes)), [_words(*size) for size in sizes])
        axes.grid(visible=False, axis="x")
        axes.set_title(f"Epoch {epoch + 1}: {title}", loc="left")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    place = (0.5, 0.3 / figure.get_figheight())
    figure.legend(handles, labels, loc="lower center", ncols=3, bbox_to_anchor=place, fontsize=9)
    return figure


def _words(n_nodes: int, n_ranks: int) -> str:
    ranks = f"{n_ranks} rank" + "s" * (n_ranks > 1)
    return ranks if n_nodes == 1 else f"{n_nodes} nodes x\n{ranks}"


def _draw_seconds(
    axes: Axes, places: np.ndarray, points: Sequence[dict], epoch: int, shape: dict
) -> None:
    """Draw the median over the runs, with minimum and maximum."""
    seconds = [point["summary"][epoch]["seconds"] for point in points]
    middle = np.array([found["median"] for found in seconds])
    lower = middle - [found["min"] for found in seconds]
    upper = np.array([found["max"] for found in seconds]) - middle
    axes.bar(places, middle, yerr=[lower, upper], capsize=3, **shape)


def _draw_waiting(
    axes: Axes, places: np.ndarray, points: Sequence[dict], epoch: int, shape: dict
) -> None:
    """Draw the mean over the ranks, and each rank as a mark; medians over the runs."""
    axes.bar(places, [point["summary"][epoch]["wait_share"] for point in points], **shape)
    for place, point in zip(places, points, strict=True):
        shares = _shares_of_ranks(point["runs"], epoch)
        axes.plot([place] * len(shares), shares, "k_", markersize=6)


def _shares_of_ranks(runs: Sequence[dict], number: int) -> list[float]:
    """Return for each rank the share of its time that it waited, the median over the runs."""
    by_run = [[_share(rank["epochs"][number]) for rank in run["ranks"]] for run in runs]
    return [median(shares) for shares in zip(*by_run, strict=True)]


def _share(epoch: dict) -> float:
    return epoch["wait_seconds"] / (epoch["end"] - epoch["start"])


def _caption(figure: Figure, results: Sequence[dict]) -> None:
    result = results[0]
    options, machine = result["options"], result["machine"]
    readers = sorted({point["n_readers"] for found in results for point in found["points"]})
    counts = " or ".join(str(number) for number in readers)
    caption(
        figure,
        f"{result['store']}; {result['data']}; model '{options['model']}', mini-batches of "
        f"{options['batch_size']}, {counts} file readers per rank for every loader",
        f"{machine['cores']} cores, {machine['processor']}; median of {options['repeats']} "
        "interleaved runs; epoch 1 with the start of the workers",
        space_inches=0.9,
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    results = read_results(__doc__, arguments)
    with plt.rc_context(STYLE):
        for written in draw_all([*results.values()], next(iter(results)).with_suffix("")):
            print(written)


if __name__ == "__main__":
    main()
