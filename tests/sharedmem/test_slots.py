"""What a file reader writes into a slot is what the trainer sees in it, whatever it is."""

from __future__ import annotations

import collections
import copy
import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from overlapiter.sharedmem.layout import Layout, flatten, layout_of
from overlapiter.sharedmem.segments import Segment, Slot
from overlapiter.sharedmem.slots import FilledSlot, MiniBatch, SlotWriter, view_examples

OFFSET = 4096

dtypes = (
    npst.boolean_dtypes()
    | npst.integer_dtypes(endianness="?")
    | npst.floating_dtypes(endianness="?")
    | npst.complex_number_dtypes(endianness="?")
    | npst.datetime64_dtypes(endianness="=")
    | npst.byte_string_dtypes(max_len=5)
    | npst.unicode_string_dtypes(endianness="?", max_len=5)
    | st.sampled_from([np.dtype("i1,>f8"), np.dtype([("a", "3i2"), ("b", "S3")]), np.dtype("g")])
)
shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def arrays(draw) -> np.ndarray:
    """Arrays of any dtype, shape and memory order, full of random bytes where that is allowed."""
    dtype, shape = draw(dtypes), draw(shapes)
    data = np.zeros(shape, dtype)
    if dtype.kind in "biufcmM":
        seed = draw(st.integers(0, 1000))
        numbers = np.random.default_rng(seed).integers(0, 2, size=shape)
        data = numbers.astype(dtype)
    # NumPy pickles arrays that are not contiguous in the byte order of the machine.
    orders = ["C", "F", "reversed", "strided"] if dtype.isnative else ["C", "F"]
    order = draw(st.sampled_from(orders))
    if order == "F":
        data = np.asfortranarray(data) if shape else data
    elif order == "reversed" and shape:
        data = data[::-1]
    elif order == "strided" and shape:
        data = np.repeat(data, 2, axis=0)[::2]
    return data


leaves = (
    arrays()
    | st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True), np.complex64(1j)])
    | st.sampled_from([np.str_("a"), np.datetime64("2019-12-05"), np.longdouble("1e-4000")])
    | st.sampled_from([1, -(10**30), 0.1, "text", b"bytes", None, True, 1 + 2j])
    | st.sampled_from([np.array([1, "a", None], object), np.ma.array([1, 2], mask=[0, 1])])
)
examples = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=5,
)


def assert_same(one: object, other: object) -> None:
    """Check that two examples are equal in type, dtype, shape and bytes, all the way down."""
    assert type(one) is type(other)
    if isinstance(one, np.ma.MaskedArray):
        assert pickle.dumps(one) == pickle.dumps(other)
    elif isinstance(one, (np.ndarray, np.generic)):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        if one.dtype.hasobject:
            assert one.tolist() == other.tolist()
        else:
            # A long double has bytes that mean nothing.
            assert np.array_equal(one, other) or one.tobytes() == other.tobytes()
            assert one.tobytes() == other.tobytes() or one.dtype.char in "gG"
    elif isinstance(one, dict):
        assert [*one] == [*other]
        assert_same([*one.values()], [*other.values()])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


class Slots:
    """A segment with one slot at an offset, its writer, and the counting of its release."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.writer = SlotWriter(layout)
        self.segment = None
        if layout.slot_bytes:
            self.segment = Segment.create(OFFSET + layout.slot_bytes)
            self.segment.close()  # the mapping is enough
        self.slot = Slot(0, OFFSET)
        self._queue: collections.deque = collections.deque()
        self._loans: list[weakref.KeyedRef] = []

    def batch(self, examples: list, cuts: tuple[int, ...] = ()) -> MiniBatch:
        """Write the examples in parts, each reported as it travels, and view them."""
        reports = []
        bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(examples)}), len(examples)]
        for start, stop in itertools.pairwise(bounds):
            entries = [
                self.writer.write(self.segment, self.slot, row, examples[row])
                for row in range(start, stop)
            ]
            is_ordinary = all(entry is None for entry in entries)
            report = (
                None
                if is_ordinary
                else pickle.loads(pickle.dumps(entries, pickle.HIGHEST_PROTOCOL))
            )
            reports.append((start, stop, report))
        filled = FilledSlot.of(self.layout, self.segment, self.slot, reports)
        self._lend(filled.root)
        batch = view_examples(filled)
        del filled
        leaves = flatten([*batch])[1]
        assert all(leaf.flags.aligned for leaf in leaves if isinstance(leaf, np.ndarray))
        return batch

    def _lend(self, memory: np.ndarray | None) -> None:
        if memory is None:
            self._queue.append(None)
        else:
            self._loans.append(weakref.KeyedRef(memory, self._queue.append, self.slot))

    @property
    def n_released(self) -> int:
        return len(self._queue)


@given(st.lists(examples, min_size=1, max_size=4), examples, st.integers(0, 4))
def test_any_examples_come_back_as_they_were_whatever_the_layout_was_made_for(batch, first, cut):
    slots = Slots(layout_of(first, len(batch)))
    before = pickle.dumps(batch)
    seen = slots.batch(batch, (cut,))
    assert_same(list(seen), batch)
    assert pickle.dumps(batch) == before


@given(examples, st.integers(1, 4))
def test_examples_of_one_kind_come_back_as_they_were(example, n):
    slots = Slots(layout_of(example, n))
    assert_same(list(slots.batch([example] * n)), [example] * n)


@given(st.lists(arrays(), min_size=1, max_size=5), st.integers(0, 5))
def test_after_widening_the_rows_arrays_of_any_shape_come_back(batch, cut):
    slots = Slots(layout_of((batch[0], 1), len(batch)))
    assume(slots.layout.slot_bytes)
    pairs = [(array, n) for n, array in enumerate(batch)]
    assert_same(list(slots.batch(pairs, (cut,))), pairs)
    wider = Slots(slots.layout.widened(slots.writer.wanted_row_bytes))
    assert_same(list(wider.batch(pairs, (cut,))), pairs)
    assert wider.writer.wanted_row_bytes == [c.row_bytes for c in wider.layout.columns]


def test_growing_rows_travel_beside_the_slot_until_it_is_widened_and_inside_it_after():
    slots = Slots(layout_of(np.zeros(4), 3))
    batch = [np.arange(n, dtype=float) for n in (4, 9, 2)]
    seen = slots.batch(batch)
    assert [np.shares_memory(a, np.frombuffer(slots.segment.memory, "u1")) for a in seen] == [
        True,
        False,
        True,
    ]
    assert slots.writer.wanted_row_bytes == [72]
    wider = Slots(slots.layout.widened([72]))
    memory = np.frombuffer(wider.segment.memory, "u1")
    assert all(np.shares_memory(array, memory) for array in wider.batch(batch))


def test_a_single_outlier_neither_makes_all_rows_huge_nor_keeps_them_from_growing():
    slots = Slots(layout_of(np.zeros(4), 3))
    slots.batch([np.zeros(n) for n in (4, 1 << 22, 9)])
    assert slots.writer.wanted_row_bytes == [72]


def ordinary(n: int) -> list:
    return [(np.full((2, 3), i, "f4"), np.int32(i), np.array(i)) for i in range(n)]


def test_columns_are_the_whole_arrays_without_a_copy():
    slots = Slots(layout_of(ordinary(1)[0], 5))
    batch = slots.batch(ordinary(4), (2,))
    assert [column.shape for column in batch.columns] == [(4, 2, 3), (4,), (4,)]
    for number, column in enumerate(batch.columns):
        assert column.flags.c_contiguous
        assert np.array_equal(column, np.stack([example[number] for example in ordinary(4)]))
    assert np.shares_memory(batch.columns[0], batch[3][0])
    assert np.shares_memory(batch.columns[2], batch[3][2])
    batch[2][0][1, 1] = 99
    assert batch.columns[0][2, 1, 1] == 99


def test_an_example_that_is_one_array_is_a_view_and_so_is_one_of_no_dimensions():
    for array in (np.arange(3.0), np.array(7)):
        batch = Slots(layout_of(array, 2)).batch([array, array])
        assert type(batch[0]) is np.ndarray
        assert np.shares_memory(batch[1], batch.columns[0])


def test_beside_loose_leaves_the_arrays_still_have_their_columns():
    batch = [{"x": np.full(3, i), "name": f"{i}"} for i in range(3)]
    seen = Slots(layout_of(batch[0], 3)).batch(batch)
    assert seen.columns[1] is None
    assert np.array_equal(seen.columns[0], [[0] * 3, [1] * 3, [2] * 3])


def test_a_row_of_another_shape_leaves_its_leaf_without_a_column_and_the_others_with():
    batch = ordinary(3)
    batch[1] = (np.zeros((3, 2), "f4"), *batch[1][1:])
    columns = Slots(layout_of(batch[0], 3)).batch(batch).columns
    assert columns[0] is None
    assert columns[1].tolist() == [0, 1, 2]


def test_an_example_of_another_structure_leaves_no_columns():
    batch = Slots(layout_of(ordinary(1)[0], 3)).batch([*ordinary(2), list(ordinary(1)[0])])
    assert batch.columns == ()
    assert batch.structure is None


def test_widened_rows_have_no_column():
    layout = layout_of(ordinary(1)[0], 3).widened([25, 4, 8])
    assert [c is None for c in Slots(layout).batch(ordinary(3)).columns] == [True, False, False]


# --- how long a slot lives --------------------------------------------------------------------


@pytest.mark.parametrize(
    "keep",
    [
        lambda batch: batch,
        lambda batch: batch[1],
        lambda batch: batch[0][0],
        lambda batch: batch[2][2],
        lambda batch: batch.columns[1],
        lambda batch: batch[0][0][1:, 1:].T.view("i4").reshape(-1)[:1],
        lambda batch: memoryview(batch[0][0]),
        lambda batch: batch[:1],
        lambda batch: np.asarray(batch[0][0]).astype("f4", copy=False),
    ],
)
def test_a_slot_is_released_exactly_when_the_last_view_of_it_is_gone(keep):
    slots = Slots(layout_of(ordinary(1)[0], 3))
    batch = slots.batch(ordinary(3))
    kept = keep(batch)
    del batch
    gc.collect()
    assert slots.n_released == 0
    del kept
    assert slots.n_released == 1  # without the garbage collector


def test_copies_and_numbers_do_not_keep_a_slot():
    slots = Slots(layout_of(ordinary(1)[0], 3))
    batch = slots.batch(ordinary(3))
    kept = [batch[0][1], batch[0][0].copy(), copy.deepcopy(batch), batch.columns[0].sum()]
    assert type(kept[2]) is list
    del batch
    assert slots.n_released == 1
    assert kept[2][2][0].sum() == 12


def test_a_slot_that_nobody_looks_at_is_released_at_once():
    for example in [(1, "a"), np.array([None]), ()]:
        slots = Slots(layout_of(example, 2))
        batch = slots.batch([example, example])
        assert slots.n_released == 1
        assert len(batch) == 2
    slots = Slots(layout_of(np.zeros(1), 2))
    batch = slots.batch([np.zeros(100), np.zeros(200)])  # both travel beside it
    assert slots.n_released == 1
    assert batch[1].shape == (200,)


def test_views_can_be_written_to_and_outlive_the_segment():
    slots = Slots(layout_of(ordinary(1)[0], 3))
    batch = slots.batch(ordinary(3))
    slots.segment = None
    gc.collect()
    for example in batch:
        example[0][...] = 5
        assert example[0].flags.writeable
    assert (batch.columns[0] == 5).all()


# --- the list ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.append(batch[0]),
        lambda batch: batch.pop(),
        lambda batch: batch.reverse(),
        lambda batch: batch.__setitem__(1, batch[0]),
        lambda batch: batch.__setitem__(0, copy.deepcopy(batch[0])),
        lambda batch: batch.clear(),
    ],
)
def test_a_list_knows_that_it_was_changed(change):
    batch = Slots(layout_of(ordinary(1)[0], 3)).batch(ordinary(3))
    assert batch.is_untouched()
    change(batch)
    assert not batch.is_untouched()


def test_a_list_that_was_changed_back_is_as_it_was():
    batch = Slots(layout_of(ordinary(1)[0], 3)).batch(ordinary(3))
    batch.append(batch.pop())
    assert batch.is_untouched()


def test_a_mini_batch_pickles_as_a_plain_list():
    batch = Slots(layout_of(ordinary(1)[0], 3)).batch(ordinary(3))
    again = pickle.loads(pickle.dumps(batch))
    assert type(again) is list
    assert_same(again, ordinary(3))
