"""Draws how fast killed workers are replaced from the JSON of ``bench.faults``, as PNG next to it.

Run it after that::

    python -m bench.fault_figures bench/results/faults.json

For each kind of worker and each signal there are two rows of marks, one for each signal that hit:
the time until a new process stood in its place, and the longest call of ``next()`` around that.
Hollow marks are hits beside another one that takes longer by itself: a stopped worker, or the
supervisor. The black line is the median of the full ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # draws into files, with or without a display

import matplotlib.pyplot as plt
import numpy as np

from bench.fault_tables import KINDS, NOTICE_LIMIT_SECONDS, SIGNALS, calm_seconds
from bench.figures import caption, draw_from_command_line, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The same palette as the other figures.
_MEASURES = {
    "notice_seconds": ("until a new process stands in its place", "#0072B2", "o", 0.18),
    "recover_seconds": ("longest next() meanwhile, with the 3 after it", "#D55E00", "^", -0.18),
}
_SPREAD = 0.1


def draw(result: dict) -> Figure | None:
    """Draw the hits of all configurations; None if there are none."""
    runs = [point["run"] for point in result["points"] if "run" in point]
    hits = [hit for run in runs for hit in run["hits"]]
    groups = [
        (kind, signal, [hit for hit in hits if (hit["kind"], hit["signal"]) == (kind, signal)])
        for kind in KINDS
        for signal in SIGNALS
    ]
    groups = [group for group in groups if group[2]][::-1]
    if not groups:
        return None
    figure, axes = plt.subplots(figsize=(7.0, 2.2 + 0.5 * len(groups)))
    calm = np.concatenate([calm_seconds(run, result["options"]) for run in runs])
    axes.axvspan(np.median(calm), calm.max(), color="#eeeeee", zorder=0)
    axes.axvline(np.median(calm), color="#999999", linewidth=1.0, zorder=0)
    for row, (_, _, found) in enumerate(groups):
        for name in _MEASURES:
            _strip(axes, row, found, name)
    _limit(axes, [row for row, group in enumerate(groups) if _is_limited(*group[:2])])
    axes.set_xscale("log")
    axes.set_yticks(range(len(groups)), [f"{kind}\n{name} ({len(g)})" for kind, name, g in groups])
    axes.set_ylim(-0.6, len(groups) - 0.4)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds")
    axes.set_title("After a worker was killed or stopped", loc="left")
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.4, -0.75 / figure.get_figheight()),
        ncols=2,
        fontsize=9,
    )
    _caption(figure, result, len(hits))
    return figure


def _strip(axes: Axes, row: int, hits: list[dict], name: str) -> None:
    label, colour, marker, offset = _MEASURES[name]
    heights = row + offset + _SPREAD * np.linspace(-1, 1, max(len(hits), 2))[: len(hits)]
    is_alone = np.array([not hit["beside"] for hit in hits])
    seconds = np.maximum([hit[name] for hit in hits], 1e-4)
    marks = {"marker": marker, "s": 12, "linewidths": 0.6, "edgecolors": colour, "zorder": 3}
    first = label if row == 0 else None
    axes.scatter(
        seconds[is_alone], heights[is_alone], color=colour, alpha=0.7, label=first, **marks
    )
    axes.scatter(seconds[~is_alone], heights[~is_alone], facecolors="none", **marks)
    if is_alone.any():
        middle = float(np.median(seconds[is_alone]))
        axes.plot([middle] * 2, [row + offset - 0.15, row + offset + 0.15], "k-", lw=1.6, zorder=4)


def _is_limited(kind: str, signal: str) -> bool:
    return kind == "reader" and signal != "SIGSTOP"


def _limit(axes: Axes, rows: list[int]) -> None:
    """Draw the limit where it holds: beside the marks of readers that died."""
    for row in rows:
        label = f"limit: {NOTICE_LIMIT_SECONDS:g} s" if row == rows[0] else None
        span = [row + 0.02, row + 0.36]
        axes.plot([NOTICE_LIMIT_SECONDS] * 2, span, "--", color="#0072B2", lw=1.4, label=label)


def _caption(figure: Figure, result: dict, n_hits: int) -> None:
    """Write below the figure what was measured where."""
    machine, options = result["machine"], result["options"]
    caption(
        figure,
        f"{n_hits} signals; seed {options['seed']}; a step computes {options['compute_ms']:g} ms; "
        "grey: next() undisturbed, median to maximum",
        f"{machine['cores']} cores, {machine['processor']}",
    )


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw the figure, if ``result`` has data for it, and return the files written."""
    return save(draw(result), stem.with_name(f"{stem.name}.png"))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    draw_from_command_line(__doc__, "faults", draw_all, arguments)


if __name__ == "__main__":
    main()
