"""Figures of what peers bring: reads of the slow store and seconds, epoch by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.harness.figures import BLUE, GREEN, ORANGE, legend_below, line, plt, save
from bench.harness.text import spread

if TYPE_CHECKING:
    from pathlib import Path

_COLOURS = {(4, 0.3): BLUE, (4, 0.15): ORANGE, (2, 0.3): GREEN}


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw the epochs of all runs; return the file."""
    points = [p for p in result.get("points", []) if p["kind"] in ("peers", "alone")]
    if not points:
        return []
    figure, (reads, seconds) = plt.subplots(1, 2, figsize=(9.0, 4.3))
    for point in points:
        nodes, fraction, kind = point["nodes"], point["fraction"], point["kind"]
        n_files = point.get("examples", result["options"]["examples"])
        style = {
            "color": _COLOURS[nodes, fraction],
            "linestyle": "-" if kind == "peers" else ":",
            "marker": "o",
            "label": f"{nodes} nodes, room for {100 * fraction:g} % each, {kind}",
        }
        for axes, key, scale in ((reads, "reads", 100 / n_files), (seconds, "seconds", 1.0)):
            by_epoch = np.array([run[key] for run in point["runs"]]).T * scale
            line(axes, range(1, len(by_epoch) + 1), [*map(spread, by_epoch)], **style)
    reads.set_title("reads of the slow store, % of the files", loc="left")
    seconds.set_title("seconds", loc="left")
    for axes in (reads, seconds):
        axes.set_ylim(bottom=0)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
    legend_below(figure, *reads.get_legend_handles_labels(), n_columns=2, bottom_inches=0.5)
    words = [result[name] for name in ("data", "store") if name in result]
    return [save(figure, stem.with_suffix(".png"), result, *words, space_inches=1.2)]
