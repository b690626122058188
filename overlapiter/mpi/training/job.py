"""What server and workers are made of, in one process or in many."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from overlapiter.errors import OptionError, TrainingError
from overlapiter.objective import Objective
from overlapiter.tracing import OFF, Tracing, begin_trace

from . import checkpoint
from .data import Source, listed
from .model import Builder, Model, builder_from, wrapped
from .monitor import Monitor
from .plan import Plan, make_plan
from .settings import Settings, comment


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings, model and data of a run, and what shows how it goes on."""

    preparation: Preparation
    settings: Settings
    build: Builder
    source: Source
    plan: Plan
    listener: NoListener
    trace: Tracing

    def model(self) -> Model:
        """Return a new model, the same on every rank.

        Raises:
            TrainingError: ``build_model()`` fails, or what it returns.
        """
        settings = self.settings
        try:
            of_loss = settings.loss, settings.metrics
            objective = Objective(*of_loss, settings.device, self.plan.example)
            return wrapped(self.build, objective, settings.seed)
        except (OptionError, TrainingError):
            raise
        except (Exception, SystemExit) as error:
            raise TrainingError(
                f"the model does not work on the first example "
                f"({type(error).__name__}: {error}); see whether features, labels and --loss fit it"
            ) from error


class NoListener:
    """Shows nothing; what shows something overrides it."""

    def say(self, text: str) -> None:
        """Take what the user should know."""

    def alive(self) -> None:
        """Take a sign of life: the server works."""

    def progress(self, n: int, total: int) -> None:
        """Take how many more of all examples of an epoch are trained on."""

    def epoch(self, record: dict[str, Any], line: str) -> object:
        """Take the record of an epoch, and its summary; a true answer stops the run."""


@dataclasses.dataclass(frozen=True)
class Preparation:
    """The arguments of a training, as all ranks have them, and what each makes of them.

    See :func:`.run.train` for what they mean.
    """

    model: str | os.PathLike[str] | Builder
    of_model: Mapping[str, Any]  # arguments of build_model()
    train_files: Any
    val_files: Any
    settings: Settings
    listener: NoListener
    restart: bool
    on_epoch: Callable[[dict[str, Any]], object]

    @property
    def command(self) -> str:
        """The command that repeats the run; a comment where there is none."""
        words = [self.model, self.train_files, *([] if self.val_files == () else [self.val_files])]
        if not all(isinstance(word, (str, os.PathLike)) for word in words):
            return "made by overlapiter.mpi.train()"
        path = os.path.join(self.settings.out, "settings.toml")
        arguments = [*(os.fspath(word) for word in words), "--settings", path, "--out", "other"]
        return f"overlapiter train {shlex.join(arguments)}"

    def to_toml(self) -> str:
        """Return the settings, and the arguments of the model, as a TOML file."""
        of_model = (
            f'"model.{name}" = {json.dumps(value, ensure_ascii=False, default=str)}\n'
            for name, value in self.of_model.items()
        )
        return f"{comment(self.command)}{self.settings.to_toml()}{''.join(of_model)}"

    def plan(self, n_workers: int) -> Plan:
        """Look at the files, and at the checkpoint. Raises OptionError and TrainingError."""
        train_paths = listed(self.train_files, "train_files")
        has_val = isinstance(self.val_files, (str, os.PathLike)) or len(self.val_files)
        val_paths = listed(self.val_files, "val_files") if has_val else []
        for name in () if val_paths else ("early_stopping", "target"):
            if getattr(self.settings, name).startswith("val_"):
                raise OptionError(name, "needs validation files, and there are none; list some")
        settings, found = self.settings, None
        if not (settings.piece_examples or self.restart):
            found = checkpoint.read(settings.out, kind="facts")
        kept_size = found[0]["piece_examples"] if found else 0  # whatever number of workers it had
        paths = train_paths, val_paths
        return make_plan(settings, Source(settings), *paths, n_workers, kept_size=kept_size)

    def job(self, plan: Plan, trace: Tracing) -> Job:
        """Return what server and workers are made of."""
        source, build = Source(self.settings), builder_from(self.model)
        if self.of_model:
            build = functools.partial(build, **self.of_model)
        return Job(self, self.settings, build, source, plan, self.listener, trace)


@contextlib.contextmanager
def begin_tracing(settings: Settings, name: str, rank: int) -> Iterator[Tracing]:
    """Give the trace of this rank; it records nothing if none is wanted."""
    if not settings.trace:
        yield OFF
        return
    with begin_trace(settings.trace, name, rank=rank) as trace, Monitor(trace, settings.device):
        trace.name_row("main")
        yield trace
