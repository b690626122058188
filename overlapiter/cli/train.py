"""Train a model on as many processes as mpiexec starts; without mpiexec, in this one.

MODEL is a Python file with a function build_model(), which returns a chainer.Link or a
torch.nn.Module. The lists are text files with one HDF5 file a line. The run writes its history, its
weights, learning curves and checkpoints to --out; the same command goes on where it was ended.

Examples:
  overlapiter train model.py train.txt val.txt --epochs 5
  mpiexec -n 5 overlapiter train model.py train.txt val.txt --epochs 5 --optimizer adam --batch 100
  mpiexec -n 5 overlapiter train model.py train.txt val.txt --settings run.toml --out run1

exit code: 0 if the run came to its end, 1 if not, 2 if the command line cannot work
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from typing import Any

from overlapiter.mpi.training.job import NoListener
from overlapiter.mpi.training.run import train
from overlapiter.mpi.training.settings import Settings, read_toml, settings_of, split
from overlapiter.node import launched_rank

from .console import Progress, say, tell
from .ranks import run_as_rank


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="Python file with build_model()")
    add("train_files", metavar="TRAIN_LIST", help="list of the training files")
    add("val_files", metavar="VAL_LIST", nargs="?", help="list of the validation files")
    add("--settings", metavar="TOML", help="file of settings; what is given here comes before it")
    add("--restart", action="store_true", help="begin anew, without the checkpoint in --out")
    for field in dataclasses.fields(Settings):
        _add_setting(parser, field)


def _add_setting(parser: argparse.ArgumentParser, field: dataclasses.Field[Any]) -> None:
    name = "--" + field.name.replace("_", "-")
    about = field.metadata["help"].replace("%", "%%")
    default: Any = field.default
    kind = type(default)
    if kind is bool:
        parser.add_argument(name, action=argparse.BooleanOptionalAction, help=about)
        return
    shown = ",".join(default) if kind is tuple else default
    about += f" (default: {shown})" if shown != "" else ""
    choices = field.metadata.get("choices")
    more: dict[str, Any] = {"metavar": kind.__name__.upper() if kind in (int, float) else "WORD"}
    if choices:
        more = {"choices": choices} if kind is str else {"metavar": ",".join(choices)}
    parser.add_argument(name, type=str if kind is tuple else kind, help=about, **more)


def run(arguments: argparse.Namespace) -> int:
    """Train; return the exit code."""
    return run_as_rank(lambda: _train(arguments))


def _train(arguments: argparse.Namespace) -> int:
    values = read_toml(arguments.settings) if arguments.settings else {}
    given = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Settings)}
    values |= {name: value for name, value in given.items() if value is not None}
    settings_of(split(values)[0])  # before anything starts
    with contextlib.closing(_Listener(arguments)) as listener:
        train(
            arguments.model,
            arguments.train_files,
            arguments.val_files or (),
            listener=listener,
            restart=arguments.restart,
            **values,
        )
    return 0


class _Listener(NoListener):
    """Shows a bar for each epoch in a terminal, and a line for each that is done."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._rank = launched_rank() or 0
        self._bar: Progress | None = None

    def say(self, text: str) -> None:
        """Say what the user should know."""
        who = f"rank {self._rank}: " if self._rank else ""
        say(f"note: {who}{text}")

    def progress(self, n: int, total: int) -> None:
        """Move the bar; a new one begins when the last is full."""
        if self._bar is None or self._bar.n_left <= 0:
            self._bar = Progress(total, "examples")
        self._bar.advance(n=n)

    def epoch(self, record: dict[str, Any], line: str) -> None:
        """Print a line for an epoch."""
        tell(self._arguments, line, **record)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.__exit__()
