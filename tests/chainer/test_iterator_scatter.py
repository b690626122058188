"""The order that is scattered over ranks, in real iterators: ours and Chainer's own."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from chainer.iterators import SerialIterator

from overlapiter.errors import OptionError
from overlapiter.scatter import ScatteredOrder
from tests.chainer.conftest import Maker
from tests.chainer.iterator_datasets import Pixels, indices_of
from tests.chainer.snapshots import load, progress_of, saved

SEED = 3
N = 26


def scattered(make: Maker, size: int, batch_size: int, *, seed: int = SEED) -> list[Any]:
    """Return the iterators of all ranks, as they would be made in processes of their own."""
    samplers = [ScatteredOrder(rank, size, seed) for rank in range(size)]
    return [make(Pixels(N), batch_size, order_sampler=s, n_processes=1) for s in samplers]


def taken(iterators: list[Any], n_batches: int) -> list[tuple[int, int]]:
    """Take mini-batches in lockstep; return the epoch and the index of each example."""
    examples = []
    for _ in range(n_batches):
        for iterator in iterators:
            epoch, left = iterator.epoch, iterator._epoch_size - iterator.current_position
            indices = indices_of(next(iterator))
            examples += [(epoch + (place >= left), index) for place, index in enumerate(indices)]
    return examples


def expected(size: int, epoch: int, seed: int = SEED) -> list[list[int]]:
    return [ScatteredOrder(rank, size, seed).of_epoch(epoch, N).tolist() for rank in range(size)]


@pytest.mark.parametrize("batch_size", [3, N])
def test_each_epoch_is_the_next_one_for_every_iterator(make: Maker, batch_size: int) -> None:
    size = 3 if batch_size < N else 1
    iterators = scattered(make, size, batch_size)
    examples = taken(iterators, 3 * N // (size * batch_size))
    for epoch in range(2):
        found = Counter(index for e, index in examples if e == epoch)
        assert found == Counter(index for order in expected(size, epoch) for index in order)
    iterators[-1].reset()
    again = indices_of(next(iterators[-1]))
    assert again == expected(size, 0)[-1][:batch_size]


def test_resumed_from_its_own_snapshot_no_epoch_is_repeated(make: Maker) -> None:
    old = scattered(make, 2, 4)
    taken(old, 8)  # 32 of 13 an epoch: amid the third one
    snapshots = [saved(iterator) for iterator in old]
    new = scattered(make, 2, 4)
    for iterator, snapshot in zip(new, snapshots, strict=True):
        load(iterator, snapshot)
    assert taken(new, 9) == taken(old, 9)
    load(new[0], snapshots[0])  # back, in an iterator that has gone on
    load(old[0], snapshots[0])
    assert taken(new[:1], 9) == taken(old[:1], 9)


def test_resumed_from_the_snapshot_of_rank_0_every_rank_goes_on_with_its_part(
    make_ours: Maker,
) -> None:
    old = scattered(make_ours, 2, 4)
    taken(old, 8)
    new = scattered(make_ours, 2, 4)
    for iterator in new:
        load(iterator, saved(old[0]))
    assert taken(new, 6) == taken(old, 6)


#: Ranks, the size of their mini-batches, and how many they take.
CHAIN = [(2, 3, 2), (4, 1, 2), (3, 1, 1), (1, 5, 12)]


def test_on_other_numbers_of_ranks_each_example_of_the_epoch_comes_once(make_ours: Maker) -> None:
    examples: list[tuple[int, int]] = []
    snapshot = None
    for size, batch_size, n_batches in CHAIN:
        iterators = scattered(make_ours, size, batch_size)
        for iterator in iterators:
            if snapshot is not None:
                load(iterator, snapshot)
                assert iterator.epoch == 0
        examples += taken(iterators, n_batches)
        snapshot = saved(iterators[-1])
        for iterator in iterators:
            iterator.finalize()
    for epoch in range(2):
        assert Counter(i for e, i in examples if e == epoch) == dict.fromkeys(range(N), 1)


def test_a_snapshot_of_chainers_iterator_is_resumed_by_the_same_rank(make_ours: Maker) -> None:
    samplers = [ScatteredOrder(rank, 2, SEED) for rank in range(2)]
    old = [SerialIterator(Pixels(N), 3, order_sampler=sampler) for sampler in samplers]
    taken(old, 6)
    new = scattered(make_ours, 2, 3)
    with pytest.raises(OptionError, match="by the same rank of the same number of ranks"):
        load(new[0], saved(old[1]))
    with pytest.raises(OptionError, match="by the same rank of the same number of ranks"):
        load(scattered(make_ours, 4, 3)[0], saved(old[0]))
    for iterator, theirs in zip(new, old, strict=True):
        load(iterator, saved(theirs))
    assert taken(new, 6) == taken(old, 6)


def test_a_snapshot_of_another_seed_is_refused(make_ours: Maker) -> None:
    ours, other = scattered(make_ours, 2, 4, seed=1)[0], scattered(make_ours, 2, 4)[0]
    with pytest.raises(OptionError, match="taken with seed=1; give scatter_order the same"):
        load(other, saved(ours))
    plain = {key: value for key, value in saved(ours).items() if key != "scattered"}
    with pytest.raises(OptionError, match="is not that of ScatteredOrder"):
        load(other, plain)


def test_an_iterator_of_chainers_with_the_order_of_no_epoch_says_what_to_do() -> None:
    ours = SerialIterator(Pixels(N), 4, order_sampler=ScatteredOrder(0, 2, SEED))
    load(ours, saved(SerialIterator(Pixels(N), 4, order_sampler=ScatteredOrder(0, 2, 1))))
    with pytest.raises(OptionError, match="resumed with the seed of its snapshot"):
        taken([ours], 4)
    exchanged = SerialIterator(Pixels(13), 4)
    exchanged.order_sampler = ScatteredOrder(0, 2, SEED)
    with pytest.raises(OptionError, match=r"reset\(\) if that was exchanged"):
        taken([exchanged], 4)


def test_a_loading_that_is_not_strict_keeps_what_a_snapshot_lacks(make_ours: Maker) -> None:
    old, new = scattered(make_ours, 1, 4)[0], scattered(make_ours, 1, 4)[0]
    taken([old], 5)
    plain = {key: value for key, value in saved(old).items() if key != "scattered"}
    load(new, plain, strict=False)
    assert progress_of(new) == progress_of(old)
    assert taken([new], 9) == taken([old], 9)


def test_the_coming_order_is_known_before_its_epoch(make_ours: Maker) -> None:
    (iterator,) = scattered(make_ours, 1, 4)
    orders = iterator._progress.ahead.known_orders()
    assert {epoch: order.tolist() for epoch, order in orders.items()} == {
        epoch: expected(1, epoch)[0] for epoch in (0, 1)
    }


def test_pickles_and_copies_take_the_sampler_along(make_ours: Maker) -> None:
    iterator = scattered(make_ours, 2, 4)[1]
    taken([iterator], 5)
    revived = make_ours.keep(pickle.loads(pickle.dumps(iterator)))
    twin = make_ours.keep(copy.copy(iterator))
    assert taken([revived], 5) == taken([twin], 5) == taken([iterator], 5)
    twin.reset()
    assert indices_of(next(twin)) == expected(2, 0)[1][:4]


def test_for_evaluation_the_order_is_ascending_and_nothing_is_read_twice(make_ours: Maker) -> None:
    found = []
    for rank in range(3):
        sampler = ScatteredOrder(rank, 3, SEED, shuffle=False, remainder="uneven")
        iterator = make_ours(Pixels(10), 2, repeat=False, order_sampler=sampler)
        for _ in range(2):
            found.append([index for batch in iterator for index in indices_of(batch)])
            iterator.reset()
    assert found == [[0, 3, 6, 9]] * 2 + [[1, 4, 7]] * 2 + [[2, 5, 8]] * 2


def test_the_global_position_is_kept_beside_what_chainers_iterators_keep(make_ours: Maker) -> None:
    iterator = scattered(make_ours, 2, 4)[1]
    taken([iterator], 1)
    snapshot = saved(iterator)
    assert snapshot["scattered"].tolist() == [SEED, N, 13, 0, 4, 8]
    theirs = SerialIterator(Pixels(N), 4, order_sampler=ScatteredOrder(1, 2, SEED))
    load(theirs, snapshot)
    assert taken([theirs], 5) == taken([iterator], 5)
    np.testing.assert_array_equal(theirs._state.order, iterator._state.order)
