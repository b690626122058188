"""Draws the 1,000-mini-batch benchmark.

* ``...-prefetchers.png``: the four parts of a file reader's time over the prefetchers;
* ``...-readers.png``: the same over the file readers;
* ``...-loaders.png``: images per second of the loaders over the file readers;
* ``...-waits.png``: the time inside ``next()`` of each mini-batch, per number of prefetchers.

Without ``--sweep`` the figure of the loaders has a bar for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.harness.figures import BLUE, DARK, GREEN, GREY, ORANGE, RED, SKY, errors, plt, save
from bench.loaders.spec import PARTS

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

_COLOURS = (GREY, SKY, BLUE, ORANGE)
_LINES = {
    "overlap": ("OverlapIterator, nothing staged before", BLUE, "o-"),
    "fast": ("MultiprocessIterator, local disk", GREEN, "s-"),
    "slow": ("MultiprocessIterator, slow store", RED, "^-"),
}
_BARS = {
    "overlap": ("OverlapIterator,\nnothing staged before", BLUE),
    "overlap-staged": ("OverlapIterator,\nall staged before", SKY),
    "fast": ("MultiprocessIterator,\nlocal disk", GREEN),
    "slow": ("MultiprocessIterator,\nslow store", RED),
    "copy": ("copy first, then\nMultiprocessIterator", ORANGE),
    "floor": ("no loader: plain loops,\nlocal disk", GREY),
}
_WORDS = {"n_readers": "file reader processes", "n_prefetchers": "prefetcher processes"}


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw every figure for which ``result`` has data, and return the files written."""
    over_prefetchers, over_readers = split(result["points"])
    figures = {
        "prefetchers": _draw_parts(over_prefetchers, "n_prefetchers"),
        "readers": _draw_parts(over_readers, "n_readers"),
        "loaders": _draw_loaders(result["points"], over_readers),
        "waits": _draw_waits(over_prefetchers),
    }
    options = result["options"]
    lines = [
        f"{result['store']}; {result['data']}; batch size {options['batch_size']}",
        f"median of {options['repeats']} runs; page cache of the source {result['page_cache']}",
    ]
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    return [
        save(figure, stem.with_name(f"{stem.name}-{name}.png"), result, *lines, space_inches=0.5)
        for name, figure in drawn.items()
    ]


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


def _draw_parts(points: list[dict], varies: str) -> Figure | None:
    """Draw stacked bars: the mean seconds per file reader, over a number of processes."""
    points = [point for point in points if "parts" in point["summary"]]
    if not points:
        return None
    figure, axes = plt.subplots()
    bottom = np.zeros(len(points))
    for (name, label), colour in zip(PARTS.items(), _COLOURS, strict=True):
        heights = np.array([point["summary"]["parts"][name] for point in points])
        axes.bar(range(len(points)), heights, 0.62, bottom, label=label, color=colour)
        bottom += heights
    for position, total in enumerate(bottom):
        place = ((position, total), (0, 3), "data", "offset points")
        axes.annotate(f"{total:.1f}", *place, ha="center")
    axes.set_xticks(range(len(points)), [str(point[varies]) for point in points])
    axes.set_xlim(-0.75, max(len(points), 3) - 0.25)
    axes.set_ylim(0, bottom.max() * 1.12)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(_WORDS[varies])
    axes.set_ylabel("mean seconds per file reader process")
    fixed = "n_readers" if varies == "n_prefetchers" else "n_prefetchers"
    title = f"{points[0]['n_batches']} mini-batches with {points[0][fixed]} {_WORDS[fixed]}"
    axes.set_title(title, loc="left")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _draw_loaders(points: list[dict], over_readers: list[dict]) -> Figure | None:
    """Draw images per second over file readers: ours, and the two extremes of the stock one."""
    groups = {"overlap": over_readers}
    for loader in ("fast", "slow"):
        found = [point for point in points if point["loader"] == loader]
        groups[loader] = sorted(found, key=lambda point: point["n_readers"])
    if not any(groups.values()):
        return None
    if len({point["n_readers"] for point in points if point["loader"] != "floor"}) == 1:
        return _draw_bars(points)
    figure, axes = plt.subplots()
    for loader, (label, colour, style) in _LINES.items():
        group = groups[loader]
        if group and loader == "overlap":
            label += f" ({group[0]['n_prefetchers']} prefetchers)"
        if group:
            middle, spread = errors([point["summary"]["images_per_second"] for point in group])
            counts = [point["n_readers"] for point in group]
            axes.errorbar(counts, middle, spread, fmt=style, color=colour, capsize=3, label=label)
    for point in points:
        if point["loader"] == "floor":
            rate = point["summary"]["images_per_second"]["median"]
            label = f"no loader: plain loop on {point['n_readers']} cores"
            axes.axhline(rate, color=DARK, linestyle="--", linewidth=1.2, label=label)
    axes.set_xticks(sorted({point["n_readers"] for group in groups.values() for point in group}))
    axes.set_ylim(bottom=0)
    axes.set_xlabel(_WORDS["n_readers"])
    axes.set_ylabel("images per second")
    axes.set_title("Building mini-batches (median, minimum and maximum)", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=9)
    return figure


def _draw_bars(points: list[dict]) -> Figure:
    """Draw images per second of every loader, where all have the same number of file readers."""
    points = sorted(points, key=lambda point: point["summary"]["images_per_second"]["median"])
    figure, axes = plt.subplots()
    middle, spread = errors([point["summary"]["images_per_second"] for point in points])
    colours = [_BARS.get(point["loader"], ("", GREY))[1] for point in points]
    axes.barh(range(len(points)), middle, 0.62, xerr=spread, color=colours, capsize=3)
    for row, rate in enumerate(middle):
        place = ((max(rate, rate + spread[1][row]), row), (4, 0), "data", "offset points")
        axes.annotate(f"{rate:,.0f}", *place, va="center")
    names = [_BARS.get(point["loader"], (point["loader"], GREY))[0] for point in points]
    axes.set_yticks(range(len(points)), names)
    axes.set_xlim(0, 1.15 * float(middle.max()))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("images per second (median, minimum and maximum)")
    return figure


def _draw_waits(points: list[dict]) -> Figure | None:
    """Draw the time inside ``next()`` of each mini-batch of the first run, one panel per point."""
    if not points:
        return None
    shape = {"sharex": True, "sharey": True, "squeeze": False}
    figure, grid = plt.subplots(len(points), 1, figsize=(7.0, 1.5 + 1.4 * len(points)), **shape)
    for axes, point in zip(grid[:, 0], points, strict=True):
        waits = np.maximum(np.array(point["runs"][0]["waits_seconds"]) * 1e3, 1e-2)
        axes.semilogy(waits, ".", markersize=2.5, color=BLUE, alpha=0.6)
        middle = float(np.median(waits))
        axes.axhline(middle, color=RED, linewidth=1.2)
        text = f"{point['n_prefetchers']} prefetchers: median {middle:.1f} ms"
        where = {"transform": axes.transAxes, "ha": "right", "va": "top"}
        axes.text(0.99, 0.93, text, backgroundcolor="#ffffffcc", **where)
    grid[-1, 0].set_xlabel("mini-batch")
    figure.supylabel("time inside next(), ms", fontsize=10)
    title = f"Waiting for each mini-batch, {points[0]['n_readers']} file readers"
    grid[0, 0].set_title(title, loc="left")
    return figure
