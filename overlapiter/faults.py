"""What goes wrong with examples, put so that the user knows what to do."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from overlapiter.errors import (
    BadExampleWarning,
    EmptyBatchError,
    ExampleError,
    FailureWarning,
    TooManyBadExamplesError,
    WorkerDiedError,
    example_words,
)
from overlapiter.pipeline import FailedBatch, WaitTimeoutError
from overlapiter.sharedmem.slots import MiniBatch
from overlapiter.sources import declared_paths


def likely_paths(dataset: Any, index: int) -> tuple[str, ...]:
    """Return the files that an example is known to read; none where that is not known."""
    try:
        return tuple(declared_paths(dataset, index) or ())
    except Exception:  # the user's source_paths: the index must do
        return ()


def explain_stall(stall: WaitTimeoutError, dataset: Any, timeout_seconds: float | None) -> str:
    """Return the text of the warning about a mini-batch that does not come."""
    text = f"Stalled dataset is detected: no mini-batch for {timeout_seconds} seconds."
    if stall.index >= 0:
        example = example_words(stall.index, likely_paths(dataset, stall.index))
        text += f" {stall.stage} is at {example}."
    else:
        text += f" It waits for {stall.stage}."
    return text + " Check that the file can be read, or raise dataset_timeout."


def warn_if_failure_hangs() -> None:
    """Warn, on rank 0 of several, if nobody ends the job when a rank fails."""
    mpi = sys.modules.get("mpi4py.MPI")  # importing it would start MPI
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    is_seen_to = sys.excepthook is not sys.__excepthook__ or "mpi4py.run" in sys.modules
    if mpi.COMM_WORLD.size > 1 and mpi.COMM_WORLD.rank == 0 and not is_seen_to:
        warnings.warn(
            "if a rank fails, by an example that cannot be read for instance, the other ranks wait "
            "for it for ever. Use overlapiter.mpi.create_communicator in the place of ChainerMN's, "
            "or call overlapiter.mpi.abort_on_failure() once, before the iterator is made",
            FailureWarning,
            stacklevel=4,
        )


def with_paths(error: BaseException, dataset: Any) -> BaseException:
    """Return an error with the files of its example, if it lacks them."""
    if not isinstance(error, WorkerDiedError) or error.paths:
        return error
    paths = likely_paths(dataset, error.index)
    return WorkerDiedError(
        error.index, error.deaths, error.exit_code, paths, error.worker_traceback
    )


class SkippedExamples:
    """The examples that were left out: each counts once, up to a limit.

    Args:
        limit: How many there may be; None if none is ever left out.
        dataset: The dataset, for the files of its examples.
        keeps_step: Whether other ranks count on each mini-batch, so that none can be passed over.

    Attributes:
        errors: What explains each of them, by index, in the order in which they were met.
    """

    def __init__(self, limit: int | None, dataset: Any, *, keeps_step: bool = False) -> None:
        self._limit = limit or 0
        self._keeps_step = keeps_step
        self._dataset = dataset
        self._n_in_a_row = 0
        self.errors: dict[int, ExampleError] = {}

    def begin(self) -> None:
        """Note that other mini-batches follow than were to be expected."""
        self._n_in_a_row = 0

    def judge(self, batch: MiniBatch | FailedBatch) -> tuple[BaseException | None, bool]:
        """Return what to raise instead of a mini-batch, and whether to pass it over."""
        if isinstance(batch, FailedBatch):
            error = with_paths(batch.error, self._dataset)
            error.__cause__ = batch.context
            return error, False
        too_many = self.note(batch)
        if too_many is not None or batch or not batch.skipped:
            return too_many, False
        if not self._keeps_step:
            return None, True
        empty = EmptyBatchError([self.errors[each.index] for each in batch.skipped])
        empty.__cause__ = batch.skipped[-1]
        return empty, False

    def note(self, batch: MiniBatch) -> TooManyBadExamplesError | None:
        """Count what was left out of a mini-batch, and warn of the very first.

        A mini-batch may be noted again, if what follows was interrupted.

        Returns:
            What to raise if there are more than may be, or nothing else.
        """
        if not batch.skipped:
            self._n_in_a_row = 0
            return None
        n_before = len(self.errors)
        for error in batch.skipped:
            self.errors.setdefault(error.index, self._with_paths(error))
        self._n_in_a_row = 0 if batch else self._n_in_a_row + len(batch.skipped)
        is_beyond = len(self.errors) > max(self._limit, n_before)
        # A whole epoch of them may be the end of one that is shuffled and the start of the next.
        if is_beyond or self._n_in_a_row >= 2 * len(self._dataset):
            too_many = TooManyBadExamplesError(self._limit, [*self.errors.values()])
            too_many.__cause__ = batch.skipped[-1]
            return too_many
        if not n_before:
            error = self.errors[batch.skipped[0].index]
            warnings.warn(
                f"{example_words(error.index, error.paths)} could not be read and is left out: "
                f"{error.reason}. Further ones are left out silently, up to {self._limit}: look at "
                f"the iterator's attribute 'skipped'",
                BadExampleWarning,
                stacklevel=4,
            )
        return None

    def _with_paths(self, error: ExampleError) -> ExampleError:
        if error.paths:
            return error
        paths = likely_paths(self._dataset, error.index)
        return ExampleError(error.index, paths, error.reason, error.worker_traceback)
