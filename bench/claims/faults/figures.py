"""Draws how fast killed workers are replaced.

For each kind of worker and each signal there are two rows of marks, one for each signal that hit:
the time until a new process stood in its place, and the longest call of ``next()`` around that.
Hollow marks are hits beside another one that takes longer by itself: a stopped worker, or the
supervisor. The black line is the median of the full ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.claims.faults.tables import KINDS, NOTICE_LIMIT_SECONDS, SIGNALS, calm_seconds
from bench.harness.figures import BLUE, GREY, RED, plt, save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

_MEASURES = {
    "notice_seconds": ("until a new process stands in its place", BLUE, "o", 0.18),
    "recover_seconds": ("longest next() meanwhile, with the 3 after it", RED, "^", -0.18),
}
_SPREAD = 0.1


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw the hits of all configurations, if there are any, and return the files written."""
    runs = [point["run"] for point in result["points"] if "run" in point]
    hits = [hit for run in runs for hit in run["hits"]]
    pairs = [(kind, signal) for kind in KINDS for signal in SIGNALS]
    by_pair = {pair: [h for h in hits if (h["kind"], h["signal"]) == pair] for pair in pairs}
    groups = [(*pair, found) for pair, found in by_pair.items() if found][::-1]
    if not groups:
        return []
    figure, axes = plt.subplots(figsize=(7.0, 2.2 + 0.5 * len(groups)))
    calm = np.concatenate([calm_seconds(run, result["options"]) for run in runs])
    axes.axvspan(np.median(calm), calm.max(), color="#eeeeee", zorder=0)
    axes.axvline(np.median(calm), color=GREY, linewidth=1.0, zorder=0)
    label = f"limit: {NOTICE_LIMIT_SECONDS:g} s"
    for row, (kind, signal, found) in enumerate(groups):
        for name in _MEASURES:
            _strip(axes, row, found, name)
        if kind == "reader" and signal != "SIGSTOP":  # where the limit holds
            line = {"color": BLUE, "lw": 1.4, "label": label}
            axes.plot([NOTICE_LIMIT_SECONDS] * 2, [row + 0.02, row + 0.36], "--", **line)
            label = None
    axes.set_xscale("log")
    axes.set_yticks(range(len(groups)), [f"{kind}\n{name} ({len(g)})" for kind, name, g in groups])
    axes.set_ylim(-0.6, len(groups) - 0.4)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds")
    axes.set_title("After a worker was killed or stopped", loc="left")
    place = (0.4, -0.75 / figure.get_figheight())
    axes.legend(loc="upper center", bbox_to_anchor=place, ncols=2, fontsize=9)
    options = result["options"]
    words = f"{len(hits)} signals; seed {options['seed']}; a step computes "
    words += f"{options['compute_ms']:g} ms; grey: next() undisturbed, median to maximum"
    return [save(figure, stem.with_suffix(".png"), result, words)]


def _strip(axes: Axes, row: int, hits: list[dict], name: str) -> None:
    label, colour, marker, offset = _MEASURES[name]
    heights = row + offset + _SPREAD * np.linspace(-1, 1, max(len(hits), 2))[: len(hits)]
    is_alone = np.array([not hit["beside"] for hit in hits])
    seconds = np.maximum([hit[name] for hit in hits], 1e-4)
    marks = {"marker": marker, "s": 12, "linewidths": 0.6, "edgecolors": colour, "zorder": 3}
    full = {"color": colour, "alpha": 0.7, "label": label if row == 0 else None}
    axes.scatter(seconds[is_alone], heights[is_alone], **full, **marks)
    axes.scatter(seconds[~is_alone], heights[~is_alone], facecolors="none", **marks)
    if is_alone.any():
        middle = float(np.median(seconds[is_alone]))
        axes.plot([middle] * 2, [row + offset - 0.15, row + offset + 0.15], "k-", lw=1.6, zorder=4)
