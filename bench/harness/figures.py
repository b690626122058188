"""What the figures of all benchmarks share."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")  # draws into files, with or without a display

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Colours that remain distinct for colour-blind readers (Okabe and Ito, 2008).
BLACK, GREY, DARK = "#000000", "#999999", "#555555"
SKY, BLUE, GREEN, ORANGE, RED = "#56B4E9", "#0072B2", "#009E73", "#E69F00", "#D55E00"
_STYLE = {
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
plt.rcParams.update(_STYLE)
_KEYS = ("min", "median", "max")


def errors(spreads: Sequence[dict]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the medians of spreads, and the distances of minimum and maximum from them."""
    low, middle, high = (np.array([s[key] for s in spreads]) for key in _KEYS)
    return middle, [middle - low, high - middle]


Panels = Mapping[str, Mapping[tuple[str, str], Sequence]]


def bar_panels(
    panels: Panels, groups: Sequence[str], path: Path, result: dict, *lines: str
) -> list[Path]:
    """Draw panels of grouped bars with one legend below; return the file, see :func:`drawn`.

    Each panel has a title, and series by label and colour, of a spread for each of the groups or
    None for no bar.
    """
    shape = {"n_axes": len(panels), "sharey": True, "space_inches": 0.9}
    with drawn(path, result, *lines, **shape) as grid:
        for axes, (title, series) in zip(np.atleast_1d(grid), panels.items(), strict=True):
            width = 0.8 / len(series)
            for number, ((label, colour), spreads) in enumerate(series.items()):
                places = np.arange(len(groups)) + (number - (len(series) - 1) / 2) * width
                middle, bars = errors([each or dict.fromkeys(_KEYS, np.nan) for each in spreads])
                axes.bar(places, middle, width, yerr=bars, capsize=3, color=colour, label=label)
            axes.set_xticks(range(len(groups)), groups)
            axes.grid(visible=False, axis="x")
            axes.set_title(title, loc="left")
        legend_below(axes.figure, *axes.get_legend_handles_labels())
    return [path]


@contextlib.contextmanager
def drawn(
    path: Path,
    result: dict,
    *lines: str,
    n_axes: int = 1,
    sharey: bool = False,
    space_inches: float = 0.4,
    title: str = "",
    **settings: object,
) -> Iterator[Any]:
    """Give a block the axes to draw on, an array of them if several, and then write the figure.

    Then all axes get the settings, by the names that ``Axes.set`` has for them, and each the title;
    the lines are written below, as :func:`save` does.
    """
    size = (max(4.7 * n_axes, 7.0), 4.3)
    figure, axes = plt.subplots(1, n_axes, sharey=sharey, figsize=size)
    yield axes
    for each in np.atleast_1d(axes):
        each.set(**settings)
        if title:
            each.set_title(title, loc="left")
    save(figure, path, result, *lines, space_inches=space_inches)


def line(axes: Axes, places: Sequence[float], spreads: Sequence[dict], **style: object) -> None:
    """Draw the medians of spreads as a line, with minimum and maximum."""
    middle, bars = errors(spreads)
    axes.errorbar(places, middle, bars, capsize=3, **style)


def save(figure: Figure, path: Path, result: dict, *lines: str, space_inches: float = 0.4) -> Path:
    """Write below a figure what was measured where, and write the figure, which is closed."""
    machine = result.get("machine")
    words = [f"{machine['cores']} cores, {machine['processor']}"] if machine else []
    text = "\n".join([*lines, *words])
    figure.tight_layout(rect=(0, space_inches / figure.get_figheight(), 1, 1))
    figure.text(0.01, 0.08 / figure.get_figheight(), text, fontsize=7, color=DARK)
    figure.savefig(path)
    plt.close(figure)
    return path


def legend_below(figure: Figure, handles: list, labels: list, bottom_inches: float = 0.3) -> None:
    """Put a legend for all panels below them."""
    place = (0.5, bottom_inches / figure.get_figheight())
    kind = {"loc": "lower center", "fontsize": 9}
    figure.legend(handles, labels, ncols=2, bbox_to_anchor=place, **kind)
