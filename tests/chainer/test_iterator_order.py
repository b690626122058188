"""Order samplers of the user, checked against Chainer's own iterators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from overlapiter.order import seeded_order
from tests.chainer.conftest import Maker, NumberedImages
from tests.chainer.iterator_datasets import Pixels, indices_of


class Reversing:
    """Gives descending order in every other epoch, and notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int]] = []

    def __call__(self, order: Any, position: int) -> Any:
        self.calls.append((list(order), position))
        return np.arange(len(order))[:: -1 if len(self.calls) % 2 else 1]


class Fixed:
    """Gives one and the same order."""

    def __init__(self, order: list[int]) -> None:
        self.order = np.array(order)

    def __call__(self, _order: Any, _position: int) -> Any:
        return self.order


class LengthChanging:
    """Gives an order of another length from the second epoch on."""

    def __init__(self) -> None:
        self.n_calls = 0

    def __call__(self, _order: Any, _position: int) -> Any:
        self.n_calls += 1
        return np.arange(6 if self.n_calls == 1 else 5)


class OfAnyEpoch:
    """Gives the order of any epoch, as ``make_order`` makes it of a shuffled one."""

    def __init__(self, make_order: Callable[[Any, int], Any] = lambda order, _epoch: order) -> None:
        self.make_order = make_order

    def of_epoch(self, epoch: int, size: int) -> Any:
        return self.make_order(seeded_order(3, epoch, size), epoch)

    def __call__(self, _order: Any, _position: int) -> Any:
        raise NotImplementedError


def epochs_of(size: int, n_epochs: int) -> list[int]:
    return [int(i) for epoch in range(n_epochs) for i in seeded_order(3, epoch, size)]


def taken(iterator: Any, n_batches: int) -> list[list[int]]:
    return [indices_of(next(iterator)) for _ in range(n_batches)]


def test_a_sampler_is_asked_before_each_epoch_with_the_order_and_the_position_it_ends(
    make: Maker, images: NumberedImages
) -> None:
    sampler = Reversing()
    iterator = make(images(5), 2, order_sampler=sampler)
    assert sampler.calls == [([0, 1, 2, 3, 4], 0)]  # by the constructor

    assert taken(iterator, 5) == [[4, 3], [2, 1], [0, 0], [1, 2], [3, 4]]
    assert sampler.calls[1:3] == [([4, 3, 2, 1, 0], 4), ([0, 1, 2, 3, 4], 3)]


def test_a_sampler_may_use_part_of_the_dataset(make: Maker, images: NumberedImages) -> None:
    iterator = make(images(20), 2, order_sampler=Fixed([17, 3, 11]))

    assert taken(iterator, 3) == [[17, 3], [11, 17], [3, 11]]
    assert iterator.epoch == 2
    assert iterator.epoch_detail == 2.0
    assert iterator._epoch_size == 3


def test_a_sampler_may_repeat_examples_and_count_from_the_end(
    make: Maker, images: NumberedImages
) -> None:
    order = [1, 1, 1, -1, 0, 1, 1, 0]
    iterator = make(images(3), 4, repeat=False, order_sampler=Fixed(order))

    assert taken(iterator, 2) == [[1, 1, 1, 2], [0, 1, 1, 0]]
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_short_order_makes_mini_batches_of_several_epochs(
    make: Maker, images: NumberedImages
) -> None:
    iterator = make(images(9), 5, order_sampler=Fixed([8, 2]))

    assert taken(iterator, 2) == [[8, 2, 8, 2, 8], [2, 8, 2, 8, 2]]
    assert (iterator.epoch, iterator.current_position) == (5, 0)


def test_a_sampler_may_give_every_epoch_in_one_array(make_ours: Maker) -> None:
    array = np.empty(10, np.intp)

    def in_place(order: Any, _epoch: int) -> Any:
        array[:] = order
        return array

    iterator = make_ours(Pixels(10), 4, order_sampler=OfAnyEpoch(in_place))

    assert [i for batch in taken(iterator, 10) for i in batch] == epochs_of(10, 4)


@pytest.mark.parametrize("dtype", [np.uint64, np.int8])
def test_an_order_may_be_of_any_type_of_integers(make: Maker, dtype: type) -> None:
    iterator = make(Pixels(4), 2, order_sampler=lambda *_: np.array([3, 1, 0, 2], dtype))

    assert taken(iterator, 5) == [[3, 1], [0, 2], [3, 1], [0, 2], [3, 1]]


def test_an_order_of_another_length_is_refused_when_its_mini_batch_is_due(
    make_ours: Maker, images: NumberedImages
) -> None:
    iterator = make_ours(images(6), 2, order_sampler=LengthChanging())

    assert taken(iterator, 2) == [[0, 1], [2, 3]]
    for _ in range(2):
        with pytest.raises(ValueError, match="The size of order does not match the size of"):
            next(iterator)


def test_the_serial_iterator_refuses_an_order_of_another_length_in_the_same_words() -> None:
    from chainer.iterators import SerialIterator

    iterator = SerialIterator(Pixels(6), 2, order_sampler=LengthChanging())
    assert taken(iterator, 2) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="The size of order does not match the size of"):
        next(iterator)


def test_a_sampler_that_raises_is_heard_at_the_mini_batch_that_needs_it(make_ours: Maker) -> None:
    calls = []

    def sampler(order: Any, position: int) -> Any:
        calls.append(position)
        if len(calls) == 2:
            raise RuntimeError("no order today")
        return np.arange(len(order))

    iterator = make_ours(Pixels(4), 2, order_sampler=sampler)

    assert taken(iterator, 1) == [[0, 1]]
    with pytest.raises(RuntimeError, match="no order today"):
        next(iterator)
    assert taken(iterator, 2) == [[2, 3], [0, 1]]


def raise_in_epoch_2(order: Any, epoch: int) -> Any:
    if epoch == 2:
        raise RuntimeError("no order in epoch 2")
    return order


@pytest.mark.parametrize(
    ("make_order", "words"),
    [
        (raise_in_epoch_2, "no order in epoch 2"),
        (lambda order, epoch: order + 9 * (epoch == 2), "returned index 12, but the dataset has 4"),
        (lambda order, epoch: order[: 4 - epoch // 2], "does not match the size of the previous"),
    ],
)
def test_an_order_that_is_known_early_is_refused_when_its_mini_batch_is_due(
    make_ours: Maker, make_order: Callable[[Any, int], Any], words: str
) -> None:
    iterator = make_ours(Pixels(4), 1, n_prefetch=1, order_sampler=OfAnyEpoch(make_order))

    assert [index for (index,) in taken(iterator, 7)] == epochs_of(4, 2)[:7]
    for _ in range(2):
        with pytest.raises((RuntimeError, ValueError), match=words):
            next(iterator)
    assert iterator.epoch == 1


def test_a_sampler_of_any_epoch_may_give_lists(make_ours: Maker) -> None:
    sampler = OfAnyEpoch(lambda order, _epoch: order.tolist())
    iterator = make_ours(Pixels(4), 2, order_sampler=sampler)

    assert [index for batch in taken(iterator, 7) for index in batch] == epochs_of(4, 4)[:14]


def test_an_index_that_the_dataset_lacks_is_refused_by_name(make_ours: Maker) -> None:
    with pytest.raises(ValueError, match="index 4, but the dataset has 4 examples"):
        make_ours(Pixels(4), 2, order_sampler=Fixed([0, 4]))


def test_a_sampler_that_is_exchanged_takes_effect_at_reset_in_every_epoch(
    make_ours: Maker, images: NumberedImages
) -> None:
    iterator = make_ours(images(4), 2)
    next(iterator)

    iterator.order_sampler = Fixed([3, 2, 1, 0])
    iterator.reset()

    assert taken(iterator, 6) == [[3, 2], [1, 0]] * 3


@pytest.mark.parametrize("seed", [11, 12])
def test_two_iterators_with_equal_private_random_states_agree_in_every_epoch(
    make: Maker, images: NumberedImages, seed: int
) -> None:
    from chainer.iterators import ShuffleOrderSampler

    sampler = ShuffleOrderSampler(np.random.RandomState(seed))
    iterator = make(images(7), 3, order_sampler=sampler)
    random = np.random.RandomState(seed)
    expected = np.concatenate([random.permutation(7) for _ in range(4)]).tolist()

    batches = []
    for batch in taken(iterator, 8):
        batches += batch
        np.random.random()  # the trainer draws from the global stream meanwhile
    assert batches == expected[:24]


def test_the_seed_gives_an_order_that_nothing_else_moves(make_ours: Maker) -> None:
    orders = []
    for global_seed in (1, 2):
        np.random.seed(global_seed)
        iterator = make_ours(Pixels(20), 6, seed=5)
        orders.append(taken(iterator, 10))

    assert orders[0] == orders[1]
    flat = [index for batch in orders[0] for index in batch]
    epochs = [flat[i : i + 20] for i in (0, 20, 40)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
