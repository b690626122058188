"""Messages between ranks: one flat buffer each, receives posted ahead, peers that may die.

A rank that waits sleeps between looks instead of spinning: there may be more ranks than cores. What
a dead peer leaves open shows as an error where MPI was started with fault tolerance
(``mpiexec --with-ft ulfm``); else its launcher ends the job. Neither notices a process that is
stopped, or a node that hangs: so a rank that waits for its server pings it now and then.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from overlapiter.tracing import OFF, Tracing

from .ending import die_if_tolerant
from .messages import Buffer, Kind, Message, buffer_bytes, pack, unpack
from .silence import Watch
from .worker import ServerLostError, reason_of

_TAG = 17
#: Pauses between looks: from the first, doubling, up to the second.
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 20e-6, 400e-6
#: How long the last messages may take to leave.
_FLUSH_SECONDS = 10.0


class Arrival(NamedTuple):
    """What has come from a peer; LOST if it is taken for dead."""

    rank: int
    message: Message  # its vector lives until Post.release
    buffer: Buffer


class Post:
    """Messages from and to some ranks. One thread looks; another one may send and release.

    Args:
        comm: The communicator; errors are returned by it from now on.
        peers: The ranks to hear.
        n_bytes: Of the largest message.
        watch: How long the first peer may be silent, who is the server; None not to mind.
        is_alive: Whether pings are answered at this moment.
    """

    def __init__(
        self,
        comm: Any,
        peers: Sequence[int],
        n_bytes: int = buffer_bytes(),
        watch: Watch | None = None,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._comm = comm
        self._is_alive = is_alive
        self._server = peers[0] if watch else None
        self._watch = watch
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._n_bytes = n_bytes
        self._lock = threading.Lock()
        self._free: list[Buffer] = []
        self._receiving: dict[int, tuple[Any, Buffer]] = {}
        self._sending: list[tuple[int, Any, Buffer]] = []
        self._dead: dict[int, str] = {}
        for peer in peers:
            self._listen(peer)

    def _buffer(self) -> Buffer:
        return self._free.pop() if self._free else np.empty(self._n_bytes, np.uint8)

    def _listen(self, peer: int) -> None:
        buffer = self._buffer()
        self._receiving[peer] = self._comm.Irecv([buffer, MPI.BYTE], peer, _TAG), buffer

    def send(self, peer: int, message: Message) -> None:
        """Send a message; its arrays may change when this returns. Blocks for no peer."""
        if peer in self._dead:
            return
        with self._lock:
            buffer = self._buffer()
            try:
                request = self._comm.Isend([pack(message, buffer), MPI.BYTE], peer, _TAG)
            except MPI.Exception as error:
                self._dead.setdefault(peer, mpi_reason(error))
            else:
                self._sending.append((peer, request, buffer))

    def look(self) -> list[Arrival]:
        """Return what has come; answer pings, if this rank is alive. If nothing has come, sleep.

        The pause is the longer, the longer nothing comes.
        """
        self._look_after_server()
        arrivals = []
        for arrival in self._look_at_receiving():
            kind = arrival.message.kind
            if arrival.rank == self._server and self._watch is not None:
                self._watch.hear()
            if kind is Kind.PING and self._is_alive():
                self.send(arrival.rank, Message(Kind.ALIVE))
            if kind in (Kind.PING, Kind.ALIVE):
                self.release(arrival)
            else:
                arrivals.append(arrival)
        if arrivals:
            self._pause_seconds = _FIRST_PAUSE_SECONDS
        else:
            time.sleep(self._pause_seconds)
            self._pause_seconds = min(2 * self._pause_seconds, _LAST_PAUSE_SECONDS)
        return arrivals

    def _look_after_server(self) -> None:
        """Ping the server if it is silent; take it for dead if that lasts."""
        if self._watch is None or self._server is None:
            return
        is_asking = self._watch.look(time.monotonic())
        if self._watch.reason:
            self._dead.setdefault(self._server, self._watch.reason)
        elif is_asking:
            self.send(self._server, Message(Kind.PING))

    def _look_at_receiving(self) -> list[Arrival]:
        arrivals = []
        status = MPI.Status()
        with self._lock:
            self._look_at_sending()
            for peer, (request, buffer) in [*self._receiving.items()]:
                try:
                    has_come = peer not in self._dead and request.Test(status)
                except MPI.Exception as error:
                    self._dead[peer] = mpi_reason(error)
                if peer in self._dead:
                    del self._receiving[peer]
                    with contextlib.suppress(MPI.Exception):
                        request.Cancel()  # what lives yet must not write to the buffer
                    lost = Message(Kind.LOST, peer, text=self._dead[peer])
                    arrivals.append(Arrival(peer, lost, self._buffer()))
                elif has_come:
                    n_bytes = status.Get_count(MPI.BYTE)
                    self._listen(peer)
                    arrivals.append(Arrival(peer, unpack(buffer[:n_bytes]), buffer))
        return arrivals

    def _look_at_sending(self) -> None:
        left = []
        for peer, request, buffer in self._sending:
            try:
                if not request.Test():
                    left.append((peer, request, buffer))
                    continue
            except MPI.Exception as error:
                self._dead.setdefault(peer, mpi_reason(error))
            self._free.append(buffer)
        self._sending = left

    def release(self, arrival: Arrival) -> None:
        """Have the buffer of a message used again."""
        with self._lock:
            self._free.append(arrival.buffer)

    def close(self, silent: Iterable[int] = ()) -> None:
        """Wait until all messages have left, and receive nothing more.

        Args:
            silent: Peers that are not waited for.
        """
        silent = {*silent, *self._dead}
        deadline = time.monotonic() + _FLUSH_SECONDS
        while time.monotonic() < deadline:
            with self._lock:
                self._look_at_sending()
                if all(peer in silent for peer, *_ in self._sending):
                    break
            time.sleep(_LAST_PAUSE_SECONDS)
        for request, _ in self._receiving.values():
            with contextlib.suppress(MPI.Exception):  # of a peer that died
                request.Cancel()
                request.Wait()
        self._receiving.clear()


def mpi_reason(error: Exception) -> str:
    """Return why a peer is taken for dead, by what MPI reports."""
    is_death = "PROC_FAILED" in str(error)
    return "its process has ended" if is_death else f"MPI reports {error}"


class Mail:
    """A thread that looks at a post, so that the next messages arrive while one is worked on."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self.send, self.release = post.send, post.release
        self._arrivals: queue.SimpleQueue[Arrival | Exception] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mail", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_closed.is_set():
                for arrival in self._post.look():
                    self._arrivals.put(arrival)
        except Exception as error:  # the thread that reads raises it
            self._arrivals.put(error)

    def next(self, timeout_seconds: float) -> Arrival | None:
        """Return what has come first; None if nothing comes in time. Blocks."""
        try:
            arrival = self._arrivals.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        if isinstance(arrival, Exception):
            raise arrival
        return arrival

    def close(self, silent: Iterable[int] = ()) -> None:
        """End the thread, then as :meth:`Post.close`."""
        self._is_closed.set()
        self._thread.join()
        self._post.close(silent)


class ServerConnection:
    """A worker's way to its server or sub-server, which may be silent for ``timeout_seconds``."""

    def __init__(
        self,
        comm: Any,
        server: int,
        timeout_seconds: float,
        n_bytes: int = buffer_bytes(),
        trace: Tracing = OFF,
    ) -> None:
        self._server = server
        self._trace = trace
        self._post = Post(comm, [server], n_bytes, Watch(timeout_seconds))
        self._last: Arrival | None = None

    def exchange(self, message: Message) -> Message:
        """Send a message and return the reply, whose arrays live until the next call. Blocks.

        Raises:
            ServerLostError: The server is dead, or silent for too long.
        """
        with self._trace.span("send", "mpi", None, kind=message.kind.name.lower()):
            self._post.send(self._server, message)
        if self._last is not None:  # only now: the message may have been a view of it
            self._post.release(self._last)
        with self._trace.span("receive", "mpi", None):
            while not (arrivals := self._post.look()):
                pass
        (self._last,) = arrivals
        reply = self._last.message
        if reply.kind is Kind.LOST:
            raise ServerLostError(self._server, reply.text)
        return reply

    def fail(self, rank: int, error: BaseException) -> None:
        """Tell the server why this worker cannot go on.

        Blocks until it knows, but after an interrupt: then it may be interrupted, too.
        """
        if isinstance(error, KeyboardInterrupt):
            die_if_tolerant()
            self._post.send(self._server, Message(Kind.INTERRUPTED, origin=rank))
            return
        self.exchange(Message(Kind.FAILED, origin=rank, text=reason_of(error)))

    def close(self) -> None:
        """Wait until the last message has left, unless the server has ended the run."""
        # It may receive nothing more.
        is_over = self._last is not None and self._last.message.kind is Kind.STOP
        self._post.close([self._server] if is_over else [])
