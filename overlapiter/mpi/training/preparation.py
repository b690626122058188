"""The arguments of a training, as all ranks have them, and what each makes of them."""

from __future__ import annotations

import os
import shlex
from typing import Any

from overlapiter.tracing import Tracing

from . import data
from .job import Job, NoListener
from .model import Builder, builder_from
from .plan import Plan, make_plan
from .settings import Settings


class Preparation:
    """The arguments of :func:`.run.train`, and what is made of them on each rank.

    Args:
        model: As there, as are the others.
        train_files: The training files.
        val_files: The validation files.
        settings: All settings.
        listener: Shows how it goes on.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Builder,
        train_files: Any,
        val_files: Any,
        settings: Settings,
        listener: NoListener,
    ) -> None:
        self._model = model
        self._files = train_files, val_files
        self.settings = settings
        self._listener = listener

    @property
    def command(self) -> str:
        """The command that repeats the run; a comment where there is none."""
        words = [self._model, *(files for files in self._files if files != ())]
        if not all(isinstance(word, (str, os.PathLike)) for word in words):
            return "made by overlapiter.mpi.train()"
        path = os.path.join(self.settings.out, "settings.toml")
        arguments = [*(os.fspath(word) for word in words), "--settings", path, "--out", "other"]
        return f"overlapiter train {shlex.join(arguments)}"

    def plan(self, n_workers: int) -> Plan:
        """Look at the files. Raises OptionError and TrainingError."""
        train_files, val_files = self._files
        train_paths = data.listed(train_files, "train_files")
        has_val = isinstance(val_files, (str, os.PathLike)) or len(val_files)
        val_paths = data.listed(val_files, "val_files") if has_val else []
        source = data.Source(self.settings)
        return make_plan(self.settings, source, train_paths, val_paths, n_workers)

    def job(self, plan: Plan, trace: Tracing) -> Job:
        """Return what server and workers are made of."""
        source = data.Source(self.settings)
        build = builder_from(self._model)
        return Job(self.settings, build, source, plan, self._listener.say, trace)
