"""Server and worker in one process: the same steps as with one worker, without communication."""

from __future__ import annotations

from overlapiter.errors import TrainingError

from .history import Record
from .hosting import Host
from .job import Job
from .messages import Message
from .outputs import Outputs
from .worker import Worker

#: The rank of the worker, as under MPI.
_RANK = 1
#: How often to look at a validation that the worker waits for.
_LOOK_SECONDS = 0.01


class _Call:
    """The way to a server in the same process: a call."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def exchange(self, message: Message) -> Message:
        """Give a message to the server and return its reply."""
        server = self._host.server
        self._host.receive(message)
        while not server.outbox:  # the validation in another thread is waited for
            self._host.pause(_LOOK_SECONDS)
            self._host.tick()
        ((_, reply),) = server.outbox
        server.outbox.clear()
        return reply


def train_alone(job: Job, outputs: Outputs) -> list[Record]:
    """Train in this process; return the records of the epochs.

    Raises:
        TrainingError: The run could not come to its end.
    """
    with Host(job, outputs, [_RANK]) as host:
        Worker(job, _RANK, job.model(), _Call(host)).run()
        if host.server.failure:
            raise TrainingError(host.server.failure)
        host.finish()
    return outputs.records
