"""Next use, against a plain search through the orders."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.nextuse import FAR, NextUse

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
