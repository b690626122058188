"""What the figures of all benchmarks share."""

import matplotlib

matplotlib.use("Agg")  # draws into files, with or without a display

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from bench.harness.machine import machine_words
from bench.harness.tables import spread

plt.style.use(Path(__file__).with_suffix(".mplstyle"))

#: Spreads by the label of a series and the place.
Series = dict[str, dict[Any, dict]]


def draw(claim: Any, result: dict, path: Path) -> list[Path]:
    """Draw the ``marks`` of a claim, if there are some, with one legend below; return the file.

    A mark is the title of a panel, the label of a series, a place, and the values there of all
    runs. Their medians, minima and maxima are lines where places are numbers, else bars. All axes
    get the ``AXES`` of the claim, by the names that ``Axes.set`` has for them, but for ``sharey``,
    one scale for all, and ``stacked``, bars on top of each other. Below stands what was measured
    where.
    """
    panels: dict[str, Series] = {}
    for title, label, place, values in claim.marks(result):
        panels.setdefault(title, {}).setdefault(label, {})[place] = spread(values)
    if not panels:
        return []
    settings = {"sharey": False, "stacked": False, **getattr(claim, "AXES", {})}
    shape = {"sharey": settings.pop("sharey"), "figsize": (max(4.7 * len(panels), 7.0), 4.3)}
    is_stacked = settings.pop("stacked")
    figure, grid = plt.subplots(1, len(panels), **shape)
    handles: dict[str, Any] = {}
    for axes, (title, series) in zip(np.atleast_1d(grid), panels.items(), strict=True):
        places = [*dict.fromkeys(place for spreads in series.values() for place in spreads)]
        if isinstance(places[0], str):
            _bars(axes, series, places, is_stacked=is_stacked)
        else:
            _lines(axes, series, places)
        axes.set_title(title, loc="left")
        axes.set(**settings)
        shown, labels = axes.get_legend_handles_labels()
        handles |= zip(labels, shown, strict=True)
    height, n_lines = figure.get_figheight(), 1 + max(label.count("\n") for label in handles)
    where = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.6 / height)}
    figure.legend(handles.values(), handles, ncols=2, fontsize=9, **where)
    legend_inches = 0.18 * -(-len(handles) // 2) * n_lines
    figure.tight_layout(rect=(0, (0.6 + legend_inches) / height, 1, 1))
    n_runs = result["options"]["repeats"]
    repeats = f"medians of {n_runs} runs" if n_runs > 1 else ""
    said = "; ".join(filter(None, [result.get("store"), result.get("data"), repeats]))
    text = "\n".join([said, result["command"], machine_words(result)])
    figure.text(0.01, 0.08 / height, text, fontsize=7, color="#555555")
    figure.savefig(path)
    plt.close(figure)
    return [path]


def _errors(spreads: dict[Any, dict]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the medians of spreads, and the distances of minimum and maximum from them."""
    low, middle, high = np.transpose([[s["min"], s["median"], s["max"]] for s in spreads.values()])
    return middle, [middle - low, high - middle]


def _lines(axes: Axes, series: Series, places: list) -> None:
    if all(isinstance(place, int) for place in places):
        axes.xaxis.get_major_locator().set_params(integer=True)
    for label, spreads in series.items():
        style = {"marker": "o", "markersize": 4, "label": label, "capsize": 3}
        axes.errorbar([*spreads], *_errors(spreads), **style)


def _bars(axes: Axes, series: Series, groups: list[str], *, is_stacked: bool) -> None:
    if len(series) == 1:  # they lie, so there is room for their names
        ((label, spreads),) = series.items()
        middle, bars = _errors(spreads)
        lying = axes.barh([*spreads], middle, 0.62, xerr=bars, capsize=3, label=label)
        axes.bar_label(lying, fmt="{:,.0f}", padding=4)
        axes.grid(visible=False, axis="y")
        return
    n_beside = 1 if is_stacked else len(series)
    width, tops = 0.8 / n_beside, dict.fromkeys(groups, 0.0)
    for number, (label, spreads) in enumerate(series.items()):
        middle, bars = _errors(spreads)
        first = (number % n_beside - (n_beside - 1) / 2) * width
        places = [groups.index(group) + first for group in spreads]
        bottom = [tops[group] for group in spreads]
        if is_stacked:
            tops.update(zip(spreads, middle + bottom, strict=True))
        axes.bar(places, middle, width, bottom, yerr=bars, capsize=3, label=label)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(visible=False, axis="x")
