"""Snapshots, pickles and copies, exchanged with Chainer's own iterators."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import chainer
import numpy as np
import pytest
from chainer.iterators import MultiprocessIterator, MultithreadIterator, SerialIterator

from overlapiter import OverlapIterator
from overlapiter.errors import OptionError
from tests.chainer.conftest import Maker, NumberedImages
from tests.chainer.iterator_datasets import Pixels, indices_of
from tests.chainer.snapshots import load, progress_of, saved


class Subclass(OverlapIterator):
    """A user's own class."""


class Rotating:
    """Gives orders that follow from a random state of its own, and counts its calls."""

    def __init__(self) -> None:
        self.random = np.random.RandomState(1)
        self.n_calls = 0

    def __call__(self, order: Any, _position: int) -> Any:
        self.n_calls += 1
        return self.random.permutation(len(order))


class InPlace:
    """Shuffles the order that it is given, or the one that it gave, where it lies."""

    def __init__(self, own: Any = None) -> None:
        self.random = np.random.RandomState(1)
        self.own = own

    def __call__(self, order: Any, _position: int) -> Any:
        order = order if self.own is None else self.own
        self.random.shuffle(order)
        return order


def sweep_of(iterator: Any) -> list[int]:
    """Return the indices up to the end of the epoch."""
    indices: list[int] = []
    while True:
        indices += indices_of(next(iterator))
        if iterator.is_new_epoch:
            return indices[: len(indices) - iterator.current_position]


ORIGINALS = [SerialIterator, MultiprocessIterator, MultithreadIterator]


def original(kind: type, dataset: Any, make: Maker) -> Any:
    options = {
        SerialIterator: {},
        MultiprocessIterator: {"n_processes": 1, "shared_mem": 0},
        MultithreadIterator: {"n_threads": 1},
    }
    return make.keep(kind(dataset, 3, **options[kind]))


@pytest.mark.parametrize("kind", ORIGINALS)
def test_a_snapshot_of_the_originals_is_continued_by_ours(
    make_ours: Maker, images: NumberedImages, kind: type
) -> None:
    theirs = original(kind, images(12), make_ours)
    next(theirs), next(theirs)
    ours = make_ours(images(12), 3)
    next(ours)

    load(ours, saved(theirs))

    assert progress_of(ours) == progress_of(theirs) == (6, 0, False, 0.5, 0.25)
    assert sweep_of(ours) == sweep_of(theirs)
    assert progress_of(ours) == progress_of(theirs)


@pytest.mark.parametrize("kind", [SerialIterator, MultiprocessIterator])
def test_a_snapshot_of_ours_is_continued_by_the_originals(
    make_ours: Maker, images: NumberedImages, kind: type
) -> None:
    ours = make_ours(images(12), 3)
    next(ours), next(ours)
    theirs = original(kind, images(12), make_ours)

    load(theirs, saved(ours))

    assert progress_of(ours) == progress_of(theirs) == (6, 0, False, 0.5, 0.25)
    assert sweep_of(ours) == sweep_of(theirs)


def test_a_snapshot_file_resumes_in_the_middle_of_an_epoch(
    make: Maker, images: NumberedImages, tmp_path: Any
) -> None:
    first = make(images(20), 3)
    for _ in range(9):
        next(first)  # the ninth is in the second epoch
    chainer.serializers.save_npz(tmp_path / "snapshot.npz", first)
    expected = sweep_of(first)

    second = make(images(20), 3)
    chainer.serializers.load_npz(tmp_path / "snapshot.npz", second)

    assert progress_of(second) == (7, 1, False, 1.35, 1.2)
    assert sweep_of(second) == expected


def test_the_keys_of_a_snapshot_are_those_of_the_original(make: Maker) -> None:
    iterator = make(Pixels(6), 4)
    before = saved(iterator)
    next(iterator)
    after = saved(iterator)

    keys = {"current_position", "epoch", "is_new_epoch", "order", "previous_epoch_detail"}
    assert set(before) == set(after) == keys
    assert (before["current_position"], before["previous_epoch_detail"]) == (0, -1.0)
    assert (after["current_position"], after["previous_epoch_detail"]) == (4, 0.0)


def test_an_old_snapshot_without_the_previous_position_gets_the_likely_one(make: Maker) -> None:
    state = {"current_position": 4, "epoch": 2, "is_new_epoch": False, "_order": np.arange(8)[::-1]}
    iterator = make(Pixels(8), 2)
    load(iterator, {name: np.asarray(value) for name, value in state.items()})

    assert progress_of(iterator) == (4, 2, False, 2.5, 2.25)
    assert indices_of(next(iterator)) == [3, 2]

    state |= {"current_position": 0, "epoch": 0}
    load(iterator, {name: np.asarray(value) for name, value in state.items()})
    assert iterator.previous_epoch_detail is None
    assert indices_of(next(iterator)) == [7, 6]


def test_a_snapshot_without_an_order_is_refused(make: Maker) -> None:
    snapshot = saved(make(Pixels(6), 2))
    del snapshot["order"]

    with pytest.raises(KeyError, match="_order"):
        load(make(Pixels(6), 2), snapshot)


def test_a_snapshot_of_a_dataset_of_another_length_is_refused(make: Maker) -> None:
    snapshot = saved(make(Pixels(12), 3))

    with pytest.raises(ValueError, match="broadcast"):
        load(make(Pixels(13), 3), snapshot)


@pytest.mark.parametrize("n", [11, 13])
def test_a_snapshot_from_amid_an_epoch_of_another_length_says_what_to_do(
    make_ours: Maker, n: int
) -> None:
    iterator = make_ours(Pixels(12), 3)
    next(iterator)
    with pytest.raises(OptionError, match=f"not have the {n} examples .* here .*; resume with"):
        load(make_ours(Pixels(n), 3), saved(iterator))


def test_loading_without_strictness_keeps_what_the_snapshot_lacks(make_ours: Maker) -> None:
    iterator = make_ours(Pixels(6), 2, shuffle=False)
    load(iterator, {"current_position": np.asarray(4)}, strict=False)

    assert indices_of(next(iterator)) == [4, 5]


def test_ascending_order_can_be_saved_and_exchanged_with_the_serial_iterator(
    make_ours: Maker, images: NumberedImages
) -> None:
    ours = make_ours(images(7), 2, shuffle=False)
    next(ours), next(ours)
    assert "order" not in saved(ours)

    theirs = SerialIterator(images(7), 2, shuffle=False)
    load(theirs, saved(ours))
    assert indices_of(next(theirs)) == [4, 5]
    load(ours, saved(theirs))
    assert progress_of(ours) == progress_of(theirs)
    assert indices_of(next(ours)) == [6, 0]


def test_saving_changes_nothing_of_what_comes(make_ours: Maker) -> None:
    takings = []
    for saves in (False, True):
        sampler = Rotating()
        iterator = make_ours(Pixels(6), 2, order_sampler=sampler)
        taken = []
        for _ in range(9):
            taken.append(indices_of(next(iterator)))
            if saves:
                saved(iterator)
        takings.append((taken, sampler.n_calls, iterator.stats().examples_read >= 18))
        # Nothing that was on its way is read again.
        assert iterator.stats().examples_read <= 18 + 6 * (iterator.n_prefetch + 2)

    assert takings[0] == takings[1]


@pytest.mark.parametrize("own", [None, np.arange(10)])
def test_a_sampler_that_shuffles_in_place_changes_neither_an_epoch_nor_a_snapshot(
    make_ours: Maker, own: Any
) -> None:
    ours = make_ours(Pixels(10), 2, order_sampler=InPlace(own))

    for _ in range(3):
        orders = []
        indices: list[int] = []
        for _ in range(4):
            indices += indices_of(next(ours))
            orders.append(saved(ours)["order"].tolist())
        indices += indices_of(next(ours))
        assert sorted(indices) == list(range(10))
        assert orders == [indices] * 4


def test_loading_into_a_running_iterator_drops_what_was_on_its_way(make_ours: Maker) -> None:
    iterator = make_ours(Pixels(12), 3, n_prefetch=3)
    snapshot = saved(iterator)
    first = sweep_of(iterator)

    for _ in range(3):
        next(iterator)
        load(iterator, snapshot)
        assert progress_of(iterator) == (0, 0, False, 0.0, None)
        assert sweep_of(iterator) == first


def test_resuming_with_a_seed_gives_every_later_epoch_as_well(make_ours: Maker) -> None:
    first = make_ours(Pixels(8), 3, seed=4)
    for _ in range(4):
        next(first)
    second = make_ours(Pixels(8), 3, seed=4)
    load(second, saved(first))

    assert [sweep_of(second) for _ in range(3)] == [sweep_of(first) for _ in range(3)]


@pytest.mark.parametrize("shuffle", [None, False])
def test_a_pickle_continues_where_the_original_stands_which_goes_on_undisturbed(
    make_ours: Maker, images: NumberedImages, shuffle: bool | None
) -> None:
    iterator = make_ours(images(12), 3, shuffle=shuffle, n_processes=1, dataset_timeout=7.0)
    next(iterator), next(iterator)

    revived = make_ours.keep(pickle.loads(pickle.dumps(iterator)))

    assert progress_of(revived) == progress_of(iterator) == (6, 0, False, 0.5, 0.25)
    assert (revived.n_processes, revived.dataset_timeout) == (1, 7.0)
    assert sweep_of(revived) == sweep_of(iterator)


def test_a_copy_is_independent_and_keeps_class_arguments_and_place(make_ours: Maker) -> None:
    iterator = make_ours.keep(
        Subclass(
            Pixels(8), 2, shuffle=False, n_processes=1, dataset_timeout=5.0, maxtasksperchild=9
        )
    )
    next(iterator)

    twin = make_ours.keep(copy.copy(iterator))

    assert type(twin) is Subclass
    assert (twin.dataset_timeout, twin._maxtasksperchild, twin.n_processes) == (5.0, 9, 1)
    assert progress_of(twin) == progress_of(iterator)
    assert sweep_of(twin) == [2, 3, 4, 5, 6, 7]
    twin.reset()
    assert sweep_of(twin) == list(range(8))  # still not shuffled
    assert indices_of(next(iterator)) == [2, 3]
    iterator.finalize()
    assert indices_of(next(twin)) == [0, 1]


def test_a_copy_shares_the_sampler_of_the_user(make: Maker) -> None:
    sampler = Rotating()
    iterator = make(Pixels(8), 2, order_sampler=sampler)

    assert make.keep(copy.copy(iterator)).order_sampler is sampler
