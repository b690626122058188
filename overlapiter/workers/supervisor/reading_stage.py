"""The reading stage of the supervisor: its team of file readers, and the parts that they get."""

from __future__ import annotations

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
from overlapiter.workers.supervisor.costs import READER_CREDIT, CostEstimate
from overlapiter.workers.supervisor.memory import SlotKeeper
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Part, PartState, Schedule
from overlapiter.workers.supervisor.team import Death, Team, Worker


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
                while reader.pid and len(reader.parts) < READER_CREDIT:
                    if not self._give_next(reader, before_id, turn):
                        break
            return
        while worker := self.team.least_loaded(READER_CREDIT, most_workers=self._costs.n_busy):
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
        if given_up := self.team.example_to_give_up(death, parts):
            part, index, n_deaths = given_up
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
