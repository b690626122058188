"""What a run writes to its directory, and how it finds its way back from there."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np

from overlapiter.errors import OptionError, TrainingError

from . import checkpoint
from .curves import draw
from .epochs import Record, summary
from .job import Job
from .model import Model
from .server import Server

#: Settings that may change when a run is resumed.
_FREE = {
    "epochs", "out", "trace", "staging", "source", "worker_timeout", "checkpoint_seconds",
    "validation", "early_stopping", "patience", "target", "masters", "device",
    "piece_examples",  # the pieces are compared
}  # fmt: skip


def _plain(value: object) -> object:
    """Return what stands in JSON for what it does not know; of a function the type counts."""
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else type(value).__name__


class Outputs:
    """The directory of a run.

    Raises:
        OptionError: The directory cannot be made, or holds another run.
        TrainingError: Its checkpoint cannot be read.
    """

    def __init__(self, job: Job) -> None:
        self._job, preparation = job, job.preparation
        self._listener = job.listener
        self._on_epoch = preparation.on_epoch
        self._out = job.settings.out
        settings = {name: each for name, each in vars(job.settings).items() if name not in _FREE}
        settings |= {f"model.{name}": each for name, each in preparation.of_model.items()}
        plan = {"pieces": job.plan.train_pieces, "files": job.plan.train_paths}
        facts = {"settings": settings, "plan": plan}
        self._facts: dict[str, Any] = json.loads(json.dumps(facts, default=_plain))  # as when read
        try:
            os.makedirs(self._out, exist_ok=True)
            if preparation.restart:
                checkpoint.remove(self._out)
            self._found = checkpoint.read(self._out)
            self._check_found()
            path = os.path.join(self._out, "settings.toml")
            checkpoint.write_text(path, preparation.to_toml())
        except OSError as error:
            raise OptionError("out", f"{self._out} cannot be written ({error})") from error
        self._writer = checkpoint.Writer(self._out)
        self._written_at = time.monotonic()

    def record(self, record: Record) -> object:
        """Write the history, with one more record; a true answer stops the run."""
        self._write_history()
        is_last = self._listener.epoch(record, summary(record, self._job.settings.epochs))
        return self._on_epoch(record) or is_last

    def _write_history(self, **more: str) -> None:
        facts = {"epochs": self._server.epochs.records, **more}
        text = json.dumps(facts, indent=1) + "\n"
        checkpoint.write_text(os.path.join(self._out, "history.json"), text)

    # --- checkpoints --------------------------------------------------------------------------

    def _check_found(self) -> None:
        """Raise OptionError unless the checkpoint that was found is of this run."""
        if self._found is None:
            return
        facts, settings = self._found[0], self._facts["settings"]
        for name in {**settings, **facts["settings"]}:
            ours, theirs = settings.get(name), facts["settings"].get(name)
            if json.dumps(theirs) != json.dumps(ours):  # NaN is NaN, too
                raise OptionError(
                    name,
                    f"{self._out} holds the checkpoint of a run with {theirs!r}, not {ours!r}; "
                    f"name another --out, or begin anew with --restart",
                )
        if facts["plan"]["files"] != self._facts["plan"]["files"]:
            raise OptionError(
                "train_files",
                f"{self._out} holds the checkpoint of a run on other files; name another --out, "
                f"or begin anew with --restart",
            )

    def begin(self, server: Server) -> int:
        """Write what a server does from now on; it goes on from the checkpoint, if there is one.

        Returns:
            The number of the checkpoint, 0 if there is none.
        """
        self._server = server
        if self._found is None:
            return 0
        facts, arrays = self._found
        side, validation, epochs = server.side, server.validation, server.epochs
        state = checkpoint.part("side", arrays)
        if state["weights"].shape != side.weights.shape:
            raise TrainingError(
                f"the model has {side.weights.size:,} values, and the one of the checkpoint in "
                f"{self._out} {state['weights'].size:,}; begin anew with --restart"
            )
        side.load_state(state)
        if facts["plan"]["pieces"] != self._facts["plan"]["pieces"]:
            if self._job.settings.piece_examples in (0, facts["piece_examples"]):
                words = f"have changed since the checkpoint in {self._out}"
                raise OptionError("train_files", f"{words}; begin anew with --restart")
            raise OptionError(
                "piece_examples",
                f"the checkpoint in {self._out} has pieces of {facts['piece_examples']}; leave "
                f"--piece-examples out, or begin anew with --restart",
            )
        server.queue.restore(facts["queue"])
        if epochs.is_validating:
            for name, snapshot in checkpoint.part("snapshot", arrays).items():
                validation.begin(int(name), snapshot)
        epochs.restore(facts["epochs"], validation.snapshots)
        n_done = len(epochs.records)
        if epochs.is_over and not validation.snapshots:
            self._listener.say(f"the run in {self._out} has ended before, after epoch {n_done}")
        else:
            self._listener.say(f"going on from the checkpoint in {self._out}, epoch {n_done + 1}")
        return int(facts["number"])

    def is_checkpoint_due(self) -> bool:
        """Return whether the last checkpoint is old."""
        return time.monotonic() - self._written_at > self._job.settings.checkpoint_seconds

    def write_checkpoint(self) -> int:
        """Write a checkpoint; the disk is not waited for. Returns its number."""
        server = self._server
        number = time.time_ns()  # no other run has had it, so no worker takes the state of one
        self._written_at = time.monotonic()
        with server.validation.changed:
            snapshots = {str(epoch): each for epoch, each in server.validation.snapshots.items()}
        facts = self._facts | {"queue": server.queue.state(), "epochs": server.epochs.state()}
        facts["piece_examples"] = max(map(len, self._job.plan.train_pieces))
        arrays = checkpoint.flat("side", server.side.state())
        arrays |= checkpoint.flat("snapshot", snapshots)
        self._writer.write(facts | {"number": number}, arrays)
        return number

    # --- the end ------------------------------------------------------------------------------

    def finish(self, model: Model) -> list[Record]:
        """Write what a run that came to its end leaves behind; return the records of its epochs."""
        self._writer.wait()
        epochs = self._server.epochs
        model.load(self._server.side.weights)
        with checkpoint.replacing(os.path.join(self._out, "weights.npz")) as file:
            model.save(file.name)
        if reason := epochs.reason_to_stop:
            self._write_history(stopped_because=reason)
            self._listener.say(f"stopped early: {reason}")
        else:
            self._write_history()
        draw(epochs.records, os.path.join(self._out, "curves.png"), self._listener.say)
        return epochs.records

    def close(self) -> None:
        """Wait until the last checkpoint is written."""
        self._writer.wait()
