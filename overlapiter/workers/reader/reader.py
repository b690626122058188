"""The file reader: stage 3 of the pipeline. Reads examples and writes them into slots."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from overlapiter.board import N_TIERS, Counter, Row
from overlapiter.errors import ExampleError, described
from overlapiter.openhook import OpenHook
from overlapiter.sharedmem.layout import layout_of
from overlapiter.sharedmem.segments import Segment, Slot
from overlapiter.sharedmem.slots import SlotWriter
from overlapiter.sources import Key, declared_paths, index_maker
from overlapiter.store.extents import unpacked
from overlapiter.tracing import open_trace
from overlapiter.workers.copies import StagedCopies
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError
from overlapiter.workers.plan import SupervisorPlan
from overlapiter.workers.start.processes import BusyClock, end_own_fork, keep_freed_memory
from overlapiter.workers.usage import Usage

from .face import Face
from .unseen import UnseenReads

#: After waiting for so long for work, it writes what it has recorded.
_PAUSE_SECONDS = 0.1


class ReadTask(NamedTuple):
    """A part of a mini-batch to read."""

    part_id: int  # for the answer
    first_row: int  # row of the first example in the mini-batch
    indices: list[int]
    epochs: list[int] | None  # the epoch of each, to seed by; None without a seed
    extents: bytes  # where those of its files lie that may be read from their copies, packed
    slot: tuple[int, int] | None  # the Slot to write to; None asks for the layout first
    layout_id: int  # which layout the slot has
    given_up: dict[int, ExampleError]  # why not to read an example again, by index
    batch: int = -1  # the mini-batch, for the trace
    is_suspect: bool = False  # whether a file reader has died that had it


class FileReader:
    """Reads the parts that the supervisor sends over a channel, until that closes."""

    def __init__(self, channel: Channel, face: Face, plan: SupervisorPlan, row: Row) -> None:
        self._channel = channel
        self._face, self._dataset = face, face.dataset
        self._plan = plan
        self._begin_error: BaseException | None = None
        self._index_type = index_maker(plan.index_type)
        self._row = row
        self._usage = Usage(row)
        self._trace = open_trace(plan.trace, f"file reader {row.number}", 200 + row.number)
        self._clock = BusyClock()
        self._pid = os.getpid()
        self._segments: dict[int, Segment] = {}
        self._writers: dict[int, SlotWriter] = {}
        self._copies: StagedCopies | None = None
        self._direct = None
        if plan.staging is not None:
            self._copies = StagedCopies(plan.staging)
            self._direct = plan.staging.direct()
            source = plan.staging.source
            self._unseen = UnseenReads(
                face.dataset, source, row, self._warn, names_source=plan.names_source
            )
            note_elsewhere = self._unseen.note_elsewhere
            OpenHook(source, self._copies, self._direct, note_elsewhere).install()

    def run(self) -> None:
        """Serve until the end; ChannelClosedError is raised where the channel is closed."""
        keep_freed_memory()
        row = self._row
        if not row.get(Counter.STARTED_NS):
            row.put(Counter.STARTED_NS, time.monotonic_ns())
        try:
            self._face.begin(row.number, self._plan.n_readers)
        except BaseException as error:  # user code: all its parts fail
            self._begin_error = error
        self._end_forks(self._begin_error)
        with self._trace:
            while True:
                before_ns = time.monotonic_ns()
                if self._trace.is_on and not self._channel.is_readable(_PAUSE_SECONDS):
                    self._trace.flush()  # this process may be killed while it waits
                message, fds = self._channel.receive()
                after_ns = time.monotonic_ns()
                row.add(Counter.DEQUEUE_NS, after_ns - before_ns)
                if message[0] == "read":
                    task = ReadTask(*message[1:])
                    fetch_ns = self._read(task)
                    end_ns = time.monotonic_ns()
                    row.add(Counter.FETCH_NS, fetch_ns)
                    row.add(Counter.OTHER_NS, end_ns - after_ns - fetch_ns)
                    batch, n = task.batch, len(task.indices)
                    self._trace.add(
                        "read part", "reading", after_ns, end_ns, batch, flows=(batch,), n=n
                    )
                elif message[0] == "end":
                    break
                else:
                    self._take_note(message, fds)

    def _count_opens(self, copies: StagedCopies) -> None:
        """Count the files that a part has opened: at once, since a loop costs less for each."""
        row = self._row
        for tier, n_bytes, took_ns in copies.reads:
            row.add(Counter.OPENS_TIER_0 + min(tier, N_TIERS - 1), 1)
            row.add(Counter.BYTES_READ_STAGED, n_bytes)
            row.add(Counter.DISK_READ_NS, took_ns)
            row.add_latency(took_ns)
        row.add(Counter.OPENS_SOURCE, copies.opens_source)

    def _warn(self, text: str) -> None:
        self._channel.send(("trouble", text))

    def _take_note(self, message: tuple[Any, ...], fds: list[int]) -> None:
        kind, number, value = message
        if kind == "segment":
            self._segments[number] = Segment(fds[0], value)
            self._segments[number].close()  # the mapping is enough
        elif kind == "layout":
            self._writers[number] = SlotWriter(value, self._face.take_apart)
        elif kind == "forget":
            self._segments.pop(number, None)
            self._writers.pop(value, None)
        elif kind == "gone" and self._copies is not None:
            self._copies.close()  # what is open was removed, and is not to take room any more

    def _read(self, task: ReadTask) -> int:
        """Read one part and report it; return the nanoseconds spent inside the dataset."""
        copies, row = self._copies, self._row
        if copies is not None:
            copies.begin_part(unpacked(task.extents))
        reading = _Reading(task)
        before = time.monotonic_ns(), *self._clock.now()
        if self._face.fetches_whole:
            self._read_whole(reading)
        else:
            for number, index in enumerate(task.indices):
                self._try(reading, number, [index])
                if reading.failure is not None:
                    break
        if self._face.collates and reading.n_read and reading.failure is None:
            self._write_collated(reading)
        if copies is not None:
            self._count_opens(copies)
            self._unseen.count(reading.unopened)
        self._report(reading, before)
        self._begin_example()  # what the last one opened is not needed any more
        row.put(Counter.CURRENT, 0)
        return reading.fetch_ns

    def _read_whole(self, reading: _Reading) -> None:
        """Ask for a mini-batch at once; what fails by itself, too, may be left out."""
        task, given_up = reading.task, reading.task.given_up
        left_out = [given_up[index] for index in task.indices if index in given_up]
        wanted = [index for index in task.indices if index not in given_up]
        # A key that stands for all of them cannot be divided.
        is_divisible = self._plan.is_skipping and not isinstance(task.indices[0], Key)
        reading.entries += left_out
        if wanted and not (is_divisible and task.is_suspect) and self._try(reading, 0, wanted):
            return
        if is_divisible:
            del reading.entries[len(left_out) :]
            wanted = [index for index in wanted if self._try(reading, 0, [index])]
            reading.n_read = 0
            reading.unopened.clear()
            if wanted:
                self._try(reading, 0, wanted)

    def _try(self, reading: _Reading, number: int, indices: list[int]) -> bool:
        """Read an example, or several at once; return whether they could be."""
        copies, row, index, is_read = self._copies, self._row, indices[0], True
        row.put(Counter.CURRENT, index + 1 if _is_countable(index) else 0)
        self._begin_example()
        try:
            self._read_example(reading, number, indices)
        except ChannelClosedError:
            raise
        except BaseException as error:  # user code, even sys.exit: it travels to the trainer
            is_read = False
            paths = (copies and copies.opened) or self._likely_paths(error, index)
            failed = indices
            if not self._plan.is_skipping:
                reading.failure, failed = error, [index]
            reading.entries += [_explained(error, each, paths) for each in failed]
        if copies is not None and copies.has_missed:
            reading.missed += indices  # which of several it was is not known
            row.add(Counter.COPIES_LOST, 1)
        if copies is not None and len(copies.opened) > reading.n_files * len(indices):
            n_files = -(-len(set(copies.opened)) // len(indices))
            reading.n_files = max(reading.n_files, n_files)
        return is_read

    def _begin_example(self) -> None:
        if self._copies is not None:
            self._copies.begin_example()
        if self._direct is not None:
            self._direct.forget()

    def _read_example(self, reading: _Reading, number: int, indices: list[int]) -> None:
        """Read one example and write it to the slot; or read several at once."""
        if self._begin_error is not None:
            raise self._begin_error
        task, index = reading.task, indices[0]
        if index in task.given_up:
            reading.entries.append(task.given_up[index])
            return
        before_ns = time.monotonic_ns()
        try:
            example = self._fetch(task, number, indices)
        finally:
            after_ns = time.monotonic_ns()
            reading.fetch_ns += after_ns - before_ns
            if self._trace.is_on:
                told = index if _is_countable(index) else repr(index)
                self._trace.add(
                    "dataset[i]", "reading", before_ns, after_ns, task.batch, index=told
                )
        reading.n_read += len(indices)
        if self._copies is not None and not self._copies.opened:
            reading.unopened += indices
        if self._face.fetches_whole:
            reading.examples = example  # of whatever type
            return
        if self._face.collates:
            reading.examples.append(example)
            return
        reading.entries.append(self._write(reading, task.first_row + number, example))

    def _write_collated(self, reading: _Reading) -> None:
        """Write what the face makes of the examples of a whole mini-batch to the slot."""
        try:
            batch = self._face.collate(reading.examples)
            self._end_forks()
            reading.entries.append(self._write(reading, 0, batch))
        except ChannelClosedError:
            raise
        except BaseException as error:  # user code
            self._end_forks(error)
            reading.entries.append(_explained(error, reading.task.indices[0], ()))
            reading.failure = error

    def _likely_paths(self, error: BaseException, index: int) -> Sequence[str]:
        """Return the files of an example that cannot be read, where no open was observed."""
        try:
            filename = getattr(error, "filename", None)
            if isinstance(filename, (str, bytes)):
                return [os.fsdecode(filename)]
            return declared_paths(self._dataset, index) or []
        except BaseException:  # user code, which has failed once already: the index must do
            return []

    def _fetch(self, task: ReadTask, number: int, indices: list[int]) -> Any:
        """Return an example; if it fails on a staged copy or that changes, from the source."""
        copies, index = self._copies, indices[0]
        n_reads = 0 if copies is None else len(copies.reads)
        for is_last in (False, True):
            if task.epochs is not None and self._plan.seed is not None:
                self._face.seed_example(self._plan.seed, task.epochs[number], index)
            try:
                example: object
                if self._face.fetches_whole:
                    example = self._face.fetch_whole(indices)
                else:
                    example = self._dataset[self._index_type(index)]
                self._end_forks()
                if is_last and copies is not None:
                    copies.has_missed = True  # if that fails, too, the dataset is at fault
                if is_last or copies is None or not copies.have_changed():
                    return example
            except BaseException as error:
                self._end_forks(error)
                # The copy may be damaged, or its disk.
                if is_last or copies is None or len(copies.reads) == n_reads:
                    raise
            copies.distrust()
        raise AssertionError

    def _end_forks(self, error: BaseException | None = None) -> None:
        """End here if this is a process that the user's code has forked; called when that ends."""
        if os.getpid() != self._pid:
            end_own_fork(error)

    def _write(self, reading: _Reading, row: int, example: object) -> Any:
        slot = reading.slot or self._offer_layout(reading, example)
        segment = self._segments.get(slot.segment_id)
        return self._writers[reading.layout_id].write(segment, slot, row, example)

    def _offer_layout(self, reading: _Reading, example: object) -> Slot:
        """Propose the layout that an example asks for; return the slot to write the part to."""
        # For a mini-batch of several epochs, which may have more, the layout is lengthened.
        n_rows = min(self._plan.batch_size, max(1, self._plan.dataset_size))
        layout = layout_of(example, 1 if self._face.collates else n_rows, self._face.take_apart)
        self._channel.send(("layout", reading.task.part_id, layout))
        while True:
            message, fds = self._channel.receive()
            if message[0] == "slot":
                slot, reading.layout_id = Slot(*message[1]), message[2]
                reading.slot = slot
                return slot
            if message[0] == "end":
                raise ChannelClosedError
            self._take_note(message, fds)

    def _report(self, reading: _Reading, before: tuple[int, int, int]) -> None:
        report, wanted, failure = reading.pickled_entries(self._plan.is_skipping), None, None
        n_bad = sum(isinstance(entry, ExampleError) for entry in reading.entries)
        self._row.add(Counter.EXAMPLES_READ, reading.n_read)
        cost = reading.n_files, *self._count_time(before)
        writer = self._writers.get(reading.layout_id)
        if reading.failure is not None:
            failure = _pickled_error(self._face.failure(reading.failure), reading.entries[-1])
        else:
            self._row.add(Counter.EXAMPLES_SKIPPED, n_bad)
            if report is not None and writer is not None and writer.wants_wider_rows():
                wanted = writer.wanted_row_bytes
        answer = reading.task.part_id, cost, reading.missed, report, wanted, failure
        self._channel.send(("read", *answer))

    def _count_time(self, before: tuple[int, int, int]) -> tuple[int, int]:
        """Count how the time of a part divides; return for how long it was busy, and on a core."""
        now = time.monotonic_ns(), *self._clock.now()
        took_ns, busy_ns, cpu_ns = (a - b for a, b in zip(now, before, strict=True))
        self._row.add(Counter.DECODE_NS, cpu_ns)
        self._row.add(Counter.FILE_WAIT_NS, max(0, busy_ns - cpu_ns))
        self._row.add(Counter.CORE_WAIT_NS, max(0, took_ns - busy_ns))
        self._usage.note()
        return busy_ns, cpu_ns


class _Reading:
    """A part while it is being read."""

    def __init__(self, task: ReadTask) -> None:
        self.task = task
        self.slot = None if task.slot is None else Slot(*task.slot)
        self.layout_id = task.layout_id
        #: What the slot's writer said of each example so far, or why there is none.
        self.entries: list[Any] = []
        #: Those that are to be collated; what the dataset gives for a whole mini-batch.
        self.examples: Any = []
        self.n_read = 0  # examples read so far
        #: What ends the whole part; the last entry explains it.
        self.failure: BaseException | None = None
        self.fetch_ns = 0  # nanoseconds spent inside the dataset
        self.n_files = 0  # most files that one of its examples has opened
        #: The examples of which a copy was damaged or gone, or of no use.
        self.missed: list[int] = []
        self.unopened: list[int] = []  # the examples that opened no file of the source

    def pickled_entries(self, is_skipping: bool) -> bytes | None:
        """Return the entries, pickled; None if every example is ordinary, or the part has failed.

        An example that cannot be pickled cannot be read, either.
        """
        if self.failure is not None or all(entry is None for entry in self.entries):
            return None
        try:
            return pickle.dumps(self.entries, pickle.HIGHEST_PROTOCOL)
        except BaseException:  # user data: look for those that cannot
            for number, entry in enumerate(self.entries):
                try:
                    pickle.dumps(entry, pickle.HIGHEST_PROTOCOL)
                except BaseException as error:  # here it is
                    self.entries[number] = _explained(error, self.task.indices[number], ())
                    if not is_skipping:
                        self.failure = error
                        del self.entries[number + 1 :]
                        return None
        return pickle.dumps(self.entries, pickle.HIGHEST_PROTOCOL)


def _is_countable(index: object) -> bool:
    return isinstance(index, int) and abs(index) < 2**62


def _explained(error: BaseException, index: int, opened: Sequence[str]) -> ExampleError:
    """Return the error that says where an exception of the user's code came from."""
    return ExampleError(index, tuple(dict.fromkeys(opened)), *described(error))


def _pickled_error(error: BaseException, context: ExampleError) -> bytes:
    """Pickle an exception of the user's code together with what explains it.

    The context alone must do for one that does not come back as it is, and for one that the trainer
    would take for its own: SystemExit ends it in silence, StopIteration a loop over the iterator.
    """
    pickled = None
    if isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration)):
        with contextlib.suppress(BaseException):  # user code
            error.__traceback__ = error.__cause__ = error.__context__ = None
            data = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
            if type(pickle.loads(data)) is type(error):
                pickled = data
    return pickle.dumps((pickled, context), pickle.HIGHEST_PROTOCOL)
