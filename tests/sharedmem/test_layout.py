"""How a mini-batch lies in its slot: trees of leaves, and a column for each array leaf."""

from __future__ import annotations

import collections
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.sharedmem.layout import (
    Column,
    assemble,
    flatten,
    layout_of,
    leaf_kinds,
    size_bytes,
    unflatten,
)

Pair = collections.namedtuple("Pair", "one other")

trees = st.recursive(
    st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(trees)
def test_a_tree_is_what_its_structure_and_its_leaves_make(tree):
    structure, leaves = flatten(tree)
    assert len(leaf_kinds(structure)) == len(leaves)
    again = unflatten(structure, leaves)
    assert again == tree
    assert repr(again) == repr(tree)  # the order of keys too


@given(st.lists(st.integers(), min_size=1, max_size=3), trees)
def test_examples_are_assembled_from_their_leaves(numbers, tree):
    structure, leaves = flatten((tree, 0))
    examples = [unflatten(structure, [*leaves[:-1], n]) for n in numbers]
    rows = [*zip(*[flatten(example)[1] for example in examples], strict=True)]
    assert assemble(structure, rows) == examples


@pytest.mark.parametrize("example", [5, (5, 6), {"a": 5, "b": 6}, [5, 6], {"a": (5,)}])
def test_flat_examples_are_assembled_into_their_own_kind(example):
    structure, leaves = flatten(example)
    again = assemble(structure, [[leaf, leaf] for leaf in leaves])
    assert again == [example, example]
    assert {type(one) for one in again} == {type(example)}


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [
        (np.zeros(3), "array"),
        (np.array(5), "array"),
        (np.zeros(0), "array"),
        (np.array(["a"]), "array"),
        (np.zeros(2, "M8[s]"), "array"),
        (np.zeros(2, [("a", "i1"), ("b", "f8")]), "array"),
        (np.zeros(2, object), "loose"),
        (np.zeros(2, [("a", object)]), "loose"),
        (np.ma.zeros(2), "loose"),
        (np.zeros(2).view(np.recarray), "loose"),
        (np.float32(5), "number"),
        (np.bool_(True), "number"),
        (np.longdouble(5), "number"),
        (np.datetime64("2019-12-05"), "loose"),
        (np.str_("a"), "loose"),
        (np.zeros(1, "i4,f8")[0], "loose"),
        (5, "loose"),
        (True, "loose"),
        (5.0, "loose"),
        ("text", "loose"),
        (None, "loose"),
        (Pair(1, 2), "loose"),
        (collections.OrderedDict(a=1), "loose"),
        ({1, 2}, "loose"),
        ((), "loose"),
        ([1, (2, {"a": None, "b": []})], "loose"),  # one leaf, however many things are in it
    ],
)
def test_only_plain_arrays_and_numbers_of_numpy_lie_in_columns(leaf, kind):
    structure, leaves = flatten(leaf)
    assert structure == kind
    assert leaves[0] is leaf


def test_containers_of_one_shape_but_another_kind_have_another_structure():
    x = np.float32(1)
    examples = [(x, 2), [x, 2], {"a": x, "b": 2}, {"b": x, "a": 2}, x]
    structures = [flatten(each)[0] for each in examples]
    assert len({repr(structure) for structure in structures}) == 5


def test_a_column_for_each_array_leaf_in_order():
    example = {"x": np.zeros((2, 3), "f4"), "name": "a", "y": (np.int64(1), [np.zeros(0)])}
    layout = layout_of(example, 4)
    assert [(c.dtype, c.shape, c.row_bytes) for c in layout.columns] == [
        (np.dtype("f4"), (2, 3), 24),
        (np.dtype("i8"), (), 8),
        (np.dtype("f8"), (0,), 0),
    ]
    assert all(column.is_contiguous for column in layout.columns)


def test_examples_without_arrays_need_no_memory():
    layout = layout_of((1, "a", None), 100)
    assert layout.columns == ()
    assert layout.slot_bytes == 0


arrays = st.tuples(
    st.sampled_from(["i1", "f4", "f8", "c16", "S5", "M8[s]", "g"]),
    st.lists(st.integers(0, 5), max_size=3),
)


@given(st.lists(arrays, min_size=1, max_size=4), st.integers(1, 9))
def test_columns_are_aligned_and_do_not_overlap(kinds, n_rows):
    layout = layout_of(tuple(np.zeros(shape, dtype) for dtype, shape in kinds), n_rows)
    end = 0
    for column, (dtype, shape) in zip(layout.columns, kinds, strict=True):
        assert column.offset_bytes % 64 == 0
        assert column.offset_bytes >= end
        assert column.row_bytes == size_bytes(np.dtype(dtype), tuple(shape))
        end = column.offset_bytes + n_rows * column.row_bytes
    assert end <= layout.slot_bytes <= max(end + 63, 64)


@given(st.lists(st.integers(0, 200), min_size=2, max_size=2))
def test_a_widened_layout_has_rows_for_what_was_wanted(wanted):
    layout = layout_of((np.zeros(10, "f4"), "x", np.zeros(3, "i2")), 5)
    wider = layout.widened(wanted)
    assert wider.structure == layout.structure
    assert wider.n_rows == layout.n_rows
    for old, new, size in zip(layout.columns, wider.columns, wanted, strict=True):
        assert new.row_bytes >= max(old.row_bytes, size)
        assert (new.row_bytes == old.row_bytes) == (size <= old.row_bytes)
        assert new.is_contiguous == (size <= old.row_bytes)
        assert (new.dtype, new.shape) == (old.dtype, old.shape)
    first, second = wider.columns
    assert second.offset_bytes >= first.row_bytes * 5
    assert wider.slot_bytes >= second.offset_bytes + second.row_bytes * 5


def test_an_ordinary_row_has_the_shape_and_the_dtype_byte_order_and_all():
    column = layout_of(np.zeros((2, 3), "<f4"), 2).columns[0]
    assert column.holds(np.ones((2, 3), "<f4"))
    assert column.holds(np.asfortranarray(np.ones((2, 3), "<f4")))
    for other in [np.zeros((3, 2), "<f4"), np.zeros((2, 3), ">f4"), np.zeros((2, 3), "<i4")]:
        assert not column.holds(other)


@pytest.mark.parametrize(
    ("leaf", "fits"),
    [
        (np.zeros(24, "u1"), True),
        (np.zeros(25, "u1"), False),
        (np.zeros(6, "i4"), True),
        (np.zeros(3, "f8"), False),  # rows are 28 bytes apart, so every other one is misaligned
        (np.zeros(0, "f8"), False),
        (np.array("abc"), True),
        (np.zeros(3, "i1,f8"), False),
    ],
)
def test_what_fits_into_a_row_lies_aligned_in_it(leaf, fits):
    rows = 28 if leaf.dtype == "f8" else 24
    column = Column(np.dtype("i4"), (rows // 4,), rows, 64)
    assert column.fits(leaf) == fits


def test_a_layout_travels_to_the_workers():
    layout = layout_of({"x": (np.zeros(3), [np.int8(1), "a"])}, 4)
    assert pickle.loads(pickle.dumps(layout)) == layout
