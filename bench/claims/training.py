"""Training with `overlapiter train`: scaling, hidden validation, the server's updates, a death."""

import itertools
import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from bench.harness import isolated
from bench.harness.options import CommonOptions, option
from bench.harness.tables import Wanted, median_of, missed, table

_BATCH = 10
_NONE = "the same without validation"
_SIZES = (10_000, 100_000, 1_000_000, 5_000_000)
_RANK = "OMPI_COMM_WORLD_RANK"


class Numbers:
    """A data file: its content is how many examples it has."""

    def __init__(self, path: str) -> None:
        self._n = int(Path(path).read_text())

    def __len__(self) -> int:
        return self._n

    def read(self, start: int, stop: int) -> tuple:
        return np.arange(start, stop), np.arange(start, stop)

    def close(self) -> None:
        pass


def model_of(request: dict) -> SimpleNamespace:
    """Return a model that only takes time."""
    weights, matrix = np.zeros(request["n"], np.float32), np.ones((128, 128), np.float32)
    steps = itertools.count(1)

    def work(*_arguments: object) -> tuple[float]:
        if request["does"] == "waits":
            time.sleep(request["seconds"])
        else:  # on a busy core it takes longer
            until = time.thread_time() + request["seconds"]
            while time.thread_time() < until:
                matrix @ matrix
        return (0.0,)

    def gradient(_batch: object, gradient: np.ndarray, _seed: int) -> tuple[float]:
        work()
        if next(steps) == request.get("dies_at") and os.environ.get(_RANK) == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        gradient[:] = 0
        return (0.0,)

    return SimpleNamespace(
        layout=str(request["n"]), measure_names=("loss",), n_state=0,
        weights=weights.copy, load=partial(np.copyto, weights), gradient=gradient, evaluate=work,
        names_of_bad=list, save=lambda _path: None,
    )  # fmt: skip


def rank(request: dict) -> dict | None:
    """Train as one rank; rank 0 returns how long it took from the first gradient to the end."""
    import overlapiter.mpi
    from overlapiter.mpi.training.job import NoListener

    times: list[float] = []
    listener = NoListener()
    listener.progress = listener.epoch = lambda *_facts: times.append(time.monotonic())
    usual = {"optimizer": "sgd", "validation": "thread"}
    asked = {name: {**usual, **request}[name] for name in (*usual, "epochs", "out")}
    files = {"data": f"{__file__}:Numbers", "batch": _BATCH, "listener": listener}
    model, lists = partial(model_of, request), (request["train"], request["val"])
    records = overlapiter.mpi.train(model, *lists, **files, **asked)
    if records is None:
        return None
    found = {"seconds": times[-1] - times[0], "updates": records[-1]["updates"]}
    return {**found, "examples": [record["examples"] for record in records]}


class Options(CommonOptions):
    epochs: int = option(3, "of each run", quick=2)
    steps: int = option(120, "mini-batches of an epoch", quick=16)


def points_of(options: Options) -> list[dict]:
    plain = {"does": "waits", "seconds": 0.02, "n": 1000, "epochs": options.epochs,
             "steps": options.steps, "val_steps": 0, "workers": 4}  # fmt: skip
    points = [
        {**plain, "name": f"{does}, {n} workers", "kind": "scaling", "does": does, "workers": n}
        for does in ("waits", "computes") for n in (1, 2, 4)
    ]  # fmt: skip
    modes = {**plain, "kind": "hidden", "epochs": 2 * options.epochs, "steps": options.steps // 2}
    validated = {**modes, "val_steps": options.steps // 10}
    points += [
        {**validated, "name": f"validation {mode}", "validation": mode}
        for mode in ("inline", "thread", "workers")
    ]
    points.append({**modes, "name": _NONE, "kind": "none"})
    points += [
        {**plain, "name": f"{n:,} weights", "kind": "updates", "n": n, "workers": 2, "seconds": 0.0,
         "optimizer": "adam", "epochs": 1, "steps": max(options.steps, 40_000_000 // n // 10)}
        for n in _SIZES
    ]  # fmt: skip
    killed = {"kind": "killed", "workers": 3, "dies_at": options.steps * options.epochs // 6}
    return [*points, {**plain, **killed, "name": "a worker of 3 is killed"}]


def run(point: dict) -> dict:
    """Run one job; return what its server has found."""
    with tempfile.TemporaryDirectory() as folder:
        request = {**point, "runs": None, "out": f"{folder}/out"}
        for name, steps in (("train", point["steps"]), ("val", point["val_steps"])):
            request[name] = [f"{folder}/{name}{i}" for i in range(8 if steps else 0)]
            for i, path in enumerate(request[name]):
                Path(path).write_text(str((steps * _BATCH + i) // 8))
        survives = ["--with-ft", "ulfm"] if "dies_at" in point else []
        job = partial(isolated.launch, n_ranks=point["workers"] + 1, options=survives)
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        return isolated.call(rank, request, job, most_seconds=600, **threads)


def measure(options: Options) -> dict:
    return {"points": isolated.take_turns(points_of(options), options.repeats, run)}


def _speed(run: dict, one_worker: dict) -> float:
    return one_worker["seconds"] / run["seconds"]


def _hidden(run: dict, inline: dict, none: dict) -> float:
    return 1 - _hideable(none, run) / _hideable(none, inline)


def _lost(run: dict) -> float:
    n_left = run["steps"] * run["epochs"] - run["dies_at"] * run["workers"]
    ideal = run["batch_seconds"] * (run["dies_at"] + n_left / (run["workers"] - 1))
    return run["seconds"] - ideal


def _hideable(none: dict, inline: dict) -> float:
    return inline["seconds"] - none["seconds"]


_VALIDATED = ("validation inline", _NONE)
#: By kind of point: words for its figure, what it is compared with, and what makes it of the runs.
_KINDS = {
    "scaling": ("{:.2f} times", ("{does}, 1 workers",), _speed),
    "hidden": ("{:.0%} hidden", _VALIDATED, _hidden),
    "none": ("{:.2f} s of validation to hide", _VALIDATED[:1], _hideable),
    "updates": ("{:,.0f} updates/s", (), lambda run: run["updates"] / run["seconds"]),
    "killed": ("{:.2f} s lost", (), _lost),
}  # fmt: skip
_SPEED = "speed of {} workers that {}, of 1"
_HIDDEN = "of the validation's time, hidden by "
TARGETS: tuple[Wanted, ...] = (
    (_SPEED.format(4, "wait"), "", 3.6, ("waits, 4 workers", "waits, 1 workers"), _speed),
    (_HIDDEN + "a thread", "", 0.9, ("validation thread", *_VALIDATED), _hidden),
    (_HIDDEN + "4 workers", "", None, ("validation workers", *_VALIDATED), _hidden),
    (_SPEED.format(2, "compute"), "", None, ("computes, 2 workers", "computes, 1 workers"), _speed),
)


def rows(result: dict) -> list[list[str]]:
    runs = {  # one of each, with the medians
        p["name"]: {**p, "batch_seconds": p["seconds"]}
        | {key: median_of(p, key) for key in ("seconds", "updates")}
        for p in result["points"]
    }

    def figure(point: dict) -> str:
        words, others, value_of = _KINDS[point["kind"]]
        names = [point["name"], *(name.format_map(point) for name in others)]
        return words.format(value_of(*map(runs.get, names)))

    columns = {
        "run": lambda point: point["name"].replace("1 workers", "1 worker"),
        "seconds": lambda point: f"{runs[point['name']]['seconds']:.2f}", "result": figure
    }  # fmt: skip
    return table(result["points"], columns)


def faults(result: dict) -> list[str]:
    texts = missed(result)
    for point in result["points"]:
        wanted = [point["steps"] * _BATCH] * point["epochs"]
        if any(each["examples"] != wanted for each in point["runs"]):
            texts.append(f"{point['name']}: not every example was used once")
    return texts


NEEDS = ()
TABLES = {"training": rows}
