"""The staging stage of the supervisor: its team of prefetchers, and the tasks that they get."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from overlapiter.errors import deaths_words
from overlapiter.store.eviction import Victim
from overlapiter.workers.ipc.channel import Message
from overlapiter.workers.prefetcher.tasks import StageTask
from overlapiter.workers.supervisor.costs import CostEstimate
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Part, PartState, Schedule
from overlapiter.workers.supervisor.team import MAX_DEATHS, Death, Team, Worker

#: A task has about so many examples: transactions and messages are made for all of them together.
#: It is large if all that is needed soon is staged.
_TASK_EXAMPLES, _SMALL_TASK_EXAMPLES, _LARGE_TASK_EXAMPLES = 64, 8, 128
#: Where files are evicted, it has at most this share of what is staged: much at once would be
#: evicted too early.
_TASK_SHARE = 1 / 64
#: A part with which so many prefetchers died in a row is read unstaged.
_MAX_LOST = 2 * MAX_DEATHS


class _Task:
    """A task that a prefetcher has."""

    def __init__(self, parts: list[Part], indices: list[int], victims: list[Victim] | None) -> None:
        self.victims = victims  # what may be evicted for it; None if nothing needs to be
        self.parts = parts  # those of its parts that it is not done with
        self.left = set(indices)  # the examples of which nothing was reported
        self.found: dict[int, bytes] = {}  # the extents of the others, packed
        self.refused: set[int] = set()  # those of them for which there was no room

    def take_settled(self) -> list[Part]:
        """Return the parts of which all examples were reported, for good."""
        settled = [part for part in self.parts if self.left.isdisjoint(part.indices)]
        self.parts = [part for part in self.parts if part not in settled]
        return settled


class StagingStage:
    """Hands parts to prefetchers, several in one task; parts that need none go past them."""

    def __init__(
        self,
        team: Team,
        schedule: Schedule,
        warn: Callable[[str], None],
        credit_examples: int,
        costs: CostEstimate,
        residency: Residency,
        directories: str,
    ) -> None:
        self.team = team
        self._schedule = schedule
        self._warn = warn
        self.credit_examples = credit_examples  # with so many at hand a prefetcher gets no more
        self._costs = costs
        self._residency = residency
        self._directories = directories  # for people to read
        self._avoided: set[int] = set()  # examples on which prefetchers died
        self._tasks: dict[int, _Task] = {}
        self._task_ids = itertools.count()
        self._has_answer = False  # of any prefetcher
        self._is_held_up = False  # the next part needs a prefetcher, and none has time for it
        self.is_given_up = False  # whether nothing is staged any more

    @property
    def has_work(self) -> bool:
        """Whether a prefetcher has a task."""
        return bool(self._tasks)

    def give_up(self, reason: str) -> None:
        """Stage nothing any more: what is not staged is read from the source."""
        self.is_given_up, self._is_held_up = True, False
        self._warn(f"staging is given up, and files are read from the source: {reason}")

    def restart(self) -> None:
        """Take note that the trainer starts anew somewhere."""
        self._is_held_up = False
        self._residency.restart()

    def hand_out(self, before_id: int) -> None:
        """Give work to prefetchers; the mini-batches before ``before_id`` are to be built now."""
        self._residency.settle(self._schedule.settled_position)
        while True:
            worker = self.team.least_loaded(credit_examples=self.credit_examples)
            if worker is None and self._is_held_up:
                return
            n_wanted = self._n_wanted(worker)
            # Where no prefetcher has work, what is needed soon is staged: a task may fill up.
            if not (self.has_work or self._schedule.is_worth_staging(n_wanted, before_id)):
                return
            parts, indices = self._next_parts(before_id, n_wanted, worker)
            if not parts or worker is None:
                return
            if not self._give(worker, parts, indices):
                return

    def _next_parts(
        self, before_id: int, n_wanted: int, worker: Worker | None
    ) -> tuple[list[Part], list[int]]:
        """Take parts for a task, and their examples that need a prefetcher, each once.

        Parts that need none go on to be read.
        """
        parts: list[Part] = []
        to_look_at: dict[int, None] = {}
        n_examples = 0
        self._is_held_up = False
        while n_examples < n_wanted:
            part = self._schedule.next_to_stage(self._limit(before_id, worker))
            if part is None:
                break
            if part.batch.batch_id >= before_id and self._residency.is_on_offer(part):
                # It would be looked for where it no longer is, and read from the source.
                self._schedule.redo(part, PartState.TO_STAGE)
                break
            missing, extents = self._residency.look_up(part)
            if not missing or self.is_given_up:
                self._residency.hand_out(part)
                self._schedule.staged(part, extents)
                continue
            if worker is None:
                self._is_held_up = True
                self._schedule.redo(part, PartState.TO_STAGE)
                break
            parts.append(part)
            to_look_at.update(dict.fromkeys(missing))
            self._residency.hand_out(part)
            n_examples += len(part.indices)
        return parts, [*to_look_at]

    def _limit(self, before_id: int, worker: Worker | None) -> int | None:
        """Return before which mini-batch parts may be staged now; None for all.

        Until there is a first mini-batch, a prefetcher that has work gets nothing but the rest of
        it, and, once something is staged, the next one: what comes later would take the cores from
        it.
        """
        limit = None if self._residency.may_run_ahead() else before_id
        first = self._schedule.oldest
        if self._schedule.has_settled or first is None or worker is None or not worker.parts:
            return limit
        soon = first.batch_id + 1 + self._has_answer
        return soon if limit is None else min(soon, limit)

    def _n_wanted(self, worker: Worker | None) -> int:
        if not self._has_answer and not (worker and worker.parts):
            return _SMALL_TASK_EXAMPLES  # so that each prefetcher has one soon
        if not self._residency.is_full:
            return _TASK_EXAMPLES if self.has_work else _LARGE_TASK_EXAMPLES
        most = min(_TASK_EXAMPLES, int(self._residency.n_staged * _TASK_SHARE))
        return max(_SMALL_TASK_EXAMPLES, most)

    def _give(self, worker: Worker, parts: list[Part], indices: list[int]) -> bool:
        """Give parts to a prefetcher as one task; False if there is no room for them yet."""
        residency = self._residency
        victims = residency.choose_victims(indices)
        if victims == [] and self.has_work:  # one of them may free room soon
            for part in parts:
                self._schedule.redo(part, PartState.TO_STAGE)
            return False
        task_id = next(self._task_ids)
        self._tasks[task_id] = _Task(parts, indices, victims)
        for part in parts:
            worker.give(part)
        avoid = [index for index in indices if index in self._avoided]
        suspects = residency.suspects_among(indices)
        trusted = residency.trusted(indices)
        batches = list(dict.fromkeys(part.batch.batch_id for part in parts))
        n_files = self._costs.n_files
        holders = residency.holders_of(indices, parts[0].position)
        task = StageTask(
            task_id, indices, n_files, avoid, suspects, trusted, victims, holders, batches
        )
        worker.send(("stage", *task))
        return True

    def hear(self, worker: Worker, message: Message) -> bool:
        """Take note of what a prefetcher has done; return True."""
        self._is_held_up, self._has_answer = False, True  # its files may be known now
        _, task_id, findings, moved = message
        task = self._tasks.get(task_id)
        if task is None:  # it was done when this was on its way
            return True
        if moved is not None:
            del self._tasks[task_id]
            self._residency.take_back(task.victims, moved)
        # Those that were reported before come again, and may have been evicted since.
        findings = [finding for finding in findings if finding[0] in task.left]
        if any(is_discovered for *_, is_discovered in findings):
            # The dataset's code is asked for files, one example at a time in a process.
            self.team.n_wanted = len(self.team.workers)
        task.refused |= self._residency.hear(findings)
        self._tell_uses(worker)
        task.found.update({example: extents for example, extents, _, _, _ in findings})
        task.left.difference_update(task.found)
        for part in task.take_settled():
            worker.take_back(part.part_id)
            if not task.refused.isdisjoint(part.indices) and self._residency.is_to_be_tried_again(
                part, had_victims=task.victims != []
            ):
                self._schedule.redo(part, PartState.TO_STAGE)
                continue
            self._schedule.staged(part, self._extents_of(part, task.found))
        if self._residency.is_short_of_room:
            self._warn(self._full_words())
        return True

    def _tell_uses(self, worker: Worker) -> None:
        if (uses := self._residency.uses_to_tell()) is not None:
            worker.send(("uses", *uses))

    def _extents_of(self, part: Part, found: dict[int, bytes]) -> bytes:
        """Return the extents of a part: what was found now, and what was known before."""
        extents = b"".join([found[index] for index in part.indices if index in found])
        if any(index not in found for index in part.indices):
            extents += self._residency.look_up(part)[1]
        return extents

    def _full_words(self) -> str:
        return (
            f"the staging directory {self._directories} is full: {self._residency.limit_words}. "
            f"Of the files that are needed now some are read from the source until there is room. "
            f"Give it more room (a higher capacity, a lower keep_free), lower look_ahead, free "
            f"space on the disk, or remove what is not needed there (overlapiter evict)"
        )

    def redo(self, parts: list[Part], death: Death) -> None:
        """Have the parts of a prefetcher that died staged by another one."""
        self._is_held_up = False  # another part may come first now
        self._residency.tell_uses_again()  # it may have been at that
        if heir := next((worker for worker in self.team if worker.pid), None):
            self._tell_uses(heir)
        if given_up := self.team.example_to_give_up(death, parts):
            _, index, n_deaths = given_up
            self._avoid(index, n_deaths, death)
        lost = {part.part_id for part in parts}
        for task_id in [t for t, own in self._tasks.items() if own.parts[0].part_id in lost]:
            self._residency.take_back(self._tasks.pop(task_id).victims, {})
        for part in parts:
            part.n_lost += 1
            if part.n_lost < _MAX_LOST:
                self._schedule.redo(part, PartState.TO_STAGE)
            else:  # a file reader has one example at a time, so it shows which one it is
                self._schedule.staged(part, self._residency.look_up(part)[1])

    def end(self, ending: str, counters: dict[str, Any]) -> None:
        """Have every prefetcher give back what it holds; the first one notes the end of the run."""
        is_noted = False
        for worker in self.team:
            if worker.pid:
                worker.send(("end", ending, None if is_noted else counters))
                is_noted = True

    def _avoid(self, index: int, n_deaths: int, death: Death) -> None:
        self._avoided.add(index)
        text = (
            f"{deaths_words(n_deaths, death.exit_code, 'prefetchers')} while they staged the files "
            f"of example {index}, which are read from the source from now on; look at these files, "
            f"and for 'out of memory' in the system log of this node"
        )
        self._warn(f"{text}\n\n{death.last_words}" if death.last_words else text)
