"""The first epochs when the staging directory holds half of the data set: the time of each.

    python -m bench epoch-times
    python -m bench epoch-times --mount fuse --examples 4000

``ideal`` is what the later epochs would take if misses cost nothing: everything is staged, and one
more process reads from the store meanwhile what has to be missed at the least.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from bench.harness.options import option
from bench.harness.tables import Wanted, median_of, table
from bench.harness.turns import name_of
from bench.loaders.sources import EpochOptions, run_points

MEANINGS = {
    "capacity": "OverlapIterator, the staging directory holds a part",
    "unlimited": "OverlapIterator, the staging directory holds all",
    "ideal": "unlimited, while 64 threads of one more process read what has to be missed",
}


class Options(EpochOptions):
    examples: int = 1600
    fraction: float = option(0.5, "that fits")


def measure(options: Options, scratch: Path) -> dict:
    points = [
        {"name": "capacity", "room": options.fraction},
        {"name": "unlimited"},
        {"name": "ideal", "beside_fraction": 1 - options.fraction},
    ]
    return run_points(options, scratch, points, options.examples, **options.usual)


def _later(run: dict) -> float:
    return sum(epoch["seconds"] for epoch in run["epochs"][1:])


#: What the later epochs of the limits take, of those of ``capacity``.
TARGETS: tuple[Wanted, ...] = tuple(
    (f"{limit} / capacity, epoch 2 and later", "", wanted, (limit, "capacity"),
     lambda other, run: _later(other) / _later(run))
    for limit, wanted in (("ideal", 0.85), ("unlimited", None))
)  # fmt: skip


def _epochs_of(result: dict) -> list[dict]:
    """Return a point for each epoch of each point, of the same name."""
    return [
        {"name": name_of(point), "epoch": number, "runs": runs}
        for point in result["points"]
        for number, runs in enumerate(zip(*(r["epochs"] for r in point["runs"]), strict=True), 1)
    ]


_COLUMNS = {
    "loader": "{name}",
    "epoch": "{epoch}",
    "seconds": "{seconds:.2f}",
    "[min, max]": "[{seconds.min:.2f}, {seconds.max:.2f}]",
    "files read": "{opens:g}",
    "MB read": lambda point: f"{median_of(point, 'bytes') / 1e6:.1f}",
}


def rows(result: dict) -> list[list[str]]:
    return table(_epochs_of(result), _COLUMNS)


def marks(result: dict) -> list[tuple]:
    return [
        ("Seconds of an epoch, the first one with the start", fill(MEANINGS[each["name"]], 44),
         f"epoch {each['epoch']}", [epoch["seconds"] for epoch in each["runs"]])
        for each in _epochs_of(result)
    ]  # fmt: skip


TABLES = {"epochs": rows}
