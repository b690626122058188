"""The client: fetches files from the nodes that hold them, in a prefetcher.

Each node that is asked has a *lane*: a thread, a connection, and the files that wait for it. A
request has all files that wait, and the next one is sent before the last one is answered. A file
that one holder does not give is asked of the next one; after the last one the source is read. A
node that does not answer is left alone for a moment, longer each time, and then asked again.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import time
import traceback
from collections.abc import Callable

from overlapiter.origins.origin import Original
from overlapiter.store.breaker import Breaker
from overlapiter.store.elsewhere import Holders, Take

from .connection import WAIT_AGAIN_SECONDS, WAIT_SECONDS, Address, Connection
from .pace import Pace, Way
from .protocol import COMING, FRESH, MOST_NAMES, PeerError, Record

#: Requests that are on their way to a node at the same time.
_MOST_REQUESTS = 2
#: A request asks for about so many bytes, so that no file waits long behind others.
_REQUEST_BYTES = 2 << 20
#: How long a file is waited for that its holder is about to have, and how often it is asked for.
_PATIENCE_SECONDS, _PAUSE_SECONDS = 1.0, 0.01
#: Further holders are asked while they have this share of what they are asked for; else every so
#: many times, to see whether that has changed: nodes that are full have no copies for others.
_LEAST_SHARE, _TRY_EVERY = 1 / 16, 64
#: A lane that has had nothing to do for so long ends its thread and its connection.
_REST_SECONDS = 10.0
#: What is left of a file that was not wanted is read, unless it is more than this.
_MOST_DRAINED_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class PeersPlan:
    """The nodes of a job, as its workers know them.

    Attributes:
        own: The number of this node.
        nodes: For each node the addresses of its servers, one for each of its ranks.
        rank: The number of this rank; ranks spread over the servers of a node by it.
        secret: Of the job.
        since: When the job began, in seconds: what was staged later has been compared.
        most_peers: Connections that a server may have.
    """

    own: int
    nodes: tuple[tuple[Address, ...], ...]
    rank: int
    secret: bytes = dataclasses.field(repr=False)
    since: int
    most_peers: int


class PeerFile:
    """A file that a peer is sending, to be read once, from its start to its end.

    Attributes:
        checksum: As the peer has it.
        is_fresh: Whether the job has compared it with its source.
    """

    def __init__(self, connection: Connection, record: Record) -> None:
        self._connection = connection
        self._original = Original(record.size, record.mtime)
        self.left_bytes = record.size
        self.checksum = record.checksum
        self.is_fresh = record.state == FRESH

    def stat(self) -> Original:
        """Tell what the peer has."""
        return self._original

    def read(self, size_bytes: int) -> bytes:
        """Return up to ``size_bytes`` more; none at the end. Raises OSError if they do not come."""
        n_bytes = min(size_bytes, self.left_bytes)
        data = self._connection.read(n_bytes) if n_bytes else b""
        self.left_bytes -= len(data)
        return data


class _UnwantedError(Exception):
    """A long file came that this node cannot use: the connection begins anew."""


class _Want:
    """A file that is wanted from peers."""

    __slots__ = ("begun", "deadline", "holders", "is_first", "left", "name", "take")

    def __init__(self, name: bytes, holders: Holders, take: Take) -> None:
        self.name = name
        self.holders = holders
        self.left = [*reversed(holders.nodes)]  # that were not asked
        self.take = take
        self.is_first = False  # the holder that is asked, the only one that is waited for
        self.begun = 0.0  # when the holder that is asked had it to answer
        self.deadline = 0.0  # until when the holder that is asked may be about to have it


class Peers:
    """The other nodes of the job. Safe for threads.

    Args:
        plan: The nodes.
        count_fault: Called whenever a peer fails, or sends what is not right.
        crash: Called with the traceback of an error that is none of a peer's: ends the process.
    """

    def __init__(
        self, plan: PeersPlan, count_fault: Callable[[], None], crash: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self.count_fault = count_fault
        self.crash = crash
        self._store = Pace()
        self._share = 1.0  # of what further holders were asked for of late, what they had
        self._n_spared = 0
        self._lanes = [_Lane(self, node, Way(self._store)) for node in range(len(plan.nodes))]

    def note_store(self, took_seconds: float) -> None:
        """Take note of how long the slow store has taken for a file."""
        self._store.note(took_seconds)

    def fetch(self, name: bytes, holders: Holders, take: Take) -> None:
        """Fetch a file; see :class:`~overlapiter.store.elsewhere.Fetches`."""
        self.pass_on(_Want(name, holders, take))

    def pass_on(self, want: _Want) -> None:
        """Ask the next holder of a file, or give up."""
        now_seconds = time.monotonic()
        while want.left:
            node = want.left.pop()
            want.is_first = node == want.holders.nodes[0]
            if node == self._plan.own or not (want.is_first or self._may_have_copies()):
                continue
            if self._lanes[node].is_passable(now_seconds):
                is_coming = want.holders.is_coming and want.is_first
                want.begun = now_seconds
                want.deadline = now_seconds + _PATIENCE_SECONDS if is_coming else 0.0
                self._lanes[node].put(want)
                return
        want.take(None)

    def note_copy(self, *, was_there: bool) -> None:
        """Take note whether a further holder had what it was asked for."""
        self._share += (was_there - self._share) / 64

    def _may_have_copies(self) -> bool:
        self._n_spared += self._share < _LEAST_SHARE
        return self._share >= _LEAST_SHARE or not self._n_spared % _TRY_EVERY

    def close(self) -> None:
        """End the connections, once nothing waits for them."""
        for lane in self._lanes:
            lane.close()

    def connect(self, node: int, n_failures: int, *, is_again: bool) -> Connection:
        """Return a connection to a server of a node, another one after each failure.

        The kernel of a stopped server takes connections all the same: the files that try whether it
        has gone on hold up their mini-batches for a moment only.
        """
        addresses = self._plan.nodes[node]
        address = addresses[(self._plan.rank + n_failures) % len(addresses)]
        let_in_seconds = WAIT_AGAIN_SECONDS if is_again else WAIT_SECONDS
        return Connection(address, self._plan.secret, let_in_seconds=let_in_seconds)


class _Lane:
    """The way to one node.

    Attributes:
        is_closed: Whether the connection is to end as soon as nothing waits for it.
    """

    def __init__(self, peers: Peers, node: int, way: Way) -> None:
        self._peers = peers
        self._way = way
        self._node = node
        self._breaker = Breaker()
        self._wakes = threading.Condition()
        self._waiting: collections.deque[_Want] = collections.deque()
        self._later: collections.deque[_Want] = collections.deque()  # until they begin again
        self._is_running = self.is_closed = False
        self._mean_bytes = 0.0
        self._n_failures = 0
        self._connection: Connection | None = None
        self._asked: collections.deque[collections.deque[_Want]] = collections.deque()

    def is_passable(self, now_seconds: float) -> bool:
        """Return whether the node may be asked: it answers, and not later than the slow store."""
        return self._breaker.is_passable(now_seconds) and self._way.is_good(now_seconds)

    def put(self, want: _Want) -> None:
        """Have a file asked for."""
        with self._wakes:
            if not self._is_running:
                with contextlib.suppress(RuntimeError):  # there may be too many threads
                    threading.Thread(target=self._run, daemon=True).start()
                    self._is_running = True
            if self._is_running:
                self._waiting.append(want)
                self._wakes.notify()
                return
        self._peers.pass_on(want)

    def close(self) -> None:
        """End the thread and the connection once nothing waits; what is put later opens them."""
        with self._wakes:
            self.is_closed = True
            self._wakes.notify()

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            try:
                if batch:
                    self._ask(batch)
                if self._asked and (not batch or len(self._asked) == _MOST_REQUESTS):
                    self._hear()
            except (OSError, PeerError):
                self._fail()
            except _UnwantedError:
                self._begin_anew()
            except BaseException:  # no file may be left waiting for an answer
                self._peers.crash(traceback.format_exc())
                return

    def _next_batch(self) -> list[_Want] | None:
        """Return the files to ask for next; none if an answer comes first, None at the end."""
        with self._wakes:
            while True:
                now_seconds = time.monotonic()
                while self._later and self._later[0].begun <= now_seconds:
                    self._waiting.append(self._later.popleft())
                if self._waiting or self._asked:
                    n_files = min(self._files_at_once(), len(self._waiting))
                    return [self._waiting.popleft() for _ in range(n_files)]
                if self._later:
                    self._wakes.wait(self._later[0].begun - now_seconds)
                elif self.is_closed or not self._wakes.wait_for(
                    lambda: self._waiting or self.is_closed, _REST_SECONDS
                ):
                    self._close()
                    self._is_running = False
                    return None

    def _files_at_once(self) -> int:
        return max(1, min(MOST_NAMES, int(_REQUEST_BYTES / max(self._mean_bytes, 1.0))))

    def _ask(self, batch: list[_Want]) -> None:
        self._asked.append(collections.deque(batch))
        if self._connection is None:
            is_again = not self._breaker.is_closed
            self._connection = self._peers.connect(self._node, self._n_failures, is_again=is_again)
        self._connection.ask([want.name for want in batch])

    def _hear(self) -> None:
        """Take the answer to the oldest request."""
        connection = self._connection
        assert connection is not None
        batch = self._asked[0]
        records = connection.answer(len(batch))
        self._breaker.succeeded()
        for record in records:
            file = PeerFile(connection, record) if record.has_bytes else None
            is_right = file is not None and batch[0].take(file)
            want = batch.popleft()
            self._way.note(time.monotonic() - want.begun)
            if not want.is_first:
                self._peers.note_copy(was_there=record.has_bytes)
            if not is_right:
                self._ask_again(want, record)
            if file is not None:
                self._finish(file)
        self._asked.popleft()

    def _finish(self, file: PeerFile) -> None:
        """Read what is left of a file."""
        if file.left_bytes > _MOST_DRAINED_BYTES:
            raise _UnwantedError
        file.read(file.left_bytes)
        self._mean_bytes += (file.stat().size_bytes - self._mean_bytes) / 16

    def _ask_again(self, want: _Want, record: Record) -> None:
        """Ask for a file again, here later or another holder now."""
        if not record.has_bytes and self._is_to_come(want, record):
            want.begun = time.monotonic() + _PAUSE_SECONDS
            self._later.append(want)
            return
        if record.has_bytes:
            self._peers.count_fault()
        self._peers.pass_on(want)

    def _is_to_come(self, want: _Want, record: Record) -> bool:
        """Return whether to ask the same node again, which may be about to have the file."""
        now_seconds = time.monotonic()
        if record.state == COMING and want.is_first and not want.deadline:
            want.deadline = now_seconds + _PATIENCE_SECONDS
        return now_seconds + _PAUSE_SECONDS < want.deadline

    # --- failures -----------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        """Ask on another connection for what was not answered on this one."""
        self._close()
        with self._wakes:
            self._waiting.extendleft(
                want for batch in reversed(self._asked) for want in reversed(batch)
            )
            self._asked.clear()

    def _fail(self) -> None:
        """Leave the node alone for a moment; what was asked of it is asked of others."""
        self._n_failures += 1
        self._breaker.failed(time.monotonic())
        self._peers.count_fault()
        self._close()
        with self._wakes:
            lost = [want for batch in self._asked for want in batch]
            lost += [*self._waiting, *self._later]
            self._asked.clear()
            self._waiting.clear()
            self._later.clear()
        for want in lost:
            self._peers.pass_on(want)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()
