"""Validation beside training: pieces of the validation files, each evaluated by an idle worker.

An epoch that ends leaves a snapshot of the weights here, and training goes on. The sums of a piece
do not depend on who evaluates it, and are added in the order of the pieces: all ways of validating
give the same numbers, bit for bit.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from overlapiter.objective import Vector
from overlapiter.tracing import Tracing

from .job import Job
from .leases import Piece
from .model import Model
from .reading import Pieces, cut


class Evaluator:
    """Evaluates pieces with snapshots, loaded into a model; calls ``alive`` before mini-batches."""

    def __init__(self, job: Job, model: Model, alive: Callable[[], None] = lambda: None) -> None:
        self._job = job
        self._model = model
        self._pieces = Pieces(job, job.plan.val_paths, job.plan.val_pieces)
        self._alive = alive

    def sums(self, snapshot: Vector, piece: int) -> tuple[float, ...]:
        """Return the sums of the measures over the examples of a piece."""
        total = np.zeros(len(self._model.measure_names))
        with self._job.trace.span("validate", "validation", None, piece=piece):
            self._model.load(snapshot)
            arrays = self._pieces.read(piece)
            for _, batch in cut(arrays, 0, self._job.settings.batch):
                self._alive()
                total += np.array(self._model.evaluate(batch)) * len(batch[-1])
        return tuple(total.tolist())

    def close(self) -> None:
        """End the staging, in the thread that has evaluated."""
        self._pieces.close()


class Validation:
    """Which pieces of which snapshots are to be evaluated, and what came out. Safe for threads.

    Attributes:
        snapshots: What is not validated yet, by epoch.
        changed: Notified when a snapshot comes, a piece is done, or :meth:`close` is called.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._n_pieces = len(pieces)
        self._n_examples = sum(map(len, pieces))
        self.snapshots: dict[int, Vector] = {}
        self._waiting: deque[tuple[int, int]] = deque()  # pieces of epochs, in their order
        self._takers: dict[tuple[int, int], int] = {}  # of those that are being evaluated
        self._sums: dict[int, dict[int, Sequence[float]]] = {}
        self._is_closed = False
        self.changed = threading.Condition(threading.RLock())

    def begin(self, epoch: int, snapshot: Vector) -> None:
        """Have a snapshot validated; it must not change any more."""
        with self.changed:
            self.snapshots[epoch] = snapshot
            self._sums[epoch] = {}
            self._waiting += [(epoch, piece) for piece in range(self._n_pieces)]
            self.changed.notify_all()

    def take(self, taker: int) -> tuple[int, int] | None:
        """Return epoch and number of a piece to evaluate; None if none is left."""
        with self.changed:
            if not self._waiting:
                return None
            first = self._waiting.popleft()
            self._takers[first] = taker
            return first

    def is_waiting(self) -> bool:
        """Return whether a piece waits for a taker."""
        return bool(self._waiting)

    def is_taken(self, taker: int) -> bool:
        """Return whether a taker has a piece that is not done."""
        with self.changed:
            return taker in self._takers.values()

    def add(self, epoch: int, piece: int, sums: Sequence[float]) -> None:
        """Note what came of a piece."""
        with self.changed:
            if self._takers.pop((epoch, piece), None) is not None:
                self._sums[epoch][piece] = sums
            self.changed.notify_all()

    def give_back(self, taker: int) -> None:
        """Have the pieces of a worker that is gone evaluated by others."""
        with self.changed:
            left = [key for key, by in self._takers.items() if by == taker]
            for key in left:
                del self._takers[key]
            self._waiting = deque(sorted([*left, *self._waiting]))
            self.changed.notify_all()

    def done(self) -> list[tuple[int, list[float]]]:
        """Return the means of the epochs that are validated, in their order, once."""
        found = []
        with self.changed:
            for epoch in sorted(self.snapshots):
                sums = self._sums[epoch]
                if len(sums) < self._n_pieces:
                    break
                total = np.sum([sums[piece] for piece in sorted(sums)], axis=0)
                found.append((epoch, (total / self._n_examples).tolist()))
                del self.snapshots[epoch], self._sums[epoch]
        return found

    def close(self) -> None:
        """Have nothing more evaluated."""
        with self.changed:
            self._is_closed = True
            self._waiting.clear()
            for each in (self._takers, self.snapshots, self._sums):
                each.clear()
            self.changed.notify_all()

    def evaluate_next(self, evaluator: Evaluator, taker: int, *, is_waiting: bool) -> bool:
        """Evaluate one piece in this thread; return False if there is none.

        With ``is_waiting`` it waits for one, until :meth:`close`.
        """
        with self.changed:
            while (taken := self.take(taker)) is None:
                if self._is_closed or not is_waiting:
                    return False
                self.changed.wait()
            snapshot = self.snapshots[taken[0]]
        self.add(*taken, evaluator.sums(snapshot, taken[1]))
        return True


#: Who takes pieces in the server's process: no rank.
SERVER = -1


class ValidationThread:
    """Evaluates in a thread of the server, which closes the evaluator, too."""

    def __init__(self, validation: Validation, evaluator: Evaluator, trace: Tracing) -> None:
        self._validation = validation
        self._evaluator = evaluator
        self._trace = trace
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="validation", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._trace.name_row("validation")
        try:
            with contextlib.closing(self._evaluator) as evaluator:
                while self._validation.evaluate_next(evaluator, SERVER, is_waiting=True):
                    pass
        except (Exception, SystemExit) as error:  # the server ends the run by it
            self.error = error

    def close(self, limit_seconds: float) -> None:
        """End the thread, after the piece that it evaluates; wait for that as long as this."""
        self._validation.close()
        self._thread.join(limit_seconds)
