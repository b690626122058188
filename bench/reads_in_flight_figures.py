"""Draws the JSON of ``bench.reads_in_flight``, as PNG next to it.

Run it after that::

    python -m bench.reads_in_flight_figures bench/results/reads-in-flight.json

The upper figure of each latency shows files per second over the fixed numbers of reads in flight,
and the self-tuned one as a line; the lower one, how many reads it allowed as the first run went on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # draws into files, with or without a display

import matplotlib.pyplot as plt

from bench.figures import caption, draw_from_command_line, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FIXED, _TUNED = "#0072B2", "#D55E00"


def draw(result: dict) -> Figure:
    """Draw one column for each latency."""
    points = [point for point in result["points"] if not point["n_prefetchers"]]
    latencies = sorted({point["open_ms"] for point in points})
    figure, grid = plt.subplots(
        2, len(latencies), sharex="row", sharey="row", squeeze=False, figsize=(9.0, 5.2)
    )
    for column, open_ms in enumerate(latencies):
        found = [point for point in points if point["open_ms"] == open_ms]
        _draw_rates(grid[0, column], found)
        _draw_reads(grid[1, column], found)
        grid[0, column].set_title(f"{open_ms:g} ms per open", loc="left", fontsize=10)
    grid[0, 0].set_ylabel("files per second,\nsecond half of the run")
    grid[0, 0].set_ylim(bottom=0)
    grid[0, 0].legend(loc="lower right", fontsize=8)
    grid[1, 0].set_ylabel("reads in flight allowed,\nself-tuned")
    options, machine = result["options"], result["machine"]
    caption(
        figure,
        f"{result['store']}; {result['data']}; staged to {result['staging_filesystem']}",
        f"{machine['cores']} cores, {machine['processor']}, load average "
        f"{result['load_average']:.0f} before the start; median, minimum and maximum of "
        f"{options['repeats']} runs of {options['seconds']:g} s",
    )
    return figure


def _draw_rates(axes: Axes, points: list[dict]) -> None:
    fixed = sorted(
        (point for point in points if point["reads_in_flight"]), key=lambda p: p["reads_in_flight"]
    )
    rates = [point["summary"]["files_per_second"] for point in fixed]
    middle = [rate["median"] for rate in rates]
    spread = [
        [rate["median"] - rate["min"] for rate in rates],
        [rate["max"] - rate["median"] for rate in rates],
    ]
    numbers = [point["reads_in_flight"] for point in fixed]
    axes.errorbar(numbers, middle, spread, fmt="o-", color=_FIXED, capsize=3, label="fixed number")
    for point in points:
        if not point["reads_in_flight"]:
            rate = point["summary"]["files_per_second"]
            axes.axhline(rate["median"], color=_TUNED, label="self-tuned")
            axes.axhspan(rate["min"], rate["max"], color=_TUNED, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.set_xlabel("reads in flight")


def _draw_reads(axes: Axes, points: list[dict]) -> None:
    for point in points:
        if not point["reads_in_flight"]:
            run = point["runs"][0]
            axes.step(run["taken_at"], run["reads"], where="post", color=_TUNED)
    axes.set_yscale("log", base=2)
    axes.set_yticks([4, 16, 64, 256], ["4", "16", "64", "256"])
    axes.set_ylim(3, 300)
    axes.set_xlabel("seconds")


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw the figure, and return the files written."""
    return save(draw(result), stem.with_suffix(".png"))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    draw_from_command_line(__doc__, "reads-in-flight", draw_all, arguments)


if __name__ == "__main__":
    main()
