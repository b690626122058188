"""The reading stage of the supervisor: its team of file readers, and the parts that they get."""

from __future__ import annotations

import pickle
from typing import Any

from overlapiter.errors import ExampleError, OverlapError, WorkerDiedError, deaths_words
from overlapiter.sharedmem.layout import Layout
from overlapiter.sharedmem.segments import Slot
from overlapiter.workers.ipc.channel import Message
from overlapiter.workers.reader.reader import ReadTask
from overlapiter.workers.supervisor.deaths import Death, Deaths
from overlapiter.workers.supervisor.memory import SlotKeeper
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Part, PartState, Schedule
from overlapiter.workers.supervisor.stages import READER_CREDIT, UNBOUNDED, CostEstimate
from overlapiter.workers.supervisor.team import Team, Worker


class ReadingStage:
    """Hands parts to file readers, with slots to write to.

    Args:
        is_skipping: Whether examples that cannot be read are left out.
        collates: Whether a slot has one row, for what is made of a whole mini-batch.
    """

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
        self._is_skipping = is_skipping
        self._collates = collates
        self._deaths = Deaths()
        self._given_up: dict[int, ExampleError] = {}
        self._probe: Part | None = None  # the part whose reader is to propose the layout

    @property
    def is_probing(self) -> bool:
        """Whether an example is being read to learn how large they are."""
        return self._probe is not None

    def hand_out(self, before_id: int) -> None:
        """As for prefetchers, with parts of the mini-batches before ``before_id``."""
        if self._schedule.n_turns:
            self._deal(before_id)
            return
        while worker := self.team.least_loaded(READER_CREDIT, UNBOUNDED, self._costs.n_busy):
            if self._probe is not None:  # until there is a layout, one reader reads
                return
            part = self._schedule.next_to_read(before_id)
            if part is None:
                return
            if self._find_slot(part):
                self._give(worker, part)

    def _deal(self, before_id: int) -> None:
        """Hand to each reader the parts of the mini-batches whose turn it is."""
        for turn, worker in enumerate(self.team):
            while worker.pid and len(worker.parts) < READER_CREDIT and self._probe is None:
                part = self._schedule.next_to_read(before_id, turn)
                if part is None:
                    break
                if self._find_slot(part):
                    self._give(worker, part)

    def _find_slot(self, part: Part) -> bool:
        """Make sure that a part has a slot to be read into; False if its mini-batch failed."""
        batch = part.batch
        if not self._keeper.has_layout:
            self._probe = part
        elif batch.slot is None:
            try:
                if not self._collates:
                    self._keeper.lengthen(len(batch.indices))
                batch.slot = self._keeper.acquire()
            except OverlapError as error:
                self._fail(part, error)
                return False
            batch.layout_id = self._keeper.layout_id
        return True

    def _give(self, worker: Worker, part: Part) -> None:
        batch = part.batch
        worker.give(part)
        if batch.slot is not None:
            self._make_known(worker, batch.layout_id, batch.slot)
        task = ReadTask(
            part.part_id,
            part.start,
            part.indices,
            part.epochs,
            part.extents,
            batch.slot,
            batch.layout_id,
            {i: self._given_up[i] for i in part.indices if i in self._given_up},
            batch.batch_id,
        )
        worker.send(("read", *task))

    def _make_known(self, worker: Worker, layout_id: int, slot: Slot) -> None:
        for sending in self._keeper.make_known(worker.known, layout_id, slot):
            worker.send(*sending)

    def release(self, slot: Slot) -> list[Message]:
        """Take a slot back; have readers forget idle memory, and return that for the trainer."""
        messages = self._keeper.release(slot)
        for message in messages:
            for reader in self.team:
                if reader.pid and message[2] in reader.known.layouts:
                    reader.send(message)
        return messages

    def hear(self, worker: Worker, message: Message) -> bool:
        """Take note of what a file reader has done; return whether its process may go on."""
        kind = message[0]
        if kind == "read":
            self._hear_read(worker, *message[1:])
        elif kind == "failed":
            part = self._take_back(worker, message[1])
            self._schedule.fail(part, message[2])
        elif not self._hear_layout(worker, message[1], message[2]):
            return False
        return not self.team.is_due(worker)

    def _hear_read(self, worker: Worker, answer: Any, report: bytes | None, wanted: Any) -> None:
        part = self._take_back(worker, answer)
        part.report = report
        if wanted is not None:
            self._keeper.widen(part.batch.layout_id, wanted)
        self._schedule.done(part)

    def _take_back(
        self, worker: Worker, answer: tuple[int, tuple[int, int, int], list[int]]
    ) -> Part:
        part_id, cost, missed = answer
        part = worker.take_back(part_id)
        self._costs.add(len(part.indices), *cost)
        part.batch.busy_ns += cost[1]
        part.batch.cpu_ns += cost[2]
        if missed:
            self._residency.suspect(missed)
        if self._probe is part:
            self._probe = None
        return part

    def _hear_layout(self, worker: Worker, part_id: int, layout: Layout) -> bool:
        """Give the reader that proposes the first layout a slot to write to; False without one."""
        part = worker.parts[part_id]
        self._probe = None
        if not self._keeper.has_layout:
            self._keeper.adopt(layout)
        if not self._find_slot(part):
            worker.take_back(part_id)  # the reader waits for a slot that will not come
            return False
        batch = part.batch
        assert batch.slot is not None
        self._make_known(worker, batch.layout_id, batch.slot)
        worker.send(("slot", batch.slot, batch.layout_id))
        return True

    def drop(self, parts: list[Part]) -> None:
        """Take back the parts, of dropped mini-batches, of a reader that was ended."""
        for part in parts:
            if part is self._probe:
                self._probe = None
            self._schedule.redo(part, PartState.TO_READ)

    def redo(self, parts: list[Part], death: Death) -> None:
        """Have the parts of a reader that died read by another one, or give up its example."""
        culprit = death.culprit(parts)
        for part in parts:
            if part is self._probe:
                self._probe = None
            n_deaths = self._deaths.add(part, culprit)
            if not n_deaths or culprit is None:
                self._schedule.redo(part, PartState.TO_READ)
                continue
            self.team.n_fruitless = 0  # giving up an example is progress
            index, exit_code, last_words = culprit.index, death.exit_code, death.last_words
            if self._is_skipping:
                reason = f"{deaths_words(n_deaths, exit_code)} on it"
                self._given_up[index] = ExampleError(index, (), reason, last_words)
                self._schedule.redo(part, PartState.TO_READ)
            else:
                self._fail(part, WorkerDiedError(index, n_deaths, exit_code, (), last_words))

    def end(self, *, grace_seconds: float) -> None:
        """End all file readers; with a grace they write what they have recorded before."""
        if grace_seconds:
            for worker in self.team:
                if worker.pid:
                    worker.send(("end",))
        self.team.end(grace_seconds=grace_seconds)

    def _fail(self, part: Part, error: OverlapError) -> None:
        self._schedule.fail(part, pickle.dumps((error, None)))
