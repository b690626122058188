"""The training loop of a worker: trains on its leases, exchanges vectors, validates when asked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from overlapiter.errors import OverlapError, TrainingError
from overlapiter.objective import Vector

from .algorithms import make_worker_side
from .checkpoint import WorkerStates
from .job import Job
from .leases import Lease
from .messages import Kind, Message
from .model import Model, digest_of, words_of_bad
from .monitor import memory_bytes
from .reading import Reader, cut
from .validation import Evaluator


class StoppedError(TrainingError):
    """The server ends the run; the text says why if that is a failure."""


class DesertedError(TrainingError):
    """All workers are lost."""


class RefusedError(StoppedError):
    """The run does not begin, since a setting or a file cannot work."""


class ServerLostError(StoppedError):
    """The server is dead, or does not answer; this rank is one that knows it.

    Attributes:
        rank: Of the server, or of the sub-server.
    """

    def __init__(self, rank: int, reason: str) -> None:
        who, what = "server", "the same command goes on from its last checkpoint"
        if rank:
            who, what = "sub-server", "the other groups go on"
        super().__init__(f"the {who}, rank {rank}, is lost ({reason}); {what}")
        self.rank = rank


def stopped_by(message: Message) -> StoppedError:
    """Return what is raised on a message that ends the run."""
    return (RefusedError if message.is_refused else StoppedError)(message.text)


def reason_of(error: BaseException) -> str:
    """Return why a rank cannot go on."""
    return str(error) if isinstance(error, OverlapError) else f"{type(error).__name__}: {error}"


class _BegunError(Exception):
    """The server has given this worker up before, and has it begin anew."""


class Worker:
    """Trains until the server ends the run, with a model of its own, and validates with it.

    ``ask_server`` sends the server a message and returns the reply, whose vector lives until the
    next call.
    """

    def __init__(
        self, job: Job, rank: int, model: Model, ask_server: Callable[[Message], Message]
    ) -> None:
        settings = self._settings = job.settings
        self._rank = rank
        self._model = model
        self._side = make_worker_side(settings, job.plan.n_workers, model.n_state)
        self._ask_server = ask_server
        self._job = job
        self._evaluator = Evaluator(job, model)
        self._states: WorkerStates | None = None
        if settings.has_local_steps:
            self._states = WorkerStates(settings.out, rank)
        self._mark = 0
        self._trace = job.trace
        self._reader = Reader(job)
        self._snapshot: Vector | None = None
        self._sums = np.zeros(len(model.measure_names))
        self._n_examples = 0
        self._cpu_ns = time.process_time_ns()  # which this process has spent before

    def run(self) -> None:
        """Train until the server ends the run.

        Raises:
            StoppedError: The run has failed elsewhere.
            TrainingError: It cannot go on here.
        """
        weights = self._model.weights()
        join = Message(Kind.JOIN, n_values=weights.size, digest=digest_of(self._model))
        try:
            self._again(lambda: self._exchange(join))
            while True:
                if leases := self._reader.leases:
                    with self._trace.span("train", "training", None, epoch=leases[0].epoch):
                        self._again(self._train)
                else:
                    self._again(self._ask)
        except StoppedError as stopped:
            if str(stopped):
                raise
        finally:
            self._reader.close()
            self._evaluator.close()

    def _again(self, work: Callable[[], object]) -> None:
        try:
            work()
        except _BegunError:
            self._sums[:] = self._n_examples = 0

    # --- work ---------------------------------------------------------------------------------

    def _train(self) -> None:
        """Train on what is left of the first lease."""
        lease = self._reader.leases[0]
        with self._trace.span("wait for data", "training", None, piece=lease.piece):
            arrays = self._reader.next()
        self._side.optimizer.learning_rate = self._settings.rate_in(lease.epoch)
        gradient = np.empty_like(self._side.weights)
        for end, batch in cut(arrays, lease.position, self._settings.batch):
            self._compute(lease, end, batch, gradient)
            message = self._side.step(gradient)
            if message is None and end == len(arrays[-1]):
                message = self._side.flush()
            if message is not None:
                self._report(lease, end, message)

    def _compute(self, lease: Lease, end: int, batch: Sequence[Any], gradient: Vector) -> None:
        """Compute a gradient, and count its examples."""
        self._model.load(self._side.weights)
        seed = hash((self._settings.seed, lease.epoch, lease.piece, end))
        with self._trace.span("compute", "training", None, epoch=lease.epoch, piece=lease.piece):
            measures = self._model.gradient(tuple(batch), gradient, seed)
        if not math.isfinite(measures[0]):
            words = words_of_bad(self._model) or "the parameters are finite"
            raise TrainingError(
                f"the loss of a mini-batch is {measures[0]} ({words}); "
                f"look at the data and the initial weights, or lower --learning-rate"
            )
        self._sums += np.array(measures) * len(batch[-1])
        self._n_examples += len(batch[-1])

    def _report(self, lease: Lease, position: int, vector: Vector | None) -> None:
        """Exchange what the algorithm has, and report what was trained on since the last time."""
        report = Message(
            Kind.EXCHANGE,
            epoch=lease.epoch,
            piece=lease.piece,
            position=position,
            n_examples=self._n_examples,
            sums=tuple(self._sums.tolist()),
        )
        while vector is not None:
            # The report goes with the one that is to be applied; an empty one only asks.
            message = report if vector.size else Message(Kind.EXCHANGE)
            vector = self._side.receive(self._exchange(message._replace(vector=vector)).vector)
        self._sums[:] = self._n_examples = 0
        if self._mark and self._states is not None:
            self._keep_state(self._states)
        self._mark = 0

    def _keep_state(self, states: WorkerStates) -> None:
        """Keep the state that belongs to a checkpoint; without it the server's weights will do."""
        try:
            states.write(self._mark, self._side.state())
        except OSError as error:
            self._states = None
            self._job.listener.say(f"its own state is not kept beside checkpoints ({error})")

    def _ask(self) -> None:
        """Ask for work, and wait until there is some."""
        reply = self._exchange(Message(Kind.ASK))
        while reply.kind is Kind.VALIDATE:
            if reply.vector.size:
                self._snapshot = reply.vector.copy()
            assert self._snapshot is not None
            epoch, piece = reply.epoch, reply.piece
            sums = self._evaluator.sums(self._snapshot, piece)
            reply = self._exchange(Message(Kind.VALIDATED, epoch=epoch, piece=piece, sums=sums))
        if reply.vector.size:
            self._side.refresh(reply.vector)

    # --- messages -----------------------------------------------------------------------------

    def _exchange(self, message: Message) -> Message:
        """Send a message, and take from the reply what is not the algorithm's."""
        cpu_ms = (time.process_time_ns() - self._cpu_ns) // 10**6
        message = message._replace(origin=self._rank, memory_bytes=memory_bytes(), cpu_ms=cpu_ms)
        reply = self._ask_server(message)
        if reply.kind is Kind.STOP:
            raise stopped_by(reply)
        if reply.kind is Kind.BEGIN:
            self._begin(reply)
            raise _BegunError
        self._mark = reply.checkpoint or self._mark
        self._reader.ask(reply.leases)
        return reply

    def _begin(self, reply: Message) -> None:
        """Begin with the server's weights, whatever was before."""
        self._side.begin(reply.vector)
        if reply.checkpoint and self._states is not None:
            state = self._states.read(reply.checkpoint)
            if state is not None:
                self._side.load_state(state)
        self._reader.close()  # what it was to read others have by now
        self._reader = Reader(self._job)
        self._reader.ask(reply.leases)
