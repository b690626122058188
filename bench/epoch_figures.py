"""Draws how long each epoch takes, from the JSON of ``bench.epoch_times``, as PNG next to it.

Run it after that::

    python -m bench.epoch_figures bench/results/epoch-times.json

On the left the seconds of each epoch, median, minimum and maximum; on the right what each epoch
read from the slow store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # draws into files, with or without a display

import matplotlib.pyplot as plt
import numpy as np

from bench.figures import caption, draw_from_command_line, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The label and the colour of each loader; the palette of the other figures.
_BARS = {
    "multiprocess": ("MultiprocessIterator, slow store", "#D55E00"),
    "capacity": ("OverlapIterator, staging directory for {:.0%}", "#56B4E9"),
    "unlimited": ("OverlapIterator, staging directory for all", "#0072B2"),
}
_WIDTH = 0.27


def draw(result: dict) -> Figure | None:
    """Draw both panels; None if there is nothing to draw."""
    found = {point["loader"]: point["summary"] for point in result["points"]}
    if not found:
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.3, 4.3))
    for place, loader in enumerate(name for name in _BARS if name in found):
        _group(left, right, found[loader], loader, place, result["options"]["fraction"])
    n_epochs = max(len(summary["epoch_seconds"]) for summary in found.values())
    for axes in (left, right):
        axes.set_xticks(range(n_epochs), [f"epoch {n + 1}" for n in range(n_epochs)])
        axes.grid(visible=False, axis="x")
    left.set_ylabel("seconds")
    left.set_title("Time of an epoch", loc="left")
    right.set_ylabel("MB")
    right.set_title("Read from the slow store", loc="left")
    handles, labels = left.get_legend_handles_labels()
    place = (0.5, 0.3 / figure.get_figheight())
    figure.legend(handles, labels, loc="lower center", ncols=3, bbox_to_anchor=place, fontsize=9)
    _caption(figure, result)
    return figure


def _group(
    left: Axes, right: Axes, summary: dict, loader: str, place: int, fraction: float
) -> None:
    label, colour = _BARS[loader]
    epochs = np.arange(len(summary["epoch_seconds"])) + (place - 1) * _WIDTH
    seconds = {
        name: np.array([epoch[name] for epoch in summary["epoch_seconds"]])
        for name in ("median", "min", "max")
    }
    spread = [seconds["median"] - seconds["min"], seconds["max"] - seconds["median"]]
    shape = {"width": _WIDTH, "color": colour}
    left.bar(
        epochs, seconds["median"], yerr=spread, capsize=3, label=label.format(fraction), **shape
    )
    right.bar(epochs, np.array(summary["store_bytes"]) / 1e6, **shape)


def _caption(figure: Figure, result: dict) -> None:
    options, machine = result["options"], result["machine"]
    caption(
        figure,
        f"{result['store']}; {options['examples']:,} photographs of 256x256 pixels, batch size "
        f"{options['batch_size']}, {options['readers']} file readers; epoch 1 with the start",
        f"{machine['cores']} cores, {machine['processor']}; median of {options['repeats']} runs",
        space_inches=0.7,
    )


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw the figure, if ``result`` has data for it, and return the files written."""
    return save(draw(result), stem.with_name(f"{stem.name}.png"))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    draw_from_command_line(__doc__, "epoch-times", draw_all, arguments)


if __name__ == "__main__":
    main()
