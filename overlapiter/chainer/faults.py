"""What goes wrong with examples, put so that the user knows what to do."""

from __future__ import annotations

import warnings
from typing import Any

from overlapiter.errors import (
    BadExampleWarning,
    ExampleError,
    TooManyBadExamplesError,
    WorkerDiedError,
    example_words,
)
from overlapiter.pipeline import WaitTimeoutError
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
        epoch_size: Examples in an epoch: so many in a row are the end, whatever the limit.

    Attributes:
        errors: What explains each of them, by index, in the order in which they were met.
    """

    def __init__(self, limit: int | None, epoch_size: int) -> None:
        self._limit = limit
        self._epoch_size = epoch_size
        self._n_in_a_row = 0
        self.errors: dict[int, ExampleError] = {}

    def note(self, batch: MiniBatch) -> None:
        """Count what was left out of a mini-batch, and warn of the very first.

        Raises:
            TooManyBadExamplesError: There are more than may be, or nothing else.
        """
        if not batch.skipped:
            self._n_in_a_row = 0
            return
        is_first = not self.errors
        n_before = len(self.errors)
        for error in batch.skipped:
            self.errors.setdefault(error.index, error)
        self._n_in_a_row = 0 if batch else self._n_in_a_row + len(batch.skipped)
        limit = self._limit or 0
        is_beyond = len(self.errors) > max(limit, n_before)
        if is_beyond or self._n_in_a_row >= self._epoch_size:
            raise TooManyBadExamplesError(limit, [*self.errors.values()]) from batch.skipped[-1]
        if is_first:
            error = batch.skipped[0]
            warnings.warn(
                f"{example_words(error.index, error.paths)} could not be read and is left out: "
                f"{error.reason}. Further ones are left out silently, up to {limit}: look at the "
                f"iterator's attribute 'skipped'",
                BadExampleWarning,
                stacklevel=3,
            )
