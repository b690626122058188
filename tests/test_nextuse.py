"""Next use, against a plain search through the orders."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.nextuse import FAR, NextUse, Served

N_EXAMPLES = 6


def searched(orders: dict[int, list[int]], size: int, index: int, behind: int) -> int:
    """Return the first position at or after ``behind`` whose example is ``index``."""
    for epoch in sorted(orders):
        for place, example in enumerate(orders[epoch]):
            if epoch * size + place >= behind and example % N_EXAMPLES == index:
                return epoch * size + place
    return FAR


any_order = st.lists(st.integers(-N_EXAMPLES, N_EXAMPLES - 1), min_size=5, max_size=5)


@given(st.lists(any_order, min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 5))
def test_next_uses_are_those_that_a_search_finds(
    epochs: list[list[int]], first_epoch: int, part_size: int
) -> None:
    orders = {first_epoch + number: order for number, order in enumerate(epochs)}
    next_use = NextUse(N_EXAMPLES)
    for epoch, order in orders.items():
        next_use.learn(epoch, np.array(order))
    sequence = [index % N_EXAMPLES for order in epochs for index in order]
    for start in range(0, len(sequence), part_size):
        position = first_epoch * 5 + start
        expected = [searched(orders, 5, i, position) for i in range(N_EXAMPLES)]
        assert next_use.position.tolist() == expected
        next_use.hand_out(position, sequence[start : start + part_size])


@given(st.permutations(range(N_EXAMPLES)), st.permutations(range(N_EXAMPLES)), st.integers(0, 6))
def test_an_order_that_is_learnt_late_counts_for_what_is_not_handed_out(
    first: list[int], second: list[int], learnt_at: int
) -> None:
    next_use = NextUse(N_EXAMPLES)
    next_use.learn(0, np.array(first))
    for place, index in enumerate(first[:learnt_at]):
        next_use.hand_out(place, [index])
    next_use.learn(1, np.array(second))
    orders = {0: first, 1: second}
    expected = [searched(orders, N_EXAMPLES, i, learnt_at) for i in range(N_EXAMPLES)]
    assert next_use.position.tolist() == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_an_order_may_be_of_any_type_of_integers(dtype: type) -> None:
    next_use = NextUse(300)
    next_use.learn(0, np.array([3, 100, 2], dtype))
    assert next_use.position[[3, 100, 2, 0]].tolist() == [0, 1, 2, FAR]


def test_ascending_order_needs_no_array() -> None:
    next_use = NextUse(4)
    next_use.learn(2, None)
    assert next_use.position.tolist() == [8, 9, 10, 11]


def test_after_a_restart_nothing_is_known_and_epochs_may_go_back() -> None:
    next_use = NextUse(3)
    next_use.learn(5, None)
    next_use.hand_out(15, [0, 1])
    next_use.restart()
    assert next_use.position.tolist() == [FAR] * 3
    next_use.learn(0, None)
    assert next_use.position.tolist() == [0, 1, 2]


@given(st.lists(any_order, min_size=2, max_size=3), st.integers(1, 9), st.integers(1, 3))
def test_after_a_start_amid_an_epoch_no_next_use_lies_in_the_past(
    epochs: list[list[int]], start: int, part_size: int
) -> None:
    orders = dict(enumerate(epochs))
    next_use = NextUse(N_EXAMPLES)
    for epoch, order in orders.items():
        next_use.learn(epoch, np.array(order))
    sequence = [index % N_EXAMPLES for order in epochs for index in order]
    part = sequence[start : start + part_size]
    assert next_use.hand_out(start, part)
    expected = [searched(orders, 5, i, start + len(part)) for i in range(N_EXAMPLES)]
    assert next_use.position.tolist() == expected


N_RANKS = 3
one_each = st.permutations(range(N_EXAMPLES))


@given(
    st.lists(one_each, min_size=1, max_size=4), st.integers(0, 3), st.integers(0, 2), st.booleans()
)
def test_what_other_ranks_of_the_node_read_and_other_nodes_from_it_counts_too(
    epochs: list[list[int]], first_epoch: int, lag: int, last_is_elsewhere: bool
) -> None:
    n_here = N_RANKS - last_is_elsewhere
    rows = [np.reshape(order, (-1, N_RANKS)) for order in epochs]
    next_use = NextUse(N_EXAMPLES)
    size = N_EXAMPLES // N_RANKS
    uses = {
        first_epoch * size + place: row.tolist() for place, row in enumerate(np.concatenate(rows))
    }
    for position, row in uses.items():
        if position % size == 0:  # that of the next epoch is known, too
            place = position // size - first_epoch
            for epoch in range(place, min(place + 2, len(rows))):
                own, others = rows[epoch][:, 0], rows[epoch][:, 1:n_here]
                served = Served(np.arange(size), rows[epoch][:, -1]) if last_is_elsewhere else None
                next_use.learn(first_epoch + epoch, own, others, served)
        next_use.hand_out(position, row[:1])
        passed = position + 1 - lag
        by_others, by_nodes = next_use.pass_by(passed)
        assert set(by_others) <= {index for row in uses.values() for index in row[1:n_here]}
        assert set(by_nodes) <= {index for row in uses.values() for index in row[n_here:]}
        known = (position // size + 2) * size
        for index in range(N_EXAMPLES):
            own_uses = [at for at, row in uses.items() if at <= position and row[0] == index]
            after = max(own_uses, default=-1)
            coming = [
                at
                for at, row in uses.items()
                if after < at < known and index in row and at >= (passed, position)[index == row[0]]
            ]
            assert next_use.position[index] == min(coming, default=FAR)


def test_a_jump_over_many_uses_of_one_example_takes_one_pass() -> None:
    next_use, order = NextUse(100_000), np.arange(100_000)
    order[::2] = 0
    next_use.learn(0, order)
    begun = time.process_time()
    assert next_use.hand_out(99_998, [0])
    assert time.process_time() - begun < 2.0  # a pass for each use takes twenty times as long
    assert next_use.position[[0, 99_999, 99_997]].tolist() == [FAR, 99_999, FAR]


def test_what_others_read_beyond_a_jump_is_not_over() -> None:
    next_use = NextUse(6)
    next_use.learn(0, np.array([0, 1, 2]), np.array([[3], [4], [5]]))
    assert next_use.hand_out(1, [1])
    assert next_use.position.tolist() == [FAR, FAR, 2, FAR, 1, 2]
    assert next_use.pass_by(2)[0].tolist() == [4]
    assert next_use.position.tolist() == [FAR, FAR, 2, FAR, FAR, 2]
    assert next_use.pass_by(1)[0].tolist() == []


def test_what_other_nodes_read_counts_or_does_not_and_nothing_else_changes() -> None:
    next_use = NextUse(6)
    served = Served(np.array([0]), np.array([0]))
    next_use.learn(0, np.array([0, 1, 2]), np.array([[3], [4], [5]]))
    next_use.learn(1, np.array([3, 4, 5]), np.array([[1], [0], [2]]), served)
    next_use.hand_out(0, [0, 1])
    assert next_use.position.tolist() == [3, 3, 2, 0, 1, 2]
    for _ in range(2):
        next_use.count_served(is_wanted=False)
        assert next_use.position.tolist() == [4, 3, 2, 0, 1, 2]
    assert next_use.pass_by(2)[0].tolist() == [3, 4]
    assert next_use.position.tolist() == [4, 3, 2, 3, 4, 2]
    next_use.count_served(is_wanted=True)
    assert next_use.position.tolist() == [3, 3, 2, 3, 4, 2]
