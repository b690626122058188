"""The stages of the supervisor, without processes."""

from __future__ import annotations

from overlapiter.workers.supervisor.deaths import Death
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Batch, Schedule
from overlapiter.workers.supervisor.stages import CostEstimate, ReadCost
from overlapiter.workers.supervisor.staging_stage import StagingStage
from overlapiter.workers.supervisor.team import Team


class Supervisor:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.settled: list[Batch] = []
        self.warnings: list[str] = []

    def settle(self, batch: Batch | None) -> None:
        if batch is not None:
            self.settled.append(batch)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def staging_stage() -> tuple[StagingStage, Schedule, Supervisor]:
    schedule, supervisor = Schedule(is_staging=True), Supervisor()
    team = Team("prefetcher", [], lambda _channel, _row: None, lambda: None)
    costs, residency = CostEstimate(2, 2), Residency(12, 1, None)
    stage = StagingStage(team, schedule, supervisor, 64, costs, residency, "/fast")
    return stage, schedule, supervisor


def test_when_staging_is_given_up_every_part_is_read_unstaged():
    stage, schedule, supervisor = staging_stage()
    schedule.admit(0, list(range(8)), None, 3)
    stage.hand_out(9)
    assert schedule.next_to_read(1) is None

    stage.give_up("they all died")
    schedule.admit(1, list(range(8, 12)), None, 3)
    stage.hand_out(9)

    read = []
    while part := schedule.next_to_read(2):
        assert part.extents == b""
        read += part.indices
    assert read == list(range(12))
    (text,) = supervisor.warnings
    assert "staging is given up" in text
    assert "they all died" in text


def test_an_example_on_which_prefetchers_die_is_named_and_its_part_is_staged_again():
    stage, schedule, supervisor = staging_stage()
    schedule.admit(0, [4, 5, 6], None, 3)
    for number in range(3):
        assert supervisor.warnings == []
        part = schedule.next_to_stage()
        assert part is not None, number
        stage.redo([part], Death(-11, 5, "its last words"))
    (text,) = supervisor.warnings
    assert "3 prefetchers died (signal 11 SIGSEGV)" in text
    assert "example 5" in text
    assert "its last words" in text
    assert schedule.next_to_stage() is part


def cost(seconds: float, n_examples: int, cpu_share: float = 1.0, n_files: int = 1) -> ReadCost:
    busy_ns = int(seconds * 1e9) * n_examples
    return ReadCost(n_files, busy_ns, int(cpu_share * busy_ns))


def test_a_part_becomes_shorter_as_examples_take_longer():
    costs = CostEstimate(2, 2)
    assert costs.part_size(32, 2) == 4
    costs.add(cost(0.0001, 4), 4)
    assert costs.part_size(32, 2) == 16
    for _ in range(100):
        costs.add(cost(0.004, 4, n_files=3), 4)
    assert costs.part_size(32, 2) == 4
    assert costs.n_files == 3
    for _ in range(100):
        costs.add(cost(1.0, 1), 1)
    assert costs.part_size(32, 2) == 1


def test_readers_beyond_the_cores_have_work_only_if_they_wait():
    costs = CostEstimate(16, 2)
    assert costs.n_busy == 16
    costs.add(cost(0.0005, 4), 4)
    assert costs.n_busy == 2
    assert costs.part_size(32, 2) == 16
    for _ in range(100):
        costs.add(cost(0.010, 4, cpu_share=0.05), 4)
    assert costs.n_busy == 16
    assert costs.part_size(32, 2) == 2
