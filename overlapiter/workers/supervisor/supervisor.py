"""The supervisor: hands out work to prefetchers and file readers, and replaces those that die.

It is one process with one thread, runs no code of the user's after it has unpickled the dataset,
and never waits until a message is read, so nothing that a dataset does can stop it. Messages with
the trainer:

    trainer → supervisor                      supervisor → trainer
    ("advance", consumed_id, [slot, …],       ("ready",), ("fatal", error, traceback)
        first_id, [index list, …])            ("layout", id, layout), ("segment", id, bytes) + fd
    ("orders", {epoch: order, …}, {…})        ("batch", id, layout_id, slot, parts)
    ("reset", next_id, renewal), ("keep memory",)
    ("describe",)                             ("failed", id, pickled error), ("forget", …)
    ("close",)                                ("description", who, index), ("trouble", text)

With the workers, of which every one may also send ("trouble", text, subject), the subject
if it likes, and ("crashed", traceback):

    supervisor → prefetcher                   prefetcher → supervisor
    ("stage", *StageTask)                     ("staged", task_id, [Finding, …], moved)
    ("reads", n), ("uses", keys, needs_room)  ("gone", generation)
    ("end", ending, counters)

    supervisor → file reader                  file reader → supervisor
    ("layout", id, layout), ("forget", …)     ("layout", part_id, layout), if the task has no slot
    ("segment", id, bytes) + fd
    ("read", *ReadTask)                       ("read", part_id, cost, missed, report,
    ("slot", slot, layout_id), ("end",)           wanted row bytes, pickled error)
    ("gone", 0, generation)

The server for other nodes gets ("gone", …), too, and sends ("serving",) once it listens.

``missed`` are the examples of which a copy was damaged or gone. A task may be reported in pieces;
``moved`` is None in all of them but the last.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import selectors
import time

from overlapiter.board import Counter, StatsBoard
from overlapiter.errors import PipelineError
from overlapiter.sharedmem.segments import Slot
from overlapiter.store.generation import generation_of
from overlapiter.store.localfiles import remove_left
from overlapiter.store.site import Run
from overlapiter.tracing import open_trace
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError, Message
from overlapiter.workers.plan import SupervisorPlan
from overlapiter.workers.prefetcher.prefetcher import Prefetcher
from overlapiter.workers.reader.face import Face
from overlapiter.workers.reader.reader import FileReader
from overlapiter.workers.start.processes import is_running
from overlapiter.workers.supervisor.contact import Contact
from overlapiter.workers.supervisor.costs import CostEstimate
from overlapiter.workers.supervisor.memory import NO_MEMORY, SlotKeeper
from overlapiter.workers.supervisor.nearness import Nearness
from overlapiter.workers.supervisor.reading_stage import ReadingStage
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Batch, Schedule
from overlapiter.workers.supervisor.serving_stage import ServingStage, serve
from overlapiter.workers.supervisor.staging_stage import StagingStage
from overlapiter.workers.supervisor.team import Death, Team, Worker
from overlapiter.workers.supervisor.tuner import Tuner, credit_examples
from overlapiter.workers.supervisor.watch import Watch

#: How often to look whether the trainer is still there, and the workers are able to work.
_LOOK_AFTER_SECONDS = 1.0
#: How long prefetchers may take to give back what they have reserved.
_GRACE_SECONDS = 0.4

Stage = StagingStage | ReadingStage | ServingStage


class Supervisor:
    """See the module's text. ``run`` returns when the trainer closes or ends."""

    def __init__(
        self,
        channel: Channel,
        face: Face,
        plan: SupervisorPlan,
        board: StatsBoard,
        run: Run,
        listener_fd: int = -1,
    ) -> None:
        self._plan, self._face = plan, face
        self._listener_fd = listener_fd
        self._board = board
        self._row = board.supervisor_row()
        self._selector = selectors.DefaultSelector()
        self._trainer = Contact()
        self._trainer.attend(channel, self._selector, None)
        self._ending = ""  # how the run has ended, once it has
        self._costs = CostEstimate(plan.n_readers, len(os.sched_getaffinity(0)))
        self._schedule = self._new_schedule()
        # For those that are being built or ready, the next one, and the one that the user holds.
        self._keeper = SlotKeeper(n_expected=plan.n_build_ahead + 2)
        self._consumed_id = 0
        self._warned: set[str] = set()
        self._gone: set[str] = set()
        self._look_at = time.monotonic() + _LOOK_AFTER_SECONDS
        self._is_filled = False

        staging = plan.staging
        self._residency = Residency(
            plan.dataset_size if staging else 0,  # memory for each example
            len(staging.sites) if staging else 0,
            staging.capacity_bytes if staging else None,
            staging.n_sharers if staging else 1,
        )
        self._staging = self._staging_stage(run)
        self._reading = self._reading_stage()
        self._tuner: Tuner | None = None
        if staging is not None and staging.reads_in_flight is None:
            self._tuner = Tuner(self._staging.team, staging, time.monotonic())
        self._nearness = Nearness(board) if staging is not None and staging.peers else None
        self._row.put(Counter.PEERS_NOT_ASKED, 0)  # as another one may have left it
        trace = self._trace = open_trace(plan.trace, "supervisor", 10)
        self._watch = Watch(board, self._schedule, trace)
        self._serving = self._serving_stage()
        self._stages: tuple[Stage, ...] = (self._staging, self._reading, self._serving)
        self._contacts = [self._trainer, *self._reading.team]  # those that know of slots

    def _new_schedule(self) -> Schedule:
        """Return the schedule; a face may deal whole mini-batches to the readers in turn."""
        plan, face = self._plan, self._face
        return Schedule(
            is_staging=plan.staging is not None,
            part_size=self._part_size,
            settled=self._deliver,
            n_turns=plan.n_readers if face.deals_in_turn else 0,
        )

    def _staging_stage(self, run: Run) -> StagingStage:
        """Return the stage of the prefetchers; without staging it has none."""
        plan, staging = self._plan, self._plan.staging
        team = Team(
            "prefetcher",
            [self._board.prefetcher_row(n) for n in range(plan.n_prefetchers)],
            lambda channel, row: Prefetcher(channel, self._face, plan, run, row).run(),
            self._leave,
        )
        team.n_wanted = staging.n_first_prefetchers if staging else 0
        return StagingStage(
            team,
            self._schedule,
            self._warn,
            credit_examples(staging.reads_per_prefetcher if staging else 0),
            self._costs,
            self._residency,
            " and ".join(site.directory for site in staging.sites) if staging else "",
        )

    def _reading_stage(self) -> ReadingStage:
        plan = self._plan
        team = Team(
            "file reader",
            [self._board.reader_row(n) for n in range(plan.n_readers)],
            lambda channel, row: FileReader(channel, self._face, plan, row).run(),
            self._leave,
            plan.max_parts_per_reader,
            needs_all=self._face.deals_in_turn,
        )
        return ReadingStage(
            team,
            self._schedule,
            self._keeper,
            self._costs,
            self._residency,
            is_skipping=plan.is_skipping,
            collates=self._face.collates,
        )

    def _serving_stage(self) -> ServingStage:
        """Return the stage of the server for other nodes; without peers it has none."""
        staging = self._plan.staging
        rows = [] if staging is None or staging.peers is None else [self._row]
        role = functools.partial(serve, staging, self._listener_fd)
        return ServingStage(Team("peer", rows, role, self._leave_all), self._warn)

    def _part_size(self, batch: Batch) -> int:
        size, is_first = len(batch.indices), batch.batch_id <= self._consumed_id
        if self._face.collates or self._face.deals_in_turn:
            return size
        return self._costs.part_size(size, self._plan.n_build_ahead, is_first=is_first)

    # --- life ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the trainer closes its channel or ends."""
        self._trainer.send(("ready",))
        # Further processes would take the cores from those that make the first mini-batch.
        is_staging = self._plan.staging is not None
        self._fill(len(os.sched_getaffinity(0)) if is_staging else None)
        while not self._ending:
            self._take_turn(_LOOK_AFTER_SECONDS)
            if not self._is_filled and self._schedule.has_settled:
                self._fill()

    def _fill(self, most: int | None = None) -> None:
        """Start all processes; or at most so many of each of the first two stages."""
        self._is_filled = most is None
        # Other nodes ask for nothing before the first mini-batch.
        stages = self._stages if self._is_filled else (self._staging, self._reading)
        teams = [[(stage, worker) for worker in stage.team.wanted][:most] for stage in stages]
        # In turn, since the first mini-batch needs both.
        for places in itertools.zip_longest(*teams):
            for stage, worker in filter(None, places):
                if not worker.pid:
                    self._refill(stage, worker)
                    self._take_turn(0)  # the first ones work while the others are forked

    def _take_turn(self, timeout_seconds: float) -> None:
        for key, events in self._selector.select(timeout_seconds):
            if key.data is None:
                self._hear_trainer(events)
            else:
                stage, worker = key.data
                self._serve(stage, worker, events)
        if time.monotonic() >= self._look_at:
            self._look_around()
        before_id = self._consumed_id + self._plan.n_build_ahead
        self._staging.hand_out(before_id)
        self._reading.hand_out(before_id)
        if self._nearness is not None and self._nearness.look():
            self._residency.ask_nodes(is_wanted=not self._nearness.is_near)
            self._row.put(Counter.PEERS_NOT_ASKED, self._nearness.is_near)
        self._tune()
        self._watch.note_turn(self._consumed_id, is_probing=self._reading.is_probing)

    def _tune(self) -> None:
        """Have as many reads of the slow store in flight as are of use."""
        if self._tuner is None or (self._tuner.has_lack and not self._staging.has_work):
            return  # it has seen already that there is too little to read
        is_waiting = self._schedule.batch(self._consumed_id - 1) is not None
        self._tuner.look(time.monotonic(), is_waiting=is_waiting)
        self._staging.credit_examples = credit_examples(self._tuner.reads_per_prefetcher)
        self._row.put(Counter.MORE_READS_IN_VAIN, self._tuner.in_flight.is_more_in_vain)

    def _look_around(self) -> None:
        """Look for what no message reports: processes that ended or stopped, vacant places."""
        self._look_at = time.monotonic() + _LOOK_AFTER_SECONDS
        # A process forked from the trainer may keep the channel open beyond its end.
        if not is_running(self._plan.trainer_pid):
            self._ending = "killed"
            return
        for stage in self._stages:
            for worker in stage.team.wanted:
                if not worker.pid:
                    self._refill(stage, worker)
                # It may have sent something before.
                elif worker.is_lost() and self._serve(stage, worker):
                    self._reap(stage, worker)

    def end_workers(self) -> None:
        """End all workers, and kill those that do not end by themselves."""
        from overlapiter.stats import snapshot  # the first mini-batch need not wait for it

        # How the run has ended is for its record in the staging directory.
        self._staging.end(self._ending or "failed", snapshot(self._board).as_dict())
        deadline = time.monotonic() + _GRACE_SECONDS  # of all: the trainer does not wait for longer
        self._reading.end(grace_seconds=_GRACE_SECONDS if self._trace.is_on else 0.0)
        for site in self._plan.staging.sites if self._plan.staging else ():
            with contextlib.suppress(OSError):  # the disk is sick
                remove_left(generation_of(site.directory))  # the readers were killed
        self._serving.team.end()
        self._staging.team.end(grace_seconds=max(0.0, deadline - time.monotonic()))
        self._trace.close()

    # --- the trainer --------------------------------------------------------------------------

    def _hear_trainer(self, events: int) -> None:
        try:
            for message in self._trainer.messages(events):
                self._obey(message)
        except ChannelClosedError:
            self._ending = self._ending or "killed"  # if without a word

    def _obey(self, message: Message) -> None:
        kind = message[0]
        if kind == "advance":
            _, self._consumed_id, released, first_id, index_lists = message
            for slot in released:
                self._release(Slot(*slot))
            for batch_id, (indices, epochs, position) in enumerate(index_lists, first_id):
                self._schedule.admit(batch_id, indices, epochs, position)
        elif kind == "orders":
            self._residency.learn(*message[1:])
        elif kind == "reset":
            self._consumed_id = message[1]
            # An interrupted trainer may have lost messages about slots: they are sent again.
            self._trainer.forget_known()
            self._schedule.drop_all(message[1])
            self._staging.restart()
            if message[2] is not None:
                self._renew_readers(message[2])
        elif kind == "keep memory":
            self._keeper.keep_memory()
        elif kind == "describe":
            self._trainer.send(("description", *self._describe()))
        else:
            self._ending = "closed"

    def _describe(self) -> tuple[str, int]:
        """Say whom the next mini-batch waits for, and at which example; -1 for none."""
        batch = self._schedule.batch(self._consumed_id - 1)
        at_hand = [
            (part, worker)
            for worker in [*self._reading.team, *self._staging.team]
            for part in worker.parts.values()
        ]
        for part, worker in at_hand:
            if part.batch is batch:
                current = worker.current_index()
                return str(worker), current if current in part.indices else part.indices[0]
        if not at_hand:
            return "a free worker", -1
        part, worker = min(at_hand, key=lambda pair: pair[0].part_id)
        return f"no worker is free: {worker}", worker.current_index()

    def _deliver(self, batch: Batch) -> None:
        """Deliver a settled mini-batch or its failure; one that was dropped has its slot freed."""
        if batch.is_abandoned:
            if batch.slot is not None:
                self._release(batch.slot)
            if not batch.is_dropped:
                self._trainer.send(("failed", batch.batch_id, batch.failure))
            return
        slot = batch.slot or NO_MEMORY  # it has none if no example could be read
        if batch.slot is not None:
            self._keeper.make_known(self._trainer, batch.layout_id, slot)
        parts = [(part.start, part.stop, part.report) for part in batch.parts]
        number, begin_ns = batch.batch_id, time.monotonic_ns()
        self._trainer.send(("batch", number, batch.layout_id, slot[:], parts))
        end_ns = time.monotonic_ns()
        self._trace.add("deliver", "supervisor", begin_ns, end_ns, number, flows=(number,))

    def _release(self, slot: Slot) -> None:
        self._keeper.release(slot, self._contacts)

    def _warn(self, text: str, subject: str = "") -> None:
        """Have the trainer warn the user, once of each subject; by default each text is one."""
        if (subject or text) not in self._warned:
            self._warned.add(subject or text)
            self._trainer.send(("trouble", text))

    # --- the workers --------------------------------------------------------------------------

    def _leave(self) -> None:
        """In a forked worker: close all that is the supervisor's, the listener too."""
        self._leave_all()
        if self._listener_fd >= 0:
            os.close(self._listener_fd)

    def _leave_all(self) -> None:
        """In a forked worker: close every channel but its own, so that each has two ends."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # a Channel
        self._selector.close()
        self._keeper.close()

    def _serve(self, stage: Stage, worker: Worker, events: int = 0) -> bool:
        """Hear what a worker has sent; return whether its process is still the same."""
        if not worker.pid:  # it was ended in this turn, as the trainer asked, and has no successor
            return False
        try:
            for message in worker.messages(events):
                if message[0] == "crashed":
                    worker.last_words = message[1]
                elif message[0] == "trouble":
                    self._warn(*message[1:])
                elif message[0] == "gone":
                    self._let_go(message[1])
                else:
                    stage.team.n_fruitless = 0
                    if not stage.hear(worker, message):
                        self._end(worker)  # it has nothing at hand
                        self._refill(stage, worker)
                        return False
        except ChannelClosedError:
            self._reap(stage, worker)
            return False
        return True

    def _let_go(self, generation: str) -> None:
        """Let go of staged files that were removed, or thrown away, while they were used."""
        if generation in self._gone:
            return  # another prefetcher has said so before
        self._gone.add(generation)
        self._residency.forget()
        for worker in (*self._reading.team, *self._serving.team):
            if worker.pid:  # what it has open takes room on the disk
                worker.send(("gone", 0, generation))

    def _renew_readers(self, renewal: object) -> None:
        """Put new processes in the places of all file readers, with the dataset as it came."""
        self._face.renewal = renewal
        for worker in self._reading.team:
            if worker.pid:
                self._end(worker)
            self._reading.drop(worker.take_all_back())
            self._refill(self._reading, worker)

    def _reap(self, stage: Stage, worker: Worker) -> None:
        """Put a new process in the place of one that died, and have exactly its parts redone."""
        death = self._end(worker)
        worker.row.add(Counter.WORKERS_REPLACED, 1)
        self._refill(stage, worker, death)
        stage.redo(worker.take_all_back(), death)

    def _refill(self, stage: Stage, worker: Worker, death: Death | None = None) -> None:
        """Start a process in a vacant place; if there can be none, the stage is given up."""
        if stage.is_given_up:
            return
        try:
            if death is not None:
                stage.team.count_death(death)
            channel = stage.team.start(worker)
            if channel is not None:
                worker.attend(channel, self._selector, (stage, worker))
        except PipelineError as error:
            stage.give_up(str(error))

    def _end(self, worker: Worker) -> Death:
        self._selector.unregister(worker.channel)
        current_index, last_words = worker.current_index(), worker.last_words
        return Death(os.waitstatus_to_exitcode(worker.end()), current_index, last_words)
