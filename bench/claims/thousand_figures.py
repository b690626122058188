"""Draws the 1,000-mini-batch benchmark.

* ``...-prefetchers.png``: the four parts of a file reader's time over the prefetchers;
* ``...-readers.png``: the same over the file readers;
* ``...-loaders.png``: images per second of the loaders over the file readers, or a bar for each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from bench.harness.figures import BLUE, DARK, GREEN, GREY, ORANGE, RED, SKY, errors, line, plt, save
from bench.harness.tables import median_of, spread_of
from bench.loaders.spec import PARTS

_COLOURS = (GREY, SKY, BLUE, ORANGE)
_LOADERS = {
    "overlap": ("OverlapIterator,\nnothing staged before", BLUE),
    "overlap-staged": ("OverlapIterator,\nall staged before", SKY),
    "fast": ("MultiprocessIterator,\nlocal disk", GREEN),
    "slow": ("MultiprocessIterator,\nslow store", RED),
    "copy": ("copy first, then\nMultiprocessIterator", ORANGE),
    "floor": ("no loader: plain loops,\nlocal disk", GREY),
}
_WORDS = {"n_readers": "file reader processes", "n_prefetchers": "prefetcher processes"}
_RATE = "images_per_second"
_RATE_WORDS = "images per second (median, minimum and maximum)"


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw every figure for which ``result`` has data, and return the files written."""
    points, options = result["points"], result["options"]
    over_prefetchers, over_readers = split(points)
    figures = {"loaders": _draw_bars(points)}
    if len(over_prefetchers) > 1 or len(over_readers) > 1:
        figures = {
            "prefetchers": _draw_parts(over_prefetchers, "n_prefetchers"),
            "readers": _draw_parts(over_readers, "n_readers"),
            "loaders": _draw_lines(points, over_readers),
        }
    lines = [
        f"{result['store']}; {result['data']}; batch size {options['batch_size']}",
        f"median of {options['repeats']} runs; page cache of the source {result['page_cache']}",
    ]
    return [
        save(figure, stem.with_name(f"{stem.name}-{name}.png"), result, *lines, space_inches=0.5)
        for name, figure in figures.items()
    ]


def split(points: list[dict]) -> tuple[list[dict], list[dict]]:
    """Return the points of overlap over which prefetchers vary, and those over which readers do.

    The number that is constant in the one group is the one that occurs most often.
    """
    overlap, groups = _of(points, "overlap"), []
    for varies, fixed in (("n_prefetchers", "n_readers"), ("n_readers", "n_prefetchers")):
        values = [point[fixed] for point in overlap]
        usual = max(values, key=values.count, default=None)
        group = [point for point in overlap if point[fixed] == usual]
        groups.append(sorted(group, key=lambda point, by=varies: point[by]))
    return groups[0], groups[1]


def _draw_parts(points: list[dict], varies: str) -> Figure:
    """Draw stacked bars: the mean seconds per file reader, over a number of processes."""
    figure, axes = plt.subplots()
    counts, bottom = [str(point[varies]) for point in points], np.zeros(len(points))
    for (name, label), colour in zip(PARTS.items(), _COLOURS, strict=True):
        heights = np.array([median_of(point, "parts", name) for point in points])
        bars = axes.bar(counts, heights, 0.62, bottom, label=label, color=colour)
        bottom += heights
    axes.bar_label(bars, [f"{total:.1f}" for total in bottom], padding=3)
    axes.grid(visible=False, axis="x")
    # Room for the number above the highest bar.
    top = 1.08 * float(bottom.max())
    axes.set(xlabel=_WORDS[varies], ylabel="mean seconds per file reader process", ylim=(0, top))
    fixed = "n_readers" if varies == "n_prefetchers" else "n_prefetchers"
    title = f"{points[0]['n_batches']} mini-batches with {points[0][fixed]} {_WORDS[fixed]}"
    axes.set_title(title, loc="left")
    axes.legend(reverse=True, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _draw_lines(points: list[dict], over_readers: list[dict]) -> Figure:
    """Draw images per second over file readers: ours, and the two extremes of the stock one."""
    figure, axes = plt.subplots()
    for loader in ("overlap", "fast", "slow"):
        group = over_readers if loader == "overlap" else _of(points, loader)
        words, colour = _LOADERS[loader]
        counts = [point["n_readers"] for point in group]
        rates = [spread_of(point, _RATE) for point in group]
        line(axes, counts, rates, fmt="o-", color=colour, label=words.replace("\n", " "))
    for point in _of(points, "floor"):  # it has as many processes as there are cores
        words = _LOADERS["floor"][0].replace("\n", " ")
        axes.axhline(median_of(point, _RATE), color=DARK, linestyle="--", label=words)
    axes.set(ylim=(0, None), xlabel=_WORDS["n_readers"], ylabel=_RATE_WORDS.replace(" (", "\n("))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=9)
    return figure


def _of(points: list[dict], loader: str) -> list[dict]:
    found = [point for point in points if point["loader"] == loader]
    return sorted(found, key=lambda point: point["n_readers"])


def _draw_bars(points: list[dict]) -> Figure:
    """Draw images per second of every loader, where all have the same number of file readers."""
    points = sorted(points, key=lambda point: median_of(point, _RATE))
    figure, axes = plt.subplots()
    middle, spread = errors([spread_of(point, _RATE) for point in points])
    words = [_LOADERS.get(point["loader"], (point["loader"], GREY)) for point in points]
    names, colours = zip(*words, strict=True)
    bars = axes.barh(range(len(points)), middle, 0.62, xerr=spread, color=colours, capsize=3)
    axes.bar_label(bars, [f"{rate:,.0f}" for rate in middle], padding=4)
    axes.set_yticks(range(len(points)), names)
    axes.grid(visible=False, axis="y")
    # Room for the number behind the longest bar, whose maximum may be far above its median.
    axes.set(xlim=(0, 1.15 * float((middle + spread[1]).max())), xlabel=_RATE_WORDS)
    return figure
