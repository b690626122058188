"""The server: holds the weights, gives out leases, and says when an epoch and the run are over.

It knows nothing of MPI: messages of the workers come in by :meth:`Server.receive`, and replies go
out by :meth:`Server.replies`. So one process alone runs the same steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from overlapiter.errors import TrainingError
from overlapiter.objective import EMPTY, Vector

from .algorithms import make_server_side, mean_of, take_quorum
from .epochs import Epochs, Record
from .job import Job
from .leases import Lease, LeaseQueue
from .messages import Kind, Message
from .model import Model, digest_of, words_of_bad
from .silence import Attendance
from .validation import SERVER, Evaluator, Validation
from .worker import DesertedError

#: Leases that a worker holds: the one it trains on, and the one that is read meanwhile.
_HELD_LEASES = 2
#: Epochs that wait until a thread has validated them; each holds a copy of the weights.
_MOST_SNAPSHOTS = 2


class Server:
    """What the server does with each message.

    Its model is not trained, and says what parameters are not finite; ``inline``, unless that is
    None, evaluates in this process, while all wait; ``on_record`` is as for :class:`Epochs`.

    Attributes:
        side: Its half of the algorithm, with the weights.
        queue: Which examples are trained on.
        validation: Which snapshots are to be validated.
        epochs: What is known of the epochs.
        outbox: Replies that are due, with the worker that each is for.
        failure: Why the run has failed; None if it has not.
        lost: The workers that are gone, with the reason.
    """

    def __init__(
        self,
        job: Job,
        model: Model,
        workers: list[int],
        inline: Evaluator | None,
        on_record: Callable[[Record], object],
    ) -> None:
        settings = self._settings = job.settings
        self._model = model
        n_workers = settings.masters or job.plan.n_workers
        self.side = make_server_side(settings, n_workers, model.n_state)
        self.side.begin(model.weights())
        self.queue = LeaseQueue(
            job.plan.train_pieces, settings.epochs, settings.seed, shuffle=settings.shuffle
        )
        self.validation = Validation(job.plan.val_pieces)
        self.epochs = Epochs(job, model.measure_names, on_record)
        self._inline = inline
        self._trace = job.trace
        self._say = job.listener.say
        # Sub-servers look after their workers themselves; only their own silence is left.
        timeout_seconds = settings.worker_timeout * (2 if settings.masters else 1)
        self._attendance = Attendance(workers, timeout_seconds)
        self._parked: dict[int, None] = {}  # those that wait for work, the first one first
        self._waiting: dict[int, Message] = {}  # for a quorum
        self._told_to_stop: set[int] = set()
        self._knows_snapshot: dict[int, int] = {}
        self._marks: dict[int, int] = {}
        self._resumes: dict[int, int] = {}
        self.outbox: list[tuple[int, Message]] = []
        self.failure: TrainingError | None = None
        self.lost = self._attendance.lost

    def start(self, number: int) -> None:
        """Start, with workers that kept their own state with the checkpoint of a number, if any."""
        self._resumes = dict.fromkeys(self._attendance.all, number)
        self._end_of_epochs()

    # --- what happens -------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        """Work on a message of a worker."""
        worker = message.origin
        self._attendance.hear(worker)
        if message.kind is Kind.JOIN:
            self._join(message)
        elif message.kind is Kind.FAILED:
            self.fail(f"rank {worker} cannot go on: {message.text}")
            self._send(worker, Message(Kind.STOP))
        elif message.kind is Kind.LOST:
            self._lose(worker, message.text)
        elif worker in self.lost:  # it was given up, and speaks again
            self._begin(worker)
        elif message.kind is Kind.EXCHANGE:
            self._exchange(message)
        else:
            if message.kind is Kind.VALIDATED:
                self.validation.add(message.epoch, message.piece, message.sums)
            self._parked[worker] = None
        self._settle()

    def _lose(self, worker: int, reason: str) -> None:
        """Give up a worker: what it holds goes to the others."""
        if worker in self.lost or worker in self._told_to_stop:
            self.lost.setdefault(worker, reason)
            return
        self.lost[worker] = reason
        leases = self.queue.give_back(worker)
        self.validation.give_back(worker)
        self._waiting.pop(worker, None)
        self._parked.pop(worker, None)
        n_left = len(self._attendance.present)
        if not self.is_over:
            parts = f"{len(leases)} part{'s' * (len(leases) != 1)} of the data"
            self._say(f"rank {worker} is lost ({reason}); {parts} go to the other {n_left} workers")
        if not n_left and not self.is_over:
            words = "; ".join(f"rank {each}: {why}" for each, why in sorted(self.lost.items()))
            self.fail(f"all workers are lost ({words})", DesertedError)
        self._settle()

    def tick(self) -> None:
        """Look for workers that are silent, and for validations that are done."""
        waiting = {*self._parked, *self._waiting, *self._told_to_stop}
        for worker, reason in self._attendance.silent(time.monotonic(), waiting):
            self._lose(worker, reason)
        self._settle()

    def fail(self, reason: str, kind: type[TrainingError] = TrainingError) -> None:
        """End the run with a failure, unless it has one."""
        self.failure = self.failure or kind(reason)
        self.queue.close()
        self.validation.close()

    def mark(self, number: int) -> None:
        """Have each worker keep its own state with its next reply, for a checkpoint."""
        self._marks = dict.fromkeys(self._attendance.present, number)

    def replies(self) -> Iterator[tuple[int, Message]]:
        """Take the replies from the outbox, with the worker that each is for.

        They are to be sent, or copied, before the next call, for their vectors change.
        """
        for worker, message in self.outbox:
            mark = self._marks.pop(worker, 0) if message.kind is Kind.GO else message.checkpoint
            yield worker, message._replace(checkpoint=mark)
        self.outbox.clear()

    # --- how it stands ------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: trained, validated, or failed."""
        return bool(self.failure) or (self.epochs.is_over and not self.validation.snapshots)

    @property
    def is_finished(self) -> bool:
        """Whether all workers know that, too."""
        return self.is_over and not self._attendance.present - self._told_to_stop

    # --- messages -----------------------------------------------------------------------------

    def _join(self, message: Message) -> None:
        worker = message.origin
        n, digest = self.side.weights.size, digest_of(self._model)
        if (message.n_values, message.digest) != (n, digest):
            self.fail(
                f"rank {worker} has built another model than the server: {message.n_values:,} "
                f"parameters instead of {n:,}, or others; build_model() must build the same on "
                f"every rank"
            )
            self._send(worker, Message(Kind.STOP))
            return
        if not self._attendance.joined:
            self.epochs.begin()
        self._attendance.joined.add(worker)
        self._begin(worker)

    def _begin(self, worker: int) -> None:
        """Have a worker begin with the weights as they are."""
        if self.lost.pop(worker, None) is not None and not self.is_over:
            self._say(f"rank {worker} is back")
        self._parked.pop(worker, None)
        self.queue.give_back(worker)
        begin = Message(Kind.BEGIN, vector=self.side.weights, leases=self._grant(worker))
        self._send(worker, begin._replace(checkpoint=self._resumes.pop(worker, 0)))

    def _exchange(self, message: Message) -> None:
        """Apply what a worker or a group has sent; a group that has lost one begins anew."""
        reports = message.reports or (message,)
        for report in reports:
            self._attendance.hear(report.origin)
        if any(report.origin in self.lost for report in reports):
            for report in reports:
                self._begin(report.origin)
        elif self._settings.synchronous:
            self._waiting[message.origin] = message._replace(vector=message.vector.copy())
        else:
            self._apply(message.vector, reports)

    def _apply(self, vector: Vector, reports: Sequence[Message]) -> None:
        """Apply what a worker has sent, or the mean of several, and reply to all of them."""
        with self._trace.span("apply", "training", None, rank=reports[0].origin):
            self.side.optimizer.learning_rate = self.epochs.learning_rate
            reply = self.side.apply(vector)
        for report in reports:
            worker = report.origin
            if report.n_examples:  # it has trained on them
                self.queue.advance(worker, report.epoch, report.piece, report.position)
                self.epochs.note(report)
            self._send(worker, Message(Kind.GO, leases=self._grant(worker), vector=reply))
            if self._settings.masters:  # the sub-server has it for the others
                reply = EMPTY

    def _send(self, worker: int, message: Message) -> None:
        if self.is_over:
            self._told_to_stop.add(worker)
            message = Message(Kind.STOP, text=str(self.failure or ""))
        self.outbox.append((worker, message._replace(origin=worker)))

    # --- work for workers ---------------------------------------------------------------------

    def _grant(self, worker: int) -> tuple[Lease, ...]:
        """Give a worker leases; not a second one if others would have none."""
        if self._may_validate and self.validation.is_waiting():
            return ()  # it is to ask, and gets a piece to validate
        granted = []
        n_others = len(self._attendance.present) - 1
        while (n_held := len(self.queue.held.get(worker, ()))) < _HELD_LEASES:
            is_last = not self.queue.can_spare(n_others, self.epochs.current)
            if n_held and is_last:
                break
            lease = self.queue.take(worker, self.epochs.current)
            if lease is None:
                break
            granted.append(lease)
        return tuple(granted)

    def _offer(self) -> None:
        """Give work to the workers that wait for some; at the end none waits for others."""
        if self.is_over:
            for worker in (*self._waiting, *self._parked):
                self._send(worker, Message(Kind.STOP))
            self._waiting.clear()
            self._parked.clear()
        for worker in [*self._parked]:
            if (message := self._work_for(worker)) is not None:
                del self._parked[worker]
                self._send(worker, message)

    def _work_for(self, worker: int) -> Message | None:
        """Return leases, with the weights as they are now, or a piece to validate, if any."""
        if leases := self._grant(worker):
            return Message(Kind.GO, leases=leases, vector=self.side.weights)
        taken = self.validation.take(worker) if self._may_validate else None
        if taken is None:
            return None
        epoch, piece = taken
        is_known = self._knows_snapshot.get(worker) == epoch
        self._knows_snapshot[worker] = epoch
        snapshot = EMPTY if is_known else self.validation.snapshots[epoch]
        return Message(Kind.VALIDATE, epoch=epoch, piece=piece, vector=snapshot)

    @property
    def _may_validate(self) -> bool:
        if self._settings.validation == "thread":  # workers help it if it does not keep up
            return self.epochs.is_over or len(self.validation.snapshots) > _MOST_SNAPSHOTS
        return self._settings.validation == "workers"

    # --- epochs -------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Draw the conclusions: replies that are due, epochs that are over, work for who waits."""
        if self._waiting:
            held = {worker for worker, leases in self.queue.held.items() if leases}
            n_training = len(held | self._waiting.keys())
            if ready := take_quorum(self._waiting, self._settings.quorum, n_training):
                self._apply(mean_of([each.vector for each in ready]), ready)
        self._end_of_epochs()
        if self._inline is not None:
            while self.validation.evaluate_next(self._inline, SERVER, is_waiting=False):
                pass
        for epoch, means in self.validation.done():
            self.epochs.validated(epoch, means)
        if self.epochs.reason_to_stop:
            self.queue.close()
            self.validation.close()
        self._offer()

    def _end_of_epochs(self) -> None:
        while not self.epochs.is_over and not self.queue.has_open(self.epochs.current):
            epoch = self.epochs.current
            if not np.isfinite(self.side.weights).all():
                self._model.load(self.side.weights)
                words = words_of_bad(self._model) or "persistent values are not finite"
                self.fail(f"after epoch {epoch} {words}")
                return
            self.epochs.trained(self.side.n_updates, len(self._attendance.present))
            if self.epochs.is_validating:
                self.validation.begin(epoch, self.side.weights.copy())
