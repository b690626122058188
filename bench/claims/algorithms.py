"""Accuracy over time of each algorithm of `overlapiter train`, on the same problem.

A server and workers train the digits of ``examples/digits``, each algorithm with the same model,
mini-batches and number of epochs, and with a learning rate that suits it::

    python -m bench algorithms

On a machine with fewer cores than ranks the ranks take turns, so the times say what the algorithms
cost, not how they scale.
"""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.harness.claim import Claim
from bench.harness.isolated import CHECKOUT, RunFailedError
from bench.harness.options import Options, option
from bench.harness.targets import missed, target_of, target_rows
from bench.harness.turns import take_turns

WANTED = 0.9
_EXAMPLE = CHECKOUT / "examples/digits"
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


@dataclass
class AlgorithmsOptions(Options):
    """What is run."""

    workers: int = option(2, "beside the server")
    epochs: int = option(6, "of each run")


def train_once(point: dict, data: Path, options: AlgorithmsOptions) -> dict:
    """Train by one algorithm; return the time and accuracy at the end of each epoch.

    Returns:
        ``seconds`` since the first epoch began, and ``val_accuracy``, lists of equal length.

    Raises:
        RunFailedError: The training did not come to its end.
    """
    out = tempfile.mkdtemp(prefix="run-", dir=data)
    command = [sys.executable, "-W", "ignore", "-m", "overlapiter", "train"]
    command += [str(_EXAMPLE / "model.py"), str(data / "train.txt"), str(data / "val.txt")]
    command += shlex.split(ALGORITHMS[point["name"]])
    command += ["--epochs", str(options.epochs), "--seed", str(options.seed), "--out", out]
    command += ["--batch", "16", "--metrics", "accuracy"]
    if point["name"] != "one process":
        launcher = ["mpiexec", "--allow-run-as-root", "--oversubscribe"]
        command = [*launcher, "-n", str(options.workers + 1), *command]
    ended = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, check=False)
    if ended.returncode:
        raise RunFailedError(f"{shlex.join(command)} ended with {ended.returncode}")
    epochs = json.loads(Path(out, "history.json").read_text())["epochs"]
    seconds = itertools.accumulate(epoch["seconds"] for epoch in epochs)
    return {"seconds": [*seconds], "val_accuracy": [epoch["val_accuracy"] for epoch in epochs]}


def measure(options: AlgorithmsOptions, scratch: Path) -> dict:
    """Do all runs."""
    make = [sys.executable, str(_EXAMPLE / "make_data.py"), str(scratch)]
    subprocess.run(make, check=True)
    points = [{"name": name} for name in ALGORITHMS]
    take_turns(points, options.repeats, lambda point: train_once(point, scratch, options))
    return {
        "points": points,
        "targets": targets(points),
        "data": "1,797 handwritten digits of scikit-learn",
    }


def rows(result: dict) -> list[list[str]]:
    """Return a row for each algorithm."""
    table = [["", "options", "accuracy after half", "at the end", "seconds"]]
    for point in result["points"]:
        curves = [run["val_accuracy"] for run in point["runs"]]
        half = median(curve[len(curve) // 2 - 1] for curve in curves)
        end = median(curve[-1] for curve in curves)
        seconds = median(run["seconds"][-1] for run in point["runs"])
        row = [point["name"], f"`{ALGORITHMS[point['name']]}`", f"{half:.3f}", f"{end:.3f}"]
        table.append([*row, f"{seconds:.1f}"])
    return table


def targets(points: list[dict]) -> list[dict]:
    """Return what each algorithm has to have learned."""
    return [
        target_of(f"accuracy at the end, {point['name']}", "", WANTED,
                  [run["val_accuracy"][-1] for run in point["runs"]])
        for point in points
    ]  # fmt: skip


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw the accuracy over time, the medians of each epoch."""
    from bench.harness import figures

    colours = ["BLACK", "SKY", "BLUE", "GREEN", "ORANGE", "RED"]
    figure, axes = figures.plt.subplots()
    for point, colour in zip(result["points"], colours, strict=True):
        seconds, accuracy = (
            [median(values) for values in zip(*(run[key] for run in point["runs"]), strict=True)]
            for key in ("seconds", "val_accuracy")
        )
        marked = {"marker": ".", "color": getattr(figures, colour), "label": point["name"]}
        axes.plot(seconds, accuracy, linewidth=1.2, **marked)
    axes.set(xlabel="seconds of training", ylabel="accuracy of validation")
    axes.set_title("Each algorithm on the same digits", loc="left")
    axes.legend(fontsize=8)
    workers = f"{result['options']['workers']} workers, mini-batches of 16"
    return [figures.save(figure, stem.with_suffix(".png"), result, workers)]


CLAIM = Claim(
    __doc__,
    AlgorithmsOptions,
    measure,
    quick={"epochs": 2, "repeats": 1},
    tables={"algorithms": rows, "targets": target_rows},
    figures=__name__,
    faults=lambda result: [] if result["options"]["quick"] else missed(result),
)
