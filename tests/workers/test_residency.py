"""Residency: how far to stage ahead, what may be evicted, and which parts need a prefetcher."""

from __future__ import annotations

import numpy as np
import pytest

from overlapiter.nextuse import FAR
from overlapiter.peers.holders import Sharing
from overlapiter.store.eviction import Victim
from overlapiter.store.extents import Extent, packed, unpacked
from overlapiter.workers.prefetcher.tasks import Finding
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Part, Schedule

FILE_BYTES = 4096
N_EXAMPLES = 64


def extent_of(index: int, tier: int = 0) -> Extent:
    return Extent(index + 1, tier, 5, index * FILE_BYTES, FILE_BYTES, 10**18, 99)


def finding_of(
    index: int, *, is_staged: bool = True, was_refused: bool = False, tier: int = 0
) -> Finding:
    extents = packed([extent_of(index, tier)]) if is_staged else b""
    return index, extents, is_staged, was_refused, ()


def schedule_of_parts(n_examples: int) -> Schedule:
    return Schedule(is_staging=True, part_size=lambda _: n_examples, settled=lambda _: None)


class Run:
    """A residency with a schedule, both of which know the orders of two epochs."""

    def __init__(self, capacity_bytes: int | None = 10 * FILE_BYTES, n_sharers: int = 1) -> None:
        self.residency = Residency(N_EXAMPLES, 1, capacity_bytes, n_sharers)
        self.schedule = schedule_of_parts(2)
        self.victims: list[Victim] | None = None
        orders = {0: None, 1: np.random.default_rng(1).permutation(N_EXAMPLES)}
        self.residency.learn(orders, {})
        for batch_id in range(N_EXAMPLES // 4):
            indices = list(range(4 * batch_id, 4 * batch_id + 4))
            self.schedule.admit(batch_id, indices, None, 4 * batch_id)

    def hand_out(self) -> Part:
        part = self.schedule.next_to_stage()
        assert part is not None
        self.residency.hand_out(part)
        return part

    def offer(self, part: Part) -> list[Victim] | None:
        """Choose victims for a part, as a task of its own."""
        self.victims = self.residency.choose_victims(part.indices)
        return self.victims

    def hear(self, part: Part, *, is_staged: bool = True, was_refused: bool = False) -> bool:
        """Have the last task done; return whether the part is to be tried again."""
        victims, self.victims = self.victims, None
        self.residency.take_back(victims, {})
        findings = [
            finding_of(index, is_staged=is_staged, was_refused=was_refused)
            for index in part.indices
        ]
        refused = self.residency.hear(findings)
        assert refused == (set(part.indices) if was_refused else set())
        return bool(refused) and self.residency.is_to_be_tried_again(
            part, had_victims=victims != []
        )

    def refuse(self) -> tuple[Part, list[Victim]]:
        """Have a part refused that comes after others which are settled, and offer it victims."""
        self.stage(4)
        self.residency.settle(8)
        part = self.hand_out()
        self.offer(part)
        assert self.hear(part, is_staged=False, was_refused=True)
        victims = self.offer(part)
        assert victims
        return part, victims

    def stage(self, n_parts: int) -> None:
        for _ in range(n_parts):
            part = self.hand_out()
            self.offer(part)
            assert not self.hear(part)


def test_nodes_are_asked_or_not_and_that_decides_how_far_to_stage_ahead():
    run = Run(128 * FILE_BYTES)
    first = np.arange(N_EXAMPLES) % 2  # nodes; this one is 0
    never = np.full(N_EXAMPLES, FAR)
    sharing = Sharing(0, first, {0: first[:, np.newaxis]}, never, N_EXAMPLES, {})
    run.residency.learn({}, {}, sharing)
    assert list(run.residency.holders_of([0, 1, 2, 3], 0)) == [1, 3]
    run.stage(1)
    assert not run.residency.may_run_ahead()  # 4 of 128 are more than 1/64
    run.residency.ask_nodes(is_wanted=False)
    assert run.residency.holders_of([0, 1, 2, 3], 0) == {}
    assert run.residency.may_run_ahead()
    run.residency.ask_nodes(is_wanted=True)
    assert list(run.residency.holders_of([0, 1, 2, 3], 0)) == [1, 3]
    assert not run.residency.may_run_ahead()


# --- what needs a prefetcher ------------------------------------------------------------------


def test_a_part_whose_files_were_compared_needs_no_prefetcher():
    run = Run(None)
    part = run.hand_out()
    assert run.residency.look_up(part)[0] == part.indices
    run.offer(part)
    run.hear(part)
    assert run.residency.look_up(part)[0] == []
    extents = unpacked(run.residency.look_up(part)[1])
    assert extents == {index + 1: extent_of(index) for index in part.indices}


def test_an_example_that_is_not_staged_is_looked_at_again():
    run = Run(None)
    part = run.hand_out()
    run.offer(part)
    run.hear(part, is_staged=False)
    assert run.residency.look_up(part)[0] == part.indices


def test_a_copy_that_could_not_be_read_is_looked_at_and_suspected_until_then():
    run = Run(None)
    part = run.hand_out()
    run.offer(part)
    run.hear(part)
    run.residency.suspect(part.indices)
    assert run.residency.look_up(part)[0] == part.indices
    assert run.residency.suspects_among(part.indices) == part.indices
    run.offer(part)
    run.hear(part)
    assert run.residency.suspects_among(part.indices) == []
    assert run.residency.look_up(part)[0] == []


def test_where_other_ranks_evict_every_part_is_looked_at_but_not_compared_again():
    run = Run(n_sharers=2)
    part, _ = run.refuse()
    run.hear(part)
    assert run.residency.look_up(part)[0] == part.indices
    trusted = unpacked(run.residency.trusted(part.indices))
    assert trusted == {index + 1: extent_of(index) for index in part.indices}


def test_an_example_of_several_files_or_none_is_known_as_others_are():
    residency, schedule = Residency(2, 1, None), schedule_of_parts(2)
    schedule.admit(0, [0, 1], None, 0)
    part = schedule.next_to_stage()
    several = [extent_of(5), extent_of(6)]
    findings = [(0, packed(several), True, False, ()), (1, b"", True, False, ())]
    residency.hear(findings)
    assert residency.look_up(part)[0] == []
    assert list(unpacked(residency.look_up(part)[1]).values()) == several


# --- how far ahead ----------------------------------------------------------------------------


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
    part = run.hand_out()
    run.offer(part)
    assert run.hear(part, is_staged=False, was_refused=True)
    assert not run.residency.may_run_ahead()


# --- what may be evicted ----------------------------------------------------------------------


def test_as_long_as_there_is_room_there_are_no_victims():
    run = Run()
    run.stage(2)
    run.residency.settle(4)
    assert run.offer(run.hand_out()) is None


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
        n_tries += 1
    assert n_tries == 4
    assert run.residency.is_short_of_room


def test_without_a_victim_a_part_is_not_tried_again():
    run = Run()
    part = run.hand_out()
    run.offer(part)
    assert run.hear(part, is_staged=False, was_refused=True)
    while run.offer(part):  # of files that an earlier run may have left
        pass
    assert not run.hear(part, is_staged=False, was_refused=True)


def test_victims_of_a_prefetcher_that_died_are_victims_again():
    run = Run()
    part, victims = run.refuse()
    others = run.offer(part)
    assert [v for v in others or () if v in victims] == []
    run.residency.take_back(others, {})
    run.residency.take_back(victims, {})
    again = run.offer(part) or []
    assert {victim.example for victim in victims} <= {victim.example for victim in again}


def test_a_part_with_a_victim_is_known_until_the_prefetcher_that_has_it_is_done_or_dies():
    run, schedule = Run(), schedule_of_parts(1)
    _, victims = run.refuse()
    schedule.admit(0, [victims[0].example - N_EXAMPLES], None, 0)
    part = schedule.next_to_stage()
    assert run.residency.is_on_offer(part)
    run.residency.take_back(victims, {})
    assert not run.residency.is_on_offer(part)


@pytest.mark.parametrize("moved", [b"", None])
def test_victims_that_went_are_not_staged_any_more(moved):
    run = Run()
    part, victims = run.refuse()
    gone = victims[0].example
    run.residency.take_back(victims, {gone: moved})
    left = run.offer(part) or []
    assert gone not in [victim.example for victim in left]
    assert {victim.example for victim in victims[1:]} <= {victim.example for victim in left}


def test_indices_that_count_from_the_end_name_the_same_examples():
    residency = Residency(4, 1, 100 * FILE_BYTES)
    schedule = schedule_of_parts(2)
    schedule.admit(0, [-1, 3], None, 0)
    part = schedule.next_to_stage()
    residency.hand_out(part)
    assert not residency.hear([finding_of(3)])
    assert residency.look_up(part)[0] == []
    residency.settle(2)
    assert not residency.is_short_of_room
