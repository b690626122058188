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
from importlib.util import find_spec

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
    add("--trials", dest="n_trials", type=int, default=20, metavar="N", help=text)
    text = "ranks that train a trial together, one of them as server (%(default)s)"
    add("--group", dest="group_size", type=int, default=1, metavar="N", help=text)
    text = "val_accuracy or val_loss, after the last epoch (%(default)s)"
    add("--metric", default="val_accuracy", metavar="NAME", help=text)
    add("--out", default="search", metavar="DIR", help="where results go (%(default)s)")
    text = "what is proposed follows from it (%(default)s)"
    add("--seed", type=int, default=0, metavar="N", help=text)
    text = "end trials that are worse than the median"
    pruning = argparse.BooleanOptionalAction
    add("--pruning", dest="is_pruning", action=pruning, default=True, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Search; return the exit code."""
    return run_as_rank(lambda: _search(arguments))


def _search(arguments: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(arguments).items() if name != "json"}
    on_trial = (lambda *_trial: None) if arguments.json else _say_trial
    try:
        study = search(**given, on_trial=on_trial, say=lambda text: say(f"note: {text}"))
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise CommandError("needs Optuna: pip install 'overlapiter[search]'") from error
    if study is None:  # another rank shows the results
        return 0
    best = study.best()
    result = {
        "metric": study.metric,
        "best": None if best is None else best._asdict(),
        "trials": [trial._asdict() for trial in study.trials()],
    }
    write_text(os.path.join(arguments.out, "search.json"), json.dumps(result, indent=1) + "\n")
    if best is not None:
        _write_best(study, best, arguments)
    tell(arguments, _table(study), **result)
    if best is None:
        raise CommandError("no trial was complete; the table says why")
    return 0


def _say_trial(trial: Trial, study: Study) -> None:
    best, outcome = study.best(), f"failed: {trial.reason}"
    if trial.state != "failed":
        more = f", ended after epoch {trial.n_epochs}" if trial.state == "pruned" else ""
        outcome = f"{study.metric} {trial.value:.4g}{more}"
    words = "" if best is None else f"   best {best.value:.4g} (trial {best.number})"
    print(f"trial {trial.number}: {outcome}{words}", flush=True)


def _write_best(study: Study, best: Trial, arguments: argparse.Namespace) -> None:
    """Write the settings of the best trial, and draw all trials."""
    with open(os.path.join(best.out, "settings.toml"), encoding="utf-8") as file:
        lines = [line for line in file if not line.startswith(("#", "out = ", "trace = "))]
    path = os.path.join(arguments.out, "best.toml")
    words = ("train", arguments.model, arguments.train_files, arguments.val_files)
    head = comment(f"overlapiter {shlex.join(words)} --settings {shlex.quote(path)}")
    write_text(path, head + "".join(lines))
    if find_spec("matplotlib"):
        draw_search(study, os.path.join(arguments.out, "search.png"))
    else:
        say("note: no search.png without matplotlib: pip install 'overlapiter[plots]'")


def _table(study: Study) -> str:
    """Return the trials as a table, the best first."""
    trials = study.ranked()
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


def _value_words(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
