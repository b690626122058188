"""The stages of the supervisor, without processes."""

from __future__ import annotations

from overlapiter.workers.supervisor.deaths import Death
from overlapiter.workers.supervisor.residency import Residency
from overlapiter.workers.supervisor.schedule import Batch, Schedule
from overlapiter.workers.supervisor.stages import Experience
from overlapiter.workers.supervisor.staging_stage import StagingStage
from overlapiter.workers.supervisor.team import Team


class Desk:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.settled: list[Batch] = []
        self.warnings: list[str] = []

    def settle(self, batch: Batch | None) -> None:
        if batch is not None:
            self.settled.append(batch)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def staging_stage() -> tuple[StagingStage, Schedule, Desk]:
    schedule, desk = Schedule(is_staging=True), Desk()
    team = Team("prefetcher", [], lambda _channel, _row: None, lambda: None)
    stage = StagingStage(team, schedule, desk, 64, Experience(), Residency(12, 1, None), "/fast")
    return stage, schedule, desk


def test_when_staging_is_given_up_every_part_is_read_unstaged():
    stage, schedule, desk = staging_stage()
    schedule.admit(0, list(range(8)), None, 3)
    stage.hand_out(9)
    assert schedule.next_to_read(1) is None

    stage.give_up("they all died")
    schedule.admit(1, list(range(8, 12)), None, 3)
    stage.hand_out(9)

    read = []
    while part := schedule.next_to_read(2):
        assert part.staged == {}
        read += part.indices
    assert read == list(range(12))
    (text,) = desk.warnings
    assert "staging is given up" in text
    assert "they all died" in text


def test_an_example_on_which_prefetchers_die_is_named_and_its_part_is_staged_again():
    stage, schedule, desk = staging_stage()
    schedule.admit(0, [4, 5, 6], None, 3)
    for number in range(3):
        assert desk.warnings == []
        part = schedule.next_to_stage()
        assert part is not None, number
        stage.redo([part], Death(-11, 5, "its last words"))
    (text,) = desk.warnings
    assert "3 prefetchers died (signal 11 SIGSEGV)" in text
    assert "example 5" in text
    assert "its last words" in text
    assert schedule.next_to_stage() is part


def test_a_part_becomes_shorter_as_examples_take_longer():
    experience = Experience()
    assert experience.part_size(32, 2) == 4
    experience.add(0.0001, 1)
    assert experience.part_size(32, 2) == 16
    for _ in range(100):
        experience.add(0.002, 3)
    assert experience.part_size(32, 2) == 2
    assert experience.n_files == 3
    for _ in range(100):
        experience.add(1.0, 1)
    assert experience.part_size(32, 2) == 1
