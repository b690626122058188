"""One rank of an MPI job: rank 0 is the server, the others are workers."""

from __future__ import annotations

import time
from typing import Any, Protocol

from overlapiter.errors import OverlapError, TrainingError
from overlapiter.tracing import Tracing

from .history import Record
from .hosting import Host
from .job import Job, NoListener
from .messages import Kind, Message
from .outputs import Outputs
from .plan import Plan
from .post import Mail, Post, ServerConnection
from .run import begin_tracing
from .settings import Settings
from .worker import StoppedError

#: How often the server looks around when no message comes, or besides.
_LOOK_SECONDS = 0.02
#: Round trips by which the clocks of two ranks are compared.
_N_PINGS = 8
_CLOCK_TAG = 18


class Preparation(Protocol):
    """What :func:`.run.train` makes of its arguments."""

    settings: Settings

    @property
    def command(self) -> str:
        """What repeats the run."""

    def plan(self, n_workers: int) -> Plan:
        """Look at the files."""

    def job(self, plan: Plan, trace: Tracing) -> Job:
        """Return what server and workers are made of."""


def train_as_rank(
    comm: Any, preparation: Preparation, listener: NoListener, *, restart: bool
) -> list[Record] | None:
    """Train as one rank of a communicator; see :func:`.run.train`."""
    comm = comm.Dup()  # so that no message of the caller's is taken for ours
    is_server = comm.rank == 0
    plan, failure = None, ""
    if is_server:
        try:
            plan = preparation.plan(comm.size - 1)
        except OverlapError as error:
            failure = str(error)
            comm.bcast((None, failure))
            raise
    if not is_server:
        plan, failure = comm.bcast(None)
        if plan is None:
            raise TrainingError(failure)
    else:
        comm.bcast((plan, ""))
    assert plan is not None
    offset_ns = _clock_offset_ns(comm) if preparation.settings.trace else 0
    name = "server" if is_server else "worker"
    with begin_tracing(preparation.settings, name, comm.rank, offset_ns) as trace:
        if is_server:
            return _serve(comm, preparation, plan, listener, trace, restart=restart)
        _work(comm, preparation, plan, trace)
        return None


def _clock_offset_ns(comm: Any) -> int:
    """Return what to add to the clock of this rank to get that of rank 0. Collective.

    The shortest of some round trips counts, in the middle of which rank 0 has read its clock.
    """
    best = (1 << 62, 0)
    for rank in range(1, comm.size):
        for _ in range(_N_PINGS):
            if comm.rank == rank:
                began = time.time_ns()
                theirs = comm.sendrecv(0, 0, _CLOCK_TAG, source=0, recvtag=_CLOCK_TAG)
                ended = time.time_ns()
                best = min(best, (ended - began, theirs - (began + ended) // 2))
            elif comm.rank == 0:
                comm.recv(source=rank, tag=_CLOCK_TAG)
                comm.send(time.time_ns(), rank, _CLOCK_TAG)
    return best[1]


# --- the server -------------------------------------------------------------------------------


def _serve(
    comm: Any,
    preparation: Preparation,
    plan: Plan,
    listener: NoListener,
    trace: Tracing,
    *,
    restart: bool,
) -> list[Record]:
    workers = list(range(1, comm.size))
    try:
        job = preparation.job(plan, trace)
        outputs = Outputs(job, preparation.command, listener, restart=restart)
        host = Host(job, outputs, workers)
    except Exception as error:
        _turn_away(comm, workers, str(error))
        raise
    with host:
        _run_server(comm, host, workers)
        if host.server.failure:
            raise TrainingError(host.server.failure)
        host.finish()
    return outputs.records


def _run_server(comm: Any, host: Host, workers: list[int]) -> None:
    """Serve until all workers know that the run is over."""
    server = host.server
    n_measures = len(host.model.measure_names)
    post = Post(comm, workers, n_measures, server.weights.size)
    mail = Mail(post)
    looked_at = time.monotonic()
    try:
        while not server.is_finished:
            arrival = mail.next(_LOOK_SECONDS)
            if arrival is not None and arrival.message is not None:
                host.receive(arrival.message)
                post.release(arrival)
            elif arrival is not None:
                host.lose(arrival.rank, arrival.reason)
            if arrival is None or time.monotonic() > looked_at + _LOOK_SECONDS:
                host.tick()
                looked_at = time.monotonic()
            for worker, message in server.outbox:
                post.send(worker, message)
            server.outbox.clear()
    except BaseException as error:
        for worker in workers:
            post.send(worker, Message(Kind.STOP, text=f"the server has failed: {error!r}"))
        raise
    finally:
        mail.close()
        post.close(server.lost)


def _turn_away(comm: Any, workers: list[int], reason: str) -> None:
    """Tell workers that the run does not begin."""
    post = Post(comm, workers, 0, 0)
    for worker in workers:
        post.send(worker, Message(Kind.STOP, text=reason or "the server has failed"))
    post.close()


# --- a worker ---------------------------------------------------------------------------------


def _work(comm: Any, preparation: Preparation, plan: Plan, trace: Tracing) -> None:
    try:
        job = preparation.job(plan, trace)
        model = job.model()
    except Exception as error:
        connection = ServerConnection(comm, 0, 0, 0)
        _fail(connection, comm.rank, error)
        raise
    n_measures = len(model.measure_names)
    connection = ServerConnection(comm, 0, n_measures, model.weights().size)
    try:
        job.worker(comm.rank, model, connection).run()
    except StoppedError:
        raise
    except Exception as error:
        _fail(connection, comm.rank, error)
        raise
    finally:
        connection.close()


def _fail(connection: ServerConnection, rank: int, error: Exception) -> None:
    """Tell the server why this worker cannot go on."""
    text = str(error) if isinstance(error, OverlapError) else f"{type(error).__name__}: {error}"
    connection.exchange(Message(Kind.FAILED, origin=rank, text=text))
