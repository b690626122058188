"""A trial while a group trains it: what the group tells the others of it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from overlapiter.mpi.training.job import NoListener
from overlapiter.mpi.training.silence import PATIENCE

from .space import Values

#: Signs of life that a group gives within the limit.
_BEATS = 5


class Asked(NoListener):
    """A trial of Optuna's that a group is to train; it listens to the training.

    After ``timeout_seconds`` of silence another group does it again.

    Attributes:
        number: Of the trial.
        values: Its settings.
        value: Of the metric after the last epoch so far.
        is_pruned: Whether it was ended since others were better.
        reason: Why it failed; empty otherwise. The group that trains it sets it.
        is_continued: Whether a group that was lost has begun it.
    """

    def __init__(self, trial: Any, values: Values, metric: str, timeout_seconds: float) -> None:
        self.number: int = trial.number
        self.values = values
        self.value: float | None = None
        self.is_pruned = False
        self.reason = ""
        self.is_continued = "continues" in trial.user_attrs
        self._trial = trial
        self._metric = metric
        self._timeout_seconds = timeout_seconds
        self._seen_at = time.monotonic()
        self._n_beats = 0
        for epoch, value in trial.user_attrs.get("epochs", {}).items():
            self._report(int(epoch), value)

    def _report(self, epoch: int, value: float) -> None:
        self.value = value
        with warnings.catch_warnings():  # an epoch that was reported before counts once
            warnings.simplefilter("ignore", UserWarning)
            self._trial.report(value, epoch)

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Give the other groups signs of life during the block, whatever the main thread does.

        A process that is stopped gives none, nor one whose main thread has shown none for long.
        """
        ended = threading.Event()
        thread = threading.Thread(target=self._beat_until, args=(ended,), daemon=True)
        self.alive()
        if math.isfinite(self._timeout_seconds):
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if thread.is_alive():
                thread.join()

    def _beat_until(self, ended: threading.Event) -> None:
        limit_seconds = PATIENCE * self._timeout_seconds
        is_mine = True
        while is_mine and not ended.wait(self._timeout_seconds / _BEATS):
            is_mine = time.monotonic() > self._seen_at + limit_seconds or self.beat()

    def alive(self) -> None:
        """Note that the main thread goes on."""
        self._seen_at = time.monotonic()

    def beat(self) -> bool:
        """Give a sign of life; return False if another group has been given the trial."""
        self._n_beats += 1
        storage, trial_id = self._trial.storage, self._trial._trial_id  # Trial is for one thread
        return self._write(lambda: storage.set_trial_user_attr(trial_id, "beat", self._n_beats))

    def _write(self, write: Callable[[], object]) -> bool:
        """Write to the journal; return False if the trial has ended, for the others."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            write()
        except UpdateFinishedTrialError:
            return False
        except RuntimeError as error:  # it is written, but Optuna's lock was broken after 30 s
            if "lock" not in str(error):
                raise
        return True

    def on_epoch(self, record: dict[str, Any]) -> bool:
        """Take the record of an epoch; return whether that is to be the last one."""
        if self._metric not in record:
            self.reason = f"an epoch has no {self._metric}; are there validation files?"
            return True
        epoch, value = record["epoch"], float(record[self._metric])
        if not self._write(lambda: self._report(epoch, value)):
            return True
        self.is_pruned = bool(self._trial.should_prune())
        return self.is_pruned

    def finish(self, records: list[dict[str, Any]] | None) -> None:
        """Take all records, the last of which may be from before it was continued."""
        if records:
            self.value = records[-1].get(self._metric, self.value)
