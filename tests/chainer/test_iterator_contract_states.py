"""Snapshots, copies and pickles at every place, checked against Chainer's own iterators."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from chainer.iterators import MultithreadIterator, SerialIterator

from overlapiter import OverlapIterator
from tests.chainer.conftest import Maker, NumberedImages
from tests.chainer.iterator_datasets import Pixels, indices_of
from tests.chainer.snapshots import load, progress_of, saved


class Subclass(OverlapIterator):
    """A user's own class, with a constructor of its own."""

    def __init__(self, n_examples: int, note: str) -> None:
        self.note = note
        super().__init__(Pixels(n_examples), 3, repeat=False, shuffle=False, n_processes=1)
        self.n_examples = n_examples


class Descending:
    """An order sampler that gives descending order."""

    def __call__(self, order: Any, _: int) -> Any:
        return np.arange(len(order))[::-1].copy()


def taken(iterator: Any, n_batches: int) -> list[list[int]]:
    return [indices_of(next(iterator)) for _ in range(n_batches)]


def rest_of(iterator: Any) -> list[int]:
    return [index for batch in iterator for index in indices_of(batch)]


# --- snapshots --------------------------------------------------------------------------------


def test_the_multithread_iterator_misses_its_own_key_in_every_other_snapshot(
    make_parallel: Maker,
) -> None:
    snapshot = saved(make_parallel(Pixels(6), 2))
    with pytest.raises(KeyError, match="_order"):
        load(make_parallel.keep(MultithreadIterator(Pixels(6), 2, n_threads=1)), snapshot)


def test_a_snapshot_of_the_end_is_the_end(make: Maker) -> None:
    first = make(Pixels(5), 2, repeat=False)
    rest_of(first)
    second = make(Pixels(5), 2, repeat=False)
    next(second)

    load(second, saved(first))

    assert progress_of(second) == progress_of(first) == (0, 1, True, 1.0, 1.0)
    with pytest.raises(StopIteration):
        next(second)
    second.reset()
    assert sorted(rest_of(second)) == [0, 1, 2, 3, 4]


def test_a_snapshot_of_an_order_of_another_length_than_the_dataset_goes_on(make: Maker) -> None:
    def sampler(_order: Any, _position: int) -> Any:
        return np.array([5, 3, 3])

    first = make(Pixels(6), 2, order_sampler=sampler)
    taken(first, 2)
    second = make(Pixels(6), 2, order_sampler=sampler)

    load(second, saved(first))

    assert progress_of(second) == (1, 1, True, 1 + 1 / 3, 2 / 3)
    assert taken(second, 2) == [[3, 3], [5, 3]]


def test_a_snapshot_can_be_resumed_with_another_batch_size(make: Maker) -> None:
    first = make(Pixels(10), 4, order_sampler=Descending())
    next(first)
    second = make(Pixels(10), 3, order_sampler=Descending())

    load(second, saved(first))

    assert taken(second, 3) == [[5, 4, 3], [2, 1, 0], [9, 8, 7]]
    assert progress_of(second) == (3, 1, False, 1.3, 1.0)


def test_what_a_snapshot_lacks_stays_as_it_is_without_strictness(make: Maker) -> None:
    iterator = make(Pixels(8), 2)
    order = list(iterator._state.order)
    next(iterator)

    load(iterator, {"current_position": np.asarray(6), "epoch": np.asarray(3)}, strict=False)

    assert (iterator.current_position, iterator.epoch) == (6, 3)
    assert taken(iterator, 1) == [order[6:]]


def test_the_likely_previous_position_is_not_before_the_beginning(make: Maker) -> None:
    first = make(Pixels(8), 2)
    next(first)
    snapshot = saved(first)
    del snapshot["previous_epoch_detail"]
    second = make(Pixels(8), 6)

    load(second, snapshot)

    assert (second.epoch_detail, second.previous_epoch_detail) == (0.25, 0.0)


def test_ascending_order_ignores_the_order_of_a_snapshot(
    make_ours: Maker, images: NumberedImages
) -> None:
    first = make_ours(images(8), 3)
    next(first)
    snapshot = saved(first)
    for second in (
        make_ours(images(8), 3, shuffle=False),
        SerialIterator(images(8), 3, True, False),
    ):
        load(second, snapshot)
        assert taken(second, 2) == [[3, 4, 5], [6, 7, 0]]


def test_a_serializer_that_only_collects_changes_nothing(make_ours: Maker) -> None:
    iterator = make_ours(Pixels(8), 3, order_sampler=Descending())
    next(iterator)
    before = progress_of(iterator)
    state: dict[str, Any] = {}

    iterator.serialize(state.__setitem__)

    assert progress_of(iterator) == before
    assert state.pop("order").tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    keys = ["current_position", "epoch", "is_new_epoch", "previous_epoch_detail"]
    assert [state[key] for key in keys] == [3, 0, False, 0.0]
    assert taken(iterator, 2) == [[4, 3, 2], [1, 0, 7]]


# --- copies and pickles -----------------------------------------------------------------------

WAYS = {"copy": copy.copy, "pickle": lambda iterator: pickle.loads(pickle.dumps(iterator))}


@pytest.mark.parametrize("way", WAYS)
def test_a_twin_has_every_argument_and_what_the_user_added(make_ours: Maker, way: str) -> None:
    more: dict[str, Any] = {"seed": 3} if way == "copy" else {"order_sampler": Descending()}
    options = {"n_prefetch": 2, "shared_mem": 77, "dataset_timeout": None, "maxtasksperchild": 8}
    iterator = make_ours(Pixels(10), 3, repeat=False, **options, **more)
    iterator.note = ["mine"]
    next(iterator)

    twin = make_ours.keep(WAYS[way](iterator))

    names = [*options, "seed", "staging", "batch_size", "repeat", "shuffle", "n_processes", "note"]
    names[names.index("maxtasksperchild")] = "_maxtasksperchild"
    assert [getattr(twin, name) for name in names] == [getattr(iterator, name) for name in names]
    assert type(twin.order_sampler) is type(iterator.order_sampler)
    assert rest_of(twin) == rest_of(iterator)
    assert progress_of(twin) == progress_of(iterator)


@pytest.mark.parametrize("way", WAYS)
def test_a_subclass_with_a_constructor_of_its_own_has_twins_of_twins(
    make_ours: Maker, way: str
) -> None:
    iterator = make_ours.keep(Subclass(7, "mine"))
    next(iterator)

    twin = make_ours.keep(WAYS[way](make_ours.keep(WAYS[way](iterator))))

    assert (type(twin), twin.note, twin.n_examples) == (Subclass, "mine", 7)
    assert rest_of(twin) == rest_of(iterator) == [3, 4, 5, 6]


@pytest.mark.parametrize("n_taken", [0, 2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_pickle_or_copy_at_any_place_leaves_the_original_usable(
    make_ours: Maker, way: str, n_taken: int
) -> None:
    iterator = make_ours(Pixels(6), 4, order_sampler=Descending())
    batches = [[5, 4, 3, 2], [1, 0, 5, 4], [3, 2, 1, 0], [5, 4, 3, 2], [1, 0, 5, 4]]
    assert taken(iterator, n_taken) == batches[:n_taken]
    before = progress_of(iterator)

    twin = make_ours.keep(WAYS[way](iterator))

    assert progress_of(twin) == progress_of(iterator) == before
    assert taken(twin, 2) == taken(iterator, 2) == batches[n_taken : n_taken + 2]
    assert progress_of(twin) == progress_of(iterator)


def test_a_copy_gives_its_whole_sweep_after_the_original_gave_its_own(make: Maker) -> None:
    iterator = make(Pixels(5), 2, repeat=False)
    twin = make.keep(copy.copy(iterator))

    for one in (iterator, twin):
        assert sorted(rest_of(one)) == [0, 1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(one)


@pytest.mark.parametrize("way", WAYS)
def test_the_twin_of_a_finalized_iterator_lives(make_ours: Maker, way: str) -> None:
    iterator = make_ours(Pixels(6), 2, shuffle=False)
    next(iterator)
    iterator.finalize()

    twin = make_ours.keep(WAYS[way](iterator))

    assert taken(twin, 2) == [[2, 3], [4, 5]]
