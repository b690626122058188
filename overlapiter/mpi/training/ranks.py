"""One rank of an MPI job: rank 0 is the server, then come sub-servers if any, then workers."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mpi4py import MPI

from overlapiter.errors import OptionError

from .ending import Process, abort_start, expect_end, is_command, is_world, start_together
from .epochs import Record
from .job import Job, Preparation, begin_tracing
from .meeting import send_later
from .messages import Kind, Message, buffer_bytes
from .plan import Plan, groups_of
from .post import Mail, Post, ServerConnection, mpi_reason
from .silence import PATIENCE, Watch
from .site import Site, end_server, signs_of_server
from .submaster import SubServer, end_group
from .worker import RefusedError, ServerLostError, StoppedError, Worker

#: Between two looks for a message.
_PAUSE_SECONDS = 20e-6
_PLAN_TAG = 15


def train_as_rank(comm: Any, preparation: Preparation) -> list[Record] | None:
    """Train as one rank of a communicator; see :func:`.run.train`."""
    timeout_seconds = preparation.settings.worker_timeout
    if is_command():  # rank by rank first: Dup waits for all for ever
        processes = start_together(comm, timeout_seconds)
        own = comm.Dup()
    else:  # no message of the caller's is taken for ours
        own = comm.Dup()
        processes = start_together(own, timeout_seconds)
    sign = None
    try:
        return _train(own, processes, preparation)
    except ServerLostError as error:
        if is_world(comm):
            end_server(own, error.rank, processes[error.rank])
        if error.rank:  # the other groups go on
            timeout_seconds, sign = timeout_seconds * PATIENCE / 2, signs_of_server(own)
        raise
    finally:
        expect_end(timeout_seconds, sign)


def _train(
    comm: Any, processes: Mapping[int, Process], preparation: Preparation
) -> list[Record] | None:
    settings = preparation.settings
    plan = _shared_plan(comm, preparation)
    groups = groups_of(comm.size, settings.masters)
    group = groups.get(comm.rank)
    name = "sub-server" if group else "worker" if comm.rank else "server"
    with begin_tracing(settings, name, comm.rank) as trace:
        make_job = functools.partial(preparation.job, plan, trace)
        if not comm.rank:
            return Site(comm, groups, processes).serve(make_job)
        if group:
            _serve_group(comm, group, make_job)
        else:
            server = next((master for master, group in groups.items() if comm.rank in group), 0)
            _work(comm, server, make_job, settings.worker_timeout)
    return None


def _shared_plan(comm: Any, preparation: Preparation) -> Plan:
    """Return the plan that rank 0 makes. Each rank waits for rank 0 alone, and rank 0 for none.

    Raises:
        OptionError: On rank 0: a file, or the number of ranks, cannot work.
        TrainingError: A file cannot be read; or rank 0 has failed, or is dead.
    """
    if comm.rank:
        try:  # looking at many files takes a while, in which the server may die or hang
            connection = ServerConnection(comm, 0, preparation.settings.worker_timeout)
            # No ASK: if it came late, the server of the run would take it for one of its own.
            connection.exchange(Message(Kind.PING, comm.rank))
            connection.close()
            told = _receive_plan(comm, preparation.settings.worker_timeout)
        except KeyboardInterrupt:
            if is_world(comm):
                abort_start()
            raise
        except MPI.Exception as error:
            raise ServerLostError(0, mpi_reason(error)) from error
        if isinstance(told, StoppedError):
            raise told
        return told
    told = StoppedError("the server was interrupted")
    try:
        n_masters = preparation.settings.masters
        n_workers = comm.size - 1 - n_masters
        with _answering(comm):
            if n_masters and n_workers < n_masters:
                words = f"{n_masters} of {comm.size} ranks; each needs a worker: start more"
                raise OptionError("masters", words)
            told = plan = preparation.plan(n_workers)
    except Exception as error:
        told = (RefusedError if isinstance(error, OptionError) else StoppedError)(str(error))
        raise
    finally:
        for rank in range(1, comm.size):
            send_later(comm, told, rank, _PLAN_TAG)
    return plan


@contextlib.contextmanager
def _answering(comm: Any) -> Iterator[None]:
    """Answer the pings of the others, which wait for the end of the block."""
    others = range(1, comm.size)
    mail = Mail(Post(comm, others))
    try:
        yield
    finally:
        for rank in others:
            mail.send(rank, Message(Kind.GO, rank))
        mail.close()


def _receive_plan(comm: Any, timeout_seconds: float) -> Plan | StoppedError:
    """Return what rank 0 has sent. A large message needs it a while longer, and it may hang then.

    Raises:
        ServerLostError: It is silent for too long.
    """
    watch, request = Watch(timeout_seconds), None
    while not watch.reason:
        if request is None and (message := comm.improbe(source=0, tag=_PLAN_TAG)):
            request = message.irecv()
        if request is not None:
            is_here, told = request.test()
            if is_here:
                return told  # type: ignore[no-any-return]  # as it was sent
        watch.look(time.monotonic())
        time.sleep(_PAUSE_SECONDS)
    raise ServerLostError(0, watch.reason)


def _serve_group(comm: Any, group: list[int], make_job: Callable[[], Job]) -> None:
    try:
        server = SubServer(comm, group, make_job())
    except BaseException as error:
        post = Post(comm, [])
        end_group(post, comm.rank, group, error)
        post.close()
        raise
    server.run()


def _work(comm: Any, server: int, make_job: Callable[[], Job], timeout_seconds: float) -> None:
    connection = None
    try:
        job = make_job()
        model = job.model()
        connection = ServerConnection(comm, server, timeout_seconds, buffer_bytes(model), job.trace)
        Worker(job, comm.rank, model, connection.exchange).run()
    except StoppedError:
        raise
    except BaseException as error:
        connection = connection or ServerConnection(comm, server, timeout_seconds)
        connection.fail(comm.rank, error)
        raise
    finally:
        if connection is not None:
            connection.close()
