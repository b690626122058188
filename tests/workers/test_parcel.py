"""The dataset on its way: arrays are copied once, come out private, and a culprit is named."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import pickle
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from overlapiter.errors import DatasetPicklingError
from overlapiter.workers.start.parcel import Parcel, digest_of, open_parcel, pickled_pieces


class Things:
    """A dataset-like object with any attributes."""

    def __init__(self, **attributes) -> None:
        vars(self).update(attributes)


@dataclasses.dataclass(slots=True)
class Slotted:
    """Has no dictionary."""

    bad: object


class Careful(Things):
    """Leaves its lock at home, as the error's text advises."""

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "lock"}


def sent(thing: object) -> object:
    parcel = Parcel(thing, pickle.Pickler)
    try:
        return open_parcel(parcel.fd)
    finally:
        parcel.close()


@given(
    st.lists(
        npst.arrays(npst.scalar_dtypes(), npst.array_shapes(min_dims=0, min_side=0)), max_size=5
    )
)
def test_arrays_come_out_as_they_went_in(arrays):
    by_pickle = pickle.loads(pickle.dumps(arrays, pickle.HIGHEST_PROTOCOL))
    for one, other in zip(by_pickle, sent(arrays), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "thing",
    [None, {"a": [1, "ü", (2.5, b"x")]}, [np.zeros(0), np.zeros((0, 3))], [bytearray(b"ab")]],
)
def test_other_things_come_out_too(thing):
    assert pickle.dumps(sent(thing)) == pickle.dumps(thing)


def test_memory_orders_and_strides_are_those_of_pickle():
    array = np.arange(24).reshape(4, 6)
    got = sent([np.asfortranarray(array), array[::2, ::-1], array.T])
    assert [a.tolist() for a in got] == [
        array.tolist(),
        array[::2, ::-1].tolist(),
        array.T.tolist(),
    ]
    assert got[0].flags.f_contiguous


def test_a_big_array_is_not_in_the_pickle():
    array = np.arange(1_000_000)
    parcel = Parcel({"x": array, "same": array}, pickle.Pickler)
    assert len(pickled_pieces({"x": array, "same": array}, pickle.Pickler)[0]) < 1000
    assert array.nbytes < os.fstat(parcel.fd).st_size < array.nbytes + 2000
    got = open_parcel(parcel.fd)
    assert got["x"] is got["same"]
    assert np.array_equal(got["x"], array)
    parcel.close()


def test_arrays_are_used_where_they_lie():
    got = sent([np.arange(1000), np.arange(1000.0)])
    addresses = [array.__array_interface__["data"][0] for array in got]
    assert all(address % 64 == 0 for address in addresses)
    assert 8000 <= addresses[1] - addresses[0] <= 8064


def test_arrays_can_be_written_to_and_nobody_else_sees_it():
    parcel = Parcel([np.zeros(1000)], pickle.Pickler)
    one, other = (open_parcel(parcel.fd)[0] for _ in range(2))
    one[:] = 5
    assert (other == 0).all()
    assert (open_parcel(parcel.fd)[0] == 0).all()
    parcel.close()
    assert (one == 5).all()  # the memory lives as long as the array


def test_a_parcel_can_be_closed_twice():
    parcel = Parcel([1], pickle.Pickler)
    parcel.close()
    parcel.close()


def test_a_parcel_knows_which_modules_it_mentions():
    parcel = Parcel(Things(x=1), pickle.Pickler)
    assert parcel.mentions(__name__)
    assert not parcel.mentions("chainer")
    assert __name__.startswith("tests.")
    assert parcel.mentions("tests")
    assert not parcel.mentions("workers")  # which comes in the middle of it
    parcel.close()


def test_the_trainer_keeps_nothing_of_the_pickle():
    names = [f"class {number}/image {number}.jpg" for number in range(20_000)]
    tracemalloc.start()
    try:
        parcel = Parcel(names, pickle.Pickler)
        assert parcel.mentions(names[-1])
        assert not parcel.mentions("chainer")
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 50_000 < os.fstat(parcel.fd).st_size
    parcel.close()


def test_a_parcel_has_the_digest_of_what_was_pickled():
    thing = [np.arange(1000), "text", np.zeros((0, 3))]
    parcel = Parcel(thing, pickle.Pickler)
    assert parcel.digest == digest_of(pickled_pieces(thing, pickle.Pickler))
    parcel.close()


# --- what cannot travel -----------------------------------------------------------------------


def culprit_of(thing: object) -> str:
    n_fds = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DatasetPicklingError) as caught:
        Parcel(thing, pickle.Pickler)
    assert len(os.listdir("/proc/self/fd")) == n_fds
    assert caught.value.__cause__ is not None
    assert caught.value.attribute in str(caught.value)
    return caught.value.attribute


@pytest.mark.parametrize(
    ("thing", "attribute"),
    [
        (threading.Lock(), "dataset"),
        (lambda: None, "dataset"),
        (Things(good=1, bad=threading.Lock()), "dataset.bad"),
        (Things(base=Things(file=io.TextIOWrapper(io.BytesIO()))), "dataset.base.file"),
        (Things(parts=[1, (2, {"x": threading.Lock()})]), "dataset.parts[1][1]['x']"),
        ([np.zeros(3), lambda: None], "dataset[1]"),
        (Things(transform=lambda x: x), "dataset.transform"),
        (Things(load=functools.lru_cache(lambda x: x)), "dataset.load"),
        (Things(base=Slotted(threading.Lock())), "dataset.base.bad"),
    ],
)
def test_the_attribute_at_fault_is_named(thing, attribute):
    assert culprit_of(thing) == attribute


def test_what_a_dataset_leaves_at_home_is_not_blamed():
    assert sent(Careful(lock=threading.Lock(), x=5)).x == 5
    assert culprit_of(Careful(lock=threading.Lock(), bad=lambda: None)) == "dataset.bad"


def test_a_dataset_that_refers_to_itself_is_searched_once():
    thing = Things(base=Things())
    thing.me = thing
    thing.base.parent = thing
    thing.bad = threading.Lock()
    assert culprit_of(thing) == "dataset.bad"


def test_the_error_tells_the_reason_and_survives_the_way_back():
    with pytest.raises(DatasetPicklingError, match="cannot pickle") as caught:
        Parcel(Things(bad=threading.Lock()), pickle.Pickler)
    assert pickle.loads(pickle.dumps(caught.value)).attribute == "dataset.bad"
