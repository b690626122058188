"""What a search of settings finds on the digits, beside a grid of twice as many trials."""

import json
from pathlib import Path

import numpy as np

from bench.claims.algorithms import DATA, EXAMPLE, make_digits
from bench.harness import isolated
from bench.harness.options import CommonOptions, option
from bench.harness.tables import Wanted, missed
from overlapiter.errors import TrainingError

_N_RATES, _N_BATCHES = 8, 5


class Options(CommonOptions):
    trials: int = option(20, "of the search, half of the grid's", quick=2)


def compare(request: dict) -> dict:
    """Train the grid, unless that is done, and search; return the accuracy of every trial.

    The ``folder`` has ``train.txt`` and ``val.txt`` of the digits; results go there.
    """
    from overlapiter.mpi import search
    from overlapiter.mpi.training.settings import read_toml

    data, n_trials, seed = request["folder"], request["trials"], request["seed"]
    words = EXAMPLE / "model.py", data / "train.txt", data / "val.txt"
    tables = read_toml(str(EXAMPLE / "space.toml"))
    known = data / "grid.json"  # every repeat compares with the same grid
    if not known.exists():
        known.write_text(json.dumps(_train_grid(words, tables, data)))
    of_grid, out = json.loads(known.read_text()), str(data / f"search-{seed}")
    study = search(tables, *words, out=out, n_trials=n_trials, seed=seed)
    of_search = [trial.value if trial.value is not None else 0.0 for trial in study.trials()]
    return {
        "grid": {"n": len(of_grid), "best": max(of_grid), "all": of_grid},
        "search": {"n": n_trials, "best": study.best().value, "all": of_search},
    }


def _train_grid(words: tuple, tables: dict, data: Path) -> list[float]:
    """Return the accuracy of every trial of the grid, over the ranges of the search."""
    from overlapiter.mpi import train

    rate, batch = tables["space"]["learning_rate"], tables["space"]["batch"]
    rates = np.geomspace(rate["low"], rate["high"], _N_RATES).tolist()
    batches = np.linspace(batch["low"], batch["high"], _N_BATCHES).round().astype(int).tolist()
    found, usual = [], {"metrics": ("accuracy",), "seed": 0, "restart": True, **tables["settings"]}
    for number, (rate, batch) in enumerate((r, b) for r in rates for b in batches):
        settings = {**usual, "learning_rate": rate, "batch": batch}
        try:
            *_, last = train(*words, out=str(data / f"grid/{number}"), **settings)
            found.append(last["val_accuracy"])
        except TrainingError as error:
            if error.__cause__:  # a full disk, for example
                raise
            found.append(0.0)  # a rate so high that the weights are no longer finite
    return found


def measure(options: Options) -> dict:
    make_digits(options.scratch)

    def run(point: dict) -> dict:
        seed = options.seed + len(point.get("runs", ()))
        request = {"folder": options.scratch, "trials": options.trials, "seed": seed}
        return isolated.call(compare, request)

    return {"points": isolated.take_turns([{"name": "digits"}], options.repeats, run), "data": DATA}


def rows(result: dict) -> list[list[str]]:
    table = [["", "trials", "best val_accuracy", "median of all trials"]]
    runs = result["points"][0]["runs"]
    for kind in ("grid", "search"):
        best = ", ".join(f"{run[kind]['best']:.4f}" for run in runs)
        middle = np.median([run[kind]["all"] for run in runs])
        table.append([kind, str(runs[0][kind]["n"]), best, f"{middle:.3f}"])
    return table


#: The search is to find at least what the grid has.
TARGETS: tuple[Wanted, ...] = (
    ("best val_accuracy, search / grid", "", 1, ("digits",),
     lambda run: run["search"]["best"] / run["grid"]["best"]),
)  # fmt: skip
TABLES = {"grid": rows}
faults = missed
