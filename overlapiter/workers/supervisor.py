"""The supervisor: hands out work to prefetchers and file readers, and replaces those that die.

It is one process with one thread and runs no code of the user's after it has unpickled the
dataset, so nothing that a dataset does can stop it. Messages with the trainer:

    trainer → supervisor                      supervisor → trainer
    ("advance", consumed_id, [slot, …],       ("ready",), ("fatal", error, traceback)
        first_id, [index list, …])            ("layout", id, layout), ("segment", id, bytes) + fd
    ("reset", next_id)                        ("batch", id, layout_id, slot, parts)
    ("describe",)                             ("failed", id, pickled error), ("forget", …)
    ("close",)                                ("description", who, index), ("trouble", text)
"""

from __future__ import annotations

import os
import pickle
import selectors
from typing import Any

from overlapiter.errors import OverlapError, WorkerDiedError
from overlapiter.sharedmem.layout import Layout
from overlapiter.sharedmem.segments import Slot
from overlapiter.sources import Dataset
from overlapiter.stats import Counter, StatsBoard

from .channel import Channel, ChannelClosedError, Message
from .memory import Acquaintance, SlotKeeper
from .plan import SupervisorPlan
from .prefetcher import Prefetcher, StageTask
from .processes import is_running
from .reader import FileReader, ReadTask
from .schedule import Batch, Part, PartState, Schedule
from .team import Team, Worker
from .trainer_end import TrainerEnd

#: Deaths on the same example, or of prefetchers on the same part, after which it is given up.
MAX_DEATHS = 3
#: The same for the example that was to come next when its file reader died between two examples.
MAX_SUSPECT_DEATHS = 10
#: A part should keep a file reader busy for about this long: short enough to balance the load,
#: long enough that messages cost little.
PART_SECONDS = 0.004
#: Parts that a file reader has at hand, so that it never waits for the supervisor.
READER_CREDIT = 2
#: With nothing to do for so long, look whether the trainer is still there.
_LOOK_AFTER_SECONDS = 1.0
_UNBOUNDED = 1 << 60


class Supervisor:
    """See the module's text. ``run`` returns when the trainer closes or ends."""

    def __init__(
        self,
        channel: Channel,
        dataset: Dataset,
        plan: SupervisorPlan,
        board: StatsBoard,
        validated: memoryview,
    ) -> None:
        self._plan = plan
        self._dataset = dataset
        self._validated = validated
        self._selector = selectors.DefaultSelector()
        self._trainer = TrainerEnd(channel, self._selector)
        self._schedule = Schedule(is_staging=plan.staging is not None)
        # Those being built, the ready ones among them, the next one, and the one being looked at.
        self._keeper = SlotKeeper(n_expected=plan.n_build_ahead + 2)
        self._probe: Part | None = None  # the part whose reader is to propose the layout
        self._consumed_id = 0
        self._example_seconds = 0.0
        self._n_files = 1  # most files that an example has opened
        self._told: set[str] = set()

        n_prefetchers = plan.staging.n_prefetchers if plan.staging else 0
        rows = [board.prefetcher_row(number) for number in range(n_prefetchers)]
        self._prefetchers = Team("prefetcher", "ovl-prefetcher", rows, self._be_prefetcher)
        rows = [board.reader_row(number) for number in range(plan.n_readers)]
        self._readers = Team(
            "file reader", "ovl-reader", rows, self._be_reader, plan.max_parts_per_reader
        )

    # --- life ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the trainer closes its channel or ends."""
        self._trainer.tell(("ready",))
        if self._plan.staging is not None:
            self._plan.staging.store().sweep()
        for team in (self._prefetchers, self._readers):
            for worker in team:
                if not worker.pid:
                    self._start(team, worker)
                self._take_turn(0)  # the first ones work while the others are forked
        while not self._trainer.is_closed:
            # A process forked from the trainer may keep the channel open beyond its end.
            if not self._take_turn(_LOOK_AFTER_SECONDS) and not is_running(self._plan.trainer_pid):
                self._trainer.close()

    def _take_turn(self, timeout_seconds: float) -> bool:
        """Serve whoever has sent a message, and hand out work; False if nobody had."""
        ready = self._selector.select(timeout_seconds)
        for key, events in ready:
            if key.data is self._trainer:
                for message in self._trainer.messages(events):
                    self._obey(message)
            else:
                self._serve(*key.data)
        if not ready and timeout_seconds:
            for team in (self._prefetchers, self._readers):
                for worker in team.vacant():
                    self._start(team, worker)
        self._hand_out()
        return bool(ready)

    def end_workers(self) -> None:
        """Kill and reap all workers, and remove what they left half-copied."""
        self._prefetchers.end()
        self._readers.end()
        if self._plan.staging is not None:
            self._plan.staging.store().sweep()

    def _start(self, team: Team, worker: Worker) -> None:
        try:
            team.start(worker)
        except OSError as error:  # too many processes, say: tried again a little later
            team.count_failed_start(error)
            return
        self._selector.register(worker.channel, selectors.EVENT_READ, (team, worker))

    def _be_reader(self, worker: Worker, channel: Channel) -> None:
        """Run in a forked file reader."""
        self._leave_to_supervisor()
        plan = self._plan
        source = plan.staging.source if plan.staging else None
        FileReader(channel, self._dataset, source, plan.batch_size, plan.seed, worker.row).run()

    def _be_prefetcher(self, worker: Worker, channel: Channel) -> None:
        """Run in a forked prefetcher."""
        self._leave_to_supervisor()
        staging = self._plan.staging
        assert staging is not None
        Prefetcher(
            channel,
            self._dataset,
            staging.store(),
            self._validated,
            staging.reads_per_prefetcher,
            worker.row,
        ).run()

    def _leave_to_supervisor(self) -> None:
        """In a forked worker: close every channel but its own, so that each has two ends."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # a Channel
        self._selector.close()
        self._trainer.channel.close()
        self._keeper.close()

    # --- the trainer --------------------------------------------------------------------------

    def _obey(self, message: Message) -> None:
        kind = message[0]
        if kind == "advance":
            _, self._consumed_id, released, first_id, index_lists = message
            for slot in released:
                self._release(slot)
            for batch_id, (indices, epochs) in enumerate(index_lists, first_id):
                self._schedule.admit(batch_id, indices, epochs, self._part_size(len(indices)))
        elif kind == "reset":
            self._consumed_id = message[1]
            # An interruption may have cost it what it was told; hearing it again does no harm.
            self._trainer.known = Acquaintance()
            for batch in self._schedule.drop_all(message[1]):
                self._settle(batch)
        elif kind == "describe":
            self._trainer.tell(("description", *self._describe()))
        else:
            self._trainer.close()

    def _part_size(self, batch_size: int) -> int:
        fair = max(1, batch_size // self._plan.n_readers)
        if not self._example_seconds:
            return max(1, min(fair, -(-batch_size // 8)))
        return max(1, min(fair, round(PART_SECONDS / self._example_seconds)))

    def _describe(self) -> tuple[str, int]:
        """Say whom the next mini-batch waits for, and at which example; -1 for none."""
        batch = self._schedule.batch(self._consumed_id - 1)
        for worker in [*self._readers, *self._prefetchers]:
            for part in worker.parts.values():
                if part.batch is batch:
                    current = worker.current_index()
                    return str(worker), current if current in part.indices else part.indices[0]
        return "a free worker", -1

    def _settle(self, batch: Batch | None) -> None:
        """Deliver a mini-batch whose parts are all done, or let it go."""
        if batch is None:
            return
        if batch.is_abandoned:
            if batch.slot is not None:
                self._release(batch.slot)
            if not batch.is_dropped:
                self._trainer.tell(("failed", batch.batch_id, batch.failure))
            return
        assert batch.slot is not None
        for sending in self._keeper.introduce(self._trainer.known, batch.layout_id, batch.slot):
            self._trainer.tell(*sending)
        parts = [(part.start, part.stop, part.report) for part in batch.parts]
        self._trainer.tell(("batch", batch.batch_id, batch.layout_id, batch.slot, parts))

    def _release(self, slot: Slot) -> None:
        for message in self._keeper.release(Slot(*slot)):
            self._trainer.tell(message)
            for reader in self._readers:
                if reader.pid and message[2] in reader.known.layouts:
                    reader.send(message)

    # --- handing out --------------------------------------------------------------------------

    def _hand_out(self) -> None:
        staging = self._plan.staging
        if staging is not None:
            # Twice the reads in flight, so that none of them waits for the supervisor.
            credit = 2 * staging.reads_per_prefetcher
            while worker := self._prefetchers.least_loaded(_UNBOUNDED, credit):
                part = self._schedule.next_to_stage()
                if part is None:
                    break
                worker.give(part)
                worker.send(("stage", StageTask(part.part_id, part.indices, self._n_files)))
        before_id = self._consumed_id + self._plan.n_build_ahead
        while worker := self._readers.least_loaded(READER_CREDIT, _UNBOUNDED):
            if self._probe is not None:  # until there is a layout, one reader reads
                return
            part = self._schedule.next_to_read(before_id)
            if part is None:
                return
            if self._find_slot(part):
                self._give_to_reader(worker, part)

    def _find_slot(self, part: Part) -> bool:
        """See to it that a part has a slot to be read into; False if its mini-batch failed."""
        batch = part.batch
        if not self._keeper.has_layout:
            self._probe = part
        elif batch.slot is None:
            try:
                batch.slot = self._keeper.acquire()
            except OverlapError as error:
                self._fail(part, error)
                return False
            batch.layout_id = self._keeper.layout_id
        return True

    def _give_to_reader(self, worker: Worker, part: Part) -> None:
        batch = part.batch
        worker.give(part)
        if batch.slot is not None:
            self._introduce(worker, batch.layout_id, batch.slot)
        task = ReadTask(
            part.part_id,
            part.start,
            part.indices,
            part.epochs,
            part.staged,
            batch.slot,
            batch.layout_id,
        )
        worker.send(("read", task))

    def _introduce(self, worker: Worker, layout_id: int, slot: Slot) -> None:
        """Tell a file reader about a layout and a segment that are new to it."""
        for sending in self._keeper.introduce(worker.known, layout_id, slot):
            worker.send(*sending)

    def _fail(self, part: Part, error: OverlapError) -> None:
        self._settle(self._schedule.fail(part, pickle.dumps((error, None))))

    # --- the workers --------------------------------------------------------------------------

    def _serve(self, team: Team, worker: Worker) -> None:
        try:
            while True:
                message, _ = worker.channel.receive(wait=False)
                self._hear(worker, message)
                team.n_fruitless = 0
                if team.is_due(worker):
                    self._replace(team, worker, is_death=False)
        except BlockingIOError:
            return
        except ChannelClosedError:
            self._replace(team, worker)

    def _hear(self, worker: Worker, message: Message) -> None:
        kind = message[0]
        if kind == "staged":
            self._settle(self._schedule.staged(worker.take_back(message[1]), message[2]))
        elif kind == "read":
            self._hear_read(worker, *message[1:])
        elif kind == "failed":
            part = self._take_back_read(worker, message[1])
            self._settle(self._schedule.fail(part, message[2].pickled_error))
        elif kind == "layout":
            self._hear_layout(worker, message[1], message[2])
        elif message[1] not in self._told:  # trouble
            self._told.add(message[1])
            self._trainer.tell(message)

    def _hear_read(self, worker: Worker, answer: Any, report: bytes | None, wanted: Any) -> None:
        part = self._take_back_read(worker, answer)
        part.report = report
        if wanted is not None:
            self._keeper.widen(part.batch.layout_id, wanted)
        self._settle(self._schedule.done(part))

    def _take_back_read(self, worker: Worker, answer: tuple[int, int, int, bool]) -> Part:
        part_id, fetch_ns, n_files, has_missed = answer
        part = worker.take_back(part_id)
        seconds = fetch_ns / 1e9 / len(part.indices)
        share = 0.1 if self._example_seconds else 1.0
        self._example_seconds += (seconds - self._example_seconds) * share
        self._n_files = max(self._n_files, n_files)
        if has_missed:  # somebody removed a staged file: look again the next time
            for index in part.indices:
                self._validated[index] = 0
        if self._probe is part:
            self._probe = None
        return part

    def _hear_layout(self, worker: Worker, part_id: int, layout: Layout) -> None:
        """Give the reader that proposes the first layout a slot to write to."""
        part = worker.parts[part_id]
        self._probe = None
        if not self._keeper.has_layout:
            self._keeper.adopt(layout)
        if not self._find_slot(part):
            worker.take_back(part_id)
            # It waits for a slot that will not come.
            self._replace(self._readers, worker, is_death=False)
            return
        batch = part.batch
        assert batch.slot is not None
        self._introduce(worker, batch.layout_id, batch.slot)
        worker.send(("slot", batch.slot, batch.layout_id))

    # --- deaths -------------------------------------------------------------------------------

    def _replace(self, team: Team, worker: Worker, *, is_death: bool = True) -> None:
        """Put a new process in a worker's place, and have exactly the parts it had redone."""
        self._selector.unregister(worker.channel)
        culprit = worker.current_index()
        status = worker.end()
        parts = worker.take_all_back()
        if is_death:
            worker.row.add(Counter.DEATHS, 1)
            team.count_death(status)
        # Died between two examples, the next one is but suspect.
        is_known = any(culprit in part.indices for part in parts)
        if parts and not is_known:
            culprit = parts[0].indices[0]
        self._start(team, worker)
        for part in parts:
            if part is self._probe:
                self._probe = None
            if team is self._prefetchers:
                self._redo_staging(part)
            else:
                self._redo_reading(part, culprit, is_known, status)

    def _redo_staging(self, part: Part) -> None:
        part.deaths += 1
        if part.deaths % MAX_DEATHS:
            self._settle(self._schedule.redo(part, PartState.TO_STAGE))
        else:  # let the file reader go to the source
            self._settle(self._schedule.staged(part, {}))

    def _redo_reading(self, part: Part, culprit: int, is_known: bool, status: int) -> None:
        limit = MAX_DEATHS if is_known else MAX_SUSPECT_DEATHS
        if culprit in part.indices:
            part.deaths = part.deaths + 1 if (culprit, is_known) == part.culprit else 1
            part.culprit = culprit, is_known
        if part.deaths >= limit and culprit in part.indices:
            exit_code = os.waitstatus_to_exitcode(status)
            self._fail(part, WorkerDiedError(culprit, part.deaths, exit_code))
        else:
            self._settle(self._schedule.redo(part, PartState.TO_READ))
