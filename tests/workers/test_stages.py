"""The stages of the supervisor, without processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overlapiter.board import Row
from overlapiter.store.extents import Extent, packed, unpacked
from overlapiter.workers.ipc.channel import Message
from overlapiter.workers.prefetcher.tasks import Finding, StageTask
from overlapiter.workers.supervisor.costs import CostEstimate
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Schedule
from overlapiter.workers.supervisor.staging_stage import StagingStage
from overlapiter.workers.supervisor.team import Death, Team, Worker


def staging_stage(
    part_size: int, capacity_bytes: int | None = None
) -> tuple[StagingStage, Schedule, list[str]]:
    """Return a stage without prefetchers, its schedule, and the warnings that it gives."""
    warnings: list[str] = []
    schedule = Schedule(is_staging=True, part_size=lambda _: part_size, settled=lambda _: None)
    team = Team("prefetcher", [], lambda _channel, _row: None, lambda: None)
    costs, residency = CostEstimate(2, 2), Residency(12, 1, capacity_bytes)
    stage = StagingStage(team, schedule, warnings.append, 64, costs, residency, "/fast")
    return stage, schedule, warnings


class Prefetcher(Worker):
    """Has a process in name alone, and keeps what is sent to it."""

    def __init__(self) -> None:
        super().__init__("prefetcher", 0, Row(memoryview(bytearray(256)).cast("q")))
        self.pid = 1
        self.tasks: list[StageTask] = []
        self.uses: list[list[int]] = []  # the keys that it is to tell

    def send(self, message: Message, _fds: Sequence[int] = ()) -> None:
        kind, *values = message
        if kind == "uses":
            self.uses.append(np.frombuffer(values[0], np.int64).tolist())
        else:
            self.tasks.append(StageTask(*values))


def staged(index: int) -> Finding:
    extent = packed([Extent(index + 1, 0, 5, 4096 * index, 100, 7, index)])
    return index, extent, True, False, ()


def test_what_is_settled_of_a_task_is_read_while_the_rest_of_it_is_held_up():
    stage, schedule, _ = staging_stage(2)
    worker = Prefetcher()
    stage.team.workers.append(worker)
    schedule.admit(0, [0, 1, 2, 3, 4, 5], None)
    stage.hand_out(9)
    (task,) = worker.tasks
    assert task.indices == [0, 1, 2, 3, 4, 5]

    stage.hear(worker, ("staged", task.task_id, [staged(n) for n in (0, 1, 2, 4, 5)], None))
    assert [schedule.next_to_read(1).indices for _ in range(2)] == [[0, 1], [4, 5]]
    assert schedule.next_to_read(1) is None
    assert [part.indices for part in worker.parts.values()] == [[2, 3]]

    stage.hear(worker, ("staged", task.task_id, [staged(n) for n in range(6)], {}))
    part = schedule.next_to_read(1)
    assert part.indices == [2, 3]
    assert {extent.key for extent in unpacked(part.extents).values()} == {3, 4}
    assert schedule.next_to_read(1) is None
    assert not stage.has_work
    stage.hear(worker, ("staged", task.task_id, [staged(0)], None))  # which came late
    assert schedule.next_to_read(1) is None


def test_what_was_evicted_after_it_had_been_reported_is_not_staged_when_the_task_is_done():
    stage, schedule, _ = staging_stage(4, capacity_bytes=8 * 4096)
    worker = Prefetcher()
    stage.team.workers.append(worker)
    schedule.admit(0, [0, 1, 2, 3], None, 0)
    schedule.admit(1, [4, 5, 6, 7], None, 4)
    stage.hand_out(2)
    (slow,) = worker.tasks
    stage.hear(worker, ("staged", slow.task_id, [staged(n) for n in range(7)], None))
    schedule.done(schedule.next_to_read(1))

    schedule.admit(2, [8, 9], None, 8)
    stage.hand_out(3)
    _, fast = worker.tasks
    evicted = {victim.example: b"" for victim in fast.victims if victim.example < 4}
    assert evicted
    stage.hear(worker, ("staged", fast.task_id, [staged(8), staged(9)], evicted))

    stage.hear(worker, ("staged", slow.task_id, [staged(n) for n in range(8)], {}))
    schedule.admit(3, [0, 1, 2, 3], None, 10)
    stage.hand_out(4)
    assert sorted(worker.tasks[-1].indices) == sorted(evicted)


def test_a_task_fills_up_while_all_that_is_needed_soon_is_staged():
    stage, schedule, _ = staging_stage(2)
    worker = Prefetcher()
    stage.team.workers.append(worker)
    schedule.admit(0, [0, 1], None)
    schedule.admit(1, [2, 3], None)
    stage.hand_out(1)
    (task,) = worker.tasks
    stage.hear(worker, ("staged", task.task_id, [staged(n) for n in range(4)], {}))
    schedule.admit(2, [4, 5], None)
    stage.hand_out(0)
    schedule.admit(3, [6, 7], None)
    stage.hand_out(0)
    assert worker.tasks == [task]
    stage.hand_out(3)
    assert [task.indices for task in worker.tasks] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_until_there_is_a_first_mini_batch_a_prefetcher_gets_little_besides():
    stage, schedule, _ = staging_stage(4)
    worker, other = Prefetcher(), Prefetcher()
    stage.team.workers.append(worker)
    schedule.admit(0, [*range(10)], None)
    schedule.admit(1, [10], None)
    schedule.admit(2, [11], None)
    stage.hand_out(9)
    assert [task.indices for task in worker.tasks] == [[*range(8)], [8, 9]]
    stage.team.workers.append(other)
    stage.hand_out(9)
    assert [task.indices for task in other.tasks] == [[10, 11]]

    schedule.admit(3, [0, 10], None)
    stage.hand_out(9)
    assert len(worker.tasks + other.tasks) == 3
    stage.hear(other, ("staged", 2, [staged(10)], None))  # of its two examples
    stage.hand_out(9)
    assert len(worker.tasks + other.tasks) == 3


def test_once_something_is_staged_the_next_mini_batch_is_too_and_after_the_first_all_are():
    stage, schedule, _ = staging_stage(4)
    worker = Prefetcher()
    stage.team.workers.append(worker)
    schedule.admit(0, [*range(10)], None)
    for batch_id, index in enumerate((10, 11, 1), 1):
        schedule.admit(batch_id, [index], None)
    stage.hand_out(9)
    assert [task.indices for task in worker.tasks] == [[*range(8)], [8, 9]]
    stage.hear(worker, ("staged", 0, [staged(0)], None))
    stage.hand_out(9)
    assert [task.indices for task in worker.tasks[2:]] == [[10]]
    for part in schedule.batch(0).parts:
        schedule.done(part)
    stage.hand_out(9)
    assert [task.indices for task in worker.tasks[3:]] == [[11, 1]]


def test_a_full_directory_limits_what_a_prefetcher_gets_of_the_first_mini_batch_too():
    stage, schedule, _ = staging_stage(4)
    worker = Prefetcher()
    stage.team.workers.append(worker)
    stage._residency.may_run_ahead = lambda: False
    schedule.admit(3, [*range(10)], None)
    stage.hand_out(3)  # the trainer has all before it
    assert worker.tasks == []
    stage.credit_examples = 8
    stage.hand_out(4)
    stage.credit_examples = 64
    stage.hand_out(3)
    assert [task.indices for task in worker.tasks] == [[*range(8)]]
    stage.hand_out(4)
    assert [task.indices for task in worker.tasks] == [[*range(8)], [8, 9]]


def test_after_a_restart_what_is_known_is_read_though_no_prefetcher_has_time():
    stage, schedule, _ = staging_stage(2)
    worker = Prefetcher()
    stage.team.workers.append(worker)
    schedule.admit(0, [0, 1], None)
    stage.hand_out(9)
    stage.hear(worker, ("staged", 0, [staged(0), staged(1)], {}))
    stage.credit_examples = 0
    worker.n_examples = 1
    schedule.admit(1, [2, 3], None)
    stage.hand_out(9)
    assert len(worker.tasks) == 1
    schedule.drop_all(2)
    stage.restart()
    schedule.admit(2, [1, 0], None)
    stage.hand_out(9)
    assert schedule.next_to_read(3).indices == [1, 0]


def test_of_a_prefetcher_that_dies_in_the_middle_of_a_task_the_rest_is_staged_again():
    stage, schedule, _ = staging_stage(2)
    worker = Prefetcher()
    stage.team.workers.append(worker)
    schedule.admit(0, [0, 1, 2, 3], None)
    stage.hand_out(9)
    (task,) = worker.tasks
    stage.hear(worker, ("staged", task.task_id, [staged(2), staged(3)], None))
    lost = list(worker.parts.values())
    worker.parts.clear()
    worker.n_examples = 0
    stage.redo(lost, Death(-9, None, ""))
    assert not stage.has_work
    stage.hand_out(9)
    assert worker.tasks[1].indices == [0, 1]


def test_what_a_prefetcher_that_dies_may_not_have_told_another_one_tells():
    stage, schedule, _ = staging_stage(12)
    worker, heir = Prefetcher(), Prefetcher()
    stage.team.workers += [worker, heir]
    schedule.admit(0, [*range(12)], None)
    stage.hand_out(9)
    (task,) = worker.tasks
    stage.hear(worker, ("staged", task.task_id, [staged(n) for n in range(12)], {}))
    assert worker.uses == [[*range(1, 13)]]
    assert heir.uses == []

    worker.pid = 0
    stage.redo(worker.take_all_back(), Death(-9, -1, ""))
    assert heir.uses == worker.uses


def test_when_staging_is_given_up_every_part_is_read_unstaged():
    stage, schedule, warnings = staging_stage(3)
    schedule.admit(0, list(range(8)), None)
    stage.hand_out(9)
    assert schedule.next_to_read(1) is None

    stage.give_up("they all died")
    schedule.admit(1, list(range(8, 12)), None)
    stage.hand_out(9)

    read = []
    while part := schedule.next_to_read(2):
        assert part.extents == b""
        read += part.indices
    assert read == list(range(12))
    (text,) = warnings
    assert "staging is given up" in text
    assert "they all died" in text


def test_an_example_on_which_prefetchers_die_is_named_and_its_part_is_staged_again():
    stage, schedule, warnings = staging_stage(3)
    schedule.admit(0, [4, 5, 6], None)
    for number in range(3):
        assert warnings == []
        part = schedule.next_to_stage()
        assert part is not None, number
        stage.redo([part], Death(-11, 5, "its last words"))
    (text,) = warnings
    assert "3 prefetchers died (signal 11 SIGSEGV)" in text
    assert "example 5" in text
    assert "its last words" in text
    assert schedule.next_to_stage() is part


def test_a_part_with_which_prefetchers_die_at_one_example_or_another_is_read_unstaged():
    stage, schedule, warnings = staging_stage(3)
    schedule.admit(0, [4, 5, 6], None)
    for number in range(6):
        part = schedule.next_to_stage()
        assert part is not None, number
        stage.redo([part], Death(-9, (4, -1, 6)[number % 3], ""))
    assert schedule.next_to_stage() is None
    assert schedule.next_to_read(1) is part
    assert warnings == []


def cost(
    seconds: float, n_examples: int, cpu_share: float = 1.0, n_files: int = 1
) -> tuple[int, int, int, int]:
    busy_ns = int(seconds * 1e9) * n_examples
    return n_examples, n_files, busy_ns, int(cpu_share * busy_ns)


def test_a_part_becomes_shorter_as_examples_take_longer():
    costs = CostEstimate(2, 2)
    assert costs.part_size(32, 2, is_first=True) == 4
    assert costs.part_size(32, 2) == 16
    costs.add(*cost(0.0001, 4))
    assert costs.part_size(32, 2) == 16
    for _ in range(100):
        costs.add(*cost(0.008, 4, n_files=3))
    assert costs.part_size(32, 2) == 4
    assert costs.n_files == 3
    for _ in range(100):
        costs.add(*cost(1.0, 1))
    assert costs.part_size(32, 2) == 1


def test_a_part_that_stalled_does_not_make_the_next_ones_tiny():
    costs = CostEstimate(2, 2)
    costs.add(*cost(0.001, 16))
    costs.add(*cost(1.0, 16))
    assert costs.part_size(32, 2) == 16


def test_readers_beyond_the_cores_have_work_only_if_they_wait():
    costs = CostEstimate(16, 2)
    assert costs.n_busy == 16
    costs.add(*cost(0.0005, 4))
    assert costs.n_busy == 2
    assert costs.part_size(32, 2) == 16
    for _ in range(100):
        costs.add(*cost(0.010, 4, cpu_share=0.05))
    assert costs.n_busy == 16
    assert costs.part_size(32, 2) == 2


def test_a_part_that_seems_to_have_taken_less_than_no_time_does_not_derail_the_estimate():
    costs = CostEstimate(2, 2)
    costs.add(32, 1, busy_ns=-80_000_000, cpu_ns=1_600_000)
    for _ in range(5000):  # what is learned wrongly would grow beyond all bounds
        costs.add(32, 1, busy_ns=1_600_000, cpu_ns=1_500_000)
    assert 45e-6 < costs.example_seconds < 55e-6
    assert costs.part_size(32, 8) == 32
