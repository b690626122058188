"""The access order is Chainer's, index for index, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest
from chainer.iterators._statemachine import IteratorState, iterator_statemachine
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.order import Course, IterationState, advance


class Sampler:
    """An order that depends on everything a sampler is told, and on how often it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int]] = []

    def __call__(self, order, position):
        self.calls.append((list(order), position))
        return np.roll(order[::-1], position + len(self.calls))


@given(
    size=st.integers(0, 12),
    batch_size=st.integers(1, 30),
    repeat=st.booleans(),
    permutation=st.none() | st.randoms(use_true_random=False),
    start=st.integers(0, 11),
)
def test_mini_batches_are_those_of_chainer(size, batch_size, repeat, permutation, start):
    order = None
    if permutation is not None:
        # An epoch may be another size than the dataset, and may name an example twice.
        order = np.array([permutation.randrange(max(size, 1)) for _ in range(size)], np.intp)
    start = min(start, max(size - 1, 0))
    ours, theirs = Sampler(), Sampler()
    state = IterationState(start, 0, False, order)
    expected_state = IteratorState(start, 0, False, order)
    course = Course(batch_size, repeat, lambda o, p, _: ours(o, p), size)
    for _ in range(6):
        try:
            expected_state, expected = iterator_statemachine(
                expected_state, batch_size, repeat, theirs, size
            )
        except ValueError as error:
            with pytest.raises(ValueError, match=str(error)):
                advance(state, course)
            return
        state, index_list = advance(state, course)
        assert (index_list is None) == (expected is None)
        if index_list is not None:
            assert {*map(type, index_list.indices)} <= {int}
            assert index_list.indices == expected.tolist()
        assert state[:3] == expected_state[:3]
        assert np.array_equal(state.order, expected_state.order)
        assert ours.calls == theirs.calls
