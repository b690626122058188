"""The schedule: which part of which mini-batch is where. Pure: no process, memory or clock.

A mini-batch is cut into parts, the unit that is staged, read and redone, each when it is first
taken from its queue: by then more is known of what an example costs. Each part goes through the
states of :class:`PartState`; a mini-batch is *settled* when all its parts are done. One that has
failed or was dropped is *abandoned*: its queued parts count as done at once, those being worked on
when they come back, so that no worker writes to its slot when it is settled.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable

from overlapiter.sharedmem.segments import Slot

#: Mini-batches have fewer examples.
_MOST_EXAMPLES = 1 << 32


class PartState(enum.Enum):
    """Where a part is."""

    TO_STAGE = enum.auto()
    STAGING = enum.auto()
    TO_READ = enum.auto()
    READING = enum.auto()
    DONE = enum.auto()


class Part:
    """Consecutive examples of one mini-batch."""

    def __init__(self, batch: Batch, start: int, stop: int, state: PartState) -> None:
        #: Its number; parts needed earlier have smaller ones.
        self.part_id = batch.batch_id * _MOST_EXAMPLES + start
        self.batch = batch
        self.start = start  # row of the first example in the mini-batch
        self.stop = stop  # row behind the last one
        self.indices: list[int] = batch.indices[start:stop]
        self.state = state
        self.is_suspect = False  # whether a file reader has died that had it
        self.n_lost = 0  # prefetchers that have died that had it
        self.n_refused = 0  # how often there was no room for its files
        #: Where those of its files lie that may be read from their copies, packed.
        self.extents = b""
        self.report: bytes | None = None  # what its file reader said about the examples, pickled

    @property
    def position(self) -> int:
        """The position of the first example, counted over all epochs."""
        return self.batch.position + self.start

    @property
    def epochs(self) -> list[int] | None:
        """The epoch of each example; None without a seed."""
        epochs = self.batch.epochs
        return None if epochs is None else epochs[self.start : self.stop]


class Batch:
    """A mini-batch on its way."""

    def __init__(
        self, batch_id: int, indices: list[int], epochs: list[int] | None, position: int, turn: int
    ) -> None:
        self.batch_id = batch_id  # its number; they count up
        self.turn = turn  # the reader to which it is dealt, if they are dealt in turn
        self.position = position  # the position of the first example, counted over all epochs
        self.indices = indices
        self.epochs = epochs  # the epoch of each example; None without a seed
        #: Its parts, in order; the last one may be of what is not cut yet.
        self.parts: list[Part] = []
        self.n_cut = 0  # examples in parts that were cut
        self.n_waiting = 0  # parts that are not done
        self.slot: Slot | None = None  # where it is built; None before
        self.layout_id = -1  # the layout of the slot; -1 before
        self.failure: bytes | None = None  # why it cannot be delivered, pickled; None if it can
        self.is_dropped = False  # whether the trainer has dropped it
        self.busy_ns = 0  # for how long its parts, once read, have kept file readers busy
        self.cpu_ns = 0  # for how long these have used a core for them

    @property
    def is_abandoned(self) -> bool:
        """Whether its parts are no longer worth any work."""
        return self.is_dropped or self.failure is not None


_Queue = list[tuple[int, Part]]


class Schedule:
    """All mini-batches on their way, and two queues of parts, the ones needed first in front."""

    def __init__(
        self,
        *,
        is_staging: bool,
        part_size: Callable[[Batch], int],
        settled: Callable[[Batch], None],
        n_turns: int = 0,
    ) -> None:
        self._is_staging = is_staging  # whether parts are staged before they are read
        self._part_size = part_size  # how many examples of a mini-batch to put into a part now
        self._settled = settled
        self.n_turns = n_turns  # readers to which mini-batches are dealt in turn; 0 to deal parts
        self._first_batch_id = 0
        self.next_batch_id = 0  # the number of the next mini-batch to be taken up
        self._end_position = 0
        self._batches: dict[int, Batch] = {}
        self._to_stage: _Queue = []
        self._to_read: list[_Queue] = [[] for _ in range(max(1, n_turns))]

    @property
    def n_batches(self) -> int:
        """Mini-batches that are not settled."""
        return len(self._batches)

    @property
    def has_settled(self) -> bool:
        """Whether a mini-batch has been settled, of those taken up."""
        return self.next_batch_id > len(self._batches)

    @property
    def n_to_stage(self) -> int:
        """Parts that no prefetcher has yet."""
        return len(self._to_stage)

    @property
    def n_to_read(self) -> int:
        """Parts that are staged, as far as they can be, and that no file reader has yet."""
        return sum(map(len, self._to_read))

    def is_worth_staging(self, n_examples: int, before_id: int) -> bool:
        """Return whether so many examples are to be staged, or some that are needed soon.

        Soon: in a mini-batch before the middle between ``before_id`` and the last one known.
        """
        first = self._next(self._to_stage, PartState.TO_STAGE)
        if first is None or first.batch.batch_id < (before_id + self.next_batch_id + 1) // 2:
            return first is not None
        for _, part in self._to_stage:
            if part.state is PartState.TO_STAGE:
                n_examples -= len(part.indices)
                if n_examples <= 0:
                    return True
        return False

    def batch(self, batch_id: int) -> Batch | None:
        """Return a mini-batch that is not settled, or None."""
        return self._batches.get(batch_id)

    def admit(
        self, batch_id: int, indices: list[int], epochs: list[int] | None, position: int = 0
    ) -> None:
        """Take up a mini-batch; one taken up before is left."""
        if batch_id < self.next_batch_id:
            return
        self.next_batch_id = batch_id + 1
        turn = (batch_id - self._first_batch_id) % len(self._to_read)
        batch = self._batches[batch_id] = Batch(batch_id, indices, epochs, position, turn)
        self._end_position = position + len(indices)
        self._add(batch, 0, PartState.TO_STAGE if self._is_staging else PartState.TO_READ)

    def _add(self, batch: Batch, start: int, state: PartState) -> None:
        part = Part(batch, start, len(batch.indices), state)
        batch.parts.append(part)
        batch.n_waiting += 1
        self._queue(part, state)

    def _cut(self, part: Part, state: PartState) -> None:
        """Leave of a part as many examples as are to be in one now; the others are another one."""
        batch = part.batch
        stop = part.start + self._part_size(batch)
        if stop < part.stop:
            part.stop = stop
            del part.indices[stop - part.start :]
            self._add(batch, stop, state)
        batch.n_cut = part.stop

    @property
    def oldest(self) -> Batch | None:
        """The first mini-batch that is not settled, of those that the trainer still wants."""
        return next((b for b in self._batches.values() if not b.is_dropped), None)

    @property
    def settled_position(self) -> int:
        """The position of the first example of a mini-batch that is not settled."""
        oldest = self.oldest
        return self._end_position if oldest is None else oldest.position

    def next_to_stage(self, before_id: int | None = None) -> Part | None:
        """Take the part that is to be staged next, of the mini-batches before ``before_id``."""
        return self._pop(self._to_stage, PartState.TO_STAGE, PartState.STAGING, before_id)

    def next_to_read(self, before_id: int, turn: int = 0) -> Part | None:
        """Take the part that a reader is to read next, of the mini-batches before ``before_id``."""
        if self.n_turns:
            before_id = min(before_id, self._due(turn) + 1)
        return self._pop(self._to_read[turn], PartState.TO_READ, PartState.READING, before_id)

    def _due(self, turn: int) -> int:
        """Return the next mini-batch of a reader's turn, staged or not: it reads them in order."""
        waiting = (PartState.TO_STAGE, PartState.STAGING, PartState.TO_READ)
        for batch_id, batch in self._batches.items():
            if batch.turn == turn and any(part.state in waiting for part in batch.parts):
                return batch_id
        return -1

    def staged(self, part: Part, extents: bytes) -> None:
        """Note that a part may be read."""
        part.extents = extents
        self.redo(part, PartState.TO_READ)

    def redo(self, part: Part, state: PartState) -> None:
        """Queue a part again, such as one whose worker died."""
        if part.batch.is_abandoned:
            self.done(part)
        else:
            self._queue(part, state)

    def done(self, part: Part) -> None:
        """Note that no worker has a part any more."""
        if part.state is PartState.DONE:
            return
        batch = part.batch
        part.state = PartState.DONE
        batch.n_waiting -= 1
        if not batch.n_waiting:
            del self._batches[batch.batch_id]
            self._settled(batch)
            batch.parts = []  # a cycle with it would wait for the garbage collector

    def fail(self, part: Part, failure: bytes) -> None:
        """Abandon the mini-batch of a part that cannot be read; the first failure counts."""
        if part.batch.failure is None:
            part.batch.failure = failure
        self._abandon(part.batch)
        self.done(part)

    def drop_all(self, next_id: int) -> None:
        """Abandon every mini-batch, and expect ``next_id`` next."""
        self.next_batch_id = self._first_batch_id = next_id
        self._end_position = 0  # the next ones may be of an earlier epoch
        batches = list(self._batches.values())
        for batch in batches:
            batch.is_dropped = True
        for batch in batches:
            self._abandon(batch)

    def _abandon(self, batch: Batch) -> None:
        for part in batch.parts:
            if part.state in (PartState.TO_STAGE, PartState.TO_READ):
                self.done(part)

    def _queue(self, part: Part, state: PartState) -> None:
        part.state = state
        is_staged = state is PartState.TO_READ
        queue = self._to_read[part.batch.turn] if is_staged else self._to_stage
        heapq.heappush(queue, (part.part_id, part))

    def _pop(
        self, queue: _Queue, wanted: PartState, then: PartState, before_id: int | None
    ) -> Part | None:
        part = self._next(queue, wanted)
        if part is None or (before_id is not None and part.batch.batch_id >= before_id):
            return None
        heapq.heappop(queue)
        part.state = then
        if part.start >= part.batch.n_cut:
            self._cut(part, wanted)
        return part

    def _next(self, queue: _Queue, wanted: PartState) -> Part | None:
        """Return the first part of a queue; those that were abandoned in it are dropped."""
        while queue and queue[0][1].state is not wanted:
            heapq.heappop(queue)
        return queue[0][1] if queue else None
