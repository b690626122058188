"""Residency: how far to stage ahead, who may go, and which parts are tried again."""

from __future__ import annotations

import numpy as np
import pytest

from overlapiter.store.eviction import StagedFile, Victim
from overlapiter.workers.prefetcher.evictor import ABSENT
from overlapiter.workers.prefetcher.staging_work import Finding
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Part, Schedule

FILE_BYTES = 100
N_EXAMPLES = 64


class Run:
    """A residency with a schedule, both of which know the orders of two epochs."""

    def __init__(self, capacity_bytes: int | None = 10 * FILE_BYTES, n_sharers: int = 1) -> None:
        self.residency = Residency(N_EXAMPLES, 1, capacity_bytes, n_sharers)
        self.schedule = Schedule(is_staging=True)
        orders = {0: None, 1: np.random.default_rng(1).permutation(N_EXAMPLES)}
        self.residency.learn(orders, {})
        for batch_id in range(N_EXAMPLES // 4):
            indices = list(range(4 * batch_id, 4 * batch_id + 4))
            self.schedule.admit(batch_id, indices, None, 2, 4 * batch_id)

    def hand_out(self) -> Part:
        part = self.schedule.next_to_stage()
        assert part is not None
        self.residency.hand_out(part, self.residency.choose_victims(part))
        return part

    def hear(self, part: Part, *, is_staged: bool = True, was_refused: bool = False) -> bool:
        findings = [
            Finding(index, 0 if is_staged else ABSENT, [StagedFile(index + 1, FILE_BYTES)], (),
                    was_refused)
            for index in part.indices
        ]  # fmt: skip
        return self.residency.hear(part, findings, {})

    def refuse(self) -> tuple[Part, list[Victim]]:
        """Have a part refused that comes after others which are settled, and try it again."""
        self.stage(4)
        self.residency.settle(8)
        part = self.hand_out()
        assert self.hear(part, is_staged=False, was_refused=True)
        victims = self.residency.choose_victims(part)
        assert victims
        self.residency.hand_out(part, victims)
        return part, victims

    def stage(self, n_parts: int) -> None:
        for _ in range(n_parts):
            assert not self.hear(self.hand_out())


def test_with_a_capacity_nothing_is_staged_ahead_until_the_size_of_an_example_is_known():
    run = Run(1000 * FILE_BYTES)
    assert not run.residency.may_run_ahead()
    run.stage(1)
    assert run.residency.may_run_ahead()


def test_what_is_staged_ahead_takes_no_more_than_a_sixteenth_of_the_capacity():
    run = Run(16 * 6 * FILE_BYTES)
    run.stage(2)
    assert run.residency.may_run_ahead()
    run.stage(1)
    assert not run.residency.may_run_ahead()
    run.residency.settle(2)
    assert run.residency.may_run_ahead()


def test_ranks_that_share_a_directory_divide_what_is_staged_ahead():
    run = Run(3 * 16 * 6 * FILE_BYTES, n_sharers=3)
    run.stage(2)
    assert run.residency.may_run_ahead()
    run.stage(1)
    assert not run.residency.may_run_ahead()


def test_without_a_capacity_it_is_the_disk_that_limits_what_is_staged_ahead():
    run = Run(None)
    run.stage(20)
    assert run.residency.may_run_ahead()
    assert run.hear(run.hand_out(), is_staged=False, was_refused=True)
    assert not run.residency.may_run_ahead()


def test_as_long_as_there_is_room_nobody_is_chosen():
    run = Run()
    run.stage(2)
    run.residency.settle(4)
    assert run.residency.choose_victims(run.hand_out()) is None


def test_a_part_that_was_refused_is_tried_again_with_victims():
    run = Run()
    part, _ = run.refuse()
    assert not run.hear(part)
    assert not run.residency.is_short_of_room


def test_a_part_that_is_refused_again_and_again_is_read_unstaged_in_the_end():
    run = Run()
    part = run.hand_out()
    n_tries = 1
    while run.hear(part, is_staged=False, was_refused=True):
        run.residency.hand_out(part, run.residency.choose_victims(part))
        n_tries += 1
    assert n_tries == 4
    assert run.residency.is_short_of_room


def test_without_a_victim_a_part_is_not_tried_again():
    run = Run()
    part = run.hand_out()
    assert run.hear(part, is_staged=False, was_refused=True)
    run.residency.hand_out(part, [])
    assert not run.hear(part, is_staged=False, was_refused=True)


def test_victims_of_a_prefetcher_that_died_are_victims_again():
    run = Run()
    part, victims = run.refuse()
    assert [v for v in run.residency.choose_victims(part) if v in victims] == []
    run.residency.lose(part)
    again = run.residency.choose_victims(part)
    assert {victim.example for victim in victims} <= {victim.example for victim in again}


@pytest.mark.parametrize("tier", [ABSENT, None])
def test_victims_that_went_are_not_staged_any_more(tier):
    run = Run()
    part, victims = run.refuse()
    gone = victims[0].example
    assert not run.residency.hear(part, [], {gone: tier})
    left = run.residency.choose_victims(part)
    assert gone not in [victim.example for victim in left]
    assert {victim.example for victim in victims[1:]} <= {victim.example for victim in left}


def test_indices_that_count_from_the_end_name_the_same_examples():
    residency, schedule = Residency(4, 1, 100 * FILE_BYTES), Schedule(is_staging=True)
    schedule.admit(0, [-1, 3], None, 2, 0)
    part = schedule.next_to_stage()
    residency.hand_out(part, None)
    findings = [Finding(i, 0, [StagedFile(9, FILE_BYTES)], (), False) for i in part.indices]
    assert not residency.hear(part, findings, {})
    residency.settle(2)
    assert not residency.is_short_of_room
