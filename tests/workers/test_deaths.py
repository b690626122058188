"""An example is given up when workers die on it in a row, sooner if it is known to be that one."""

from __future__ import annotations

import pytest

from overlapiter.workers.supervisor.deaths import (
    MAX_DEATHS,
    MAX_SUSPECT_DEATHS,
    Culprit,
    Death,
    Deaths,
)
from overlapiter.workers.supervisor.schedule import Part, Schedule


@pytest.fixture
def parts() -> list[Part]:
    schedule = Schedule(is_staging=False, part_size=lambda _: 2, settled=lambda _: None)
    schedule.admit(0, [10, 11, 12, 13], None)
    parts = [schedule.next_to_read(1), schedule.next_to_read(1)]
    return [part for part in parts if part is not None]


def test_the_example_that_a_worker_was_at_is_the_culprit(parts):
    assert Death(-9, 12, "").culprit(parts) == Culprit(12, is_known=True)


@pytest.mark.parametrize("current_index", [-1, 99])
def test_between_two_examples_the_one_that_was_to_come_next_is_suspect(parts, current_index):
    assert Death(-9, current_index, "").culprit(parts) == Culprit(10, is_known=False)


def test_a_worker_that_had_nothing_to_do_died_of_nothing():
    assert Death(-9, 12, "").culprit([]) is None


@pytest.mark.parametrize(("is_known", "limit"), [(True, MAX_DEATHS), (False, MAX_SUSPECT_DEATHS)])
def test_an_example_is_given_up_after_so_many_deaths_and_then_counts_anew(parts, is_known, limit):
    deaths = Deaths()
    culprit = Culprit(10, is_known)
    for _ in range(2):
        counts = [deaths.add(parts[0], culprit) for _ in range(limit)]
        assert counts == [0] * (limit - 1) + [limit]


def test_deaths_on_different_examples_do_not_add_up(parts):
    deaths = Deaths()
    for _ in range(MAX_DEATHS):
        assert not deaths.add(parts[0], Culprit(10, is_known=True))
        assert not deaths.add(parts[0], Culprit(11, is_known=True))


def test_a_part_that_only_waited_behind_the_culprit_is_not_blamed(parts):
    deaths = Deaths()
    for _ in range(2 * MAX_SUSPECT_DEATHS):
        assert not deaths.add(parts[1], Culprit(10, is_known=True))
        assert not deaths.add(parts[1], None)


def test_each_part_counts_for_itself(parts):
    deaths = Deaths()
    for _ in range(MAX_DEATHS - 1):
        assert not deaths.add(parts[0], Culprit(10, is_known=True))
        assert not deaths.add(parts[1], Culprit(12, is_known=True))
    assert deaths.add(parts[0], Culprit(10, is_known=True)) == MAX_DEATHS
