"""The first epochs when the staging directory holds half of the data set: the time of each.

    python -m bench epoch-times
    python -m bench epoch-times --mount fuse --examples 4000

``ideal`` is what the later epochs would take if misses cost nothing: everything is staged, and one
more process reads from the store meanwhile what has to be missed at the least.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from bench.harness.options import option
from bench.harness.tables import Wanted, spread
from bench.harness.turns import name_of
from bench.loaders.sources import EpochOptions, run_points

MEANINGS = {
    "capacity": "OverlapIterator, the staging directory holds a part",
    "unlimited": "OverlapIterator, the staging directory holds all",
    "ideal": "unlimited, while 64 threads of one more process read what has to be missed",
}


class Options(EpochOptions):
    """What is run."""

    examples: int = 1600
    fraction: float = option(0.5, "that fits")


def measure(options: Options, scratch: Path) -> dict:
    """Do all runs."""
    points = [
        {"name": "capacity", "room": options.fraction},
        {"name": "unlimited"},
        {"name": "ideal", "beside_fraction": 1 - options.fraction},
    ]
    return run_points(options, scratch, points, options.examples, **options.usual)


def summarize(runs: list[dict]) -> dict:
    """Return for each epoch the spread of its seconds and the median of what it read."""
    by_epoch = list(zip(*(run["epochs"] for run in runs), strict=True))
    return {
        "epoch_seconds": [spread(epoch["seconds"] for epoch in each) for each in by_epoch],
        "store_opens": [median(epoch["opens"] for epoch in each) for each in by_epoch],
        "store_bytes": [median(epoch["bytes"] for epoch in each) for each in by_epoch],
    }


def _later(run: dict) -> float:
    return sum(epoch["seconds"] for epoch in run["epochs"][1:])


#: What the later epochs of the limits take, of those of ``capacity``.
TARGETS: tuple[Wanted, ...] = tuple(
    (f"{limit} / capacity, epoch 2 and later", "", wanted, (limit, "capacity"),
     lambda other, run: _later(other) / _later(run))
    for limit, wanted in (("ideal", 0.85), ("unlimited", None))
)  # fmt: skip


def rows(result: dict) -> list[list[str]]:
    """Return a row for each loader and epoch."""
    lines = [["loader", "epoch", "seconds", "[min, max]", "files read", "MB read"]]
    for point in result["points"]:
        columns = zip(*summarize(point["runs"]).values(), strict=True)
        for epoch, (seconds, opens, n_bytes) in enumerate(columns, 1):
            ends = f"[{seconds['min']:.2f}, {seconds['max']:.2f}]"
            numbers = [f"{seconds['median']:.2f}", ends, f"{opens:g}"]
            lines.append([name_of(point), str(epoch), *numbers, f"{n_bytes / 1e6:.1f}"])
    return lines


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw the seconds of each epoch."""
    from bench.harness.figures import BLUE, GREY, SKY, bar_panels

    colours = {"capacity": SKY, "ideal": GREY, "unlimited": BLUE}
    found = {name_of(p): summarize(p["runs"])["epoch_seconds"] for p in result["points"]}
    series = {(MEANINGS[n], colour): found[n] for n, colour in colours.items() if n in found}
    n_epochs, options = max(map(len, found.values())), result["options"]
    names = [f"epoch {number + 1}" for number in range(n_epochs)]
    words = f"{result['store']}; {options['examples']:,} photographs of 256x256 pixels; "
    words += f"median of {options['repeats']} runs; epoch 1 with the start; "
    words += f"a part is {options['fraction']:.0%}"
    panels = {"Seconds of an epoch": series}
    return bar_panels(panels, names, stem.with_suffix(".png"), result, words)


TABLES = {"epochs": rows}
