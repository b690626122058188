"""Search good settings for `overlapiter train`: groups of processes train trials side by side.

SPACE is a TOML file: what is searched is in [space], what all trials share in [settings], with the
names of train's options. MODEL, TRAIN_LIST and VAL_LIST are those of train. Optuna proposes what to
try next, and trials that are worse than the median of the others end early. The same command goes
on where the search was ended; with more --trials it goes further.

--out gets search.json (all trials), search.png, best.toml (for `overlapiter train --settings`), and
what train writes in trials/NUMBER.

Examples:
  overlapiter search space.toml model.py train.txt val.txt --trials 20
  mpiexec -n 8 overlapiter search space.toml model.py train.txt val.txt --trials 40 --group 2
  mpiexec --with-ft ulfm -n 8 overlapiter search space.toml model.py train.txt val.txt --group 4

exit code: 0 if the search came to its end, 1 if not or if no trial was complete, 2 if the command
line cannot work
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from overlapiter.mpi.searching.run import search
from overlapiter.mpi.searching.study import Study, Trial
from overlapiter.mpi.training.checkpoint import write_text
from overlapiter.mpi.training.settings import comment
from overlapiter.words import duration_words

from .console import CommandError, say, table, tell
from .plots import draw_search
from .ranks import run_as_rank

_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("space", metavar="SPACE", help="TOML file of what is searched")
    add("model", metavar="MODEL", help="Python file with build_model()")
    add("train_files", metavar="TRAIN_LIST", help="list of the training files")
    add("val_files", metavar="VAL_LIST", help="list of the validation files")
    text = "how many trials there are to be in all, those of earlier runs included (%(default)s)"
    add("--trials", type=int, default=20, metavar="N", help=text)
    text = "ranks that train a trial together, one of them as server (%(default)s)"
    add("--group", type=int, default=1, metavar="N", help=text)
    text = "val_accuracy or val_loss, after the last epoch (%(default)s)"
    add("--metric", default="val_accuracy", metavar="NAME", help=text)
    add("--out", default="search", metavar="DIR", help="where results go (%(default)s)")
    text = "what is proposed follows from it (%(default)s)"
    add("--seed", type=int, default=0, metavar="N", help=text)
    text = "end trials that are worse than the median"
    add("--pruning", action=argparse.BooleanOptionalAction, default=True, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Search; return the exit code."""
    return run_as_rank(lambda: _search(arguments))


def _search(arguments: argparse.Namespace) -> int:
    try:
        study = search(
            arguments.space,
            arguments.model,
            arguments.train_files,
            arguments.val_files,
            out=arguments.out,
            n_trials=arguments.trials,
            group_size=arguments.group,
            metric=arguments.metric,
            seed=arguments.seed,
            is_pruning=arguments.pruning,
            on_trial=(lambda *_trial: None) if arguments.json else _say_trial,
            say=lambda text: say(f"note: {text}"),
        )
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise CommandError("needs Optuna: pip install 'overlapiter[search]'") from error
    if study is None:  # another rank shows the results
        return 0
    result = _result(study)
    _write(study, result, arguments)
    tell(arguments, _table(study), **result)
    if result["best"] is None:
        raise CommandError("no trial was complete; the table says why")
    return 0


def _say_trial(trial: Trial, study: Study) -> None:
    best = study.best()
    words = "" if best is None else f"   best {best.value:.4g} (trial {best.number})"
    print(f"trial {trial.number}: {_outcome(trial, study)}{words}", flush=True)


def _outcome(trial: Trial, study: Study) -> str:
    if trial.state == "failed":
        return f"failed: {trial.reason}"
    more = f", ended after epoch {trial.n_epochs}" if trial.state == "pruned" else ""
    return f"{study.metric} {trial.value:.4g}{more}"


def _result(study: Study) -> dict[str, Any]:
    """Return all that ``search.json`` holds."""
    best = study.best()
    return {
        "metric": study.metric,
        "best": None if best is None else best._asdict(),
        "trials": [trial._asdict() for trial in study.trials()],
    }


def _write(study: Study, result: dict[str, Any], arguments: argparse.Namespace) -> None:
    out = arguments.out
    write_text(os.path.join(out, "search.json"), json.dumps(result, indent=1) + "\n")
    best = study.best()
    if best is None:
        return
    with open(os.path.join(best.out, "settings.toml"), encoding="utf-8") as file:
        lines = [line for line in file if not line.startswith(("#", "out = ", "trace = "))]
    path = os.path.join(out, "best.toml")
    words = ("train", arguments.model, arguments.train_files, arguments.val_files)
    head = comment(f"overlapiter {shlex.join(words)} --settings {shlex.quote(path)}")
    write_text(path, head + "".join(lines))
    if find_spec("matplotlib"):
        draw_search(study, os.path.join(out, "search.png"))
    else:
        say("note: no search.png without matplotlib: pip install 'overlapiter[plots]'")


def _table(study: Study) -> str:
    """Return the trials as a table, the best first."""
    trials = ranked(study)
    names = sorted({name for trial in trials for name in trial.params})
    rows = [
        [
            str(trial.number),
            "-" if trial.value is None else f"{trial.value:.4f}",
            *(_value_words(trial.params.get(name)) for name in names),
            str(trial.n_epochs),
            duration_words(trial.seconds),
            trial.state,
        ]
        for trial in trials[:_SHOWN]
    ]
    lines = [table(["trial", study.metric, *names, "epochs", "time", ""], rows, n_left=0)]
    if len(trials) > _SHOWN:
        lines.append(f"  and {len(trials) - _SHOWN} more in search.json")
    reasons = {trial.reason for trial in trials if trial.state == "failed"}
    return "\n".join([*lines, *(f"  a trial failed: {reason}" for reason in sorted(reasons))])


def ranked(study: Study) -> Sequence[Trial]:
    """Return the trials, complete ones first, the best before the others."""
    states = ("complete", "pruned", "running", "failed")
    sign = -1.0 if study.is_maximized else 1.0

    def key(trial: Trial) -> tuple[int, float, int]:
        value = 0.0 if trial.value is None else trial.value
        return states.index(trial.state), sign * value, trial.number

    return sorted(study.trials(), key=key)


def _value_words(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
