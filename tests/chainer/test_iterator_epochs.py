"""Epochs, positions and the end, checked against Chainer's own iterators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from overlapiter import OverlapIterator
from tests.chainer.conftest import Maker, NumberedImages
from tests.chainer.iterator_datasets import Slow, Values, indices_of


def progress_of(iterator: Any) -> tuple[Any, ...]:
    """Return what an iterator says of where it stands."""
    return (
        iterator.epoch,
        iterator.current_position,
        iterator.is_new_epoch,
        iterator.epoch_detail,
        iterator.previous_epoch_detail,
    )


def test_epochs_are_counted_mini_batch_by_mini_batch_and_a_full_one_crosses_their_border(
    make: Maker, images: NumberedImages
) -> None:
    iterator = make(images(10), 4, shuffle=False)

    assert iter(iterator) is iterator
    assert progress_of(iterator) == (0, 0, False, 0.0, None)
    seen = [(indices_of(iterator.next()), progress_of(iterator)) for _ in range(4)]
    assert [indices for indices, _ in seen] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 0, 1],
        [2, 3, 4, 5],
    ]
    assert [state for _, state in seen] == [
        (0, 4, False, 0.4, 0.0),
        (0, 8, False, 0.8, 0.4),
        (1, 2, True, 1.2, 0.8),
        (1, 6, False, 1.6, 1.2),
    ]
    assert indices_of(iterator.__next__()) == [6, 7, 8, 9]
    assert progress_of(iterator) == (2, 0, True, 2.0, 1.6)


def test_without_repeat_the_last_mini_batch_is_short_and_the_end_stays_the_end(
    make: Maker, images: NumberedImages
) -> None:
    iterator = make(images(10), 4, repeat=False, shuffle=False)

    assert [indices_of(batch) for batch in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    # The end itself moved the previous position.
    assert progress_of(iterator) == (1, 0, True, 1.0, 1.0)
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)
        assert progress_of(iterator) == (1, 0, True, 1.0, 1.0)


def test_the_last_mini_batch_without_repeat_still_tells_where_it_came_from(
    make: Maker, images: NumberedImages
) -> None:
    iterator = make(images(10), 4, repeat=False, shuffle=False)
    for _ in range(3):
        next(iterator)

    assert progress_of(iterator) == (1, 0, True, 1.0, 0.8)


@pytest.mark.parametrize(("n", "batch_size"), [(3, 8), (8, 8), (1, 1)])
def test_without_repeat_a_batch_size_of_the_dataset_or_more_gives_one_mini_batch(
    make: Maker, images: NumberedImages, n: int, batch_size: int
) -> None:
    iterator = make(images(n), batch_size, repeat=False, shuffle=False)

    assert [indices_of(batch) for batch in iterator] == [list(range(n))]
    assert progress_of(iterator) == (1, 0, True, 1.0, 1.0)


def test_a_batch_size_far_above_that_of_the_dataset_takes_no_memory_for_it() -> None:
    with OverlapIterator(Slow(3), 1 << 50, repeat=False, shuffle=False, n_processes=1) as iterator:
        assert [indices_of(batch) for batch in iterator] == [[0, 1, 2]]


def test_one_mini_batch_may_hold_several_epochs(make: Maker, images: NumberedImages) -> None:
    iterator = make(images(3), 8, shuffle=False)

    assert indices_of(next(iterator)) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert progress_of(iterator) == (2, 2, True, 2 + 2 / 3, 0.0)
    assert indices_of(next(iterator)) == [2, 0, 1, 2, 0, 1, 2, 0]
    assert progress_of(iterator) == (5, 1, True, 5 + 1 / 3, 2 + 2 / 3)


def test_a_batch_size_that_divides_the_epoch_ends_each_epoch_exactly(
    make: Maker, images: NumberedImages
) -> None:
    iterator = make(images(6), 3)

    for epoch in range(1, 4):
        first, second = next(iterator), None
        assert not iterator.is_new_epoch
        second = next(iterator)
        assert sorted(indices_of(first) + indices_of(second)) == list(range(6))
        assert progress_of(iterator) == (epoch, 0, True, float(epoch), epoch - 0.5)


def test_shuffled_epochs_follow_the_global_random_state_of_numpy_as_in_the_serial_iterator(
    make: Maker, images: NumberedImages
) -> None:
    np.random.seed(3)
    orders = [np.random.permutation(10) for _ in range(4)]
    expected = np.concatenate(orders).tolist()

    np.random.seed(3)
    iterator = make(images(10), 4)
    taken = [index for _ in range(9) for index in indices_of(next(iterator))]

    assert taken == expected[:36]


@pytest.mark.parametrize("shuffle", [True, None, False])
def test_shuffle_decides_whether_the_order_is_ascending(
    make: Maker, images: NumberedImages, shuffle: bool | None
) -> None:
    iterator = make(images(40), 40, shuffle=shuffle)

    indices = indices_of(next(iterator))

    assert sorted(indices) == list(range(40))
    assert (indices == list(range(40))) == (shuffle is False)


def test_reset_in_the_middle_of_an_epoch_starts_from_the_beginning(
    make: Maker, images: NumberedImages
) -> None:
    iterator = make(images(10), 4, shuffle=False)
    next(iterator), next(iterator), next(iterator)

    iterator.reset()

    assert progress_of(iterator) == (0, 0, False, 0.0, None)
    assert indices_of(next(iterator)) == [0, 1, 2, 3]
    assert progress_of(iterator) == (0, 4, False, 0.4, 0.0)


def test_reset_after_the_end_gives_another_whole_sweep_again_and_again(
    make: Maker, images: NumberedImages
) -> None:
    iterator = make(images(10), 4, repeat=False)

    for _ in range(4):
        sweep = [index for batch in iterator for index in indices_of(batch)]
        assert sorted(sweep) == list(range(10))
        with pytest.raises(StopIteration):
            next(iterator)
        iterator.reset()
        assert progress_of(iterator) == (0, 0, False, 0.0, None)


def test_reset_before_the_first_mini_batch_and_twice_in_a_row_is_harmless(
    make: Maker, images: NumberedImages
) -> None:
    iterator = make(images(5), 5, shuffle=False)

    iterator.reset()
    iterator.reset()

    assert indices_of(next(iterator)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("n_prefetch", [1, 4])
def test_properties_describe_the_mini_batch_taken_last_however_far_the_workers_are_ahead(
    make_parallel: Maker, images: NumberedImages, n_prefetch: int
) -> None:
    iterator = make_parallel(images(4), 2, shuffle=False, n_prefetch=n_prefetch)

    for step in range(1, 9):
        next(iterator)
        assert iterator.epoch == step // 2
        assert iterator.is_new_epoch == (step % 2 == 0)
        assert iterator.epoch_detail == step / 2


def test_an_empty_dataset_cannot_repeat(make_ours: Maker) -> None:
    iterator = make_ours(Values([]), 2, shuffle=False)

    with pytest.raises(ValueError, match="Epoch size must be positive for an iterator"):
        next(iterator)


def test_an_empty_dataset_without_repeat_gives_no_examples(make_ours: Maker) -> None:
    iterator = make_ours(Values([]), 2, repeat=False)

    assert [example for batch in iterator for example in batch] == []
    with pytest.raises(StopIteration):
        next(iterator)
