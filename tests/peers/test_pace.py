"""Which way a file takes: from a node, as long as that is not much slower than the store."""

from __future__ import annotations

from overlapiter.peers.pace import Pace, Way


def ways(node_seconds: float, store_seconds: float) -> Way:
    store = Pace()
    way = Way(store)
    for _ in range(100):
        store.note(store_seconds)
        way.note(node_seconds)
    return way


def test_a_node_is_asked_before_anything_is_known() -> None:
    assert Way(Pace()).is_good(0.0)


def test_a_node_is_the_better_way_also_where_it_is_a_little_slower() -> None:
    assert all(ways(0.1, 0.01).is_good(now) for now in (0.0, 0.1, 0.2))


def test_one_that_is_much_slower_is_tried_once_a_second() -> None:
    way = ways(0.4, 0.01)
    assert [way.is_good(now) for now in (10.0, 10.1, 10.9, 11.0, 11.5)] == [
        True, False, False, True, False,
    ]  # fmt: skip


def test_where_the_store_is_as_slow_it_makes_no_difference() -> None:
    assert all(ways(0.4, 0.1).is_good(now) for now in (10.0, 10.1))


def test_one_that_has_become_fast_is_used_again_at_once() -> None:
    way = ways(0.4, 0.01)
    assert way.is_good(10.0)
    way.note(0.001)
    assert all(way.is_good(now) for now in (10.1, 10.2))
