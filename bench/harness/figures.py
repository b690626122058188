"""What the figures of all benchmarks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # draws into files, with or without a display

import matplotlib.pyplot as plt
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that remain distinct for colour-blind readers (Okabe and Ito, 2008).
BLACK, GREY, DARK = "#000000", "#999999", "#555555"
SKY, BLUE, GREEN, ORANGE, RED = "#56B4E9", "#0072B2", "#009E73", "#E69F00", "#D55E00"
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


def errors(spreads: Sequence[dict]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the medians of spreads, and the distances of minimum and maximum from them."""
    low, middle, high = (np.array([s[key] for s in spreads]) for key in ("min", "median", "max"))
    return middle, [middle - low, high - middle]


def grouped_bars(
    axes: Axes,
    groups: Sequence[str],
    place: tuple[int, int],
    heights: Sequence[float],
    bars: Sequence | None = None,
    **style: object,
) -> np.ndarray:
    """Draw one bar in each group, the one at ``place[0]`` of ``place[1]``; return where they are.

    Args:
        axes: The panel.
        groups: Their names.
        place: Which of the bars of a group, and how many these are.
        heights: One for each group.
        bars: Distances of minimum and maximum, if any.
        style: Of the bars.
    """
    width = 0.8 / place[1]
    middles = np.arange(len(groups)) + (place[0] - (place[1] - 1) / 2) * width
    axes.bar(middles, heights, width, yerr=bars, capsize=3, **style)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(visible=False, axis="x")
    return middles


def save(figure: Figure, path: Path, result: dict, *lines: str, space_inches: float = 0.4) -> Path:
    """Write below a figure what was measured where, and write the figure.

    Args:
        figure: It is closed.
        path: The file.
        result: The machine is named from it.
        lines: What else is to be said.
        space_inches: What is left free at the bottom.
    """
    machine = result.get("machine")
    words = [f"{machine['cores']} cores, {machine['processor']}"] if machine else []
    text = "\n".join([*lines, *words])
    figure.tight_layout(rect=(0, space_inches / figure.get_figheight(), 1, 1))
    figure.text(0.01, 0.08 / figure.get_figheight(), text, fontsize=7, color=DARK)
    figure.savefig(path)
    plt.close(figure)
    return path


def legend_below(figure: Figure, handles: list, labels: list, n_columns: int = 3) -> None:
    """Put a legend for all panels below them."""
    place = (0.5, 0.3 / figure.get_figheight())
    kind = {"loc": "lower center", "fontsize": 9}
    figure.legend(handles, labels, ncols=n_columns, bbox_to_anchor=place, **kind)
