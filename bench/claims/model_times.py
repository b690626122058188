"""The planner's model against the world: simulated and measured times of epochs.

``OverlapIterator`` reads files from two emulated stores, with room for three parts of the data set;
a sleep after each mini-batch stands for training. ``overlapiter.clairvoyant.planner`` forecasts the
same::

    python -m bench model-times

The model is told what the store gives, what the staging directory holds, and what one more run,
the calibration, has measured: how fast the loader is while it waits for no data, from a store
without delay, and how long its processes take to start. It is told nothing of the runs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import mean, median

from bench.harness.options import option
from bench.harness.tables import spread
from bench.loaders.sources import EpochOptions, run_points
from overlapiter.clairvoyant.planner import Forecast, Job, forecast

#: MB/s of each store; an open waits ``--open-ms`` in both.
STORES = (24.0, 8.0)
FRACTIONS = (0.3, 0.6, 1.0)
#: A copy takes whole blocks, and segments have a reserve: room for all is more than all.
_ALL = 1.2


class Options(EpochOptions):
    fixed = ("source", "mount", "mb_per_s")  # the stores are emulated, each with a rate of its own
    examples: int = 1600
    epochs: int = 4
    repeats: int = 2
    train_ms: float = option(20.0, "sleep after each mini-batch")


def measure(options: Options, scratch: Path) -> dict:
    free = {"name": "calibration", "open_seconds": 0.0, "bytes_per_second": 1e12}
    points = [free] + [
        {"mb_per_s": rate, "bytes_per_second": rate * 1e6, "fraction": fraction,
         "room": fraction if fraction < 1 else _ALL}
        for rate in STORES for fraction in FRACTIONS
    ]  # fmt: skip
    usual = {"loader": "overlap", "is_decoding": False, "compute_seconds": options.train_ms / 1e3}
    found = run_points(options, scratch, points, options.examples, **options.usual, **usual)
    calibration, *points = points
    later = median(mean(_seconds(run)[1:]) for run in calibration["runs"])
    start_seconds = median(run["first_batch_seconds"] for run in calibration["runs"])
    size = median(run["store_bytes"] for run in calibration["runs"])  # each file once
    for point in points:
        job = Job(
            n_examples=options.examples,
            dataset_bytes=size,
            n_epochs=options.epochs,
            n_nodes=1,
            ranks_per_node=1,
            ram_bytes=0,
            disk_bytes=point["fraction"] * size * 1.001,
            examples_per_second=options.examples / later,
            store_rate=point["mb_per_s"] * 1e6,
            store_limit=point["mb_per_s"] * 1e6,
            disk_rate=1e12,  # in the page cache, and part of the calibration
            network_rate=1e12,
        )
        point["seconds"] = _compared(forecast(job), point["runs"], start_seconds)
    found |= {"store": f"emulated stores: {options.open_ms:g} ms per open", "points": points}
    found |= {"later_seconds": later, "start_seconds": start_seconds}
    errors = [each["error"] for p in points for each in p["seconds"].values()]
    found |= {"mean_error": mean(map(abs, errors)), "largest_error": max(map(abs, errors))}
    return {**found, "calibration": calibration["runs"]}


def _seconds(run: dict) -> list[float]:
    return [epoch["seconds"] for epoch in run["epochs"]]


def _compared(found: Forecast, runs: list[dict], start_seconds: float) -> dict[str, dict]:
    """Return forecast, measured spread and error of the first epoch, later ones, and the run."""
    first = found.first.seconds + start_seconds, [_seconds(run)[0] for run in runs]
    later = found.later.seconds, [mean(_seconds(run)[1:]) for run in runs]
    whole = found.run_seconds + start_seconds, [sum(_seconds(run)) for run in runs]
    return {
        name: {"forecast": said, "measured": spread(took), "error": said / median(took) - 1}
        for name, (said, took) in (("epoch 1", first), ("later epochs", later), ("run", whole))
    }


def error_rows(result: dict) -> list[list[str]]:
    errors = [f"{100 * result[f'{which}_error']:.1f} %" for which in ("mean", "largest")]
    return [["mean error", "largest error"], errors]


def _cell(name: str, point: dict) -> str:
    found = point["seconds"][name]
    times = f"{found['forecast']:.2f} / {found['measured']['median']:.2f}"
    return f"{times} ({found['error']:+.0%})"


_COLUMNS = {"store": "{mb_per_s:g} MB/s", "room for": "{fraction:.0%}"} | {
    f"{name}: forecast / measured, s": partial(_cell, name)
    for name in ("epoch 1", "later epochs", "run")
}
TABLES = {"model": _COLUMNS, "errors": error_rows}
