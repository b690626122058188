"""The supervisor: hands out work to prefetchers and file readers, and replaces those that die.

It is one process with one thread and runs no code of the user's after it has unpickled the
dataset, so nothing that a dataset does can stop it. It owns the slot pool. Messages with the
trainer:

    trainer → supervisor                      supervisor → trainer
    ("batches", first_id, [index list, …])    ("ready", pid)
    ("advance", consumed_id, [slot, …])       ("layout", id, layout), ("segment", id, bytes) + fd
    ("reset", next_id)                        ("batch", id, layout_id, slot, parts)
    ("describe",)                             ("failed", id, …), ("trouble", text), ("fatal", …)
    ("close",)                                ("description", text)
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import mmap
import os
import pickle
import selectors
import signal
import sys
import time
import traceback
from typing import Any

from ..errors import OverlapError, PipelineError, WorkerDiedError
from ..sharedmem.layout import Layout
from ..sharedmem.segments import Slot, SlotPool
from ..sources import Dataset
from ..staging.room import Room
from ..staging.store import Store
from ..stats import Counter, Row, StatsBoard
from .channel import Channel, ChannelClosedError, Message
from .parcel import open_parcel
from .prefetcher import Prefetcher, StageTask
from .processes import die_with_parent, fork_worker, freeze, set_name
from .reader import FileReader, ReadTask

#: Deaths on the same example after which it is given up.
MAX_DEATHS = 3
#: A part should keep a file reader busy for about this long: short enough to balance the load,
#: long enough that messages cost little.
PART_SECONDS = 0.002
#: Parts that a file reader has at hand, so that it never waits for the supervisor.
READER_CREDIT = 2


@dataclasses.dataclass(frozen=True)
class StagingPlan:
    """Where to stage, in absolute terms."""

    directory: str
    source: str
    capacity_bytes: int | None
    keep_free_bytes: int
    validate: bool
    n_prefetchers: int
    reads_in_flight: int

    def room(self) -> Room:
        """Return the room that this plan describes."""
        return Room(self.directory, self.capacity_bytes, self.keep_free_bytes)

    def store(self) -> Store:
        """Return the store that this plan describes."""
        return Store(self.directory, self.source, self.room(), validate=self.validate)


@dataclasses.dataclass(frozen=True)
class SupervisorPlan:
    """All that the supervisor needs to know besides the dataset."""

    n_readers: int
    n_build_ahead: int
    batch_size: int
    dataset_size: int
    seed: int | None
    max_parts_per_reader: int | None
    staging: StagingPlan | None
    imports: tuple[str, ...]
    trainer_pid: int = 0


class _Part:
    """Consecutive examples of one mini-batch: the unit that is staged, read and redone."""

    __slots__ = ("batch", "deaths", "indices", "part_id", "report", "start", "staged", "stop")

    def __init__(self, part_id: int, batch: _Batch, start: int, stop: int) -> None:
        self.part_id = part_id
        self.batch = batch
        self.start = start
        self.stop = stop
        self.indices: list[int] = batch.indices[start:stop]
        self.staged: dict[str, str] | None = None
        self.report: bytes | None = None
        self.deaths = 0


class _Batch:
    """A mini-batch on its way."""

    __slots__ = ("batch_id", "epochs", "failure", "indices", "layout_id", "n_waiting", "parts", "slot")

    def __init__(self, batch_id: int, indices: list[int], epochs: list[int] | None) -> None:
        self.batch_id = batch_id
        self.indices = indices
        self.epochs = epochs
        self.parts: list[_Part] = []
        self.n_waiting = 0
        self.slot: Slot | None = None
        self.layout_id = -1
        self.failure: Any = None


class _Worker:
    """A worker process and the parts that it has at hand, oldest first."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind = kind
        self.number = number
        self.pid = 0
        self.channel: Channel
        self.parts: dict[int, _Part] = {}
        self.n_examples = 0
        self.n_parts_given = 0
        self.segments: set[int] = set()
        self.layouts: set[int] = set()


class Supervisor:
    """See the module's text. ``run`` returns when the trainer closes or ends."""

    def __init__(
        self, channel: Channel, dataset: Dataset, plan: SupervisorPlan, board: StatsBoard,
        validated: memoryview,
    ) -> None:
        self._trainer = channel
        self._dataset = dataset
        self._plan = plan
        self._board = board
        self._validated = validated
        self._selector = selectors.DefaultSelector()
        self._outbox: collections.deque[tuple[Message, tuple[int, ...]]] = collections.deque()

        self._batches: dict[int, _Batch] = {}
        self._dropped: dict[int, _Batch] = {}  # reset away, with parts still being worked on
        self._parts: dict[int, _Part] = {}
        self._next_part_id = 0
        self._to_stage: collections.deque[_Part] = collections.deque()
        self._to_read: dict[int, collections.deque[_Part]] = {}  # by mini-batch
        self._consumed_id = 0
        self._probe: _Part | None = None  # the part whose reader is to propose the layout

        self._layouts: dict[int, Layout] = {}
        self._layout_id = -1
        self._pools: dict[int, SlotPool] = {}
        self._pool_of_segment: dict[int, SlotPool] = {}
        self._trainer_segments: set[int] = set()
        self._trainer_layouts: set[int] = set()

        self._prefetchers: list[_Worker] = []
        self._readers: list[_Worker] = []
        self._example_seconds = 0.0
        self._n_files = 1
        self._told: set[str] = set()
        self._is_closing = False

    # --- life ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the trainer closes its channel or ends."""
        staging = self._plan.staging
        if staging is not None:
            staging.store().sweep()
            for number in range(staging.n_prefetchers):
                self._prefetchers.append(self._start(_Worker("prefetcher", number)))
        for number in range(self._plan.n_readers):
            self._readers.append(self._start(_Worker("reader", number)))
        self._selector.register(self._trainer, selectors.EVENT_READ, None)
        trainer_end = os.pidfd_open(self._plan.trainer_pid)
        self._selector.register(trainer_end, selectors.EVENT_READ, "trainer ended")
        self._tell_trainer(("ready", os.getpid()))
        while not self._is_closing:
            for key, events in self._selector.select():
                if key.data is None:
                    self._serve_trainer(events)
                elif isinstance(key.data, _Worker):
                    self._serve_worker(key.data)
                else:
                    self._is_closing = True
            self._hand_out()

    def end_workers(self) -> None:
        """Kill and reap all workers, and remove what they left half-copied."""
        workers = self._prefetchers + self._readers
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)
        for worker in workers:
            os.waitpid(worker.pid, 0)
        if self._plan.staging is not None:
            self._plan.staging.store().sweep()

    def _start(self, worker: _Worker) -> _Worker:
        ours, theirs = Channel.pair()
        worker.pid = fork_worker(f"ovl-{worker.kind}", lambda: self._be_worker(worker, theirs, ours))
        theirs.close()
        worker.channel = ours
        worker.segments.clear()
        worker.layouts.clear()
        worker.n_parts_given = 0
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _be_worker(self, worker: _Worker, channel: Channel, supervisor_end: Channel) -> None:
        """In the forked worker: drop what is the supervisor's, then work."""
        supervisor_end.close()
        for key in list(self._selector.get_map().values()):
            if not isinstance(key.fileobj, int):
                key.fileobj.close()  # type: ignore[attr-defined]  # a Channel
        self._selector.close()
        self._trainer.close()
        for pool in self._pools.values():
            pool.close()
        staging = self._plan.staging
        if worker.kind == "prefetcher":
            assert staging is not None
            n_threads = -(-staging.reads_in_flight // staging.n_prefetchers)
            row = self._board.prefetcher_row(worker.number)
            Prefetcher(
                channel, self._dataset, staging.store(), self._validated, n_threads, row
            ).run()
        else:
            source = staging.source if staging else None
            row = self._board.reader_row(worker.number)
            n_rows, seed = self._plan.batch_size, self._plan.seed
            FileReader(channel, self._dataset, source, n_rows, seed, row).run()

    # --- the trainer --------------------------------------------------------------------------

    def _serve_trainer(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        try:
            while events & selectors.EVENT_READ and not self._is_closing:
                message, _ = self._trainer.receive(wait=False)
                self._obey(message)
        except BlockingIOError:
            return
        except ChannelClosedError:
            self._is_closing = True

    def _obey(self, message: Message) -> None:
        kind = message[0]
        if kind == "batches":
            for batch_id, (indices, epochs) in enumerate(message[2], message[1]):
                self._admit(_Batch(batch_id, indices, epochs))
        elif kind == "advance":
            self._consumed_id = message[1]
            for slot in message[2]:
                self._release(slot)
        elif kind == "reset":
            self._drop_all(message[1])
        elif kind == "describe":
            self._tell_trainer(("description", *self._describe()))
        else:
            self._is_closing = True

    def _tell_trainer(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        self._outbox.append((message, fds))
        self._flush()

    def _flush(self) -> None:
        """Send what the trainer has room for; it may be busy for long, so never wait for it."""
        events = selectors.EVENT_READ
        try:
            while self._outbox:
                self._trainer.send(*self._outbox[0], wait=False)
                self._outbox.popleft()
        except BlockingIOError:
            events |= selectors.EVENT_WRITE
        except ChannelClosedError:
            self._is_closing = True
        if self._selector.get_key(self._trainer).events != events:
            self._selector.modify(self._trainer, events, None)

    # --- mini-batches -------------------------------------------------------------------------

    def _admit(self, batch: _Batch) -> None:
        self._batches[batch.batch_id] = batch
        size = len(batch.indices)
        step = self._part_size(size)
        for start in range(0, size, step):
            part = _Part(self._next_part_id, batch, start, min(start + step, size))
            self._next_part_id += 1
            self._parts[part.part_id] = part
            batch.parts.append(part)
        batch.n_waiting = len(batch.parts)
        if self._plan.staging is None:
            self._to_read[batch.batch_id] = collections.deque(batch.parts)
        else:
            self._to_stage.extend(batch.parts)

    def _part_size(self, batch_size: int) -> int:
        n_readers = self._plan.n_readers
        fair = max(1, batch_size // n_readers)
        if not self._example_seconds:
            return max(1, min(fair, -(-batch_size // 8)))
        return max(1, min(fair, round(PART_SECONDS / self._example_seconds)))

    def _drop_all(self, next_id: int) -> None:
        """Forget every mini-batch; parts being worked on are left to finish."""
        busy = {p.batch.batch_id for w in self._prefetchers + self._readers for p in w.parts.values()}
        for batch in self._batches.values():
            if batch.batch_id in busy:
                self._dropped[batch.batch_id] = batch
            else:
                self._discard(batch)
        self._batches.clear()
        self._to_stage.clear()
        self._to_read.clear()
        if self._probe is not None and self._probe.batch.batch_id not in self._dropped:
            self._probe = None
        self._consumed_id = next_id

    def _discard(self, batch: _Batch) -> None:
        for part in batch.parts:
            self._parts.pop(part.part_id, None)
        if batch.slot is not None:
            self._release(batch.slot)
            batch.slot = None

    def _discard_if_unused(self, batch: _Batch) -> None:
        workers = self._prefetchers + self._readers
        if not any(p.batch is batch for w in workers for p in w.parts.values()):
            del self._dropped[batch.batch_id]
            self._discard(batch)

    def _finish(self, batch: _Batch) -> None:
        """Deliver a mini-batch whose parts are all done."""
        del self._batches[batch.batch_id]
        for part in batch.parts:
            del self._parts[part.part_id]
        self._to_read.pop(batch.batch_id, None)
        if batch.failure is not None:
            if batch.slot is not None:
                self._release(batch.slot)
            self._tell_trainer(("failed", batch.batch_id, batch.failure))
            return
        assert batch.slot is not None
        self._introduce(batch)
        parts = [(part.start, part.stop, part.report) for part in batch.parts]
        self._tell_trainer(("batch", batch.batch_id, batch.layout_id, batch.slot, parts))

    def _introduce(self, batch: _Batch) -> None:
        """Tell the trainer about a layout and a segment that it has not seen yet."""
        assert batch.slot is not None
        if batch.layout_id not in self._trainer_layouts:
            self._trainer_layouts.add(batch.layout_id)
            self._tell_trainer(("layout", batch.layout_id, self._layouts[batch.layout_id]))
        segment_id = batch.slot.segment_id
        if segment_id >= 0 and segment_id not in self._trainer_segments:
            self._trainer_segments.add(segment_id)
            segment = self._pool_of_segment[segment_id].segments[segment_id]
            self._tell_trainer(("segment", segment_id, segment.size_bytes), (segment.fd,))

    # --- slots --------------------------------------------------------------------------------

    def _adopt_layout(self, layout: Layout) -> None:
        self._layout_id += 1
        self._layouts[self._layout_id] = layout
        if layout.slot_bytes:
            # Those being built, the ready ones among them, and the one the trainer looks at.
            n_expected = self._plan.n_build_ahead + 2
            first = max((p.next_segment_id for p in self._pools.values()), default=0)
            self._pools[self._layout_id] = SlotPool(layout.slot_bytes, n_expected, first)

    def _acquire(self) -> Slot:
        pool = self._pools.get(self._layout_id)
        if pool is None:
            return Slot(-1, 0)  # examples without arrays need no memory
        slot = pool.acquire()
        self._pool_of_segment[slot.segment_id] = pool
        return slot

    def _release(self, slot: Slot) -> None:
        pool = self._pool_of_segment.get(slot[0])
        if pool is None:
            return
        pool.release(Slot(*slot))
        for layout_id, old in list(self._pools.items()):
            if old is pool and layout_id != self._layout_id and pool.is_idle():
                self._retire_pool(layout_id)

    def _retire_pool(self, layout_id: int) -> None:
        pool = self._pools.pop(layout_id)
        del self._layouts[layout_id]
        for segment_id in list(pool.segments):
            self._pool_of_segment.pop(segment_id, None)
            if segment_id in self._trainer_segments:
                self._tell_trainer(("forget", segment_id, layout_id))
            for reader in self._readers:
                if segment_id in reader.segments:
                    reader.channel.send(("forget", segment_id, None))
        pool.close()

    # --- handing out --------------------------------------------------------------------------

    def _hand_out(self) -> None:
        staging = self._plan.staging
        if staging is not None and self._to_stage:
            # Twice the reads in flight: none of them waits for the supervisor.
            credit = 2 * -(-staging.reads_in_flight // staging.n_prefetchers)
            self._hand_out_staging(credit)
        self._hand_out_reading()

    def _hand_out_staging(self, credit: int) -> None:
        while self._to_stage:
            worker = min(self._prefetchers, key=lambda w: w.n_examples)
            if worker.n_examples >= credit:
                return
            part = self._to_stage.popleft()
            self._assign(worker, part)
            self._send(worker, ("stage", StageTask(part.part_id, part.indices, self._n_files)))

    def _hand_out_reading(self) -> None:
        last_id = self._consumed_id + self._plan.n_build_ahead
        for batch_id in sorted(b for b in self._to_read if b < last_id):
            queue = self._to_read[batch_id]
            while queue:
                worker = min(self._readers, key=self._load)
                if self._load(worker) >= READER_CREDIT:
                    return
                if not self._hand_part(worker, queue[0]):
                    return
                queue.popleft()
            del self._to_read[batch_id]

    def _load(self, reader: _Worker) -> int:
        limit = self._plan.max_parts_per_reader
        is_retiring = limit is not None and reader.n_parts_given >= limit
        return READER_CREDIT if is_retiring else len(reader.parts)

    def _hand_part(self, worker: _Worker, part: _Part) -> bool:
        """Give a part to a file reader; False if it must wait for the layout."""
        batch = part.batch
        if self._layout_id < 0:
            if self._probe is not None:
                return False
            self._probe = part
        elif batch.slot is None:
            try:
                batch.slot = self._acquire()
            except OverlapError as error:
                self._fail(batch, pickle.dumps((error, None)))
                return True
            batch.layout_id = self._layout_id
        if batch.failure is not None:
            self._part_done(part)
            return True
        self._assign(worker, part)
        if batch.slot is not None:
            self._prepare(worker, batch)
        epochs = None if batch.epochs is None else batch.epochs[part.start : part.stop]
        task = ReadTask(
            part.part_id, part.start, part.indices, epochs, part.staged or {}, batch.slot,
            batch.layout_id,
        )
        self._send(worker, ("read", task))
        return True

    def _prepare(self, worker: _Worker, batch: _Batch) -> None:
        """Tell a file reader about a layout and a segment that it has not seen yet."""
        assert batch.slot is not None
        if batch.layout_id not in worker.layouts:
            worker.layouts.add(batch.layout_id)
            self._send(worker, ("layout", batch.layout_id, self._layouts[batch.layout_id]))
        segment_id = batch.slot.segment_id
        if segment_id >= 0 and segment_id not in worker.segments:
            worker.segments.add(segment_id)
            segment = self._pool_of_segment[segment_id].segments[segment_id]
            self._send(worker, ("segment", segment_id, segment.size_bytes), (segment.fd,))

    def _assign(self, worker: _Worker, part: _Part) -> None:
        worker.parts[part.part_id] = part
        worker.n_parts_given += 1
        worker.n_examples += len(part.indices)

    def _send(self, worker: _Worker, message: Message, fds: tuple[int, ...] = ()) -> None:
        try:
            worker.channel.send(message, fds)
        except ChannelClosedError:
            pass  # its death is noticed as the end of its own messages

    # --- the workers --------------------------------------------------------------------------

    def _serve_worker(self, worker: _Worker) -> None:
        try:
            while True:
                message, _ = worker.channel.receive(wait=False)
                self._hear(worker, message)
        except BlockingIOError:
            return
        except ChannelClosedError:
            self._replace(worker)

    def _hear(self, worker: _Worker, message: Message) -> None:
        kind = message[0]
        if kind == "staged":
            part = self._take_back(worker, message[1])
            part.staged = message[2]
            self._part_staged(part)
        elif kind == "read":
            self._hear_read(worker, *message[1:])
        elif kind == "failed":
            part = self._take_back(worker, message[1][0])
            if self._probe is part:
                self._probe = None
            self._fail(part.batch, message[2].pickled_error)
            self._part_done(part)
            self._retire_if_due(worker)
        elif kind == "layout":
            self._hear_layout(worker, message[1], message[2])
        elif message[1] not in self._told:  # trouble
            self._told.add(message[1])
            self._tell_trainer(message)

    def _part_staged(self, part: _Part) -> None:
        batch = part.batch
        if batch.batch_id in self._dropped:
            self._discard_if_unused(batch)
            return
        self._to_read.setdefault(batch.batch_id, collections.deque()).append(part)

    def _hear_read(
        self, worker: _Worker, answer: tuple[int, int, int, bool], report: bytes | None, wanted: Any
    ) -> None:
        part_id, fetch_ns, n_files, has_missed = answer
        part = self._take_back(worker, part_id)
        part.report = report
        seconds = fetch_ns / 1e9 / len(part.indices)
        self._example_seconds += (seconds - self._example_seconds) * (
            0.1 if self._example_seconds else 1.0
        )
        self._n_files = max(self._n_files, n_files)
        if has_missed:
            for index in part.indices:
                self._validated[index] = 0
        if wanted is not None and part.batch.layout_id == self._layout_id:
            self._adopt_layout(self._layouts[self._layout_id].widened(wanted))
        self._part_done(part)
        self._retire_if_due(worker)

    def _hear_layout(self, worker: _Worker, part_id: int, layout: Layout) -> None:
        part = worker.parts[part_id]
        batch = part.batch
        if self._layout_id < 0:
            self._adopt_layout(layout)
        self._probe = None
        try:
            batch.slot = batch.slot or self._acquire()
        except OverlapError as error:
            self._fail(batch, pickle.dumps((error, None)))
            self._replace_now(worker)  # it waits for a slot that will not come
            return
        if batch.layout_id < 0:
            batch.layout_id = self._layout_id
        self._prepare(worker, batch)
        self._send(worker, ("slot", batch.slot, batch.layout_id))

    def _take_back(self, worker: _Worker, part_id: int) -> _Part:
        part = worker.parts.pop(part_id)
        worker.n_examples -= len(part.indices)
        return part

    def _part_done(self, part: _Part) -> None:
        batch = part.batch
        if batch.batch_id in self._dropped:
            self._discard_if_unused(batch)
            return
        batch.n_waiting -= 1
        if batch.n_waiting == 0:
            self._finish(batch)

    def _fail(self, batch: _Batch, failure: bytes) -> None:
        """Let a mini-batch fail; its other parts are finished, so that its slot is at rest."""
        if batch.failure is None:
            batch.failure = failure

    # --- deaths -------------------------------------------------------------------------------

    def _retire_if_due(self, worker: _Worker) -> None:
        limit = self._plan.max_parts_per_reader
        if limit is not None and worker.n_parts_given >= limit and not worker.parts:
            self._replace_now(worker, is_death=False)

    def _replace_now(self, worker: _Worker, *, is_death: bool = True) -> None:
        os.kill(worker.pid, signal.SIGKILL)
        self._replace(worker, is_death=is_death, is_culprit=False)

    def _replace(
        self, worker: _Worker, *, is_death: bool = True, is_culprit: bool = True
    ) -> None:
        """Reap a worker, start another in its place, and have exactly its parts redone."""
        self._selector.unregister(worker.channel)
        worker.channel.close()
        os.kill(worker.pid, signal.SIGKILL)  # it may have closed its channel and live on
        _, status = os.waitpid(worker.pid, 0)
        parts = list(worker.parts.values())
        worker.parts.clear()
        worker.n_examples = 0
        row = self._row(worker)
        current = row.get(Counter.CURRENT) - 1
        row.put(Counter.CURRENT, 0)
        if is_death:
            row.add(Counter.DEATHS, 1)
        self._start(worker)
        for part in reversed(parts):
            if worker.kind == "prefetcher":
                self._redo_staging(part)
            else:
                blamed = is_culprit and current in part.indices and part is parts[0]
                self._redo_reading(part, current if blamed else None, status)

    def _row(self, worker: _Worker) -> Row:
        is_reader = worker.kind == "reader"
        return (self._board.reader_row if is_reader else self._board.prefetcher_row)(worker.number)

    def _redo_staging(self, part: _Part) -> None:
        part.deaths += 1
        if part.batch.batch_id in self._dropped:
            self._discard_if_unused(part.batch)
        elif part.deaths >= MAX_DEATHS:
            part.deaths = 0
            self._part_staged(part)  # unstaged: the file reader goes to the source
        else:
            self._to_stage.appendleft(part)

    def _redo_reading(self, part: _Part, culprit: int | None, status: int) -> None:
        if self._probe is part:
            self._probe = None
        if part.batch.batch_id in self._dropped:
            self._discard_if_unused(part.batch)
            return
        if culprit is not None:
            part.deaths += 1
            if part.deaths >= MAX_DEATHS:
                error = WorkerDiedError(culprit, part.deaths, os.waitstatus_to_exitcode(status))
                self._fail(part.batch, pickle.dumps((error, None)))
        if part.batch.failure is not None:
            self._part_done(part)
            return
        self._to_read.setdefault(part.batch.batch_id, collections.deque()).appendleft(part)

    # --- looking ------------------------------------------------------------------------------

    def _describe(self) -> tuple[str, int]:
        """Say what the next mini-batch waits for, and the index of the example; -1 for none."""
        batch = self._batches.get(self._consumed_id - 1)
        for worker in self._readers + self._prefetchers:
            for part in worker.parts.values():
                if part.batch is batch:
                    current = self._row(worker).get(Counter.CURRENT) - 1
                    index = current if current in part.indices else part.indices[0]
                    return f"{worker.kind} {worker.number} (pid {worker.pid})", index
        return "a free worker", -1


def supervise(fds: list[int], plan: SupervisorPlan, dataset_bytes: int) -> int:
    """Run the supervisor; the main function of its process.

    Args:
        fds: The channel to the trainer, the pickled dataset, the stats board, the validated bytes.
        plan: The plan.
        dataset_bytes: Size of the pickled dataset.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_name("ovl-supervisor")
    channel = Channel.from_fd(fds[0])
    try:
        for name in plan.imports:
            importlib.import_module(name)
        dataset = open_parcel(fds[1], dataset_bytes)
        n_prefetchers = plan.staging.n_prefetchers if plan.staging else 0
        board = StatsBoard(fds[2], plan.n_readers, n_prefetchers)
        validated = memoryview(mmap.mmap(fds[3], max(plan.dataset_size, 1)))
        for fd in fds[1:4]:
            os.close(fd)
        freeze()
        supervisor = Supervisor(channel, dataset, plan, board, validated)
        try:
            supervisor.run()
        finally:
            supervisor.end_workers()
    except ChannelClosedError:
        return 0
    except BaseException as error:  # noqa: BLE001  # the trainer is told, nobody else can
        _report_fatal(channel, error)
        return 1
    return 0


def _report_fatal(channel: Channel, error: BaseException) -> None:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    summary = f"{type(error).__name__}: {error}"
    try:
        channel.send(("fatal", summary, text))
    except ChannelClosedError:
        sys.stderr.write(text)  # the trainer is gone: this is the last place to tell
