"""Measures the four parts of a reader's time in the worker processes of MultiprocessIterator.

They are forked, and have what is replaced in the parent before the first ``next()``: the ``get`` of
their task queue is timed, as the data set is. That costs three readings of the clock per task and
two per example.
"""

from __future__ import annotations

import mmap
import multiprocessing
import multiprocessing.pool
import time
from typing import Any

import numpy as np

from bench.loaders.spec import PARTS

# Columns of the shared table: one row per worker, seconds of the monotonic clock.
_FIRST_WAIT, _DEQUEUE, _FETCH, _WAITING_SINCE = range(4)
_ROW_BYTES = 4 * 8
_plain_worker = multiprocessing.pool.worker


class TimedDataset:
    """A data set, with a table in shared memory into which each pool worker writes its own row.

    Observed are all pools that start from then on in this process, by the last one made.
    """

    def __init__(self, dataset: Any, n_readers: int) -> None:
        self._dataset = dataset
        shared = mmap.mmap(-1, n_readers * _ROW_BYTES)
        self._rows = np.frombuffer(shared, np.float64).reshape(n_readers, 4)
        self._row = np.zeros(4)  # that of the trainer, which reads an example, does not count
        self._next_row = multiprocessing.Value("i", 0)
        multiprocessing.pool.worker = self._work

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> object:
        start = time.monotonic()
        try:
            return self._dataset[index]
        finally:
            self._row[_FETCH] += time.monotonic() - start

    def _work(self, inqueue: Any, *args: object) -> None:
        """Be a worker of a pool, which writes a row of its own."""
        with self._next_row.get_lock():
            row = self._row = self._rows[self._next_row.value]
            self._next_row.value += 1
        get = inqueue.get

        def observed_get() -> object:
            start = time.monotonic()
            row[_FIRST_WAIT] = row[_FIRST_WAIT] or start
            row[_WAITING_SINCE] = start
            try:
                return get()
            finally:
                row[_WAITING_SINCE] = 0
                row[_DEQUEUE] += time.monotonic() - start

        inqueue.get = observed_get
        _plain_worker(inqueue, *args)

    def parts(self, start: float, end: float) -> dict[str, float]:
        """Return the means over all workers, for a run of these seconds of the monotonic clock."""
        rows = self._rows.copy()
        initialize = np.clip(rows[:, _FIRST_WAIT], start, end) - start
        initialize[rows[:, _FIRST_WAIT] == 0] = end - start  # never came so far
        waiting = rows[:, _WAITING_SINCE]
        dequeue = rows[:, _DEQUEUE] + np.where(waiting > 0, np.maximum(end - waiting, 0), 0)
        fetch = rows[:, _FETCH]
        others = (end - start) - initialize - dequeue - fetch
        parts = (initialize, dequeue, fetch, others)
        return {name: float(part.mean()) for name, part in zip(PARTS, parts, strict=True)}
