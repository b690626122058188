"""Draws data-parallel training: the seconds of an epoch over ranks, a panel for each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.claims.data_parallel.summary import words_of
from bench.harness.figures import BLUE, GREEN, GREY, RED, bar_panels, save

if TYPE_CHECKING:
    from pathlib import Path

_BARS = {
    "slow": ("MultiprocessIterator, slow store", RED),
    "overlap": ("OverlapIterator, nothing staged before", BLUE),
    "local": ("MultiprocessIterator, local disk", GREEN),
    "synthetic": ("data in memory, no loader", GREY),
}


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw the figure, and return the file written."""
    options, points = result["options"], result["points"]
    readers = " or ".join(map(str, sorted({point["n_readers"] for point in points})))
    lines = [
        f"{result['store']}; {result['data']}; model '{options['model']}', mini-batches of "
        f"{options['batch_size']}, {readers} file readers per rank for every loader",
        f"median of {options['repeats']} interleaved runs; epoch 1 with the start of the workers",
    ]
    sizes = sorted({(point["n_nodes"], point["n_ranks"]) for point in points})
    found = {(p["loader"], p["n_nodes"], p["n_ranks"]): p["summary"] for p in points}
    panels = {
        f"Epoch {number + 1}: seconds per epoch": {
            _BARS[loader]: [
                found[loader, n, m][number]["seconds"] if (loader, n, m) in found else None
                for n, m in sizes
            ]
            for loader in _BARS
            if any(key[0] == loader for key in found)
        }
        for number in range(len(points[0]["summary"]))
    }
    figure = bar_panels(panels, [words_of(*size) for size in sizes])
    path = stem.with_name(f"{stem.name}-epochs.png")
    return [save(figure, path, result, *lines, space_inches=0.9)]
