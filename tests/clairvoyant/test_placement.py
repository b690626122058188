"""Which node holds what: alike on all ranks, within capacity, and each example once at first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.clairvoyant.placement import NOWHERE, Placement, greedy_placement
from overlapiter.clairvoyant.plan import AccessPlan
from overlapiter.errors import OptionError

N = 2000
FOUR = [[0], [1], [2], [3]]
TWO = [[0, 1], [2, 3]]


def placed(nodes, share: float, n_epochs: int = 2, **options) -> Placement:
    plan = AccessPlan(1, N, 4, n_epochs)
    return Placement(plan, nodes, [share * N * 100] * len(nodes), 100, **options)


def test_what_the_nodes_hold_together_has_a_holder_the_node_that_reads_it_first() -> None:
    placement = placed(FOUR, 0.3)
    assert (placement.holders()[:, 0] == placement.first_readers).all()
    assert np.count_nonzero(placement.holders()[:, 1] != NOWHERE) == 0.2 * N  # the rest


@pytest.mark.parametrize(("nodes", "share"), [(FOUR, 0.15), (TWO, 0.3)])
def test_what_does_not_fit_has_none_and_no_example_has_two(nodes, share) -> None:
    holders = placed(nodes, share).holders()
    held = holders[:, 0] != NOWHERE
    assert np.count_nonzero(held) == pytest.approx(0.6 * N, abs=len(nodes))
    assert (holders[:, 1:] == NOWHERE).all()
    assert (holders[held, 0] == placed(nodes, share).first_readers[held]).all()


def test_of_what_it_reads_first_a_full_node_holds_what_it_reads_most() -> None:
    plan = AccessPlan(1, N, 4, 20)
    placement = Placement(plan, FOUR, [0.1 * N * 100] * 4, 100)
    counts = plan.frequencies([2])
    holders = placement.holders()[:, 0]
    (own,) = np.nonzero(placement.first_readers == 2)
    held, left = own[holders[own] == 2], own[holders[own] != 2]
    assert counts[held].min() >= counts[left].max()


def test_nodes_with_room_take_what_a_full_one_reads_first() -> None:
    plan = AccessPlan(1, N, 4, 2)
    placement = Placement(plan, FOUR, [N * 100, N * 10, N * 10, 0], 100)
    assert (placement.holders()[:, 0] != NOWHERE).all()
    assert len(placement.held_by(3)) == 0
    firsts = placement.holders()[:, 0]
    assert [np.count_nonzero(firsts == node) for node in (1, 2)] == [N // 10] * 2


def test_where_each_node_has_room_for_all_every_node_holds_all() -> None:
    holders = placed(FOUR, 1.0).holders()
    assert np.array_equal(np.sort(holders, axis=1), np.tile(np.arange(4), (N, 1)))


def test_the_epochs_that_are_looked_at_do_not_move_what_the_first_readers_have_room_for() -> None:
    few, many = (placed(FOUR, 0.25, n_epochs) for n_epochs in (1, 9))
    assert np.array_equal(few.holders()[:, 0], many.holders()[:, 0])


sizes_of = st.lists(st.integers(1, 900), min_size=40, max_size=40)
rooms_of = st.lists(st.integers(0, 12_000), min_size=3, max_size=3)


@given(sizes_of, rooms_of, st.integers(1, 3))
def test_no_node_holds_more_than_fits_or_anything_twice(sizes, rooms, n_epochs) -> None:
    plan = AccessPlan(7, 40, 6, n_epochs)
    nodes = [[0, 5], [1], [2, 3, 4]]
    placement = Placement(plan, nodes, rooms, sizes)
    for node, room in enumerate(rooms):
        held = placement.held_by(node)
        assert np.asarray(sizes)[held].sum() <= room
        assert len(set(held.tolist())) == len(held)
    holders = placement.holders()
    assert np.count_nonzero(holders != NOWHERE) == sum(len(placement.held_by(n)) for n in range(3))
    again = Placement(plan, nodes, rooms, sizes)
    assert np.array_equal(holders, again.holders())


def test_a_node_keeps_what_it_reads_most_in_its_fastest_tier() -> None:
    plan = AccessPlan(1, N, 4, 20)
    placement = Placement(plan, FOUR, [0.25 * N * 100] * 4, 100)
    tiers = placement.tiers([0.05 * N * 100, 0.2 * N * 100])
    held = placement.held_by(1)
    counts = plan.frequencies([1])[held]
    own = tiers[held, 0]
    assert np.count_nonzero(own == 0) == pytest.approx(0.05 * N, abs=1)
    assert counts[own == 0].min() >= counts[own == 1].max()


def test_the_published_placement_fills_tiers_by_frequency_then_first_use() -> None:
    plan = AccessPlan(1, 60, 3, 6)
    tiers = greedy_placement(plan, 0, np.full(60, 10), [100, 200])
    counts, first = plan.frequencies([0]), plan.first_uses([0])
    expected = sorted(range(60), key=lambda example: (-counts[example], first[example]))
    assert set(np.nonzero(tiers == 0)[0]) == set(expected[:10])
    assert set(np.nonzero(tiers == 1)[0]) == set(expected[10:30])


def test_nodes_that_do_not_have_each_rank_once_are_refused() -> None:
    plan = AccessPlan(1, N, 4, 1)
    with pytest.raises(OptionError, match="does not have each of 4 ranks once"):
        Placement(plan, [[0, 1], [1, 2, 3]], [1, 1], 100)
    with pytest.raises(OptionError, match="there are 4 nodes"):
        Placement(plan, FOUR, [1, 1], 100)
    with pytest.raises(OptionError, match="give one each"):
        Placement(plan, FOUR, [1] * 4, [1, 2, 3])
