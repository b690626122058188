"""Accuracy over time of each algorithm of `overlapiter train`, on the same problem."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.harness import isolated
from bench.harness.options import CommonOptions, option
from bench.harness.tables import Wanted, missed

EXAMPLE = isolated.CHECKOUT / "examples/digits"
DATA = "1,797 handwritten digits of scikit-learn"
#: The options of each.
ALGORITHMS = {
    "one process": "--optimizer momentum --learning-rate 0.02",
    "Downpour": "--optimizer momentum --learning-rate 0.01",
    "Downpour, sums of 4": "--optimizer sgd --learning-rate 0.05 --sync-every 4",
    "Downpour, synchronous": "--optimizer momentum --learning-rate 0.02 --synchronous",
    "EASGD, every 4": "--algorithm easgd --optimizer momentum --learning-rate 0.02 --sync-every 4",
    "GEM, every 4": "--algorithm gem --gem-eta 0.2 --optimizer momentum --learning-rate 0.02 "
    "--sync-every 4",
}


class Options(CommonOptions):
    workers: int = option(2, "beside the server")
    epochs: int = option(6, "of each run", quick=2)


def make_digits(folder: Path) -> tuple[Path, Path]:
    """Make the files of the example; return its lists for training and validation."""
    subprocess.run([sys.executable, str(EXAMPLE / "make_data.py"), str(folder)], check=True)
    return folder / "train.txt", folder / "val.txt"


def train_once(point: dict, data: tuple[Path, Path], options: Options) -> dict:
    """Train by one algorithm; return the time and accuracy at the end of each epoch."""
    out = tempfile.mkdtemp(prefix="run-", dir=data[0].parent)
    words = f"{ALGORITHMS[point['name']]} --batch 16 --metrics accuracy --epochs {options.epochs}"
    command = [sys.executable, "-W", "ignore", "-m", "overlapiter", "train", EXAMPLE / "model.py"]
    command += [*data, *words.split(), "--seed", options.seed, "--out", out]
    command = [*map(str, command)]
    if point["name"] != "one process":
        command = isolated.launch(command, options.workers + 1)
    subprocess.run(command, cwd=isolated.CHECKOUT, stdout=subprocess.DEVNULL, check=True)
    epochs = json.loads(Path(out, "history.json").read_text())["epochs"]
    seconds = np.cumsum([epoch["seconds"] for epoch in epochs]).tolist()
    return {"seconds": seconds, "val_accuracy": [epoch["val_accuracy"] for epoch in epochs]}


def measure(options: Options) -> dict:
    data, points = make_digits(options.scratch), [{"name": name} for name in ALGORITHMS]
    isolated.take_turns(points, options.repeats, lambda point: train_once(point, data, options))
    return {"points": points, "data": DATA}


def _curve(point: dict, key: str) -> list[float]:
    """Return the medians over the runs, epoch by epoch."""
    return np.median([run[key] for run in point["runs"]], axis=0).tolist()


def _accuracy(point: dict, share: float) -> str:
    curve = _curve(point, "val_accuracy")
    return f"{curve[int(share * len(curve)) - 1]:.3f}"


def marks(result: dict) -> list[tuple]:
    return [
        ("Each algorithm on the same digits", point["name"], seconds, accuracies)
        for point in result["points"]
        for seconds, *accuracies in zip(
            _curve(point, "seconds"), *(run["val_accuracy"] for run in point["runs"]), strict=True
        )
    ]


#: What each algorithm has to have learned.
TARGETS: list[Wanted] = [
    (f"accuracy at the end, {name}", "", 0.9, (name,), lambda run: run["val_accuracy"][-1])
    for name in ALGORITHMS
]
_COLUMNS = {
    "": "{name}",
    "options": lambda point: f"`{ALGORITHMS[point['name']]}`",
    "accuracy after half": lambda point: _accuracy(point, 0.5),
    "at the end": lambda point: _accuracy(point, 1.0),
    "seconds": lambda point: f"{_curve(point, 'seconds')[-1]:.1f}",
}
TABLES = {"algorithms": _COLUMNS}
AXES = {"xlabel": "seconds of training", "ylabel": "accuracy of validation"}
faults = missed
