"""The converter gives what Chainer's gives, without copying what lies together already."""

from __future__ import annotations

import inspect
import pydoc
import warnings

import chainer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import overlapiter
from overlapiter.sharedmem.layout import layout_of
from overlapiter.sharedmem.segments import Segment, Slot
from overlapiter.sharedmem.slots import FilledSlot, MiniBatch, SlotWriter, view_examples


def test_help_tells_of_this_converter_and_its_arguments() -> None:
    assert "without a copy" in pydoc.render_doc(overlapiter.concat_examples)
    assert [*inspect.signature(overlapiter.concat_examples).parameters] == [
        "batch",
        "device",
        "padding",
    ]


def batch_of(examples: list, *, row_bytes: list[int] | None = None) -> MiniBatch:
    """Return a mini-batch as the iterator gives it."""
    layout = layout_of(examples[0], len(examples))
    if row_bytes is not None:
        layout = layout.widened(row_bytes)
    writer, slot, segment = SlotWriter(layout), Slot(0, 0), None
    if layout.slot_bytes:
        segment = Segment.create(layout.slot_bytes)
        segment.close()
    entries = [writer.write(segment, slot, row, example) for row, example in enumerate(examples)]
    report = entries if any(entry is not None for entry in entries) else None
    return view_examples(FilledSlot.of(layout, segment, slot, [(0, len(examples), report)]))


def assert_same(one, other) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert [*one] == [*other]
        one, other = tuple(one.values()), tuple(other.values())
    if isinstance(one, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
        return
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert np.array_equal(one, other)


def assert_converts_as_chainer(examples: list, padding=None) -> None:
    """Compare with Chainer's result, or with the error that it raises, for this list."""
    batch = batch_of(examples)
    try:
        expected = chainer.dataset.concat_examples(examples, padding=padding)
    except Exception as error:  # whatever it is
        with pytest.raises(type(error)):
            overlapiter.concat_examples(batch, padding=padding)
        return
    assert_same(overlapiter.concat_examples(batch, padding=padding), expected)


def array(*shape: int, dtype: str = "f4", start: int = 0) -> np.ndarray:
    return (np.arange(int(np.prod(shape))).reshape(shape) + start).astype(dtype)


KINDS = {
    "array": lambda i: array(2, 3, start=i),
    "array without dimensions": lambda i: np.array(i, "i4"),
    "empty array": lambda _: np.zeros((0, 2)),
    "image and label": lambda i: (array(3, 4, 4, start=i), np.array(i, "i4")),
    "array and number": lambda i: (array(3, start=i), i),
    "array and truth": lambda i: (array(3, start=i), i % 2 == 0),
    "array and float": lambda i: (array(3, start=i), i / 3),
    "array and NumPy number": lambda i: (array(3, start=i), np.float32(i)),
    "array and big number": lambda i: (array(3, start=i), 2**40 + i),
    "array and mixed numbers": lambda i: (array(3, start=i), i if i % 2 else i / 2),
    "array and NumPy and Python numbers": lambda i: (array(3), np.int32(i) if i % 2 else i),
    "dict": lambda i: {"image": array(2, 2, start=i), "label": i, "weight": np.float64(i)},
    "tuple of one": lambda i: (array(2, start=i),),
    "number": lambda i: i,
    "NumPy number": lambda i: np.int16(i),
    "numbers": lambda i: (i, float(i)),
    "list": lambda i: [i, i + 1],
    "tuple of a list": lambda i: (array(2), [i, i + 1]),
    "list of arrays": lambda i: [array(2, start=i), array(2)],
    "nested tuple": lambda i: ((array(2, start=i), array(2)), i),
    "dict in a tuple": lambda i: ({"x": array(2, start=i)}, i),
    "texts": lambda i: (array(2), f"{i}"),
    "none": lambda _: (array(2), None),
    "objects": lambda i: (array(2), np.array([i, None])),
    "masked": lambda i: (array(2), np.ma.array([i, 1], mask=[False, True])),
    "big-endian": lambda i: (array(2, dtype=">f4", start=i), i),
    "Fortran order": lambda i: (np.asfortranarray(array(3, 4, start=i)), i),
    "dates": lambda i: np.array([i], "M8[s]"),
    "one shape, then another": lambda i: (array(2 + (i == 2), start=i), i),
    "growing": lambda i: (array(i + 1, start=i), array(2, i, start=i)),
    "one dtype, then another": lambda i: (array(2, dtype="f4" if i != 1 else "i4"), i),
    "another structure": lambda i: (array(2), i) if i != 1 else [array(2), i],
    "another length": lambda i: (array(2), i) if i != 1 else (array(2), i, i),
    "empty tuple": lambda _: (),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [None, 0, -1.5])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.filterwarnings("ignore::numpy.VisibleDeprecationWarning")
def test_the_result_is_that_of_chainer(kind, padding, n):
    assert_converts_as_chainer([KINDS[kind](i) for i in range(n)], padding)


@pytest.mark.parametrize("padding", [(7, -1), (0, None)])
def test_padding_may_differ_by_leaf(padding):
    assert_converts_as_chainer([(array(i + 1), array(2)) for i in range(3)], padding)
    assert_converts_as_chainer([(array(2), array(2)) for _ in range(3)], padding)


def test_padding_may_differ_by_key():
    examples = [{"a": array(i + 1), "b": array(2, i)} for i in range(3)]
    assert_converts_as_chainer(examples, {"a": 5, "b": 6})


@given(st.lists(st.sampled_from(["?", "i1", "u2", "i8", "f2", "f8", "c8"]), max_size=3), st.data())
def test_tuples_of_any_arrays_convert_as_in_chainer(kinds, data):
    example = tuple(
        np.zeros(data.draw(npst.array_shapes(min_dims=0, min_side=0, max_dims=2)), dtype)
        for dtype in kinds
    )
    assert_converts_as_chainer([example, example])


def test_a_list_that_did_not_come_from_the_iterator_is_converted_too():
    examples = [KINDS["dict"](i) for i in range(3)]
    assert_same(overlapiter.concat_examples(examples), chainer.dataset.concat_examples(examples))


@pytest.mark.parametrize("empty", [[], MiniBatch([])])
def test_an_empty_mini_batch_is_refused_as_in_chainer(empty):
    with pytest.raises(ValueError, match="batch is empty"):
        overlapiter.concat_examples(empty)


# --- without a copy ---------------------------------------------------------------------------


def arrays_of(result) -> list[np.ndarray]:
    if isinstance(result, dict):
        return [*result.values()]
    return [*result] if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("kind", ["array", "image and label", "array without dimensions"])
@pytest.mark.parametrize("padding", [None, 0])
def test_the_arrays_are_the_memory_of_the_mini_batch(kind, padding):
    batch = batch_of([KINDS[kind](i) for i in range(3)])
    for result, column in zip(
        arrays_of(overlapiter.concat_examples(batch, padding=padding)), batch.columns, strict=True
    ):
        assert np.shares_memory(result, column)
        assert result.flags.c_contiguous


def test_beside_numbers_and_in_dicts_arrays_are_not_copied_either():
    batch = batch_of([KINDS["dict"](i) for i in range(3)])
    assert np.shares_memory(overlapiter.concat_examples(batch)["image"], batch[0]["image"])
    batch = batch_of([KINDS["array and number"](i) for i in range(3)])
    assert np.shares_memory(overlapiter.concat_examples(batch)[0], batch[0][0])


def test_what_is_changed_in_place_is_seen():
    batch = batch_of([KINDS["image and label"](i) for i in range(3)])
    batch[1][0][...] = 77
    assert (overlapiter.concat_examples(batch)[0][1] == 77).all()


def test_rows_with_gaps_between_them_are_put_together():
    examples = [KINDS["image and label"](i) for i in range(3)]
    result = overlapiter.concat_examples(batch_of(examples, row_bytes=[500, 4]))
    assert_same(result, chainer.dataset.concat_examples(examples))
    assert result[0].flags.c_contiguous


# --- after a change ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.reverse(),
        lambda batch: batch.pop(),
        lambda batch: batch.append(batch[0]),
        lambda batch: batch.__setitem__(0, batch[1]),
        lambda batch: batch.__setitem__(0, (array(3, 4, 4, start=99), np.array(9, "i4"))),
        lambda batch: batch.sort(key=lambda example: -int(example[1])),
    ],
)
def test_after_the_list_was_changed_the_change_counts(change):
    batch = batch_of([KINDS["image and label"](i) for i in range(3)])
    change(batch)
    assert_same(overlapiter.concat_examples(batch), chainer.dataset.concat_examples([*batch]))


def set_first(**values):
    return lambda batch: batch[0].update(values)


@pytest.mark.parametrize(
    "change",
    [
        set_first(image=array(2, 2, start=50)),
        set_first(label=50),
        set_first(weight=np.float64(50)),
        lambda batch: batch[0].update(image=batch[1]["image"]),
        lambda batch: batch[0].update(image=batch[0]["image"].T),
        lambda batch: batch[0].update(image=batch[0]["image"].view("i4")),
        lambda batch: [example.update(image=example["image"].tolist()) for example in batch],
        lambda batch: [example.update(more=array(2)) for example in batch],
        lambda batch: [example.pop("label") for example in batch],
        lambda batch: batch[0].pop("image"),
        lambda batch: [example.update(image=example.pop("image")) for example in batch],
    ],
)
def test_after_a_dict_was_changed_the_change_counts(change):
    batch = batch_of([KINDS["dict"](i) for i in range(3)])
    change(batch)
    expected = chainer.dataset.concat_examples([*batch])
    assert_same(overlapiter.concat_examples(batch), expected)


def test_a_key_that_only_some_examples_have_is_missed_as_in_chainer():
    batch = batch_of([KINDS["dict"](i) for i in range(3)])
    del batch[1]["label"]
    with pytest.raises(KeyError, match="label"):
        overlapiter.concat_examples(batch)


# --- to a device ------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["@numpy", -1, chainer.get_device("@numpy")])
@pytest.mark.parametrize("kind", ["array", "image and label", "dict", "list"])
def test_a_device_takes_the_arrays(kind, device):
    examples = [KINDS[kind](i) for i in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        device = chainer.get_device(device)
    result = overlapiter.concat_examples(batch_of(examples), device)
    assert_same(result, chainer.dataset.concat_examples(examples, device))


@pytest.mark.gpu
@pytest.mark.leaks_ok("CUDA keeps descriptors")
def test_a_gpu_takes_the_arrays():
    device = chainer.get_device("@cupy:0")
    examples = [KINDS["image and label"](i) for i in range(3)]
    for result, expected in zip(
        overlapiter.concat_examples(batch_of(examples), device),
        chainer.dataset.concat_examples(examples),
        strict=True,
    ):
        assert isinstance(result, chainer.backends.cuda.ndarray)
        assert_same(result.get(), expected)


def test_it_is_a_converter_to_chainer():
    assert isinstance(overlapiter.concat_examples, chainer.dataset.Converter)
