"""Draws the figures of the 1,000-mini-batch benchmark from its JSON file, as PNG next to it.

Run it after ``bench.thousand``::

    python -m bench.figures bench/results/thousand.json

* ``...-prefetchers.png``: the four parts of a file reader's time over the prefetchers;
* ``...-readers.png``: the same over the file readers;
* ``...-loaders.png``: images per second of the loaders over the file readers;
* ``...-waits.png``: the time inside ``next()`` of each mini-batch, per number of prefetchers.

A benchmark without ``--sweep`` has one bar, or one mark, in each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # draws into files, with or without a display

import matplotlib.pyplot as plt
import numpy as np

from bench.isolated import CHECKOUT
from bench.summary import PART_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A palette that remains distinct for colour-blind readers (Okabe and Ito, 2008).
_PART_COLOURS = ("#999999", "#56B4E9", "#0072B2", "#E69F00")
_PART_LABELS = ("initialize", "dequeue an index list", "fetch data", "others")
_LINES = {
    "overlap": ("OverlapIterator, nothing staged before", "#0072B2", "o-"),
    "fast": ("MultiprocessIterator, local disk", "#009E73", "s-"),
    "slow": ("MultiprocessIterator, slow store", "#D55E00", "^-"),
}
#: For the figures of every benchmark.
STYLE = {
    "figure.figsize": (7.0, 4.3),
    "figure.dpi": 150,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw every figure for which ``result`` has data, and return the files written."""
    over_prefetchers, over_readers = split(result["points"])
    figures = {
        "prefetchers": draw_parts(over_prefetchers, "n_prefetchers"),
        "readers": draw_parts(over_readers, "n_readers"),
        "loaders": draw_loaders(result["points"], over_readers),
        "waits": draw_waits(over_prefetchers),
    }
    written = []
    for name, figure in figures.items():
        if figure is not None:
            _caption(figure, result)
            written += save(figure, stem.with_name(f"{stem.name}-{name}.png"))
    return written


def split(points: list[dict]) -> tuple[list[dict], list[dict]]:
    """Return the points of overlap over which prefetchers vary, and those over which readers do.

    The number that is constant in the one group is the one that occurs most often.
    """
    overlap = [point for point in points if point["loader"] == "overlap"]
    groups = []
    for varies, fixed in (("n_prefetchers", "n_readers"), ("n_readers", "n_prefetchers")):
        values = [point[fixed] for point in overlap]
        usual = max(values, key=values.count, default=None)
        group = [point for point in overlap if point[fixed] == usual]
        groups.append(sorted(group, key=lambda point, by=varies: point[by]))
    return groups[0], groups[1]


def draw_parts(points: list[dict], varies: str) -> Figure | None:
    """Draw stacked bars: the mean seconds per file reader, over a number of processes."""
    points = [point for point in points if "parts" in point["summary"]]
    if not points:
        return None
    figure, axes = plt.subplots()
    bottom = np.zeros(len(points))
    for name, label, colour in zip(PART_NAMES, _PART_LABELS, _PART_COLOURS, strict=True):
        heights = np.array([point["summary"]["parts"][name] for point in points])
        axes.bar(range(len(points)), heights, 0.62, bottom, label=label, color=colour)
        bottom += heights
    for position, total in enumerate(bottom):
        axes.annotate(
            f"{total:.1f}", (position, total), (0, 3), "data", "offset points", ha="center"
        )
    axes.set_xticks(range(len(points)), [str(point[varies]) for point in points])
    axes.set_xlim(-0.75, max(len(points), 3) - 0.25)
    axes.set_ylim(0, bottom.max() * 1.12)
    axes.grid(visible=False, axis="x")
    fixed = "n_readers" if varies == "n_prefetchers" else "n_prefetchers"
    words = {"n_readers": "file reader processes", "n_prefetchers": "prefetcher processes"}
    axes.set_xlabel(words[varies])
    axes.set_ylabel("mean seconds per file reader process")
    axes.set_title(
        f"{points[0]['n_batches']} mini-batches with {points[0][fixed]} {words[fixed]}", loc="left"
    )
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def draw_loaders(points: list[dict], over_readers: list[dict]) -> Figure | None:
    """Draw images per second over file readers: ours, and the two extremes of the stock one."""
    groups = {"overlap": over_readers}
    for loader in ("fast", "slow"):
        found = [point for point in points if point["loader"] == loader]
        groups[loader] = sorted(found, key=lambda point: point["n_readers"])
    if not any(groups.values()):
        return None
    figure, axes = plt.subplots()
    for loader, (label, colour, style) in _LINES.items():
        if groups[loader]:
            if loader == "overlap":
                label += f" ({groups[loader][0]['n_prefetchers']} prefetchers)"
            _line(axes, groups[loader], label, colour, style)
    for point in points:
        if point["loader"] == "floor":
            rate = point["summary"]["images_per_second"]["median"]
            label = f"no loader: plain loop on {point['n_readers']} cores"
            axes.axhline(rate, color="#555555", linestyle="--", linewidth=1.2, label=label)
    axes.set_xticks(sorted({point["n_readers"] for group in groups.values() for point in group}))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("file reader processes")
    axes.set_ylabel("images per second")
    axes.set_title("Building mini-batches (median, minimum and maximum)", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=9)
    return figure


def _line(axes: Axes, points: list[dict], label: str, colour: str, style: str) -> None:
    rates = [point["summary"]["images_per_second"] for point in points]
    middle = np.array([rate["median"] for rate in rates])
    spread = [middle - [rate["min"] for rate in rates], [rate["max"] for rate in rates] - middle]
    numbers = [point["n_readers"] for point in points]
    axes.errorbar(numbers, middle, spread, fmt=style, color=colour, capsize=3, label=label)


def draw_waits(points: list[dict]) -> Figure | None:
    """Draw the time inside ``next()`` of each mini-batch of the first run, one panel per point."""
    if not points:
        return None
    figure, grid = plt.subplots(
        len(points),
        1,
        sharex=True,
        sharey=True,
        squeeze=False,
        figsize=(7.0, 1.5 + 1.4 * len(points)),
    )
    for axes, point in zip(grid[:, 0], points, strict=True):
        waits = np.maximum(np.array(point["runs"][0]["waits_seconds"]) * 1e3, 1e-2)
        axes.semilogy(waits, ".", markersize=2.5, color="#0072B2", alpha=0.6)
        middle = float(np.median(waits))
        axes.axhline(middle, color="#D55E00", linewidth=1.2)
        text = f"{point['n_prefetchers']} prefetchers: median {middle:.1f} ms"
        axes.text(
            0.99,
            0.93,
            text,
            transform=axes.transAxes,
            ha="right",
            va="top",
            backgroundcolor="#ffffffcc",
        )
    grid[-1, 0].set_xlabel("mini-batch")
    figure.supylabel("time inside next(), ms", fontsize=10)
    grid[0, 0].set_title(
        f"Waiting for each mini-batch, {points[0]['n_readers']} file readers", loc="left"
    )
    return figure


def _caption(figure: Figure, result: dict) -> None:
    """Write below the figure what was measured where."""
    options, machine = result["options"], result["machine"]
    caption(
        figure,
        f"{result['store']}; {result['data']}; batch size {options['batch_size']}",
        f"{machine['cores']} cores, {machine['processor']}; median of {options['repeats']} runs; "
        f"page cache of the source {result['page_cache']}",
    )


def caption(figure: Figure, *lines: str, space_inches: float = 0.4) -> None:
    """Write below a figure what was measured where, and leave this space there."""
    figure.tight_layout(rect=(0, space_inches / figure.get_figheight(), 1, 1))
    figure.text(0.01, 0.08 / figure.get_figheight(), "\n".join(lines), fontsize=7, color="#555555")


def save(figure: Figure | None, path: Path) -> list[Path]:
    """Write a figure, if there is one, and return the files written."""
    if figure is None:
        return []
    figure.savefig(path)
    plt.close(figure)
    return [path]


def draw_from_command_line(
    description: str | None,
    name: str,
    draw: Callable[[dict, Path], list[Path]],
    arguments: list[str] | None,
) -> None:
    """Draw the figures of a benchmark from the JSON file that the command line names.

    Args:
        description: What the command line says of itself.
        name: The benchmark, whose JSON file is the default.
        draw: Draws what a result holds into files with this stem, and returns them.
        arguments: Of the command line; None for those of this process.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = CHECKOUT / f"bench/results/{name}.json"
    parser.add_argument("result", type=Path, nargs="?", default=default, help="the JSON file")
    path = parser.parse_args(arguments).result
    with plt.rc_context(STYLE):
        for written in draw(json.loads(path.read_text()), path.with_suffix("")):
            print(written)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    draw_from_command_line(__doc__, "thousand", draw_all, arguments)


if __name__ == "__main__":
    main()
