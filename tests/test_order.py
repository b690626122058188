"""The access order, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.errors import OptionError
from overlapiter.order import (
    Course,
    IterationState,
    RunAhead,
    advance,
    checked_order,
    epoch_size,
    seeded_order,
)


@given(size=st.integers(1, 7), batch_size=st.integers(1, 20), shuffle=st.booleans())
def test_each_index_carries_the_epoch_that_it_belongs_to(size, batch_size, shuffle):
    def next_order(_order, _position, epoch):
        return seeded_order(7, epoch, size)

    state = IterationState(0, 0, False, seeded_order(7, 0, size) if shuffle else None)
    indices, epochs = [], []
    for _ in range(5):
        state, index_list = advance(state, Course(batch_size, True, next_order, size))
        indices += index_list.indices
        epochs += index_list.epochs
    assert epochs == [n // size for n in range(5 * batch_size)]
    for epoch in range(5 * batch_size // size):
        sweep = indices[epoch * size : (epoch + 1) * size]
        assert sweep == (seeded_order(7, epoch, size).tolist() if shuffle else [*range(size)])


def test_the_end_is_final_without_repeat():
    course = Course(4, False, None, 3)
    state, index_list = advance(IterationState(0, 0, False, None), course)
    assert index_list.indices == [0, 1, 2]
    again, nothing = advance(state, course)
    assert nothing is None
    assert again is state


def test_an_empty_dataset_gives_one_empty_mini_batch_without_repeat():
    state, index_list = advance(IterationState(0, 0, False, None), Course(4, False, None, 0))
    assert len(index_list.indices) == len(index_list.epochs) == 0
    assert state.epoch == 1


@given(
    position=st.integers(0, 9),
    size=st.integers(1, 10),
    batch_size=st.integers(1, 12),
    has_order=st.booleans(),
)
def test_a_step_that_may_not_cross_an_epoch_is_kept_back_exactly_when_it_would(
    position, size, batch_size, has_order
):
    order = np.arange(size) if has_order else None
    state = IterationState(min(position, size - 1), 0, False, order)
    course = Course(batch_size, True, lambda order, _position, _epoch: order, size)
    new_state, _ = advance(state, course)
    ahead = RunAhead(state, course)
    ahead.extend(1, 1, may_cross_epoch=False)
    steps = [*ahead.steps]
    assert len(steps) == (new_state.epoch == 0)


def test_the_size_of_an_epoch_is_that_of_the_order():
    assert epoch_size(IterationState(0, 0, False, None), 10) == 10
    assert epoch_size(IterationState(0, 0, False, np.arange(4)), 10) == 4


def test_a_new_order_of_another_length_is_refused():
    state = IterationState(0, 0, False, np.arange(3))
    with pytest.raises(ValueError, match="does not match the size of the previous order"):
        advance(state, Course(3, True, lambda *_: np.arange(4), 10))


def test_a_new_order_with_an_unknown_index_is_refused():
    state = IterationState(0, 0, False, np.arange(3))
    with pytest.raises(OptionError, match=r"index 10.*0 to 9"):
        advance(state, Course(3, True, lambda *_: np.array([0, 1, 10]), 10))


@pytest.mark.parametrize(
    "order",
    [np.arange(3.0), np.zeros((3, 1), int), np.array([True, False]), np.array(["0", "1"]), 5],
)
def test_an_order_of_anything_but_indices_is_refused(order):
    with pytest.raises(OptionError, match="return a 1-dimensional array of integers") as caught:
        checked_order(order, 10)
    assert caught.value.option == "order_sampler"


@pytest.mark.parametrize("order", [[0, 10], [-11, 0]])
def test_an_order_with_an_index_that_the_dataset_lacks_is_refused(order):
    with pytest.raises(OptionError, match="return indices from 0 to 9"):
        checked_order(np.array(order), 10)


@pytest.mark.parametrize("order", [[0, 9, -10], (3, 3), np.array([2], np.uint8), [], range(4)])
def test_any_sequence_of_indices_is_an_order(order):
    checked = checked_order(order, 10)
    assert isinstance(checked, np.ndarray)
    assert checked.dtype.kind in "iu"
    assert checked.tolist() == list(order)


@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 10**6), size=st.integers(0, 50))
def test_a_seeded_order_is_a_permutation_that_follows_from_its_arguments(seed, epoch, size):
    order = seeded_order(seed, epoch, size)
    assert sorted(order) == [*range(size)]
    np.random.seed(0)  # it must not matter
    assert np.array_equal(order, seeded_order(seed, epoch, size))


def test_seeded_orders_of_other_epochs_and_seeds_are_unrelated():
    orders = [seeded_order(seed, epoch, 1000) for seed in range(3) for epoch in range(3)]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            assert np.count_nonzero(one == other) < 20


def test_a_seeded_order_stays_what_it_was():
    # A snapshot of an old run must go on with the same order.
    assert seeded_order(42, 3, 8).tolist() == [3, 1, 2, 7, 0, 5, 4, 6]


@pytest.mark.parametrize(("end", "n_steps"), [(0.7, 4), (1, 5), (2.4, 12), (float("inf"), 20)])
def test_steps_are_generated_up_to_the_end_and_beyond_it_once_the_trainer_is_there(
    end: float, n_steps: int
) -> None:
    ahead = RunAhead(IterationState(0, 0, False, None), Course(2, True, None, 10))
    ahead.extend(20, 20, may_cross_epoch=True, end=end)
    assert len(ahead.steps) == n_steps
    for _ in range(n_steps):
        ahead.take()
    ahead.extend(20, 20, may_cross_epoch=True, end=end)
    assert len(ahead.steps) == 20


def test_orders_of_epochs_that_are_over_are_forgotten() -> None:
    state = IterationState(0, 0, False, np.arange(10))
    course = Course(5, True, lambda order, _position, _epoch: order.copy(), 10)
    ahead = RunAhead(state, course)
    for _ in range(50):
        ahead.extend(3, 3, may_cross_epoch=True)
        ahead.take()
    assert len(ahead.known_orders()) <= 3
    assert len(ahead._orders) <= 3
