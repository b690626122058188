"""Errors and warnings about examples: which files they concern, and what the user can do."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from overlapiter.errors import (
    BadExampleWarning,
    EmptyBatchError,
    ExampleError,
    FailureWarning,
    TooManyBadExamplesError,
    WorkerDiedError,
    example_words,
    warn,
)
from overlapiter.sources import declared_paths

#: Modules that run a program, and see how it ends.
_RUNNERS = {"overlapiter.mpi", "mpi4py", "mpi4py.run"}
#: Without a code, or with 0, it is no failure.
_EXITS_UNSEEN = re.compile(r"^\s*raise SystemExit\((?!0?\))", re.MULTILINE)


class WaitTimeoutError(Exception):
    """A mini-batch did not come in time; waiting again is fine.

    Its arguments: the process that is waited for, in words; the index of the example that this
    process is at, -1 where unknown; the seconds waited, with what timed out before.
    """


class TimeoutWarning(RuntimeWarning):
    """No mini-batch has come for a while."""


class FailedBatch(NamedTuple):
    """A mini-batch that cannot be delivered; takes its place."""

    error: BaseException  # what to raise
    context: ExampleError | None  # where it comes from, to chain to it


def likely_paths(dataset: Any, index: int) -> tuple[str, ...]:
    """Return the files that the dataset declares for an example; none if it declares none."""
    try:
        return tuple(declared_paths(dataset, index) or ())
    except (Exception, SystemExit):  # the user's source_paths failed; the index says enough
        return ()


def explain_stall(stall: WaitTimeoutError, dataset: Any, timeout_seconds: float | None) -> str:
    """Return the text of the warning that no mini-batch has come in time."""
    stage, index, waited_seconds = stall.args
    total = ""
    if timeout_seconds and waited_seconds > 1.5 * timeout_seconds:
        total = f", {waited_seconds:.0f} in all"  # Python shows the same text only once
    place, advice = f"It waits for {stage}", "See whether this node is too busy"
    if index != -1:
        place = f"{stage} is at {example_words(index, likely_paths(dataset, index))}"
        advice = "Check that the file can be read"
    return (
        f"Stalled dataset is detected: no mini-batch for {timeout_seconds} seconds{total}. {place}."
        f" {advice}, or raise dataset_timeout."
    )


def warn_if_failure_hangs() -> None:
    """Warn, on rank 0 of several, if nothing ends the job when a rank fails."""
    mpi = sys.modules.get("mpi4py.MPI")  # importing it would start MPI
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    if mpi.COMM_WORLD.size == 1 or mpi.COMM_WORLD.rank or not _RUNNERS.isdisjoint(sys.orig_argv):
        return
    if sys.excepthook is sys.__excepthook__:
        text = (
            "if a rank fails, by an example that cannot be read for instance, the other ranks wait "
            "for it for ever. Use overlapiter.mpi.create_communicator in the place of ChainerMN's, "
            "or call overlapiter.mpi.abort_on_failure() once, before the iterator is made"
        )
    elif _EXITS_UNSEEN.search(_main_source()):
        text = (
            "the program has a `raise SystemExit`, of which Python tells no hook: if a rank ends "
            "by it with an exit code, the other ranks wait for it for ever. Use sys.exit instead, "
            "or start the program by python -m overlapiter.mpi"
        )
    else:
        return
    warn(text, FailureWarning)


def _main_source() -> str:
    try:
        return inspect.getsource(sys.modules["__main__"])
    except (OSError, TypeError):  # it has none: an interactive session
        return ""


class Batch(Protocol):
    """A mini-batch of any framework; false where no example is left."""

    @property
    def skipped(self) -> Sequence[ExampleError]:
        """The error of each example that was left out, in order."""


class SkippedExamples:
    """The examples that were left out: each counts once, up to a limit.

    Args:
        limit: How many there may be; None if none is ever left out.
        dataset: The dataset, which may declare the files of its examples.
        keeps_step: Whether other ranks take a mini-batch for each of this rank's, so that this one
            cannot pass over one of which nothing is left.
    """

    def __init__(self, limit: int | None, dataset: Any, *, keeps_step: bool = False) -> None:
        self._limit = limit or 0
        self.keeps_step = keeps_step
        self._dataset = dataset
        self._n_in_a_row = 0
        self.errors: dict[int, ExampleError] = {}  # by index, in the order in which they were met

    def begin(self) -> None:
        """Count anew how many in a row are left out: the iterator starts over."""
        self._n_in_a_row = 0

    def judge(self, batch: Batch | FailedBatch) -> tuple[BaseException | None, bool]:
        """Return the error to raise instead of a mini-batch, and whether to pass it over."""
        if isinstance(batch, FailedBatch):
            error = batch.error
            if isinstance(error, WorkerDiedError) and not error.paths:
                paths = likely_paths(self._dataset, error.index)
                facts = error.deaths, error.exit_code, paths, error.worker_traceback
                error = WorkerDiedError(error.index, *facts)
            error.__cause__ = batch.context
            return error, False
        too_many = self.note(batch)
        if too_many is not None or batch or not batch.skipped:
            return too_many, False
        if not self.keeps_step:
            return None, True
        empty = EmptyBatchError([self.errors[each.index] for each in batch.skipped])
        empty.__cause__ = batch.skipped[-1]
        return empty, False

    def note(self, batch: Batch) -> TooManyBadExamplesError | None:
        """Count the examples that are left out of a mini-batch, and warn of the very first.

        After an interruption a mini-batch may be noted again. Return the error to raise if more are
        left out than may be, or if no others are left.
        """
        if not batch.skipped:
            self._n_in_a_row = 0
            return None
        n_before = len(self.errors)
        for error in batch.skipped:
            paths = error.paths or likely_paths(self._dataset, error.index)
            facts = paths, error.reason, error.worker_traceback
            self.errors.setdefault(error.index, ExampleError(error.index, *facts))
        self._n_in_a_row = 0 if batch else self._n_in_a_row + len(batch.skipped)
        is_beyond = len(self.errors) > max(self._limit, n_before)
        # One epoch of them in a row may be the end of an epoch and the start of the next.
        if is_beyond or self._n_in_a_row >= 2 * len(self._dataset):
            too_many = TooManyBadExamplesError(self._limit, [*self.errors.values()])
            too_many.__cause__ = batch.skipped[-1]
            return too_many
        if not n_before:
            error = self.errors[batch.skipped[0].index]
            warn(
                f"{example_words(error.index, error.paths)} could not be read and is left out: "
                f"{error.reason}. Further ones are left out silently, up to {self._limit}: look at "
                f"the attribute 'skipped' of the iterator, or of PyTorch's loader",
                BadExampleWarning,
            )
        return None
