"""What the figures of all benchmarks share."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")  # draws into files, with or without a display

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from bench.harness.machine import machine_words
from bench.harness.tables import spread

# Colours that remain distinct for colour-blind readers (Okabe and Ito, 2008).
BLACK, GREY, DARK = "#000000", "#999999", "#555555"
SKY, BLUE, GREEN, ORANGE, RED = "#56B4E9", "#0072B2", "#009E73", "#E69F00", "#D55E00"
_STYLE = {
    "figure.dpi": 150,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": plt.cycler(color=[BLUE, SKY, ORANGE, RED, GREEN, BLACK], ls=["-", "--"] * 3),
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}
plt.rcParams.update(_STYLE)

#: Spreads by the label of a series and the place.
Series = dict[str, dict[Any, dict]]


def errors(spreads: Sequence[dict]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the medians of spreads, and the distances of minimum and maximum from them."""
    low, middle, high = (np.array([s[key] for s in spreads]) for key in ("min", "median", "max"))
    return middle, [middle - low, high - middle]


def line(axes: Axes, places: Sequence[float], spreads: Sequence[dict], **style: object) -> None:
    """Draw the medians of spreads as a line, with minimum and maximum."""
    middle, bars = errors(spreads)
    axes.errorbar(places, middle, bars, capsize=3, **style)


def draw(claim: ModuleType, result: dict, stem: Path) -> list[Path]:
    """Draw the ``marks`` of a claim, if there are some, with one legend below; return the file.

    A mark is the title of a panel, the label of a series, a place, and the values there of all
    runs. Their medians, minima and maxima are lines where places are numbers, else bars.
    """
    panels: dict[str, Series] = {}
    for title, label, place, values in claim.marks(result):
        panels.setdefault(title, {}).setdefault(label, {})[place] = spread(values)
    if not panels:
        return []
    n_runs = result["options"]["repeats"]
    repeats = f"medians of {n_runs} runs" if n_runs > 1 else ""
    said = filter(None, [result.get("store"), result.get("data"), repeats])
    path, labels = stem.with_suffix(".png"), {label for each in panels.values() for label in each}
    n_rows = -(-len(labels) // 2) * (1 + max(label.count("\n") for label in labels))
    shape = {"n_axes": len(panels), "space_inches": 0.6 + 0.18 * n_rows}
    lines, settings = ("; ".join(said), result["command"]), getattr(claim, "AXES", {})
    with drawn(path, result, *lines, **shape, **settings) as grid:
        for axes, (title, series) in zip(np.atleast_1d(grid), panels.items(), strict=True):
            (_bars if isinstance(place, str) else _lines)(axes, series)
            axes.set_title(title, loc="left")
        figure = axes.figure
        where = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.6 / figure.get_figheight())}
        figure.legend(*axes.get_legend_handles_labels(), ncols=2, fontsize=9, **where)
    return [path]


def _lines(axes: Axes, series: Series) -> None:
    if all(isinstance(place, int) for spreads in series.values() for place in spreads):
        axes.xaxis.get_major_locator().set_params(integer=True)
    for label, spreads in series.items():
        style = {"marker": "o", "markersize": 4, "label": label}
        line(axes, [*spreads], [*spreads.values()], **style)


def _bars(axes: Axes, series: Series) -> None:
    groups, width = [*dict.fromkeys(itertools.chain(*series.values()))], 0.8 / len(series)
    for number, (label, spreads) in enumerate(series.items()):
        middle, bars = errors([*spreads.values()])
        first = (number - (len(series) - 1) / 2) * width
        places = [groups.index(group) + first for group in spreads]
        axes.bar(places, middle, width, yerr=bars, capsize=3, label=label)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(visible=False, axis="x")


@contextlib.contextmanager
def drawn(
    path: Path, result: dict, *lines: str, n_axes=1, sharey=False, space_inches=0.4, **settings: Any
) -> Iterator[Any]:
    """Give a block the axes to draw on, an array of them if several, and then write the figure.

    Then all axes get the settings, by the names that ``Axes.set`` has for them. Below stand the
    lines, and what was measured where.
    """
    width, height = max(4.7 * n_axes, 7.0), 4.3
    figure, axes = plt.subplots(1, n_axes, sharey=sharey, figsize=(width, height))
    yield axes
    for each in np.atleast_1d(axes):
        each.set(**settings)
    figure.tight_layout(rect=(0, space_inches / height, 1, 1))
    text = "\n".join([*lines, machine_words(result)])
    figure.text(0.01, 0.08 / height, text, fontsize=7, color=DARK)
    figure.savefig(path)
    plt.close(figure)
