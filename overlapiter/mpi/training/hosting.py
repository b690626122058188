"""The process of the server: the server with all that stands around it."""

from __future__ import annotations

import contextlib
import time

from overlapiter.errors import TrainingError

from .epochs import Record
from .interrupts import Interrupts
from .job import Job
from .messages import Kind, Message
from .model import words_of_bad
from .outputs import Outputs
from .server import Server
from .silence import PATIENCE, AwakeClock
from .validation import SERVER, Evaluator, ValidationThread

#: How long a piece may be validated yet when a run is cut short.
_JOIN_SECONDS = 5.0
#: How often to look at a validation that the one worker waits for.
_LOOK_SECONDS = 0.01


class Host:
    """A server, its validation and its checkpoints; a context manager that ends them.

    Attributes:
        server: The server.
        model: A model to load weights into.
    """

    def __init__(self, job: Job, workers: list[int]) -> None:
        self._job = job
        self._outputs = Outputs(job)
        self._alive_at, self._clock = time.monotonic(), AwakeClock()
        self._validated_at = 0.0
        self._limit_seconds = PATIENCE * job.settings.worker_timeout
        self.model = job.model()
        if not self.model.weights().size:
            raise TrainingError("the model has no parameters; see what build_model() returns")
        if words := words_of_bad(self.model):
            raise TrainingError(f"of the new model {words}")
        self._inline: Evaluator | None = None
        if job.settings.validation == "inline":
            self._inline = Evaluator(job, job.model(), self.alive)
        self.server = Server(job, self.model, workers, self._inline, self._outputs.record)
        self.server.start(self._outputs.begin(self.server))
        self._validation, self._epochs = self.server.validation, self.server.epochs
        self._epoch = self._epochs.current
        self._interrupts = Interrupts()
        self._thread: ValidationThread | None = None
        if job.settings.validation == "thread" and job.plan.val_pieces:
            # Made here: a model is built by random numbers that all threads share.
            evaluator = Evaluator(job, job.model(), self._note_validation)
            self._thread = ValidationThread(self._validation, evaluator, job.trace)

    def _note_validation(self) -> None:
        """Note that the thread of the validation goes on."""
        self._validated_at = self._clock.seconds

    def alive(self) -> None:
        """Note that the main thread goes on; an interrupt that is held back may happen here."""
        self._interrupts.release()
        self._alive_at = time.monotonic()
        self._clock.look(self._alive_at)
        if not self._validation.is_taken(SERVER):
            self._note_validation()
        self._job.listener.alive()

    def is_alive(self) -> bool:
        """Return whether the main thread has gone on lately; a callback, say, may hang."""
        return time.monotonic() < self._alive_at + self._limit_seconds

    def receive(self, message: Message) -> None:
        """Give a message to the server, and write a checkpoint if it is time.

        Raises:
            KeyboardInterrupt: A rank is interrupted, and with it the run.
        """
        if message.kind is Kind.INTERRUPTED:
            self._job.listener.say(f"rank {message.origin} is interrupted")
            raise KeyboardInterrupt
        self.alive()
        with self._interrupts.whole():
            self.server.receive(message)
        has_news = bool(message.n_examples or message.reports)
        self._after(is_report=has_news or message.kind is Kind.VALIDATED)

    def tick(self) -> None:
        """Have the server look around; to be called now and then."""
        self.alive()
        if self._thread is not None and self._thread.error is not None:
            error = self._thread.error
            self.server.fail(f"validation has failed ({type(error).__name__}: {error})")
        if self._clock.seconds > self._validated_at + self._limit_seconds:
            self.server.fail("validation hangs; see whether its files can be read")
            self._thread = None  # which is not waited for
        with self._interrupts.whole():
            self.server.tick()
        self._after()

    def answer(self, message: Message) -> Message:
        """Give the server a message of the one worker, which is here; return the reply. Blocks."""
        self.receive(message)
        while not self.server.outbox:  # the validation in another thread is waited for
            with self._validation.changed:
                self._validation.changed.wait(_LOOK_SECONDS)
            self.tick()
        ((_, reply),) = self.server.replies()
        return reply

    def _after(self, *, is_report: bool = False) -> None:
        if self.server.failure:
            return
        is_new_epoch = self._epochs.current != self._epoch
        self._epoch = self._epochs.current
        if is_new_epoch or (is_report and self._outputs.is_checkpoint_due()):
            with self._interrupts.whole():
                self.checkpoint()

    def checkpoint(self) -> None:
        """Begin to write a checkpoint."""
        self.server.mark(self._outputs.write_checkpoint())

    def finish(self) -> list[Record]:
        """Write what the run leaves behind, and return its records; raise what it has failed by."""
        if self.server.failure:
            raise self.server.failure
        self.checkpoint()
        return self._outputs.finish(self.model)

    def __enter__(self) -> Host:
        self._interrupts.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        with contextlib.ExitStack() as last:
            last.callback(self._interrupts.end)
            last.callback(self._close, is_over=kind is None)
            if kind is KeyboardInterrupt and not self.server.failure:
                self._keep()

    def _keep(self) -> None:
        """Keep what an interrupt leaves; each rank may be interrupted, or this one alone."""
        is_whole = not self._interrupts.is_busy
        with self._interrupts.whole():
            if is_whole:
                self.checkpoint()
            where = "here" if is_whole else "its last checkpoint"
            self._job.listener.say(f"interrupted; the same command goes on from {where}")

    def _close(self, *, is_over: bool) -> None:
        self._validation.close()
        if self._thread is not None:
            self._thread.close(self._limit_seconds if is_over else _JOIN_SECONDS)
        if self._inline is not None:
            self._inline.close()
        self._outputs.close()
