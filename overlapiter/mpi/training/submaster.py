"""A sub-server: makes one message to the server of those of a group of workers.

The server then has as many messages as there are groups. A group is synchronous: the sub-server
waits for those of its workers that are training, and passes on the mean of their gradients, with
the report of each. Everything else passes through it unchanged, leases too, so that the one queue
of the server serves all groups and no file is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from overlapiter.objective import EMPTY, Vector

from .algorithms import mean_of
from .ending import die_if_tolerant
from .job import Job
from .messages import Kind, Message, buffer_bytes
from .post import Mail, Post
from .silence import Attendance, Watch
from .worker import ServerLostError, reason_of, stopped_by

_LOOK_SECONDS = 0.02


class SubServer:
    """One sub-server; its group are the ranks of its workers."""

    def __init__(self, comm: Any, group: list[int], job: Job) -> None:
        self._rank = comm.rank
        self._group = group
        self._trace = job.trace
        timeout_seconds = job.settings.worker_timeout
        model = job.model()
        n_bytes = buffer_bytes(model, len(group))
        post = Post(comm, [0, *group], n_bytes, Watch(timeout_seconds))
        self._mail = Mail(post)
        self._centre: Vector = np.zeros_like(model.weights())
        # Other groups may take the work of the last worker of this one; who has started the server
        # knows.
        self._attendance = Attendance(group, timeout_seconds, least_seconds=0)
        self._lost = self._attendance.lost
        self._training: set[int] = set()
        self._waiting: dict[int, tuple[Vector, Message]] = {}
        self._awaiting: set[int] = set()  # the server's reply to the message of the group
        self._stopped: set[int] = set()
        self._last: Message | None = None

    def run(self) -> None:
        """Pass messages on until all workers of the group are told to stop, lost ones too.

        Raises:
            StoppedError: The run has failed, or the server is dead.
        """
        try:
            while {*self._group} - self._stopped:
                arrival = self._mail.next(_LOOK_SECONDS)
                if arrival is None:
                    self._look_for_silent()
                else:
                    if arrival.message.kind is Kind.LOST:
                        self._lose(arrival.rank, arrival.message.text)
                    elif arrival.rank:
                        self._from_worker(arrival.message)
                    else:
                        self._from_server(arrival.message)
                    self._mail.release(arrival)
                if self._waiting and not self._training:
                    self._pass_on_mean()
        except BaseException as error:
            end_group(self._mail, self._rank, {*self._group} - self._stopped, error)
            raise
        finally:
            self._mail.close(self._lost)
        if self._last is not None and self._last.text:
            raise stopped_by(self._last)

    def _from_worker(self, message: Message) -> None:
        worker = message.origin
        self._attendance.hear(worker)
        self._training.discard(worker)
        is_back = self._lost.pop(worker, None) is not None
        if is_back and message.kind not in (Kind.FAILED, Kind.INTERRUPTED):
            self._mail.send(0, Message(Kind.ASK, origin=worker))  # the server has it begin anew
        elif message.kind is Kind.EXCHANGE:
            self._waiting[worker] = message.vector.copy(), message._replace(vector=EMPTY)
        else:
            self._mail.send(0, message)

    def _from_server(self, message: Message) -> None:
        worker = message.origin
        if message.kind is Kind.GO and worker in self._awaiting:
            if message.vector.size:
                self._centre[:] = message.vector
            message = message._replace(vector=self._centre)
        self._awaiting.discard(worker)
        if message.kind in (Kind.BEGIN, Kind.GO) and worker not in self._lost:
            self._training.add(worker)
        elif message.kind is Kind.STOP:
            self._stopped.add(worker)
            self._last = message
        self._mail.send(worker, message)

    def _pass_on_mean(self) -> None:
        vectors, reports = zip(*(each for _, each in sorted(self._waiting.items())), strict=True)
        message = Message(Kind.EXCHANGE, self._rank, reports=reports, vector=mean_of([*vectors]))
        with self._trace.span("send", "mpi", None, workers=len(reports)):
            self._mail.send(0, message)
        self._awaiting |= self._waiting.keys()
        self._waiting.clear()

    def _look_for_silent(self) -> None:
        waiting = {*self._group} - self._training
        for worker, reason in self._attendance.silent(time.monotonic(), waiting):
            self._lose(worker, reason)

    def _lose(self, rank: int, reason: str) -> None:
        if not rank:
            raise ServerLostError(rank, reason)
        self._lost[rank] = reason
        self._training.discard(rank)
        self._waiting.pop(rank, None)
        self._mail.send(0, Message(Kind.LOST, origin=rank, text=reason))


def end_group(mail: Mail | Post, rank: int, workers: Iterable[int], error: BaseException) -> None:
    """Tell the server and the workers of a group why their sub-server cannot go on."""
    reason = f"its sub-server, rank {rank}, cannot go on: {reason_of(error)}"
    if isinstance(error, KeyboardInterrupt):
        reason = f"its sub-server, rank {rank}, was interrupted"
        die_if_tolerant()
        mail.send(0, Message(Kind.INTERRUPTED, origin=rank))
    elif isinstance(error, ServerLostError):
        reason = str(error)
    for worker in workers:  # for each in its place, which then waits for nothing more
        if not isinstance(error, (KeyboardInterrupt, ServerLostError)):
            mail.send(0, Message(Kind.FAILED, worker, text=reason))
        mail.send(worker, Message(Kind.STOP, worker, text=reason))
