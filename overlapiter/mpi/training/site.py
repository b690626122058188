"""Rank 0 of an MPI job: the server among the other ranks, and what becomes of silent ones."""

from __future__ import annotations

import atexit
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from overlapiter.errors import OptionError
from overlapiter.node import this_host
from overlapiter.tracing import Tracing

from .ending import Process, is_tolerant, is_world, own, signal_process
from .epochs import Record
from .hosting import Host
from .job import Job
from .meeting import has_come, send_later
from .messages import Kind, Message, buffer_bytes
from .post import Mail, Post
from .server import Server

#: How often the server looks around when no message comes, or besides.
_LOOK_SECONDS = 0.02
#: How long a stopped process may take to come back, once it is continued.
_HOPE_SECONDS = 5.0
_LIFE_TAG = 22
#: How often workers without a sub-server are told that the others go on.
_LIFE_SECONDS = 1.0


class Site:
    """The server and the ranks of its run; ``groups`` has the workers of each sub-server."""

    def __init__(
        self, comm: Any, groups: dict[int, list[int]], processes: Mapping[int, Process]
    ) -> None:
        self._comm = comm
        self._groups = groups
        self._ways = {worker: master for master, group in groups.items() for worker in group}
        self._workers = [rank for rank in range(1, comm.size) if rank not in groups]
        self._processes = processes
        self._hope_until = self._reassured_at = 0.0

    def serve(self, make_job: Callable[[], Job]) -> list[Record]:
        """Serve until the run is over; see :func:`.run.train`."""
        try:
            job = make_job()
            host = Host(job, self._workers)
        except Exception as error:
            self._turn_away(error)
            raise
        with host:
            self._run(host, job.trace)
            return host.finish()

    def _run(self, host: Host, trace: Tracing) -> None:
        """Serve until all workers know that the run is over."""
        server = host.server
        peers = [*self._groups] or self._workers
        n_bytes = buffer_bytes(host.model, max(map(len, self._groups.values()), default=0))
        mail = Mail(Post(self._comm, peers, n_bytes, is_alive=host.is_alive))
        looked_at = time.monotonic()
        try:
            while not server.is_finished or self._has_hope(server):
                arrival = mail.next(_LOOK_SECONDS)
                if arrival is not None:
                    message = arrival.message
                    group = self._groups.get(message.origin) if message.kind is Kind.LOST else None
                    for worker in group or [message.origin]:  # all of a lost sub-server's
                        host.receive(message._replace(origin=worker))
                    mail.release(arrival)
                if arrival is None or time.monotonic() > looked_at + _LOOK_SECONDS:
                    host.tick()
                    self._reassure(server)
                    looked_at = time.monotonic()
                for worker, message in server.replies():
                    with trace.span("send", "mpi", None, to=worker):
                        self._send(mail, worker, message)
            self._stop(mail, server.lost, text=str(server.failure or ""))  # one may come back yet
        except BaseException as error:
            self._stop(mail, self._workers, text=f"the server has failed: {error!r}")
            raise
        finally:
            mail.close(server.lost)
            self._end_silent(server)

    def _send(self, mail: Mail | Post, worker: int, message: Message) -> None:
        mail.send(self._ways.get(worker, worker), message)

    def _stop(self, mail: Mail | Post, workers: Iterable[int], **facts: Any) -> None:
        """Tell workers that the run is over; a sub-server waits for that of each of its group."""
        for worker in workers:
            self._send(mail, worker, Message(Kind.STOP, worker, **facts))

    def _turn_away(self, error: Exception) -> None:
        """Tell all workers that the run does not begin."""
        post = Post(self._comm, [])
        text, is_refused = str(error) or "the server has failed", isinstance(error, OptionError)
        self._stop(post, self._workers, text=text, is_refused=is_refused)
        post.close()

    # --- lost ranks ---------------------------------------------------------------------------

    def _silent(self, server: Server) -> list[int]:
        """Return the workers that were given up and, as far as is known, live.

        Where it is a whole group, its sub-server may be the one that is silent.
        """
        silent = [rank for rank, why in server.lost.items() if why.startswith("silent")]
        groups = self._groups.items()
        return silent + [master for master, group in groups if {*group} <= {*silent}]

    def _reassure(self, server: Server) -> None:
        """Tell groups that are lost, now and then, that the others go on; they wait for the end."""
        if time.monotonic() < self._reassured_at + _LIFE_SECONDS:
            return
        self._reassured_at = time.monotonic()
        for group in self._groups.values():
            for rank in group if {*group} <= server.lost.keys() else ():
                send_later(self._comm, None, rank, _LIFE_TAG)

    def _has_hope(self, server: Server) -> bool:
        """Return whether to wait for silent ranks at the end: they are continued, for a while."""
        silent = self._silent(server)
        if not silent:
            return False
        if not self._hope_until:
            self._hope_until = time.monotonic() + _HOPE_SECONDS
            self._signal(silent, signal.SIGCONT)
        return time.monotonic() < self._hope_until

    def _signal(self, ranks: list[int], number: signal.Signals) -> None:
        for rank in ranks:
            signal_process(self._processes[rank], number)

    def _end_silent(self, server: Server) -> None:
        """End the ranks that do not answer: MPI's end, and so the launcher, would wait for them.

        With fault tolerance they are killed, those of this node; else the whole job is ended when
        this process has done the rest, with its exit status.
        """
        silent = self._silent(server)
        if not silent:
            return
        if is_tolerant():
            self._signal(silent, signal.SIGKILL)
        elif own.say is not None and is_world(self._comm):  # it ends with another status, maybe
            own.silent = silent
        elif is_world(self._comm):
            status = 1 if server.failure or sys.exc_info()[0] is not None else 0
            atexit.register(lambda: self._comm.Abort(status))


def signs_of_server(comm: Any) -> Callable[[], int]:
    """Return what counts the messages of `Site` to this worker."""
    seen: list[None] = []

    def count() -> int:
        while has_come(comm, 0, _LIFE_TAG):
            seen.append(comm.recv(source=0, tag=_LIFE_TAG))
        return len(seen)

    return count


def end_server(comm: Any, server: int, process: Process) -> None:
    """End a server that does not answer: MPI's end, and so the launcher, would wait for it.

    With fault tolerance it is killed, if this is its node; else the whole job is ended when this
    process ends. A sub-server is left to rank 0.
    """
    if is_tolerant() and process[0] == this_host().key:
        signal_process(process, signal.SIGKILL)
    elif not server:
        atexit.register(lambda: comm.Abort(1))
