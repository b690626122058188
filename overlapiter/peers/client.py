"""The client: fetches files from the nodes that hold them, in a prefetcher.

Each node that is asked has a *lane*: a thread, a connection, and the files that wait for it. A
request has all files that wait, and the next one is sent before the last one is answered. A file
that one holder does not give is asked of the next one; after the last one the source is read. A
node that does not answer, or much later than the slow store, is left alone for a moment, longer
each time, and then asked again.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from overlapiter.origins.origin import Original
from overlapiter.store.breaker import Breaker
from overlapiter.store.elsewhere import Holders, Take

from .connection import WAIT_AGAIN_SECONDS, WAIT_SECONDS, Address, Connection
from .protocol import FRESH, MOST_NAMES, Record

#: Requests that are on their way to a node at the same time.
_MOST_REQUESTS = 2
#: A request asks for about so many bytes. The server looks its files up together, with caches that
#: those sent before have emptied: the more files there are, the less that takes for each.
REQUEST_BYTES = 6 << 20
#: How long a file is waited for that its holder is about to have, and how often it is asked for.
_PATIENCE_SECONDS, _PAUSE_SECONDS = 1.0, 0.01
#: Further holders are asked while they have this share of what they are asked for; else every so
#: many times, to see whether that has changed: nodes that are full have no copies for others.
_LEAST_SHARE, _TRY_EVERY = 1 / 16, 64
#: A node is slow if a file takes longer from it than from the store by this factor, and by more
#: than busy cores explain. Each read of the store holds up those of others, and files are fetched
#: ahead, many at once: so a node that is somewhat slower is still the better way.
_FACTOR, _SLACK_SECONDS = 2.0, 0.25
#: The latest wait counts for this share of the mean.
_NEW_SHARE = 1 / 16
#: A lane that has had nothing to do for so long ends its thread and its connection.
_REST_SECONDS = 10.0
#: What is left of a file that was not wanted is read, unless it is more than this.
_MOST_DRAINED_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class PeersPlan:
    """The nodes of a job, as its workers know them."""

    own: int  # the number of this node
    nodes: tuple[tuple[Address, ...], ...]  # the servers of each node, one for each of its ranks
    rank: int  # of this process; ranks spread over the servers of a node by it
    secret: bytes = dataclasses.field(repr=False)  # of the job
    since: int  # when the job began, in seconds: what was staged later has been compared


class PeerFile:
    """A file that a peer is sending, to be read once, from its start to its end.

    Attributes:
        checksum: As the peer has it.
        is_fresh: Whether the job has compared it with its source.
        has_failed: Whether bytes did not come.
    """

    has_failed = False

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
        try:
            data = self._connection.read(n_bytes) if n_bytes else b""
        except OSError:
            self.has_failed = True
            raise
        self.left_bytes -= len(data)
        return data


@dataclasses.dataclass(slots=True, eq=False)
class _Want:
    """A file that is wanted from peers."""

    name: bytes  # its path below the source root
    holders: Holders
    take: Take
    left: Iterator[int]  # the holders that were not asked
    is_first: bool = False  # whether the first holder is asked, the only one that is waited for
    begun: float = 0.0  # when the holder that is asked had it to answer
    deadline: float = 0.0  # until when that holder may be about to have it


class Peers:
    """The other nodes of the job. Safe for threads.

    Args:
        plan: The nodes.
        count_fault: Called whenever a peer fails, or sends what is not right.
        crash: Called with the traceback of an error that is none of a peer's: ends the process.

    Attributes:
        store_seconds: What the slow store takes for a file, of late; 0 if nothing is known.
    """

    def __init__(
        self, plan: PeersPlan, count_fault: Callable[[], None], crash: Callable[[str], None]
    ) -> None:
        self.plan = plan
        self.count_fault = count_fault
        self.crash = crash
        self.store_seconds = 0.0
        self._share = 1.0  # of what further holders were asked for of late, what they had
        self._n_spared = 0
        self._lanes = [_Lane(self, node) for node in range(len(plan.nodes))]

    def note_store(self, took_seconds: float) -> None:
        """Take note of how long the slow store has taken for a file."""
        self.store_seconds = _mean_with(self.store_seconds, took_seconds)

    def fetch(self, name: bytes, holders: Holders, take: Take) -> None:
        """Fetch a file; see :class:`~overlapiter.store.elsewhere.Fetches`."""
        self.pass_on(_Want(name, holders, take, iter(holders.nodes)))

    def pass_on(self, want: _Want) -> None:
        """Ask the next holder of a file, or give up."""
        now_seconds = time.monotonic()
        for node in want.left:
            is_first = node == want.holders.nodes[0]
            if node == self.plan.own or not (is_first or self._may_have_copies()):
                continue
            if self._lanes[node].breaker.is_passable(now_seconds):
                is_coming = want.holders.is_coming and is_first
                want.is_first, want.begun = is_first, now_seconds
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


class _Lane:
    """The way to one node.

    Attributes:
        breaker: Says whether to ask it: it answers, and not much later than the slow store.
    """

    def __init__(self, peers: Peers, node: int) -> None:
        self._peers = peers
        self._addresses = peers.plan.nodes[node]
        self.breaker = Breaker()
        self._wait_seconds = 0.0  # for a file of this node, behind others too; its mean of late
        self._wakes = threading.Condition()
        self._waiting: collections.deque[_Want] = collections.deque()
        self._later: collections.deque[_Want] = collections.deque()  # until they begin again
        self._is_running = False
        self._mean_bytes = 0.0
        self._n_failures = 0
        self._has_failed = False  # since it was heard last
        self._connection: Connection | None = None
        self._asked: collections.deque[collections.deque[_Want]] = collections.deque()

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
            except OSError:
                self._fail()
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
                elif not self._wakes.wait_for(lambda: self._waiting, _REST_SECONDS):
                    self._close()
                    self._is_running = False
                    return None

    def _files_at_once(self) -> int:
        return max(1, min(MOST_NAMES, int(REQUEST_BYTES / max(self._mean_bytes, 1.0))))

    def _ask(self, batch: list[_Want]) -> None:
        self._asked.append(collections.deque(batch))
        if self._connection is None:
            self._connection = self._connect()
        self._connection.ask([want.name for want in batch])

    def _connect(self) -> Connection:
        """Return a connection to a server of the node, another one after each failure.

        The kernel of a stopped server takes connections all the same: the files that try whether it
        has gone on hold up their mini-batches for a moment only.
        """
        plan, addresses = self._peers.plan, self._addresses
        address = addresses[(plan.rank + self._n_failures) % len(addresses)]
        let_in_seconds = WAIT_AGAIN_SECONDS if self._has_failed else WAIT_SECONDS
        return Connection(address, plan.secret, let_in_seconds=let_in_seconds)

    def _hear(self) -> None:
        """Take the answer to the oldest request."""
        connection = self._connection
        assert connection is not None
        batch, began = self._asked[0], time.monotonic()
        for record in connection.answer(len(batch)):
            file = PeerFile(connection, record) if record.has_bytes else None
            is_right = file is not None and batch[0].take(file)
            if file is not None and file.has_failed:
                raise ConnectionError("the rest of a file has not come")
            want = batch.popleft()
            self._has_failed = False
            self._note_wait(time.monotonic() - want.begun)
            if not want.is_first:
                self._peers.note_copy(was_there=record.has_bytes)
            if not is_right:
                self._ask_again(want, has_come=record.has_bytes)
            if file is None:
                continue
            if file.left_bytes > _MOST_DRAINED_BYTES:  # what follows is asked for anew
                with self._wakes:
                    self._waiting.extendleft(reversed(self._drop()))
                return
            file.read(file.left_bytes)
            self._mean_bytes += (record.size - self._mean_bytes) / 16
            if batch and self._is_slow() and time.monotonic() - began > WAIT_SECONDS:
                raise TimeoutError("what is left of the request would take as long again")
        self._asked.popleft()

    def _note_wait(self, waited_seconds: float) -> None:
        """Learn how long a file has been waited for; leave the node alone if it is slow."""
        if self._is_slow() and waited_seconds < self._wait_seconds:
            self._wait_seconds = waited_seconds  # the few that are tried tell at once
        self._wait_seconds = _mean_with(self._wait_seconds, waited_seconds)
        if self._is_slow():
            self.breaker.failed(time.monotonic())
        else:
            self.breaker.succeeded()

    def _is_slow(self) -> bool:
        store_seconds = self._peers.store_seconds
        limit_seconds = _FACTOR * store_seconds + _SLACK_SECONDS
        return bool(store_seconds) and self._wait_seconds > limit_seconds

    def _ask_again(self, want: _Want, *, has_come: bool) -> None:
        """Ask for a file again, here later if it is about to be there, or another holder now."""
        begin_seconds = time.monotonic() + _PAUSE_SECONDS
        if not has_come and begin_seconds < want.deadline:
            want.begun = begin_seconds
            self._later.append(want)
            return
        if has_come:
            self._peers.count_fault()
        self._peers.pass_on(want)

    # --- failures -----------------------------------------------------------------------------

    def _fail(self) -> None:
        """Leave the node alone for a moment; what was asked of it is asked of others."""
        self._n_failures += 1
        self._has_failed = True
        self.breaker.failed(time.monotonic())
        self._peers.count_fault()
        lost = self._drop()
        with self._wakes:
            lost += [*self._waiting, *self._later]
            self._waiting.clear()
            self._later.clear()
        for want in lost:
            self._peers.pass_on(want)

    def _drop(self) -> list[_Want]:
        """End the connection; return what was asked on it and not answered."""
        self._close()
        lost = [want for batch in self._asked for want in batch]
        self._asked.clear()
        return lost

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _mean_with(mean: float, latest: float) -> float:
    """Return a mean that has learned from one more value; 0 stands for none yet."""
    return mean + (latest - mean) * _NEW_SHARE if mean else latest
