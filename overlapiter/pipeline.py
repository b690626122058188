"""The pipeline: joins the three stages, seen from the trainer process. Knows no framework.

The trainer process runs no thread for it. Each mini-batch costs the trainer one message sent (the
next index list, and the slots that have become free) and one received; the arrays stay where the
file readers wrote them. All the rest happens in the supervisor and its workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from overlapiter.board import Counter, StatsBoard
from overlapiter.errors import ExampleError, PipelineError, StagingWarning, described, warn
from overlapiter.faults import FailedBatch, WaitTimeoutError
from overlapiter.node import this_node
from overlapiter.order import IndexList, Indices
from overlapiter.sharedmem.lent import LentSlots
from overlapiter.sharedmem.pagelocks import PageLocker, PageLocks
from overlapiter.sharedmem.segments import Slot
from overlapiter.sharedmem.slots import FilledSlot, MiniBatch, view_examples
from overlapiter.tracing import OFF, Tracing, chosen_trace
from overlapiter.workers.ipc.channel import ChannelClosedError, Message
from overlapiter.workers.plan import SupervisorPlan
from overlapiter.workers.start.launch import interrupts_held
from overlapiter.workers.start.parcel import Parcel
from overlapiter.workers.supervisor.service import Service

if TYPE_CHECKING:  # nothing that the start of the workers would have to wait for
    from overlapiter.explain import Explanation
    from overlapiter.peers.rendezvous import Joined
    from overlapiter.stats import Stats

#: While waiting for the supervisor, how often to look whether it can still work.
_LOOK_AFTER_SECONDS = 1.0


class Request(Protocol):
    """What a face wants next: a mini-batch, or what needs no worker."""

    @property
    def index_list(self) -> IndexList | None:
        """Its indices; None or empty where there is nothing to read."""


class Pipeline:
    """Mini-batches for what is wanted, in order.

    A face keeps a sequence of requests: it adds at the end, and takes the first one off when it
    counts as taken. The pipeline sends what it has not sent. Where an interruption, Ctrl-C for
    example, has lost a message or a mini-batch, or the sequence is another one, it starts over
    with the first request that is there: whether that is needed the pipeline sees, not the face.

    Not thread-safe. Its owner closes it; otherwise garbage collection or the end of the interpreter
    does. In a forked child of the trainer it is dead and harmless.

    Args:
        parcel: The pickled dataset; the pipeline takes it over.
        plan: What the supervisor needs to know.
        created_ns: ``time.monotonic_ns()`` when the user's constructor began.
        trace: Where all processes record what they do; by default in the trace of the
            ``with overlapiter.trace(...)`` block around this call, if there is one.
        view: Makes what it hands out.
        joined: What the ranks have agreed on; the pipeline takes its listener over. None without
            peers.

    Attributes:
        share: What this node holds for others; None if nothing.
    """

    def __init__(
        self,
        parcel: Parcel,
        plan: SupervisorPlan,
        created_ns: int,
        *,
        trace: Tracing = OFF,
        view: Callable[[FilledSlot], Any] = view_examples,
        joined: Joined | None = None,
    ) -> None:
        self.share = None if joined is None else joined.share
        self._view_slot = view
        self._lock_pages = weakref.WeakMethod(self.lock_pages)
        self._created_ns = created_ns
        trace = trace if trace.is_on else chosen_trace(None)[0]
        self._plan = plan = dataclasses.replace(plan, trace=trace.file)
        self._trace = trace
        self._board, board_fd = StatsBoard.create(plan.n_readers, plan.n_prefetchers)
        self._row = self._board.trainer_row()
        self._describe_setup()
        self._asked_ns = 0  # since when it waits for a mini-batch; 0 while it trains
        self._taken_ns = 0  # when the trainer got its last mini-batch
        self._first: Stats | None = None  # when it got its first one
        listener = None if joined is None else joined.listener
        self._service = Service(parcel, plan, board_fd, listener)
        self._finalizer = weakref.finalize(self, Service.close, self._service)
        self._is_closed = False  # by its owner; the end of the interpreter does not set it
        self._wanted: Sequence[Request] | None = None  # the face's; None before any is sent
        self._sent: Request | None = None  # the last one that was sent
        self._given: Request | None = None  # the last one of which the face has got the mini-batch
        #: Whether a call has begun that has not ended: an interruption may have lost a message.
        self.is_unfinished = False
        self._next_id = 0  # of the next index list that is sent
        self._take_id = 0  # of the next mini-batch
        #: By epoch, as they were announced.
        self._orders: tuple[Mapping[int, Indices | None], Mapping[int, Indices]] = {}, {}
        self._warned: set[str] = set()
        self._renewal: object = None
        self._ready: dict[int, Message] = {}
        self._slots = LentSlots()
        self._service.start()
        importlib.import_module("overlapiter.stats")  # while the workers start

    def _describe_setup(self) -> None:
        """Put on the board what explains its counters."""
        plan, row = self._plan, self._row
        row.put(Counter.CREATED_NS, self._created_ns)
        row.put(Counter.N_CORES, this_node().cores)
        row.put(Counter.DATASET_SIZE, plan.dataset_size)
        if plan.staging is not None:
            row.put(Counter.FIXED_READS, plan.staging.reads_in_flight or 0)

    # --- index lists in, mini-batches out -----------------------------------------------------

    def announce(self, orders: Mapping[int, Indices | None], others: Mapping[int, Indices]) -> None:
        """Send the orders of epochs, by which the supervisor chooses which staged files to keep.

        Args:
            orders: By epoch, ascending; None for ascending order.
            others: By epoch, what the other ranks of the node read meanwhile, where it is known:
                a row of examples for each of the order.
        """
        self._orders = orders, others
        if orders and self._plan.staging is not None:
            sharing = None if self.share is None else self.share.sharing(orders)
            self._send(("orders", *self._orders, sharing))

    def flush(self, wanted: Sequence[Request]) -> None:
        """Send what is wanted, at the start or after a reset. Does not wait for an answer."""
        self._wanted = wanted
        self._send_wanted(announces_take=False)
        self.is_unfinished = False

    def take(self, wanted: Sequence[Request], timeout_seconds: float | None) -> Any:
        """Return the mini-batch of the first request, or a FailedBatch. Blocks until it is there.

        Raises:
            WaitTimeoutError: It did not come within ``timeout_seconds``; calling again waits on,
                and all counts as one wait.
        """
        self._check_open()
        request = wanted[0]
        if self.is_unfinished or wanted is not self._wanted or request is self._given:
            if self.is_unfinished or self._wanted is not None:  # else nothing is on its way
                self._drop_all()
                self.announce(*self._orders)
            self._wanted = wanted
        left_seconds = math.inf if timeout_seconds is None else timeout_seconds
        self._asked_ns = self._asked_ns or time.monotonic_ns()
        self._row.put(Counter.WAITING_SINCE_NS, self._asked_ns)
        try:
            self._send_wanted(announces_take=True)
            if not self._service.was_ready:
                left_seconds = self._await_start(left_seconds)
            while self._take_id not in self._ready:
                left_seconds = self._hear_within(left_seconds)
        except WaitTimeoutError:
            self.is_unfinished = False  # nothing is lost
            raise
        except BaseException:
            self._end_wait()
            raise
        indices = request.index_list.indices  # type: ignore[union-attr]  # else none is asked for
        self._note_taken(self._end_wait(), len(indices))
        message = self._ready.pop(self._take_id)
        self._take_id += 1
        self._given = request
        self._service.n_deaths = 0
        self.is_unfinished = False
        if message[0] == "failed":
            return _failed(message[2])
        try:
            return self._view(message)
        except Exception as error:  # the user's: an example came that cannot be unpickled here
            first, last = indices[0], indices[-1]
            reason = f"an example of this mini-batch, {first} to {last}, cannot be unpickled"
            context = ExampleError(first, (), f"{reason} ({described(error)[0]})", "")
            return FailedBatch(error, context)

    def _await_start(self, left_seconds: float) -> float:
        """Wait until the supervisor has the dataset; return what is left of the time."""
        while not self._service.was_ready:
            left_seconds = self._hear_within(left_seconds)
        self._row.add(Counter.WAIT_START_NS, time.monotonic_ns() - self._asked_ns)
        return left_seconds

    def _end_wait(self) -> int:
        """Count how long a mini-batch was waited for; return since when."""
        asked_ns, self._asked_ns = self._asked_ns, 0
        self._row.put(Counter.WAITING_SINCE_NS, 0)
        self._row.add(Counter.WAIT_NS, time.monotonic_ns() - asked_ns)
        return asked_ns

    def _note_taken(self, begun_ns: int, n_examples: int) -> None:
        """Count a mini-batch that has come, and record what was between it and the one before."""
        row, batch_id, now_ns = self._row, self._take_id, time.monotonic_ns()
        row.add(Counter.BATCHES_TAKEN, 1)
        row.add(Counter.EXAMPLES_TAKEN, n_examples)
        if self._trace.is_on:
            times, flows = (begun_ns, now_ns), (batch_id,)
            self._trace.add("wait", "trainer", *times, batch_id, flows=flows, phase="f")
            if self._taken_ns:
                self._trace.add("train", "trainer", self._taken_ns, begun_ns, batch_id - 1)
        self._taken_ns = now_ns
        if self._first is None:
            self._first = self.stats()

    def count_index_lists(self, took_ns: int) -> None:
        """Count how long the trainer made index lists, which is part of its waiting."""
        self._row.add(Counter.WAIT_NS, took_ns)
        self._row.add(Counter.WAIT_INDEX_NS, took_ns)

    def reset(self, renewal: object = None) -> None:
        """Drop every index list and mini-batch on its way; the workers live on.

        A ``renewal`` is told to the face of new processes, which take the file readers' places.
        """
        self._check_open()
        self._drop_all(renewal)
        self.is_unfinished = False

    def _drop_all(self, renewal: object = None) -> None:
        """Do so; unfinished until its caller says otherwise."""
        self.is_unfinished = True
        if self._asked_ns:
            self._end_wait()
        if renewal is not None:
            self._renewal = renewal
        while self._ready:  # each is released once, whatever interrupts this
            self._release_unseen(self._ready.popitem()[1])
        self._take_id = self._next_id
        self._wanted = self._sent = self._given = None
        self._send(("reset", self._next_id, renewal))

    def _release_unseen(self, message: Message) -> None:
        if message[0] == "batch":
            self._slots.release(Slot(*message[3]))

    def _view(self, message: Message) -> Any:
        _, _, layout_id, slot, parts = message
        try:
            reports = [(a, b, None if data is None else pickle.loads(data)) for a, b, data in parts]
        except Exception:
            self._release_unseen(message)  # later it is lent, and its views release it
            raise
        batch = self._view_slot(self._slots.filled(layout_id, Slot(*slot), reports))
        if self._slots.locks is None and isinstance(batch, MiniBatch):
            batch.lock_pages = self._lock_pages
        return batch

    def lock_pages(self, locker: PageLocker) -> None:
        """Lock the pages of all slots from the next mini-batch on; their memory is kept."""
        if self._slots.locks is None and self._finalizer.alive:
            locks = self._slots.locks = PageLocks(locker)
            weakref.finalize(self, locks.unlock).atexit = False  # the driver may be gone
            self._send(("keep memory",))

    # --- messages -----------------------------------------------------------------------------

    def _send_wanted(self, *, announces_take: bool) -> None:
        """Send the requests that were not sent; unfinished until its caller says otherwise."""
        self.is_unfinished = True
        # Epochs are of use where examples are seeded by them.
        seeds, first_id, lists = self._plan.seed is not None, self._next_id, []
        for request in reversed(self._wanted or ()):
            if request is self._sent or request is self._given:
                break
            each = request.index_list
            if each is not None and each.indices:
                lists.append((each.indices, each.epochs if seeds else None, each.position))
        lists.reverse()
        if self._wanted:
            self._sent = self._wanted[-1]
        self._next_id += len(lists)
        now_ns = time.monotonic_ns()
        for number in range(first_id, self._next_id):
            times = now_ns, now_ns
            self._trace.add("index list", "trainer", *times, number, flows=(number,), phase="s")
        slots = [slot[:] for slot in self._slots.take_released()]
        self._send(("advance", self._take_id + announces_take, slots, first_id, lists))

    def _send(self, message: Message) -> None:
        try:
            self._service.send(message)
            return
        except ChannelClosedError:
            pass
        self._revive()

    def _hear_within(self, left_seconds: float) -> float:
        """Hear a message, or wait for one; return what is left of the time to wait.

        A job that is suspended as a whole does not wait: a look counts no longer than it may take.
        """
        began_seconds = time.monotonic()
        self._receive(left_seconds)
        took_seconds = min(time.monotonic() - began_seconds, _LOOK_AFTER_SECONDS)
        return max(0.0, left_seconds - took_seconds)

    def _receive(self, left_seconds: float) -> None:
        try:
            received = self._service.receive(min(left_seconds, _LOOK_AFTER_SECONDS))
            if received is not None:
                self._hear(*received)
                return
            self._service.look()
            if left_seconds <= _LOOK_AFTER_SECONDS:
                waited_seconds = (time.monotonic_ns() - self._asked_ns) / 1e9
                raise WaitTimeoutError(*self._ask_what_stalls(), waited_seconds)
            return
        except ChannelClosedError:
            pass
        self._revive()

    def _ask_what_stalls(self) -> tuple[str, int]:
        """Ask the supervisor what the next mini-batch waits for."""
        self._stalled: tuple[str, int] | None = None
        # The next attempt to receive meets the same and deals with it.
        with contextlib.suppress(ChannelClosedError, BlockingIOError):
            self._service.channel.send(("describe",), wait=False)
            while self._stalled is None and (
                received := self._service.receive(_LOOK_AFTER_SECONDS)
            ):
                self._hear(*received)
        return self._stalled or ("the supervisor", -1)

    def _hear(self, message: Message, fds: list[int]) -> None:
        kind = message[0]
        if kind in ("ready", "batch", "failed"):
            self._service.was_ready = True  # an interrupt may have lost the word itself
        if kind in ("batch", "failed"):
            if message[1] >= self._take_id:
                self._ready[message[1]] = message
            else:
                self._release_unseen(message)  # from before a reset
        elif kind == "layout":
            self._slots.layouts[message[1]] = message[2]
        elif kind == "segment":
            self._slots.add_segment(message[1], fds[0], message[2])
        elif kind == "forget":
            self._slots.forget(message[1], message[2])
        elif kind == "trouble":
            if message[1] not in self._warned:  # another supervisor may report it again
                self._warned.add(message[1])
                warn(message[1], StagingWarning)
        elif kind == "description":
            self._stalled = message[1:]
        elif kind == "fatal":
            is_import = message[1].startswith(("Attribute", "Import", "ModuleNotFound"))
            hint = " Define the class of the dataset in a module that can be imported." * is_import
            raise PipelineError(
                f"the supervisor process failed: {message[1]}.{hint}\n\n"
                f"Traceback in the supervisor:\n{message[2]}"
            )

    @interrupts_held()  # else an interrupted start would count as a further death
    def _revive(self) -> None:
        """Start another supervisor and submit again what has not been taken."""
        self._check_open()
        with contextlib.suppress(ChannelClosedError, BlockingIOError):
            while True:  # its last words may say why it ended
                self._hear(*self._service.channel.receive(wait=False))
        self._row.add(Counter.SUPERVISORS_REPLACED, 1)
        locks = self._slots.locks
        self._slots.close()
        self._ready, self._slots = {}, LentSlots(locks)
        self._service.restart()
        self._sent, self._next_id = None, self._take_id
        self._send(("reset", self._take_id, self._renewal))
        if locks is not None:
            self._send(("keep memory",))
        was_unfinished = self.is_unfinished
        self._send_wanted(announces_take=True)
        self.is_unfinished = was_unfinished
        self.announce(*self._orders)

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            if not self._is_closed and threading.current_thread() is not threading.main_thread():
                raise SystemExit  # the program ends, and a thread that reads ahead, too
            raise PipelineError("the iterator has been finalized; make a new one")
        if os.getpid() != self._service.owner_pid:
            raise PipelineError(
                "the iterator was made in another process and this one was forked from it; "
                "make the iterator in the process that uses it"
            )

    # --- looking and ending -------------------------------------------------------------------

    def stats(self) -> Stats:
        """Return what the workers have done so far; works after closing too."""
        from overlapiter.stats import snapshot

        return snapshot(self._board)

    def explain(self, earlier: Stats | None = None) -> Explanation:
        """Return what the trainer waits for, and what to change; as :func:`.explain`."""
        from overlapiter.explain import explain

        return explain(self._board, self.stats(), earlier or self._first)

    def close(self) -> None:
        """End all processes, within 2 seconds. Mini-batches that were taken stay valid."""
        self._is_closed = True
        if self._finalizer.alive:
            self._trace.flush()
        self._finalizer()  # does nothing the second time, nor after the end of the interpreter
        self._board.detach()
        self._row.detach()  # not forgotten: a signal handler may close this amid a wait
        self._slots.close()
        self._wanted = None
        self._ready.clear()


def _failed(pickled: bytes) -> FailedBatch:
    error, context = pickle.loads(pickled)
    if isinstance(error, bytes):  # the user's
        try:
            error = pickle.loads(error)
        except Exception:  # it comes back in a file reader alone, so the context must do
            error = None
    return FailedBatch(context, None) if error is None else FailedBatch(error, context)
