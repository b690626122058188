"""Drives the engine as a face of it does, without any framework."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.claims.explained import Job
from overlapiter.faults import FailedBatch
from overlapiter.options import Staging
from overlapiter.order import Course, IterationState, RunAhead, seeded_order
from overlapiter.pipeline import Pipeline
from overlapiter.planning import planned
from overlapiter.stats import Stats
from overlapiter.workers.plan import SupervisorPlan
from overlapiter.workers.start.launch import pickled
from overlapiter.workers.start.parcel import Parcel

#: Far above what a mini-batch takes; a test that waits as long has failed.
TIMEOUT_SECONDS = 60.0


class Engine(contextlib.AbstractContextManager["Engine"], Iterator[list[Any]]):
    """Mini-batches of a dataset, epoch after epoch, in ascending order or in that of a seed.

    Args:
        dataset: The dataset.
        batch_size: Examples in a mini-batch.
        n_readers: File reader processes.
        staging: Where to stage, or None.
        seed: Seeds the order and the random streams of each example.
        is_skipping: Whether examples that cannot be read are left out.

    Attributes:
        pipeline: The pipeline.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        n_readers: int = 2,
        staging: Staging | None = None,
        seed: int | None = None,
        is_skipping: bool = False,
    ) -> None:
        created_ns = time.monotonic_ns()
        size = len(dataset)

        def next_order(_order: Any, _position: int, epoch: int) -> Any:
            return None if seed is None else seeded_order(seed, epoch, size)

        order = next_order(None, 0, 0)
        state = IterationState(0, 0, False, order)
        course = Course(
            batch_size, True, None if seed is None else next_order, size, knows_any_epoch=True
        )
        self._ahead = RunAhead(state, course)
        self._n_ahead = 3 if staging is None else max(3, staging.look_ahead)
        first = np.arange(size) if order is None else order

        def make() -> tuple[Parcel, SupervisorPlan]:
            parcel, imports = pickled(dataset, pickle.Pickler)
            return parcel, SupervisorPlan(
                n_readers=n_readers,
                n_build_ahead=2,
                batch_size=batch_size,
                dataset_size=size,
                index_type=np.dtype(np.intp).char,
                seed=seed,
                is_skipping=is_skipping,
                max_parts_per_reader=None,
                imports=imports,
            )

        indices = [int(i) for i in first[:batch_size]]
        parcel, plan, _ = planned(make, staging, dataset, indices)
        self.pipeline = Pipeline(parcel, plan, created_ns)

    def __next__(self) -> Any:
        """Return the next mini-batch; raise what the dataset raised.

        Raises:
            WaitTimeoutError: It does not come within a minute.
        """
        self._ahead.extend(3, self._n_ahead, may_cross_epoch=True)
        if self._ahead.has_new_orders:
            self.pipeline.announce(self._ahead.known_orders(), {})
            self._ahead.has_new_orders = False
        batch = self.pipeline.take(self._ahead.steps, TIMEOUT_SECONDS)
        self._ahead.take()
        if isinstance(batch, FailedBatch):
            raise batch.error from batch.context
        return batch

    def __exit__(self, *_: object) -> None:
        self.pipeline.close()

    def stats(self) -> Stats:
        """Return the counters of the workers."""
        return self.pipeline.stats()


def engine_of(job: Job, dataset: Any, folder: Path, directory: Path) -> Engine:
    """Return the engine of a training.

    Args:
        job: The training.
        dataset: Its dataset.
        folder: The source.
        directory: Where it stages.
    """
    staging = Staging(directory, **job.staging_options(folder)) if job.is_staging else None
    return Engine(dataset, job.batch_size, n_readers=job.n_readers, staging=staging, seed=1)
