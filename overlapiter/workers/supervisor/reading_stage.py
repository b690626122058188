"""The reading stage of the supervisor: its file readers, their parts, and what examples cost."""

from __future__ import annotations

import math
import pickle
from typing import NoReturn

from overlapiter.errors import (
    ExampleError,
    OverlapError,
    PipelineError,
    WorkerDiedError,
    deaths_words,
)
from overlapiter.sharedmem.layout import Layout
from overlapiter.workers.ipc.channel import Message
from overlapiter.workers.reader.reader import ReadTask
from overlapiter.workers.supervisor.memory import SlotKeeper
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Part, PartState, Schedule
from overlapiter.workers.supervisor.team import Death, Team, Worker

#: A part keeps a file reader busy for at most this long: short enough to balance the load, long
#: enough that messages cost little.
PART_SECONDS = 0.032
#: A part counts as at most so many times as slow as those before.
_MOST_TIMES = 4
#: Parts of the first mini-batch, or more where there are many readers.
_FIRST_PARTS = 8
#: Parts that a file reader has at hand, so that it never waits for the supervisor.
_READER_CREDIT = 2
#: Readers that wait for less than this share of the time for which they use a core do not count
#: as waiting.
_SLACK = 0.2


class CostEstimate:
    """What reading an example costs, as far as has been seen, on cores that the readers share."""

    def __init__(self, n_readers: int, n_cores: int) -> None:
        self._n_readers = n_readers
        self.n_busy = n_readers  # those that are to have work: more than cores if they wait
        self._n_cores = n_cores
        self._cpu_seconds = 0.0
        self.example_seconds = 0.0  # how long one keeps a reader busy; 0 before the first
        self.n_files = 1  # most files that one has opened

    def add(self, n_examples: int, n_files: int, busy_ns: int, cpu_ns: int) -> None:
        """Learn from a part, of which one that stalled counts as a slow one.

        Args:
            n_examples: Its examples.
            n_files: Most files that one of them has opened.
            busy_ns: What it took, less the time for which a core was waited for. Where a reader
                loses its core between its looks at the two clocks, it is too little, even negative.
            cpu_ns: For how long it had a core; else it waited for something such as a disk.
        """
        share = 0.1 if self.example_seconds else 1.0
        seconds = max(busy_ns, cpu_ns) / 1e9 / n_examples
        if self.example_seconds:
            seconds = min(seconds, _MOST_TIMES * self.example_seconds)
        self.example_seconds += (seconds - self.example_seconds) * share
        self._cpu_seconds += (cpu_ns / 1e9 / n_examples - self._cpu_seconds) * share
        self.n_files = max(self.n_files, n_files)
        if self._cpu_seconds:
            waiting = self.example_seconds / self._cpu_seconds
            n_useful = math.ceil(self._n_cores * max(1.0, waiting - _SLACK))
            self.n_busy = min(self._n_readers, n_useful)

    def part_size(self, batch_size: int, n_build_ahead: int, *, is_first: bool = False) -> int:
        """Return how many examples of a mini-batch to put into a part.

        Few large parts of one size cost less; yet each reader that has work is to have its share of
        what is built ahead, and one part to do next. The first mini-batch is waited for: small
        parts of it are staged and read by all at once.
        """
        n_parts = math.ceil(_READER_CREDIT * self.n_busy / n_build_ahead)
        if self.example_seconds:
            n_parts = max(n_parts, round(batch_size * self.example_seconds / PART_SECONDS))
        elif is_first:
            n_parts = max(n_parts, _FIRST_PARTS)
        return max(1, -(-batch_size // n_parts))


class ReadingStage:
    """Hands parts to file readers, with slots to write to. It is never given up."""

    is_given_up = False

    def __init__(
        self,
        team: Team,
        schedule: Schedule,
        keeper: SlotKeeper,
        costs: CostEstimate,
        residency: Residency,
        *,
        is_skipping: bool,
        collates: bool = False,
    ) -> None:
        self.team = team
        self._schedule = schedule
        self._keeper = keeper
        self._costs = costs
        self._residency = residency
        self._is_skipping = is_skipping  # whether examples that cannot be read are left out
        self._collates = collates  # whether a slot has one row, for a whole mini-batch
        self._given_up: dict[int, ExampleError] = {}
        self._probe: Part | None = None  # the part whose reader is to propose the layout

    @property
    def is_probing(self) -> bool:
        """Whether an example is being read to learn how large they are."""
        return self._probe is not None

    def hand_out(self, before_id: int) -> None:
        """As for prefetchers, with parts of the mini-batches before ``before_id``."""
        if self._schedule.n_turns:  # each reader has the mini-batches whose turn it is
            for turn, reader in enumerate(self.team):
                while reader.pid and len(reader.parts) < _READER_CREDIT:
                    if not self._give_next(reader, before_id, turn):
                        break
            return
        while worker := self.team.least_loaded(_READER_CREDIT, most_workers=self._costs.n_busy):
            if not self._give_next(worker, before_id):
                return

    def _give_next(self, worker: Worker, before_id: int, turn: int = 0) -> bool:
        """Give a reader its next part, if it can have a slot; return whether there was one."""
        if self._probe is not None:  # until there is a layout, one reader reads
            return False
        part = self._schedule.next_to_read(before_id, turn)
        if part is None:
            return False
        if self._find_slot(part):
            self._give(worker, part)
        return True

    def _find_slot(self, part: Part) -> bool:
        """Make sure that a part has memory to be read into; False if its mini-batch failed."""
        batch = part.batch
        if self._keeper.layout_id < 0:
            self._probe = part
            return True
        try:
            if batch.slot is None:
                batch.slot = self._keeper.acquire(1 if self._collates else len(batch.indices))
                batch.layout_id = self._keeper.layout_id
            rows = range(1) if self._collates else range(part.start, part.stop)
            self._keeper.reserve(batch.layout_id, batch.slot, rows)
        except OverlapError as error:
            self._fail(part, error)
            return False
        return True

    def _give(self, worker: Worker, part: Part) -> None:
        batch = part.batch
        worker.give(part)
        if batch.slot is not None:
            self._keeper.make_known(worker, batch.layout_id, batch.slot)
        task = ReadTask(
            part.part_id,
            part.start,
            part.indices,
            part.epochs,
            part.extents,
            batch.slot and batch.slot[:],
            batch.layout_id,
            {i: self._given_up[i] for i in part.indices if i in self._given_up},
            batch.batch_id,
            part.is_suspect,
        )
        worker.send(("read", *task))

    def hear(self, worker: Worker, message: Message) -> bool:
        """Take note of what a file reader has done; return whether its process may go on."""
        if message[0] == "read":
            self._hear_read(worker, message)
        elif not self._hear_layout(worker, message[1], message[2]):
            return False
        return not self.team.is_due(worker)

    def _hear_read(self, worker: Worker, message: Message) -> None:
        _, part_id, cost, missed, report, wanted, failure = message
        part = worker.take_back(part_id)
        if self._probe is part:
            self._probe = None
        self._costs.add(len(part.indices), *cost)
        part.batch.busy_ns += cost[1]
        part.batch.cpu_ns += cost[2]
        if missed:
            self._residency.suspect(missed)
        if failure is not None:
            self._schedule.fail(part, failure)
            return
        part.report = report
        if wanted is not None:
            self._keeper.widen(part.batch.layout_id, wanted)
        self._schedule.done(part)

    def _hear_layout(self, worker: Worker, part_id: int, layout: Layout) -> bool:
        """Give the reader that proposes the first layout a slot to write to; False without one."""
        part = worker.parts[part_id]
        self._probe = None
        if self._keeper.layout_id < 0:
            self._keeper.adopt(layout)
        if not self._find_slot(part):
            worker.take_back(part_id)  # the reader waits for a slot that will not come
            return False
        batch = part.batch
        assert batch.slot is not None
        self._keeper.make_known(worker, batch.layout_id, batch.slot)
        worker.send(("slot", batch.slot[:], batch.layout_id))
        return True

    def drop(self, parts: list[Part]) -> None:
        """Have the parts of a reader that ended read by another one, if they are still wanted."""
        for part in parts:
            if part is self._probe:
                self._probe = None
            self._schedule.redo(part, PartState.TO_READ)

    def redo(self, parts: list[Part], death: Death) -> None:
        """Have the parts of a reader that died read by another one, or give up its example."""
        for part in parts:
            part.is_suspect = True
        if blamed := self.team.blame(death, parts):
            part, index, n_deaths = blamed
            exit_code, _, last_words = death
            if self._is_skipping:
                reason = f"{deaths_words(n_deaths, exit_code)} on it"
                self._given_up[index] = ExampleError(index, (), reason, last_words)
            else:
                self._fail(part, WorkerDiedError(index, n_deaths, exit_code, (), last_words))
        self.drop(parts)

    def give_up(self, reason: str) -> NoReturn:
        """Without file readers there are no mini-batches: end the supervisor."""
        raise PipelineError(reason)

    def end(self, *, grace_seconds: float) -> None:
        """End all file readers; with a grace they write what they have recorded before."""
        if grace_seconds:
            for worker in self.team:
                if worker.pid:
                    worker.send(("end",))
        self.team.end(grace_seconds=grace_seconds)

    def _fail(self, part: Part, error: OverlapError) -> None:
        self._schedule.fail(part, pickle.dumps((error, None)))
