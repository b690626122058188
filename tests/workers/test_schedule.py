"""The schedule settles each mini-batch once, and neither loses nor doubles a part."""

from __future__ import annotations

import pickle
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from overlapiter.workers.supervisor.schedule import Batch, Part, PartState, Schedule


def numbers(parts: list[Part]) -> list[int]:
    return [part.part_id for part in parts]


class ScheduleMachine(RuleBasedStateMachine):
    """Workers that take parts, end them, die and fail, in any order; the model keeps the books."""

    is_staging = True

    def __init__(self) -> None:
        super().__init__()
        self.part_size = 1
        self.schedule = Schedule(
            is_staging=self.is_staging,
            part_size=lambda _: self.part_size,
            settled=self.settle,
        )
        self.next_id = 0
        self.open: dict[int, Batch] = {}
        self.delivered: list[int] = []
        self.abandoned: list[int] = []
        self.staging: list[Part] = []
        self.reading: list[Part] = []
        self.cuts: dict[int, int] = {}  # sizes, by part

    def settle(self, batch: Batch) -> None:
        """Note what the schedule calls settled; it must be so, and for the first time."""
        assert self.open.pop(batch.batch_id) is batch
        assert self.schedule.batch(batch.batch_id) is None
        assert all(part.state is PartState.DONE for part in batch.parts)
        assert not {*numbers(batch.parts)} & {*numbers(self.staging + self.reading)}
        (self.abandoned if batch.is_abandoned else self.delivered).append(batch.batch_id)

    @rule(size=st.integers(1, 6))
    def admit(self, size: int) -> None:
        indices = [*range(self.next_id * 10, self.next_id * 10 + size)]
        self.schedule.admit(self.next_id, indices, None)
        self.open[self.next_id] = self.schedule.batch(self.next_id)
        self.next_id += 1

    @rule(part_size=st.integers(1, 4))
    def learn_what_examples_cost(self, part_size: int) -> None:
        self.part_size = part_size

    @precondition(lambda self: self.next_id)
    @rule(data=st.data())
    def admit_again(self, data) -> None:
        batch_id = data.draw(st.integers(0, self.next_id - 1))
        self.schedule.admit(batch_id, [1, 2, 3], None)
        assert self.schedule.batch(batch_id) is self.open.get(batch_id)

    @rule()
    def take_to_stage(self) -> None:
        part = self.schedule.next_to_stage()
        if part is None:
            assert not self.waiting(PartState.TO_STAGE)
        else:
            assert part.state is PartState.STAGING
            assert part.part_id < min(numbers(self.waiting(PartState.TO_STAGE)), default=1 << 60)
            self.cut(part)
            self.staging.append(part)

    def cut(self, part: Part) -> None:
        """Note that a part was taken; it is cut the first time, as is then best."""
        if part.part_id not in self.cuts:
            self.cuts[part.part_id] = len(part.indices)
            assert len(part.indices) == min(self.part_size, len(part.batch.indices) - part.start)
        assert len(part.indices) == self.cuts[part.part_id]

    @rule(ahead=st.integers(0, 4))
    def take_to_read(self, ahead: int) -> None:
        before_id = len(self.delivered) + len(self.abandoned) + ahead
        part = self.schedule.next_to_read(before_id)
        waiting = [p for p in self.waiting(PartState.TO_READ) if p.batch.batch_id < before_id]
        if part is None:
            assert not waiting
        else:
            assert part.state is PartState.READING
            assert part.batch.batch_id < before_id
            assert part.part_id < min(numbers(waiting), default=1 << 60)
            self.cut(part)
            self.reading.append(part)

    def waiting(self, state: PartState) -> list[Part]:
        parts = [part for batch in self.open.values() for part in batch.parts]
        return [part for part in parts if part.state is state]

    @precondition(lambda self: self.staging)
    @rule(data=st.data(), ending=st.sampled_from(["staged", "dies", "dies for good"]))
    def end_staging(self, data, ending: str) -> None:
        part = self.staging.pop(data.draw(st.integers(0, len(self.staging) - 1)))
        if ending == "dies":
            self.schedule.redo(part, PartState.TO_STAGE)
            return
        extents = b"where" if ending == "staged" else b""
        self.schedule.staged(part, extents)
        assert part.batch.is_abandoned or part.extents == extents

    @precondition(lambda self: self.reading)
    @rule(data=st.data(), ending=st.sampled_from(["done", "done", "done", "dies", "fails"]))
    def end_reading(self, data, ending: str) -> None:
        part = self.reading.pop(data.draw(st.integers(0, len(self.reading) - 1)))
        if ending == "done":
            self.schedule.done(part)
        elif ending == "dies":
            self.schedule.redo(part, PartState.TO_READ)
        else:
            first = part.batch.failure
            self.schedule.fail(part, b"%d" % part.part_id)
            assert part.batch.failure == (first or b"%d" % part.part_id)

    @rule(skip=st.integers(0, 2))
    def drop_all(self, skip: int) -> None:
        before = {**self.open}
        self.next_id += skip
        self.schedule.drop_all(self.next_id)
        # Those left are the ones that a worker is still at.
        busy = {part.batch.batch_id for part in self.staging + self.reading}
        assert {*self.open} == {*before} & busy
        assert all(batch.is_dropped for batch in before.values())

    @invariant()
    def every_part_is_in_one_place(self) -> None:
        parts = [part for batch in self.open.values() for part in batch.parts]
        assert len({*numbers(parts)}) == len(parts)
        for state, held in [(PartState.STAGING, self.staging), (PartState.READING, self.reading)]:
            assert sorted(numbers(held)) == numbers([p for p in parts if p.state is state])
        for batch in self.open.values():
            assert [i for part in batch.parts for i in part.indices] == batch.indices
            n_done = sum(part.state is PartState.DONE for part in batch.parts)
            assert batch.n_waiting == len(batch.parts) - n_done > 0
            queued = {PartState.TO_STAGE, PartState.TO_READ}
            assert not (batch.is_abandoned and queued & {part.state for part in batch.parts})

    def teardown(self) -> None:
        """Let the workers finish: everything that was admitted must settle."""
        held = self.staging + self.reading
        self.staging, self.reading = [], []
        for part in held:
            self.schedule.redo(part, PartState.TO_READ)
        while (part := self.schedule.next_to_stage()) is not None:
            self.schedule.staged(part, b"")
        while (part := self.schedule.next_to_read(1 << 60)) is not None:
            self.schedule.done(part)
        assert self.open == {}
        assert len({*self.delivered, *self.abandoned}) == len(self.delivered + self.abandoned)


class PlainScheduleMachine(ScheduleMachine):
    """The same without staging."""

    is_staging = False


few = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestScheduleWithStaging = ScheduleMachine.TestCase
TestScheduleWithStaging.settings = few
TestScheduleWithoutStaging = PlainScheduleMachine.TestCase
TestScheduleWithoutStaging.settings = few


def schedule_of_single_examples(settled: list[Batch] | None = None) -> Schedule:
    note = [].append if settled is None else settled.append
    return Schedule(is_staging=False, part_size=lambda _: 1, settled=note)


def take_all(schedule: Schedule) -> list[Part]:
    parts = []
    while (part := schedule.next_to_read(1 << 60)) is not None:
        parts.append(part)
    return parts


@pytest.mark.parametrize("part_size", range(1, 8))
def test_parts_cut_a_mini_batch_in_order(part_size):
    schedule = Schedule(is_staging=False, part_size=lambda _: part_size, settled=lambda _: None)
    schedule.admit(0, [7, 5, 5, 9, 1], [0, 0, 0, 1, 1])
    parts = take_all(schedule)
    assert [(part.start, part.stop) for part in parts] == [
        (start, min(start + part_size, 5)) for start in range(0, 5, part_size)
    ]
    assert [i for part in parts for i in part.indices] == [7, 5, 5, 9, 1]
    assert [epoch for part in parts for epoch in part.epochs] == [0, 0, 0, 1, 1]


def test_without_a_seed_parts_have_no_epochs():
    schedule = schedule_of_single_examples()
    schedule.admit(0, [1, 2], None)
    assert [part.epochs for part in take_all(schedule)] == [None, None]


def test_the_part_needed_first_is_first_even_if_it_comes_back_last():
    schedule = schedule_of_single_examples()
    for batch_id in range(3):
        schedule.admit(batch_id, [1, 2], None)
    parts = take_all(schedule)
    for part in reversed(parts):
        schedule.redo(part, PartState.TO_READ)
    assert take_all(schedule) == parts


def test_mini_batches_too_far_ahead_are_not_read_yet():
    schedule = schedule_of_single_examples()
    for batch_id in range(3):
        schedule.admit(batch_id, [1], None)
    assert schedule.next_to_read(1).batch.batch_id == 0
    assert schedule.next_to_read(1) is None
    assert schedule.next_to_read(2).batch.batch_id == 1


@pytest.mark.parametrize("n_readers", [1, 2])
def test_a_reader_reads_its_mini_batches_in_order_though_a_later_one_is_staged_first(n_readers):
    schedule = Schedule(
        is_staging=True, part_size=lambda _: 1, settled=lambda _: None, n_turns=n_readers
    )
    for batch_id in range(2 * n_readers):
        schedule.admit(batch_id, [1], None)
    parts = [schedule.next_to_stage() for _ in range(2 * n_readers)]
    schedule.staged(parts[n_readers], b"")
    assert schedule.next_to_read(9, 0) is None
    schedule.staged(parts[0], b"")
    assert [schedule.next_to_read(9, 0) for _ in range(2)] == [parts[0], parts[n_readers]]


def test_a_failed_mini_batch_waits_for_the_parts_that_workers_are_at():
    settled: list[Batch] = []
    schedule = schedule_of_single_examples(settled)
    schedule.admit(0, [1, 2, 3], None)
    one, other = schedule.next_to_read(1), schedule.next_to_read(1)
    schedule.fail(one, b"why")
    assert not settled
    assert schedule.next_to_read(1) is None  # the third part is no longer worth it
    schedule.fail(other, b"another reason")
    assert [batch.failure for batch in settled] == [b"why"]
    assert schedule.batch(0) is None


def test_a_part_that_is_done_twice_counts_once():
    settled: list[Batch] = []
    schedule = schedule_of_single_examples(settled)
    schedule.admit(0, [1, 2], None)
    one, other = take_all(schedule)
    schedule.done(one)
    schedule.done(one)
    assert not settled
    schedule.done(other)
    schedule.done(other)
    assert [batch.batch_id for batch in settled] == [0]


def test_nothing_is_left_of_a_settled_mini_batch_for_the_garbage_collector():
    schedule = Schedule(is_staging=False, part_size=lambda _: 1, settled=lambda _: None)
    schedule.admit(0, [1, 2], None)
    batch = weakref.ref(schedule.batch(0))
    while (part := schedule.next_to_read(1)) is not None:
        schedule.done(part)
    assert batch() is None


def test_after_a_drop_the_numbers_go_on_where_they_are_told():
    settled: list[Batch] = []
    schedule = schedule_of_single_examples(settled)
    schedule.admit(0, [1], None)
    schedule.drop_all(5)
    assert [batch.batch_id for batch in settled] == [0]
    schedule.admit(4, [1], None)
    assert schedule.batch(4) is None
    schedule.admit(5, [1], None)
    assert schedule.batch(5).indices == [1]
    assert pickle.loads(pickle.dumps(schedule.batch(5).indices)) == [1]


def test_after_a_drop_no_position_counts_as_settled_before_the_next_mini_batch_comes():
    schedule = schedule_of_single_examples()
    schedule.admit(0, [1], None, 40)
    schedule.done(*take_all(schedule))
    assert schedule.settled_position == 41
    schedule.drop_all(1)
    assert schedule.settled_position == 0
    schedule.admit(1, [1], None, 20)
    assert schedule.settled_position == 20
