"""What examples may be, and how long they live, checked against Chainer's own iterators."""

from __future__ import annotations

import collections
import datetime
import gc
from typing import Any

import numpy as np
import pytest

from tests.chainer.conftest import Maker, NumberedImages
from tests.chainer.iterator_datasets import Pixels, Values, indices_of

Point = collections.namedtuple("Point", ["x", "y"])


def arrays(*shapes: tuple[int, ...], dtype: str = "f4") -> list[Any]:
    return [np.arange(int(np.prod(s)), dtype=dtype).reshape(s) + i for i, s in enumerate(shapes)]


KINDS_OF_EXAMPLES: dict[str, list[Any]] = {
    "None": [None, None, None, None, None],
    "some None": [(np.zeros(3), 1), None, (np.ones(3), None), (None, 2), (np.ones(3), 3)],
    "tuples": [(array, i) for i, array in enumerate(arrays((2, 3), (2, 3), (2, 3), (2, 3)))],
    "lists": [[array, i] for i, array in enumerate(arrays((4,), (4,), (4,)))],
    "dicts": [{"x": array, "t": i, "name": str(i)} for i, array in enumerate(arrays((2,), (2,)))],
    "dicts of other keys": [{"x": np.zeros(2)}, {"y": np.ones(2)}, {"x": np.ones(2), "y": 1}],
    "bare arrays": arrays((2, 2), (2, 2), (2, 2), (2, 2)),
    "arrays without dimensions": [np.array(i, "f8") for i in range(5)],
    "numbers": [1, 2.5, True, 3 + 4j, -7],
    "NumPy numbers": [np.float32(i) / 3 for i in range(5)],
    "various NumPy numbers": [np.float32(1), np.int64(2), np.bool_(True), np.complex64(3j)],
    "texts": ["", "a", "é" * 50, "b" * 1000],
    "bytes and dates": [b"\0\1", b"", datetime.date(2020, 2, 2), np.datetime64("2020-02-02")],
    "varying shapes": [(a, i) for i, a in enumerate(arrays((2, 3), (5, 1), (0, 3), (), (40, 40)))],
    "varying numbers of dimensions": arrays((6,), (2, 3), (1, 2, 3), (6,)),
    "varying element types": [np.arange(4).astype(d) for d in ("u1", "i8", "f2", "c16", "?", "U3")],
    "big-endian arrays": arrays((3,), (3,), (3,), dtype=">f8"),
    "structured arrays": [np.array([(i, 0.5)], dtype=[("a", "i4"), ("b", "f8")]) for i in range(4)],
    "text arrays": [np.array(["ab", "c"]), np.array(["defg", ""])],
    "empty arrays": arrays((0,), (0,), (0,)),
    "Fortran arrays": [np.asfortranarray(a) for a in arrays((3, 4), (3, 4), (3, 4))],
    "arrays with gaps": [np.arange(20.0)[i::3] for i in (0, 0, 0)],
    "named tuples": [Point(np.zeros(2), i) for i in range(3)],
    "nested": [((np.ones(2) * i, [np.zeros(3)]), {"a": {"b": (i, np.ones(1))}}) for i in range(4)],
    "empty containers": [(), [], {}, ((), [])],
    "mixed kinds": [1, "a", np.zeros(2), (np.zeros(2), 1), {"x": np.zeros(2)}, None],
}


def assert_same(one: Any, other: Any) -> None:
    """Fail unless two examples are equal down to their types."""
    assert type(one) is type(other)
    if isinstance(other, np.ndarray):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    elif isinstance(other, (tuple, list)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(other, dict):
        assert list(one) == list(other)
        for key in other:
            assert_same(one[key], other[key])
    else:
        assert one == other


@pytest.mark.parametrize("kind", KINDS_OF_EXAMPLES)
def test_examples_come_as_the_dataset_gave_them(make: Maker, kind: str) -> None:
    examples = KINDS_OF_EXAMPLES[kind]
    iterator = make(Values(examples), 2, shuffle=False)

    got = [example for _ in range(2 * len(examples)) for example in next(iterator)]

    for example, expected in zip(got, examples * 4, strict=True):
        assert_same(example, expected)


def test_a_mini_batch_is_a_list(make: Maker, images: NumberedImages) -> None:
    batch = next(make(images(4), 3))

    assert isinstance(batch, list)
    assert len(batch) == 3
    assert all(type(example) is tuple for example in batch)


def test_arrays_are_writable_contiguous_and_nobody_elses(make_parallel: Maker) -> None:
    iterator = make_parallel(Pixels(4), 4, shuffle=False)

    for _ in range(3):
        batch = next(iterator)
        for i, (values, _) in enumerate(batch):
            assert values.flags.writeable
            assert values.flags.c_contiguous
            assert values.flat[0] == 1000 * i  # not what was written into the one before
            values[...] = -1


def test_arrays_with_object_elements_travel_too(make_ours: Maker) -> None:
    values = [np.array([None, "a", 1], dtype=object), np.array([{}, [], ()], dtype=object)]
    batch = next(make_ours(Values([(v, np.zeros(2)) for v in values]), 2, shuffle=False))

    assert [list(example[0]) for example in batch] == [[None, "a", 1], [{}, [], ()]]


def test_fifty_mini_batches_that_are_kept_stay_what_they_were(make_parallel: Maker) -> None:
    dataset = Pixels(30)
    iterator = make_parallel(dataset, 8)

    kept = [next(iterator) for _ in range(50)]
    for _ in range(10):
        next(iterator)

    for batch in kept:
        for values, index in batch:
            np.testing.assert_array_equal(values, dataset[int(index)][0])
    assert len({values.__array_interface__["data"][0] for b in kept for values, _ in b}) == 400


def test_a_whole_epoch_can_be_kept_as_one_list_of_examples(
    make: Maker, images: NumberedImages
) -> None:
    dataset = images(60)
    iterator = make(dataset, 7, repeat=False)

    examples = [example for batch in iterator for example in batch]

    assert sorted(indices_of(examples)) == list(range(60))
    for pixels, index in examples:
        np.testing.assert_array_equal(pixels, dataset[int(index)][0])


def test_one_array_that_is_kept_outlives_its_mini_batch_and_the_iterator(make_ours: Maker) -> None:
    dataset = Pixels(12)
    iterator = make_ours(dataset, 4, shuffle=False)
    kept = [next(iterator)[2][0][1:, ::2] for _ in range(3)]
    for _ in range(20):
        next(iterator)

    iterator.finalize()
    del iterator
    gc.collect()

    for number, view in enumerate(kept):
        np.testing.assert_array_equal(view, dataset[4 * number + 2][0][1:, ::2])


def test_mini_batches_that_are_dropped_give_their_memory_to_later_ones(make_ours: Maker) -> None:
    iterator = make_ours(Pixels(12), 4)

    addresses = set()
    for _ in range(100):
        batch = next(iterator)
        addresses.add(batch[0][0].__array_interface__["data"][0])

    assert len(addresses) <= 8


def test_arrays_that_grow_all_the_time_are_right_at_every_size(make_ours: Maker) -> None:
    examples = [(np.full((i * 7 + 1, 3), i, "f4"), i) for i in range(40)]
    iterator = make_ours(Values(examples), 3, shuffle=False)

    for _ in range(2):
        for expected in range(39 // 3):
            for row, (values, index) in enumerate(next(iterator)):
                assert index == (3 * expected + row)
                assert_same(values, examples[index][0])
        iterator.reset()
