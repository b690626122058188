"""An example is given up when workers die on it in a row, sooner if it is known to be that one."""

from __future__ import annotations

import pytest

from overlapiter.workers.supervisor.schedule import Part, Schedule
from overlapiter.workers.supervisor.team import MAX_DEATHS, MAX_SUSPECT_DEATHS, Death, Team


@pytest.fixture
def parts() -> list[Part]:
    schedule = Schedule(is_staging=False, part_size=lambda _: 2, settled=lambda _: None)
    schedule.admit(0, [10, 11, 12, 13], None)
    parts = [schedule.next_to_read(1), schedule.next_to_read(1)]
    return [part for part in parts if part is not None]


@pytest.fixture
def team() -> Team:
    return Team("file reader", [], lambda _channel, _row: None, lambda: None)


def death_at(index: int) -> Death:
    return Death(-9, index, "")


def test_the_example_that_a_worker_was_at_is_given_up(team, parts):
    for _ in range(2):  # and then counts anew
        assert [team.example_to_give_up(death_at(12), parts) for _ in range(MAX_DEATHS - 1)] == [
            None,
            None,
        ]
        assert team.example_to_give_up(death_at(12), parts) == (parts[1], 12, MAX_DEATHS)


@pytest.mark.parametrize("current_index", [-1, 99])
def test_between_two_examples_the_one_that_was_to_come_next_is_suspect(team, parts, current_index):
    for _ in range(MAX_SUSPECT_DEATHS - 1):
        assert team.example_to_give_up(death_at(current_index), parts) is None
    assert team.example_to_give_up(death_at(current_index), parts) == (
        parts[0],
        10,
        MAX_SUSPECT_DEATHS,
    )


def test_a_worker_that_had_nothing_to_do_died_of_nothing(team):
    assert not any(team.example_to_give_up(death_at(12), []) for _ in range(2 * MAX_SUSPECT_DEATHS))


@pytest.mark.parametrize("others", [11, -1])
def test_deaths_on_different_examples_do_not_add_up(team, parts, others):
    for _ in range(MAX_DEATHS):
        assert team.example_to_give_up(death_at(10), parts) is None
        assert team.example_to_give_up(death_at(others), parts) is None


def test_each_part_counts_for_itself(team, parts):
    for _ in range(MAX_DEATHS - 1):
        assert team.example_to_give_up(death_at(10), parts) is None
        assert team.example_to_give_up(death_at(12), parts) is None
    assert team.example_to_give_up(death_at(10), parts) == (parts[0], 10, MAX_DEATHS)
