"""The file reader: stage 3 of the pipeline. Reads examples and writes them into slots."""

from __future__ import annotations

import pickle
import random
import time
import traceback
from typing import Any, NamedTuple

import numpy as np

from overlapiter.errors import ExampleError
from overlapiter.sharedmem.layout import layout_of
from overlapiter.sharedmem.segments import Segment, Slot
from overlapiter.sharedmem.slots import SlotWriter
from overlapiter.sources import Dataset, OpenHook, Redirect
from overlapiter.stats import Counter, Row

from .channel import Channel, ChannelClosedError
from .processes import keep_freed_memory


class ReadTask(NamedTuple):
    """A part of a mini-batch to read.

    Attributes:
        part_id: For the answer.
        first_row: Position of the first example in the mini-batch.
        indices: Indices of the examples.
        epochs: The epoch of each, to seed by; None without a seed.
        staged: For each source path that may be read from its staged copy, that copy.
        slot: Where to write; None asks for the layout first.
        layout_id: Which layout the slot has.
    """

    part_id: int
    first_row: int
    indices: list[int]
    epochs: list[int] | None
    staged: dict[str, str]
    slot: Slot | None
    layout_id: int


class Failure(NamedTuple):
    """An example that the dataset could not give, as it travels to the trainer."""

    example_index: int
    pickled_error: bytes


class FileReader:
    """Reads the parts that come over a channel, until it closes.

    Args:
        channel: To the supervisor.
        dataset: The dataset.
        source: Absolute root of the files on the slow store; None without staging.
        n_rows: Examples in a full mini-batch, for the layout.
        seed: Seeds the random streams of each example; None leaves them alone.
        row: Its counters.
    """

    def __init__(
        self,
        channel: Channel,
        dataset: Dataset,
        source: str | None,
        n_rows: int,
        seed: int | None,
        row: Row,
    ) -> None:
        self._channel = channel
        self._dataset = dataset
        self._n_rows = n_rows
        self._seed = seed
        self._row = row
        self._segments: dict[int, Segment] = {}
        self._writers: dict[int, SlotWriter] = {}
        self._redirect = Redirect()
        if source is not None:
            OpenHook(source, self._redirect).install()

    def run(self) -> None:
        """Serve until the supervisor closes the channel."""
        keep_freed_memory()
        row = self._row
        if not row.get(Counter.STARTED_NS):
            row.put(Counter.STARTED_NS, time.monotonic_ns())
        try:
            while True:
                before_ns = time.monotonic_ns()
                message, fds = self._channel.receive()
                after_ns = time.monotonic_ns()
                row.add(Counter.DEQUEUE_NS, after_ns - before_ns)
                if message[0] == "read":
                    fetch_ns = self._read(message[1])
                    row.add(Counter.FETCH_NS, fetch_ns)
                    row.add(Counter.OTHER_NS, time.monotonic_ns() - after_ns - fetch_ns)
                else:
                    self._take_note(message, fds)
        except ChannelClosedError:
            return

    def _take_note(self, message: tuple[Any, ...], fds: list[int]) -> None:
        kind, number, value = message
        if kind == "segment":
            self._segments[number] = Segment(fds[0], value)
            self._segments[number].close()  # the mapping is enough
        elif kind == "layout":
            self._writers[number] = SlotWriter(value)
        elif kind == "forget":
            self._segments.pop(number, None)
            self._writers.pop(value, None)

    def _read(self, task: ReadTask) -> int:
        """Read one part and report it; return the nanoseconds spent inside the dataset."""
        redirect, row = self._redirect, self._row
        redirect.begin_part(task.staged)
        staged_before, source_before = redirect.opens_staged, redirect.opens_source
        fetch_ns = 0
        most_files = 0
        entries: list[Any] = []
        failure: Failure | None = None
        for number, index in enumerate(task.indices):
            row.put(Counter.CURRENT, index + 1)
            redirect.begin_example()
            before_ns = time.monotonic_ns()
            try:
                example = self._fetch(task, number, index)
            except Exception as error:  # user code: it travels to the trainer
                failure = Failure(index, _pickled_error(error, index, tuple(redirect.opened)))
                break
            finally:
                fetch_ns += time.monotonic_ns() - before_ns
            most_files = max(most_files, len(set(redirect.opened)))
            if task.slot is None:
                task = self._offer_layout(task, example)
            entries.append(self._write(task, task.first_row + number, example))
        row.add(Counter.EXAMPLES_READ, len(entries))
        row.add(Counter.OPENS_STAGED, redirect.opens_staged - staged_before)
        row.add(Counter.OPENS_SOURCE, redirect.opens_source - source_before)
        answer = (task.part_id, fetch_ns, most_files, redirect.has_missed)
        if failure is not None:
            self._channel.send(("failed", answer, failure))
        else:
            self._report(task, answer, entries)
        row.put(Counter.CURRENT, 0)
        return fetch_ns

    def _fetch(self, task: ReadTask, number: int, index: int) -> object:
        """Return an example; if the dataset fails on a staged copy, from the source instead."""
        opens_before = self._redirect.opens_staged
        for is_last in (False, True):
            if task.epochs is not None and self._seed is not None:
                seed_example(self._seed, task.epochs[number], index)
            try:
                return self._dataset[index]
            except Exception:
                # The copy may be damaged, or its disk.
                if is_last or self._redirect.opens_staged == opens_before:
                    raise
                self._redirect.distrust()
        raise AssertionError

    def _write(self, task: ReadTask, row: int, example: object) -> Any:
        assert task.slot is not None
        segment = self._segments.get(task.slot.segment_id)
        return self._writers[task.layout_id].write(segment, task.slot, row, example)

    def _offer_layout(self, task: ReadTask, example: object) -> ReadTask:
        """Propose the layout that an example asks for; return the task with a slot to write to."""
        self._channel.send(("layout", task.part_id, layout_of(example, self._n_rows)))
        while True:
            message, fds = self._channel.receive()
            if message[0] == "slot":
                return task._replace(slot=message[1], layout_id=message[2])
            self._take_note(message, fds)

    def _report(self, task: ReadTask, answer: Any, entries: list[Any]) -> None:
        writer = self._writers[task.layout_id]
        payload = None
        wanted = None
        if any(entry is not None for entry in entries):
            try:
                payload = pickle.dumps(entries, pickle.HIGHEST_PROTOCOL)
            except Exception as error:  # user data: the trainer is told
                index = _unpicklable(task.indices, entries)
                failure = Failure(index, _pickled_error(error, index, ()))
                self._channel.send(("failed", answer, failure))
                return
            if writer.wanted_row_bytes != [c.row_bytes for c in writer.layout.columns]:
                wanted = writer.wanted_row_bytes
        self._channel.send(("read", answer, payload, wanted))


def seed_example(seed: int, epoch: int, index: int) -> None:
    """Set ``random`` and ``numpy.random`` to a state that follows from the arguments alone."""
    words = np.random.SeedSequence([seed, epoch, index % 2**64]).generate_state(4)
    np.random.seed(words)  # the global stream is what datasets use
    random.seed(words.tobytes())


def _unpicklable(indices: list[int], entries: list[Any]) -> int:
    for index, entry in zip(indices, entries, strict=True):
        try:
            pickle.dumps(entry, pickle.HIGHEST_PROTOCOL)
        except Exception:  # looking for the one that cannot
            return index
    return indices[0]


def _pickled_error(error: Exception, index: int, paths: tuple[str, ...]) -> bytes:
    """Pickle the exception with an ExampleError that tells where it came from."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    reason = f"{type(error).__name__}: {error}"
    context = ExampleError(index, paths, reason, text)
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        data = pickle.dumps((error, context), pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)  # some exceptions pickle but do not come back
    except Exception:  # then the context alone must do
        return pickle.dumps((None, context), pickle.HIGHEST_PROTOCOL)
    return data
