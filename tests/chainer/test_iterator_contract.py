"""The rest of what a program may rely on, checked against Chainer's own iterators."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import chainer
import numpy as np
import pytest
from chainer.dataset import tabular
from chainer.datasets import TupleDataset
from chainer.iterators import ShuffleOrderSampler

from overlapiter import OverlapIterator
from tests.chainer.conftest import Maker
from tests.chainer.iterator_datasets import Configured, Draws, Pixels, Values, indices_of


class Recording:
    """Gives ascending order, and notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int]] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, order: Any, position: int) -> Any:
        self.calls.append((list(order), position))
        self.threads.add(threading.current_thread())
        return np.arange(len(order))


def unlike_the_last(order: Any, position: int) -> Any:
    """Put what the mini-batch at the border has not seen yet first."""
    remaining = order[position:]
    return np.concatenate((np.setdiff1d(order, remaining), remaining))


def taken(iterator: Any, n_batches: int) -> list[list[int]]:
    return [indices_of(next(iterator)) for _ in range(n_batches)]


# --- arguments --------------------------------------------------------------------------------


def test_all_arguments_may_be_given_by_position(make_parallel: Maker) -> None:
    dataset = Pixels(3)
    kind = make_parallel.iterator_class
    sampler = Recording()

    iterator = make_parallel.keep(kind(dataset, 2, False, None, 1, 3, 1000, sampler, 9.0, 5))

    assert (iterator.dataset, iterator.order_sampler) == (dataset, sampler)
    assert (iterator.batch_size, iterator.repeat, iterator.shuffle) == (2, False, None)
    assert (iterator.n_processes, iterator.n_prefetch, iterator.shared_mem) == (1, 3, 1000)
    assert (iterator.dataset_timeout, iterator._maxtasksperchild) == (9.0, 5)
    assert [indices_of(batch) for batch in iterator] == [[0, 1], [2]]


@pytest.mark.parametrize("shuffle", [True, 1, np.True_, None])
def test_to_shuffle_is_what_chainers_sampler_does(make: Maker, shuffle: Any) -> None:
    iterator = make(Pixels(4), 2, shuffle=shuffle)

    assert isinstance(iterator.order_sampler, ShuffleOrderSampler)
    assert sorted(iterator._state.order) == [0, 1, 2, 3]


@pytest.mark.parametrize("shuffle", [False, 0, np.False_])
def test_whatever_is_false_means_no_sampler_and_no_order(make: Maker, shuffle: Any) -> None:
    iterator = make(Pixels(4), 2, shuffle=shuffle)

    assert iterator.order_sampler is None
    assert iterator._state.order is None
    assert taken(iterator, 3) == [[0, 1], [2, 3], [0, 1]]


@pytest.mark.parametrize("shuffle", [True, False])
def test_to_shuffle_or_not_and_a_sampler_exclude_each_other(make: Maker, shuffle: bool) -> None:
    text = (
        "`shuffle` is not `None` and a custom `order_sampler` is set. "
        "Please set `shuffle` to `None` to use the custom order sampler."
    )
    with pytest.raises(ValueError, match=text):
        make(Pixels(4), 2, shuffle=shuffle, order_sampler=Recording())


@pytest.mark.parametrize("n_prefetch", [0, -3])
def test_at_least_one_mini_batch_is_prefetched(make_parallel: Maker, n_prefetch: int) -> None:
    iterator = make_parallel(Pixels(4), 2, shuffle=False, n_prefetch=n_prefetch)

    assert iterator.n_prefetch == 1
    assert taken(iterator, 2) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("shared_mem", [0, 1, 1000])
def test_any_size_of_shared_memory_will_do(make_ours: Maker, shared_mem: int) -> None:
    iterator = make_ours(Pixels(4), 2, shuffle=False, shared_mem=shared_mem)

    assert iterator.shared_mem == shared_mem
    np.testing.assert_equal(next(iterator), [Pixels(4)[0], Pixels(4)[1]])


def test_arguments_that_are_changed_later_do_not_reach_the_workers(make_parallel: Maker) -> None:
    iterator = make_parallel(Pixels(10), 4, shuffle=False)
    iterator.batch_size, iterator.repeat, iterator.dataset = 7, False, Pixels(3)

    for _ in range(2):
        assert taken(iterator, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
        iterator.reset()


DATASETS: dict[str, Any] = {
    "list": [[3], [1], [4], [1], [5]],
    "tuple": (3, 1, 4, 1, 5),
    "text": "abcde",
    "range": range(5),
    "array": np.arange(10.0).reshape(5, 2),
    "TupleDataset": TupleDataset(np.arange(5.0), range(5)),
    "tabular": tabular.from_data({"x": np.arange(10.0).reshape(5, 2), "t": list(range(5))}),
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_is_what_has_a_length_and_can_be_indexed(make: Maker, name: str) -> None:
    dataset = DATASETS[name]

    batches = list(make(dataset, 3, repeat=False, shuffle=False))

    expected = [dataset[i] for i in range(5)]
    np.testing.assert_equal(batches, [expected[:3], expected[3:]])


# --- examples ---------------------------------------------------------------------------------

ODD_ARRAYS: dict[str, Any] = {
    "read-only": np.broadcast_to(np.arange(3.0), (2, 3)),
    "unaligned": np.frombuffer(bytes(range(17)), np.uint8)[1:].view("f8"),
    "Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "with gaps": np.arange(20)[::-3],
    "big-endian": np.arange(4, dtype=">i4"),
    "times": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "durations": np.array([3, -4], "m8[s]"),
    "records": np.array([(1, 2.0, "x")], [("a", "i4"), ("b", ">f8"), ("c", "U2")]),
    "texts": np.array([b"ab", b""]),
    "truth": np.array([True, False]),
    "empty": np.zeros((0, 3)),
    "without dimensions": np.array(3.5),
}


def test_arrays_of_every_kind_are_ordinary_arrays_of_ones_own(make_parallel: Maker) -> None:
    arrays = tuple(ODD_ARRAYS.values())
    iterator = make_parallel(Values([arrays] * 4), 2, shuffle=False, shared_mem=1000)

    for _ in range(3):
        for example in next(iterator):
            for got, array in zip(example, arrays, strict=True):
                assert type(got) is np.ndarray
                assert (got.dtype, got.shape) == (array.dtype, array.shape)
                assert got.tobytes() == array.tobytes()
                assert got.flags.writeable
                assert got.flags.c_contiguous
                assert got.flags.aligned
                got[...] = np.zeros((), got.dtype)  # a copy of this process alone


def test_a_masked_array_keeps_its_mask(make_ours: Maker) -> None:
    array = np.ma.array([1.0, 2.0], mask=[False, True])
    for examples in ([array] * 2, [(array, 1)] * 2, [{"x": array}] * 2):
        batch = next(make_ours(Values(examples), 2))
        for example in batch:
            got = example if isinstance(example, np.ma.MaskedArray) else next(iter_of(example))
            assert got.tolist() == [1.0, None]


def iter_of(example: Any) -> Any:
    return iter(example.values() if isinstance(example, dict) else example)


def test_none_may_stand_anywhere_in_an_example(make: Maker) -> None:
    examples = [{"x": None, "y": np.ones(2)}, (None, None), [None, (None, {"z": None})], None]
    iterator = make(Values(examples), 4, shuffle=False)

    for _ in range(2):
        np.testing.assert_equal(next(iterator), examples)


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_the_dataset_is_asked_with_the_indices_of_the_order(make: Maker, dtype: Any) -> None:
    batch = next(make(range(4), 2, order_sampler=lambda _order, _: np.arange(4, dtype=dtype)))
    types = next(make(Types(), 2, order_sampler=lambda _order, _: np.arange(4, dtype=dtype)))

    assert batch == [0, 1]
    assert types == [dtype.__name__] * 2


class Types(Values):
    """Gives the name of the type of the index."""

    def __init__(self) -> None:
        super().__init__([None] * 4)

    def get_example(self, i: Any) -> str:
        return type(i).__name__


def test_chainer_is_configured_in_the_workers_as_where_the_iterator_was_made(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chainer.global_config, "dtype", chainer.mixed16)
    monkeypatch.setattr(chainer.global_config, "augment", 5, raising=False)
    monkeypatch.setattr(chainer.global_config, "lock", threading.Lock(), raising=False)
    with chainer.using_config("train", False):
        iterator = make(Configured(), 4, shuffle=False)
        array, is_training, augment = next(iterator)[3]
    assert (array.dtype, is_training, augment) == (np.float64, 0, 5)


def test_readers_never_share_a_random_stream(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [{}, {"maxtasksperchild": 1}, {}]
    draws = []
    for number, more in enumerate(options):
        folder = tmp_path / str(number)
        folder.mkdir()
        with OverlapIterator(Draws(40, folder), 8, n_processes=2, **more) as iterator:
            draws += [example for _ in range(5) for example in next(iterator)]
    from_numpy, from_python, pids = (set(column) for column in zip(*draws, strict=True))

    assert len(from_numpy) == len(from_python) == 120
    assert len(pids) >= 6
    assert os.getpid() not in pids  # it never reads an example itself


# --- the order --------------------------------------------------------------------------------


def test_a_sampler_is_asked_at_the_end_of_the_last_epoch_too_and_never_after_it(
    make: Maker,
) -> None:
    sampler = Recording()
    iterator = make(Pixels(5), 2, repeat=False, order_sampler=sampler)

    assert [indices_of(batch) for batch in iterator] == [[0, 1], [2, 3], [4]]
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)
    assert sampler.calls == [([0, 1, 2, 3, 4], 0), ([0, 1, 2, 3, 4], 4)]
    iterator.reset()
    assert sampler.calls[2:] == [([0, 1, 2, 3, 4], 0)]


def test_a_sampler_is_asked_for_each_of_several_epochs_in_one_mini_batch(make: Maker) -> None:
    sampler = Recording()
    iterator = make(Pixels(3), 8, order_sampler=sampler)

    assert taken(iterator, 2) == [[0, 1, 2, 0, 1, 2, 0, 1], [2, 0, 1, 2, 0, 1, 2, 0]]
    assert [position for _, position in sampler.calls][:6] == [0, 0, 0, 2, 0, 0]


def test_a_sampler_is_not_asked_long_before_its_epoch(make: Maker) -> None:
    sampler = Recording()
    iterator = make(Pixels(200), 2, n_prefetch=3, order_sampler=sampler)

    taken(iterator, 10)

    assert len(sampler.calls) == 1


def test_a_sampler_is_asked_in_the_thread_of_the_program(make_ours: Maker) -> None:
    sampler = Recording()

    taken(make_ours(Pixels(5), 2, order_sampler=sampler), 20)

    assert sampler.threads == {threading.current_thread()}


def test_a_sampler_can_keep_examples_apart_at_the_border_of_epochs(make: Maker) -> None:
    iterator = make(Pixels(6), 5, order_sampler=unlike_the_last)

    for batch in taken(iterator, 12):
        assert len(set(batch)) == 5


def test_an_order_may_be_a_list(make: Maker) -> None:
    iterator = make(Pixels(4), 3, order_sampler=lambda _order, _: [3, 1, 2, 0])

    assert taken(iterator, 3) == [[3, 1, 2], [0, 3, 1], [2, 0, 3]]
    assert iterator._epoch_size == 4


def test_a_sampler_that_raises_is_heard_where_it_is_asked_and_a_reset_can_be_tried_again(
    make: Maker,
) -> None:
    is_well = False

    def sampler(order: Any, _: int) -> Any:
        if not is_well:
            raise ZeroDivisionError
        return np.arange(len(order))

    with pytest.raises(ZeroDivisionError):
        make(Pixels(100), 2, order_sampler=sampler)
    is_well = True
    iterator = make(Pixels(100), 2, order_sampler=sampler)
    taken(iterator, 2)
    is_well = False
    with pytest.raises(ZeroDivisionError):
        iterator.reset()
    assert taken(iterator, 1) == [[4, 5]]
    is_well = True
    iterator.reset()
    assert taken(iterator, 1) == [[0, 1]]


@pytest.mark.parametrize("batch_size", [10, 3])
def test_no_epoch_has_the_order_of_the_one_before(make: Maker, batch_size: int) -> None:
    np.random.seed(0)
    iterator = make(list(range(10)), batch_size)

    examples = [example for _ in range(10) for example in next(iterator)]

    epochs = [examples[i : i + 10] for i in (0, 10, 20)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
