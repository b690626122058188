"""What nodes have room for: within capacity, and each example once at first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.clairvoyant.placement import GreedyPlacement, greedy_placement, pooled_tiers
from overlapiter.clairvoyant.plan import AccessPlan
from overlapiter.peers.holders import NOWHERE
from overlapiter.scatter import ScatteredOrder

N = 2000
FOUR, TWO = [0, 1, 2, 3], [0, 0, 1, 1]


def pooled(node_of_rank: list[int], *shares: float, epoch: int = 3):
    """Return who holds what, and in which tier, where each tier has room for a share."""
    placement = AccessPlan(1, N, 4, 4).placement(node_of_rank)
    rooms = np.outer(np.ones(max(node_of_rank) + 1), [share * N * 100 for share in shares])
    return placement, *pooled_tiers(placement, epoch, np.full(N, 100), rooms)


def test_what_the_nodes_hold_together_has_a_holder_the_node_that_reads_it_first() -> None:
    placement, nodes, _ = pooled(FOUR, 0.3)
    assert (nodes[:, 0] == placement.nodes).all()
    assert np.count_nonzero(nodes[:, 1:] != NOWHERE) == 0.2 * N  # the rest


@pytest.mark.parametrize(("node_of_rank", "share"), [(FOUR, 0.15), (TWO, 0.3)])
def test_what_does_not_fit_has_none_and_no_example_has_two(node_of_rank, share) -> None:
    placement, nodes, _ = pooled(node_of_rank, share)
    held = nodes[:, 0] != NOWHERE
    assert np.count_nonzero(held) == pytest.approx(0.6 * N, abs=len(node_of_rank))
    assert (nodes[:, 1:] == NOWHERE).all()
    assert (nodes[held, 0] == placement.nodes[held]).all()


def test_nodes_with_room_have_copies_of_what_a_full_one_reads_first() -> None:
    placement = AccessPlan(1, N, 4, 4).placement(FOUR)
    rooms = np.array([[N * 100.0]] * 3 + [[0.0]])
    nodes, _ = pooled_tiers(placement, 2, np.full(N, 100), rooms)
    of_full = placement.nodes == 3
    readers = placement.readers(1)[0]
    assert (nodes[:, 0] == np.where(of_full, NOWHERE, placement.nodes)).all()
    assert (nodes[of_full, 1] == np.where(readers[of_full] == 3, NOWHERE, readers[of_full])).all()


sizes_of = st.lists(st.integers(1, 900), min_size=40, max_size=40)
rooms_of = st.lists(st.lists(st.integers(0, 9_000), min_size=2, max_size=2), min_size=3, max_size=3)


@given(sizes_of, rooms_of, st.integers(1, 4))
def test_no_tier_holds_more_than_fits_and_no_node_anything_twice(sizes, rooms, epoch) -> None:
    placement = AccessPlan(7, 40, 6, 5).placement([0, 1, 2, 2, 2, 0])
    sizes = np.array(sizes)
    nodes, tiers = pooled_tiers(placement, epoch, sizes, np.array(rooms, float))
    assert ((nodes == NOWHERE) == (tiers == NOWHERE)).all()
    for node, room in enumerate(rooms):
        is_held = nodes == node
        assert is_held.sum(axis=1).max(initial=0) <= 1
        held = [sizes[(is_held & (tiers == tier)).any(axis=1)].sum() for tier in range(2)]
        assert sum(held) <= sum(room)
        assert held[0] <= room[0]


def test_a_node_has_what_it_reads_first_in_its_fastest_tier() -> None:
    placement, nodes, tiers = pooled(FOUR, 0.05, 0.2)
    held = np.flatnonzero(nodes[:, 0] == 1)
    is_fast = tiers[held, 0] == 0
    assert np.count_nonzero(is_fast) == pytest.approx(0.05 * N, abs=1)
    assert placement.since[held][is_fast].max() < placement.since[held][~is_fast].min()


def test_the_published_placement_fills_tiers_by_frequency_then_first_use() -> None:
    plan = AccessPlan(1, 60, 3, 6)
    stream = np.concatenate([plan.of_ranks([0], epoch) for epoch in plan.epochs]).ravel()
    counts, first = plan.frequencies(0), plan.next_uses(0)
    assert counts.tolist() == np.bincount(stream, minlength=60).tolist()
    tiers = greedy_placement(counts, first, np.full(60, 10), [100, 200])
    expected = sorted(range(60), key=lambda example: (-counts[example], first[example]))
    assert set(np.nonzero(tiers == 0)[0]) == set(expected[:10])
    assert set(np.nonzero(tiers == 1)[0]) == set(expected[10:30])


def test_the_published_placement_of_a_run_names_this_rank_or_the_one_that_has_it_first() -> None:
    plan = AccessPlan(1, 60, 4, 5)
    held_by = [
        greedy_placement(plan.frequencies(rank), plan.next_uses(rank), np.ones(60), [18]) == 0
        for rank in range(4)
    ]
    views = [GreedyPlacement(5, 18, ScatteredOrder(rank, 4, 1), FOUR, 60) for rank in range(4)]
    n_unheld = np.count_nonzero(~np.any(held_by, axis=0))
    assert 0 < n_unheld < 30
    for rank, view in enumerate(views):
        assert view.nodes[held_by[rank]].tolist() == [rank] * 18
        for example in np.flatnonzero(~held_by[rank]):
            uses = [(plan.next_uses(r)[example], r) for r in range(4) if held_by[r][example]]
            assert view.nodes[example] == min(uses, default=(0, NOWHERE))[1]
        assert view.holders(3).tolist() == view.nodes[:, np.newaxis].tolist()
        assert view.holders(0).tolist() == [[NOWHERE]] * 60


@pytest.mark.parametrize("n_nodes", [128, 129, 40_000])
def test_nodes_of_any_number_are_told_apart(n_nodes) -> None:
    placement = AccessPlan(1, n_nodes, n_nodes, 1).placement(range(n_nodes))
    assert sorted(placement.nodes.tolist()) == list(range(n_nodes))
