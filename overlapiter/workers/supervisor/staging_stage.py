"""The staging stage of the supervisor: its team of prefetchers, and what they are told to do."""

from __future__ import annotations

from overlapiter.errors import deaths_words
from overlapiter.workers.ipc.channel import Message
from overlapiter.workers.prefetcher.staging_work import Finding, StageTask
from overlapiter.workers.supervisor.deaths import Death, Deaths
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Part, PartState, Schedule
from overlapiter.workers.supervisor.stages import UNBOUNDED, Desk, Experience
from overlapiter.workers.supervisor.team import Team, Worker


class StagingStage:
    """Hands parts to prefetchers.

    Args:
        team: The prefetchers; nobody, without staging.
        schedule: The schedule.
        desk: The supervisor.
        credit_examples: Examples that a prefetcher has at hand, at first.
        experience: What the readers have learnt.
        residency: What is staged.
        directories: Where, for people to read.

    Attributes:
        is_given_up: Whether nothing is staged any more.
    """

    def __init__(
        self,
        team: Team,
        schedule: Schedule,
        desk: Desk,
        credit_examples: int,
        experience: Experience,
        residency: Residency,
        directories: str,
    ) -> None:
        self.team = team
        self._schedule = schedule
        self._desk = desk
        self.credit_examples = credit_examples
        self._experience = experience
        self._residency = residency
        self._directories = directories
        self._deaths = Deaths()
        self._avoided: set[int] = set()  # examples on which prefetchers died
        self.is_given_up = False

    def give_up(self, reason: str) -> None:
        """Stage nothing any more: what is not staged is read from the source."""
        self.is_given_up = True
        self._desk.warn(f"staging is given up, and files are read from the source: {reason}")

    def hand_out(self, before_id: int) -> None:
        """Give work to every prefetcher that may have more, as long as there is some.

        Args:
            before_id: Mini-batches before this one are to be built now.
        """
        residency = self._residency
        residency.settle(self._schedule.settled_position)
        while self.is_given_up and (part := self._schedule.next_to_stage()):
            self._desk.settle(self._schedule.staged(part, {}))
        while worker := self.team.least_loaded(UNBOUNDED, self.credit_examples):
            part = self._schedule.next_to_stage(None if residency.may_run_ahead() else before_id)
            if part is None:
                return
            victims = residency.choose_victims(part)
            if victims == [] and self.team.has_parts:  # they may be done with something soon
                self._desk.settle(self._schedule.redo(part, PartState.TO_STAGE))
                return
            residency.hand_out(part, victims)
            worker.give(part)
            avoid = [index for index in part.indices if index in self._avoided]
            n_files = self._experience.n_files
            tiers = residency.tiers_of(part)
            task = StageTask(part.part_id, part.indices, n_files, avoid, tiers, victims)
            worker.send(("stage", task))

    def hear(self, worker: Worker, message: Message) -> bool:
        """Take note of what a prefetcher has done; return True."""
        _, part_id, staged, plain_findings, moved = message
        findings = [Finding.from_plain(plain) for plain in plain_findings]
        part = worker.take_back(part_id)
        if self._residency.hear(part, findings, moved):
            self._desk.settle(self._schedule.redo(part, PartState.TO_STAGE))
            return True
        if self._residency.is_short_of_room:
            self._desk.warn(self._full_words())
        self._desk.settle(self._schedule.staged(part, staged))
        return True

    def _full_words(self) -> str:
        return (
            f"the staging directory {self._directories} is full: {self._residency.limit_words}. "
            f"Of the files that are needed now some are read from the source until there is room. "
            f"Give it more room (a higher capacity, a lower keep_free), lower look_ahead, free "
            f"space on the disk, or remove what nobody needs there (overlapiter evict)"
        )

    def redo(self, parts: list[Part], death: Death) -> None:
        """Have the parts of a prefetcher that died staged by another one."""
        culprit = death.culprit(parts)
        for part in parts:
            self._residency.lose(part)
            n_deaths = self._deaths.add(part, culprit)
            if n_deaths and culprit is not None:
                self._avoid(culprit.index, n_deaths, death)
            self._desk.settle(self._schedule.redo(part, PartState.TO_STAGE))

    def _avoid(self, index: int, n_deaths: int, death: Death) -> None:
        self._avoided.add(index)
        self.team.n_fruitless = 0  # to leave an example unstaged is to get on
        text = (
            f"{deaths_words(n_deaths, death.exit_code, 'prefetchers')} while they staged the files "
            f"of example {index}, which are read from the source from now on; look at these files, "
            f"and for 'out of memory' in the system log of this node"
        )
        self._desk.warn(f"{text}\n\n{death.last_words}" if death.last_words else text)
