"""What is known of each epoch while it lasts, and its record once it is trained and validated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .job import Job
from .messages import Message
from .settings import is_better

#: The record of an epoch, with the keys of ``history.json``.
Record = dict[str, Any]
#: Those of its keys that are no measures of the model.
NO_MEASURES = {
    "epoch", "examples", "seconds", "learning_rate", "updates", "workers", "memory_bytes",
    "cpu_seconds",
}  # fmt: skip


class Epochs:
    """Counts what the workers report, makes records of it, and says when the run is to stop.

    ``on_record`` is called with each record that is complete; a true answer stops the run.

    Attributes:
        records: One for each epoch that is trained and validated.
        current: The earliest epoch that is not trained; one beyond the last when all are.
        reason_to_stop: Why the run ends before its last epoch; empty if it does not.
    """

    def __init__(
        self, job: Job, measure_names: Sequence[str], on_record: Callable[[Record], object]
    ) -> None:
        self._job = job
        self._settings = job.settings
        self._names = measure_names
        self.is_validating = bool(job.plan.val_pieces)
        self._on_record = on_record
        self.records: list[Record] = []
        self.current = 1
        self.reason_to_stop = ""
        self._sums: dict[int, NDArray[np.float64]] = {}
        self._n_examples: dict[int, int] = {}
        self._open: dict[int, Record] = {}  # trained, and not validated
        self._monitors: dict[int, tuple[int, int]] = {}
        self._cpu_ms = 0
        self._spent_seconds = 0.0  # on the current epoch, before the run was resumed
        self._began = time.monotonic()

    def begin(self) -> None:
        """Start the clock of the current epoch: the first worker is there."""
        self._began = time.monotonic() - self._spent_seconds

    @property
    def is_over(self) -> bool:
        """Whether nothing more is trained on."""
        return self.current > self._settings.epochs or bool(self.reason_to_stop)

    @property
    def learning_rate(self) -> float:
        """That of the current epoch."""
        return self._settings.rate_in(min(self.current, self._settings.epochs))

    def note(self, message: Message) -> None:
        """Count what a worker has trained on."""
        epoch, sums = message.epoch, np.array(message.sums)
        self._sums[epoch] = sums + self._sums.get(epoch, 0.0)
        self._n_examples[epoch] = self._n_examples.get(epoch, 0) + message.n_examples
        self._monitors[message.origin] = message.memory_bytes, message.cpu_ms
        self._job.listener.progress(message.n_examples, self._job.plan.n_examples)

    def trained(self, n_updates: int, n_workers: int) -> None:
        """Note that all examples of the current epoch were trained on."""
        epoch, now = self.current, time.monotonic()
        n = self._n_examples.pop(epoch, 0)
        means = self._sums.pop(epoch, np.zeros(len(self._names))) / max(n, 1)
        cpu_ms = sum(cpu for _, cpu in self._monitors.values())
        record: Record = {"epoch": epoch}
        record.update(zip(self._names, means.tolist(), strict=True))
        record["examples"] = n
        record["seconds"] = now - self._began
        record["learning_rate"] = self.learning_rate
        record["updates"] = n_updates
        record["workers"] = n_workers
        record["memory_bytes"] = max((m for m, _ in self._monitors.values()), default=0)
        record["cpu_seconds"] = (cpu_ms - self._cpu_ms) / 1000
        self._cpu_ms, self._began = cpu_ms, now
        self.current += 1
        if self.is_validating:
            self._open[epoch] = record
        else:
            self._complete(record)

    def validated(self, epoch: int, means: Sequence[float]) -> None:
        """Complete the record of an epoch by what its validation has given."""
        if self.reason_to_stop:  # by an earlier epoch, meanwhile
            return
        record = self._open.pop(epoch)
        values = zip(self._names, means, strict=True)
        self._complete(record | {f"val_{name}": value for name, value in values})

    def _complete(self, record: Record) -> None:
        self.records.append(record)
        self.reason_to_stop = self._reason_by_records()
        if self._on_record(record) and not self.reason_to_stop:
            self.reason_to_stop = "the caller has stopped it"

    def _reason_by_records(self) -> str:
        if not self.records:
            return ""
        if goal := self._settings.goal():
            name, target = goal
            value = self.records[-1].get(name, math.nan)
            if value == target or is_better(name, value, target):
                return f"{name} has reached {value:.4g}, the target being {target:.4g}"
        name = self._settings.early_stopping
        values = [record[name] for record in self.records if name in record]
        best = 0
        for i, value in enumerate(values):
            if is_better(name, value, values[best]):
                best = i
        n_since = len(values) - 1 - best
        if n_since >= self._settings.patience:
            return f"{name} has not improved for {n_since} epochs"
        return ""

    # --- checkpoints --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what :meth:`restore` needs."""
        return {
            "current": self.current,
            "sums": {epoch: sums.tolist() for epoch, sums in self._sums.items()},
            "examples": self._n_examples,
            "open": self._open,
            "records": self.records,
            "seconds": time.monotonic() - self._began,
        }

    def restore(self, state: dict[str, Any], validating: Collection[int]) -> None:
        """Go on from a state that was written as JSON, with these epochs yet to be validated.

        The others that were not validated, since the run was stopped before or has no validation
        files any more, keep what is known of their training.
        """
        self.current = state["current"]
        self._sums = {int(epoch): np.array(sums) for epoch, sums in state["sums"].items()}
        self._n_examples = {int(epoch): n for epoch, n in state["examples"].items()}
        self._open = {int(epoch): record for epoch, record in state["open"].items()}
        self.records[:] = state["records"]
        self._spent_seconds = state["seconds"]
        self.reason_to_stop = self._reason_by_records()
        if not self.reason_to_stop:
            self.records += [self._open.pop(epoch) for epoch in {*self._open} - {*validating}]
            self.records.sort(key=lambda record: record["epoch"])


def summary(record: Mapping[str, Any], n_epochs: int) -> str:
    """Return the record of an epoch in one line."""
    words = [f"epoch {record['epoch']:>{len(str(n_epochs))}}/{n_epochs}"]
    for name, value in record.items():
        if name not in NO_MEASURES:
            words.append(f"{name} {value:.4f}")
    n_each = record["examples"] / max(record["seconds"], 1e-9)
    words.append(f"{record['examples']:,} examples in {record['seconds']:.1f} s ({n_each:,.0f}/s)")
    words.append(f"{record['workers']} worker{'s' * (record['workers'] != 1)}")
    return "   ".join(words)
