"""The server: gives the staged files of this node to the other nodes of the job.

One process with one thread; it waits in ``epoll``, so an idle one costs nothing. What a connection
may take is bounded: a request in memory, and a time for which its other end may take nothing of an
answer. A stranger, which has not shown yet that it knows the secret, has a time for that, and few
are let in. The bytes of all files of an answer are sent by one call, from the page cache, which is
mapped: each is copied once, which on the loopback costs less than ``sendfile``.
"""

from __future__ import annotations

import collections
import contextlib
import hmac
import mmap
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from overlapiter.store.extents import WHOLE
from overlapiter.store.segments import READ_FLAGS

from .catalogue import Catalogue
from .protocol import (
    ABSENT,
    CODE_BYTES,
    FRESH,
    HELLO_BYTES,
    LENGTH,
    MOST_REQUEST_BYTES,
    NONCE_BYTES,
    THERE,
    Seal,
    packed_records,
    proof,
    unpacked_names,
)

#: How long a stranger may take to show that it knows the secret, and a peer may take nothing of an
#: answer.
STEP_SECONDS = 5.0
#: Connections of strangers.
MOST_STRANGERS = 64
#: A connection sends at most so much before the others have their turn.
_TURN_BYTES = 1 << 20
#: Segments that are mapped at the same time; one of 1 GiB takes up to 2 MiB of page tables.
_MOST_SEGMENTS = 32
_READ_BYTES = 64 << 10
#: When the kernel begins to look whether the other end of a connection that rests is still there.
_KEEP_IDLE_SECONDS = 60


class _Segments:
    """Segments that are mapped; the one that was used longest ago goes for another one.

    Only the kernel reads what is mapped, so a segment that was cut is an error of a system call.
    What stays mapped takes room on the disk though it was removed, so that of one file does not.
    """

    def __init__(self) -> None:
        self._mapped: collections.OrderedDict[str, memoryview] = collections.OrderedDict()

    def view(self, path: str, start: int, size: int) -> memoryview | None:
        """Return bytes of a segment, which stay mapped as long as they are held.

        Returns:
            The bytes, right or wrong; None if the segment is gone or ends before them.
        """
        mapped = self._mapped.get(path)
        if mapped is None or start + size > len(mapped):  # segments grow
            try:
                mapped = _mapping(path)
            except OSError:  # it was evicted a moment ago
                return None
            if start == WHOLE:
                return mapped[:size] if 0 <= size <= len(mapped) else None
            self._mapped[path] = mapped
            if len(self._mapped) > _MOST_SEGMENTS:
                self._mapped.popitem(last=False)
        self._mapped.move_to_end(path)
        is_there = start >= 0 and 0 <= size <= len(mapped) - start  # a damaged row says anything
        return mapped[start : start + size] if is_there else None

    def clear(self) -> None:
        """Keep none mapped."""
        self._mapped.clear()


def _mapping(path: str) -> memoryview:
    fd = os.open(path, READ_FLAGS)
    try:
        empty = not os.fstat(fd).st_size
        return memoryview(b"" if empty else mmap.mmap(fd, 0, prot=mmap.PROT_READ))
    finally:
        os.close(fd)


class _Connection:
    """A connection, and what is on its way over it.

    Attributes:
        socket: The socket.
        received: What has come and is not used yet.
        pieces: What is to be sent.
    """

    def __init__(self, end: socket.socket, nonce: bytes) -> None:
        self.socket = end
        self.nonce = nonce
        self.received = bytearray()
        self.pieces = collections.deque([memoryview(nonce)])
        self.requests: Seal
        self.answers: Seal

    def send(self) -> int:
        """Send as much as does not block; return how many bytes. Raises OSError if none does."""
        n_sent = n_left = self.socket.sendmsg(self.pieces)
        while n_left and n_left >= len(self.pieces[0]):
            n_left -= len(self.pieces.popleft())
        if n_left:
            self.pieces[0] = self.pieces[0][n_left:]
        return n_sent

    def close(self) -> None:
        """Close the socket, and forget what was to be sent."""
        self.socket.close()
        self.pieces.clear()


class Server:
    """Serves until it is told to end. For one thread.

    Args:
        listener: The socket on which peers come.
        secret: Of the job.
        catalogue: Tells where staged files lie.
        since: Of what was staged after this time, in seconds, and not after now, as the clock once
            was, the job has compared the source.
    """

    def __init__(
        self, listener: socket.socket, secret: bytes, catalogue: Catalogue, since: int
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._catalogue = catalogue
        self._since = since
        self._segments = _Segments()
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._strangers: dict[_Connection, float] = {}  # until when, the first one first
        listener.setblocking(False)
        # What it accepts has these, too. The kernel ends a connection whose other end takes nothing
        # or, at rest, is not there any more: a node that vanishes does not say so.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_IDLE_SECONDS)
        step_ms = int(1000 * STEP_SECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, step_ms)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def watch(self, source: int, call: Callable[[], object]) -> None:
        """Have something called whenever a descriptor is readable, or its other end closed."""
        self._selector.register(source, selectors.EVENT_READ, lambda _events: call())

    def take_turn(self) -> None:
        """Wait for what comes next, and deal with it."""
        for key, events in self._selector.select(self._patience_seconds()):
            key.data(events)
        now_seconds = time.monotonic()
        while self._strangers and next(iter(self._strangers.values())) <= now_seconds:
            self._close(next(iter(self._strangers)))

    def _patience_seconds(self) -> float | None:
        deadline = next(iter(self._strangers.values()), None)
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    # --- connections --------------------------------------------------------------------------

    def _accept(self, _events: int) -> None:
        try:
            end, _ = self._listener.accept()
        except OSError:  # another server has it, it has gone again, or no descriptor is left
            time.sleep(0.01)
            return
        end.setblocking(False)
        connection = _Connection(end, secrets.token_bytes(NONCE_BYTES))
        self._connections.add(connection)
        self._strangers[connection] = time.monotonic() + STEP_SECONDS
        if len(self._strangers) > MOST_STRANGERS:
            self._close(next(iter(self._strangers)))
        events = selectors.EVENT_READ
        self._selector.register(end, events, lambda e: self._serve(connection, e))
        self._serve(connection, selectors.EVENT_WRITE)

    def _close(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._strangers.pop(connection, None)
            self._selector.unregister(connection.socket)
            connection.close()

    def _serve(self, connection: _Connection, events: int) -> None:
        """Go on with a connection as far as it does not block; close it if it is not in order."""
        if connection not in self._connections:  # closed since its event was found
            return
        try:
            with contextlib.suppress(BlockingIOError):
                if events & selectors.EVENT_READ and not connection.pieces:
                    self._receive(connection)
                if connection.pieces:
                    self._send(connection)
                while not connection.pieces and self._take_message(connection):
                    self._send(connection)
            self._await(connection)
        except OSError:
            self._close(connection)

    def _await(self, connection: _Connection) -> None:
        """Wait for what a connection needs next."""
        wanted = selectors.EVENT_WRITE if connection.pieces else selectors.EVENT_READ
        key = self._selector.get_key(connection.socket)
        if key.events != wanted:
            self._selector.modify(connection.socket, wanted, key.data)

    def _receive(self, connection: _Connection) -> None:
        data = connection.socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("the other end has closed")
        connection.received += data

    # --- messages -----------------------------------------------------------------------------

    def _take_message(self, connection: _Connection) -> bool:
        """Use a message that has come as a whole; return whether there is something to send."""
        received = connection.received
        if connection in self._strangers:
            if len(received) < HELLO_BYTES:
                return False
            self._let_in(connection, bytes(received[:HELLO_BYTES]))
            del received[:HELLO_BYTES]
            return True
        if len(received) < LENGTH.size:
            return False
        (n_bytes,) = LENGTH.unpack_from(received)
        if n_bytes > MOST_REQUEST_BYTES:
            raise ConnectionError(f"a request of {n_bytes} bytes")
        end = LENGTH.size + n_bytes + CODE_BYTES
        if len(received) < end:
            return False
        payload = bytes(received[LENGTH.size : LENGTH.size + n_bytes])
        connection.requests.check(payload, bytes(received[LENGTH.size + n_bytes : end]))
        del received[:end]
        self._answer(connection, unpacked_names(payload))
        return True

    def _let_in(self, connection: _Connection, hello: bytes) -> None:
        nonces = connection.nonce + hello[:NONCE_BYTES]
        if not hmac.compare_digest(hello[NONCE_BYTES:], proof(self._secret, b"client", nonces)):
            raise ConnectionError("a stranger")
        del self._strangers[connection]
        connection.requests = Seal(self._secret, b"client", nonces)
        connection.answers = Seal(self._secret, b"server", nonces)
        connection.pieces.append(memoryview(proof(self._secret, b"server", nonces)))

    def _answer(self, connection: _Connection, names: Sequence[bytes]) -> None:
        found = self._catalogue.look(names)
        records, now = [], time.time()
        for name in names:
            if name in found:
                path, start, size, mtime, checksum, at = found[name]
                piece = self._segments.view(path, start, size)
                if piece is not None:
                    state = FRESH if self._since < at <= now else THERE
                    records.append((state, size, mtime, checksum))
                    if piece:
                        connection.pieces.append(piece)
                    continue
            records.append((ABSENT, 0, 0, 0))
        answer = connection.answers.message(packed_records(records))
        connection.pieces.appendleft(memoryview(answer))

    # --- sending ------------------------------------------------------------------------------

    def _send(self, connection: _Connection) -> None:
        """Send what does not block, up to a turn's worth. Raises BlockingIOError or OSError."""
        n_left = _TURN_BYTES
        while connection.pieces and n_left > 0:
            n_left -= connection.send()

    def let_go(self) -> None:
        """Keep nothing open of the staging directories, of which something was removed."""
        self._segments.clear()
        self._catalogue.close()

    def close(self) -> None:
        """Close all connections; the listener stays open for another server."""
        for connection in [*self._connections]:
            self._close(connection)
        self._selector.close()
