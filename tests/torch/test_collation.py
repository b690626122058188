"""Mini-batches are what PyTorch makes of the examples: each statement is held against both."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402
from torch.utils.data._utils import collate  # noqa: E402

from overlapiter.errors import DatasetPicklingError  # noqa: E402
from overlapiter.torch.face import TorchFace  # noqa: E402
from tests.torch import torch_datasets as D  # noqa: E402
from tests.torch.comparing import assert_alike, assert_same, seed_all, taken  # noqa: E402
from tests.torch.conftest import Pair  # noqa: E402

# PyTorch 2.11 gives it where a process makes its first one.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")

REFUSED = (
    "a tensor, then none",
    "sparse",
    "with a gradient",
    "None",
    "unequal tensors",
    "unequal lists",
    "custom",
    "object array",
    "string array",
    "date",
)


@pytest.mark.parametrize("kind", sorted(D.MAKERS.keys() - {"locked"}))  # it cannot be pickled
def test_examples_of_any_kind_are_collated_as_pytorch_does(plain_pair: Pair, kind: str) -> None:
    found = assert_alike(plain_pair, D.Made(kind), batch_size=4)
    assert (type(found[0]) is tuple) == (kind in REFUSED)


def test_tensors_that_stack_to_a_plain_one_go_into_the_slot() -> None:
    made = {"is_batched": True, "deals_in_turn": True}
    face = TorchFace(D.Made("int"), None, None, **made)
    for kind, expected in (("plain when stacked", "tensor"), ("subclass", "loose")):
        structure, leaves = face.take_apart(D.MAKERS[kind](1))
        assert structure == expected
        assert isinstance(leaves[0], np.ndarray) == (expected == "tensor")


def test_what_is_in_an_ordered_dict_goes_into_the_slot() -> None:
    face = TorchFace(D.Made("int"), None, None, is_batched=True, deals_in_turn=True)
    structure, _ = face.take_apart(D.MAKERS["ordered dict"](1))
    assert structure == (OrderedDict, ("b", "a", "name"), ("tensor", "int", "loose"))


@pytest.mark.parametrize("kind", ["tuple", "nested", "array", "string", "float"])
def test_without_batching_examples_are_converted_as_pytorch_does(
    plain_pair: Pair, kind: str
) -> None:
    assert len(assert_alike(plain_pair, D.Made(kind), batch_size=None)) == 11


def test_the_default_collation_can_be_asked_for_without_batching(plain_pair: Pair) -> None:
    options = {"batch_size": None, "collate_fn": data.default_collate}
    found = assert_alike(plain_pair, [[1, 2], [3, 4]], **options)
    assert [batch.tolist() for batch in found] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("kind", "collate_fn"),
    [
        ("unequal tensors", D.padded),
        ("custom", D.to_list),
        ("nested", D.to_list),
        ("array", D.to_arrays),
        ("tuple", D.Batch),
        ("tuple", D.fail_to_collate),
        ("bfloat16", torch.stack),
        ("int", D.turned),
        ("int", D.other_memory),
    ],
)
def test_a_collate_fn_runs_in_the_workers_once_for_each_mini_batch(
    plain_pair: Pair, kind: str, collate_fn: Any
) -> None:
    found = assert_alike(plain_pair, D.Made(kind), n_epochs=2, batch_size=4, collate_fn=collate_fn)
    assert len(found) == 6
    if collate_fn is D.padded:
        assert all(batch["process"] for batch in found)


def test_of_an_example_that_lies_in_a_wider_row_the_strides_are_those_of_pytorch(
    plain_pair: Pair,
) -> None:
    examples = [torch.full((7 if i % 3 else 2,), i) for i in range(20)]
    assert_alike(plain_pair, examples, batch_size=1, num_workers=1)


def test_of_a_large_memory_the_part_alone_goes_into_the_slot() -> None:
    face = TorchFace(D.Made("int"), D.same, None, is_batched=True, deals_in_turn=True)
    whole = torch.arange(1000.0).reshape(10, 100)
    batch = [whole[:, 3], whole[2:3], whole.to(torch.bfloat16)[1:3, ::7], whole.numpy()[:, ::9]]
    (pickled, *_), leaves = face.take_apart(batch)
    assert_same(
        [np.ascontiguousarray(each) for each in pickle.loads(pickled, buffers=leaves)[::3]],
        [np.ascontiguousarray(each) for each in batch[::3]],
    )
    assert [leaf.nbytes for leaf in leaves] == [40, 400, 60, 480]


def test_what_is_in_two_places_of_a_mini_batch_is_one_thing_as_with_pytorch(
    plain_pair: Pair,
) -> None:
    for batch in assert_alike(plain_pair, D.Made("int", 4), batch_size=2, collate_fn=D.twice):
        assert batch["a"] is batch["b"][0]
        assert batch["c"] is batch["b"][1]


# --- several examples at once -----------------------------------------------------------------


@pytest.mark.parametrize("dataset", [D.Whole(), data.Subset(D.Whole(), [4, 2, 0, 6])])
def test_a_dataset_that_gives_several_examples_at_once_is_asked_so(
    plain_pair: Pair, dataset: Any
) -> None:
    assert_alike(plain_pair, dataset, batch_size=3)


@pytest.mark.parametrize("kind", [D.columns, D.nothing, torch.tensor, tuple])
@pytest.mark.parametrize("collate_fn", [None, D.same])
def test_what_such_a_dataset_gives_is_collated_as_it_is(
    plain_pair: Pair, kind: Any, collate_fn: Any
) -> None:
    found = assert_alike(plain_pair, D.Together(kind), batch_size=3, collate_fn=collate_fn)
    assert len(found) == 4


BATCHES = {
    "tuple": [(1, 2), (3,)],
    "tensor": [torch.tensor([1, 2])],
    "array": [np.array([1, 2])],
    "range": [range(3)],
    "set": [{1, 2}],
    "dict": [{1: "a"}],
    "text": ["ab"],
    "empty": [[1], [], (), [2]],
    "NumPy's numbers": [[np.int64(3)]],
    "lists": [[[1], [2]]],
    "slice": [slice(0, 4)],
    "no list": [3, [4], None, [5]],
}


@pytest.mark.leaks_ok("PyTorch's loader shares tensors by sockets")
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("dataset", [D.Together(D.described), D.Keyed()])
@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_batch_sampler_may_give_anything(
    plain_pair: Pair, kind: str, dataset: Any, n_workers: int
) -> None:
    if isinstance(dataset, D.Keyed) and kind in ("array", "NumPy's numbers") and n_workers:
        pytest.skip("each becomes an int there")
    options = {"batch_sampler": BATCHES[kind], "num_workers": n_workers}
    found = assert_alike(plain_pair, dataset, **options)
    assert len(found) == len(BATCHES[kind])


def test_a_batch_sampler_may_give_iterators(plain_pair: Pair) -> None:
    found = []
    for make in plain_pair.each():
        batches = [iter([0, 1]), iter((2,)), reversed([3, 4])]
        found.append(taken(make(D.Made("int"), batch_sampler=batches)))
    assert_same(*found)
    assert [batch.tolist() for batch in found[0]] == [[0, 1], [2], [4, 3]]


def test_such_a_dataset_is_asked_so_with_a_seed_too(plain_pair: Pair) -> None:
    options = {"batch_size": 3, "collate_fn": D.same, "seed": 5}
    dataset = D.Together(D.columns)
    found = [list(plain_pair.ours(dataset, num_workers=n, **options)) for n in (0, 2)]
    assert_same(*found)


# --- the program's own functions --------------------------------------------------------------


@pytest.fixture
def functions() -> Iterator[dict[Any, Any]]:
    """Give the map of functions that PyTorch's documentation has programs change in place."""
    functions: dict[Any, Any] = collate.default_collate_fn_map
    before = {**functions}
    yield functions
    functions.clear()
    functions.update(before)


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        ("custom", D.Custom),
        ("locked", D.Locked),
        ("unequal tensors", torch.Tensor),
        ("tuple", int),
        ("namedtuple", D.Pair),
        ("tensor", D.Custom),
        ("nested", D.Custom),
    ],
)
@pytest.mark.parametrize("n_workers", [0, 2])
def test_the_default_collation_can_be_changed_for_a_type_and_runs_in_the_workers(
    plain_pair: Pair, functions: dict[Any, Any], kind: str, type_: type, n_workers: int
) -> None:
    functions[type_] = D.registered
    assert len(assert_alike(plain_pair, D.Made(kind), batch_size=4, num_workers=n_workers)) == 3


@pytest.mark.parametrize(
    ("dataset", "more"), [(D.Together(D.tensors), {}), (D.Made("tuple"), {D.Custom: D.registered})]
)
def test_no_worker_stacks_tensors_in_dev_shm(
    plain_pair: Pair, functions: dict[Any, Any], dataset: Any, more: dict[Any, Any]
) -> None:
    functions.update(more)
    loader = plain_pair.ours(dataset, 4, worker_init_fn=D.forbid_dev_shm)
    assert_same(list(loader), list(data.DataLoader(dataset, 4)))


def test_what_is_registered_between_epochs_counts(
    plain_pair: Pair, functions: dict[Any, Any]
) -> None:
    found = []
    for make in plain_pair.each():
        functions.pop(D.Custom, None)
        seed_all(5)
        loader = make(D.Made("custom"), 4)
        first = taken(loader)
        functions[D.Custom] = D.registered
        found.append((first[0][0], taken(loader)))
    assert_same(*found)


def test_a_registered_function_that_cannot_be_pickled_is_named(
    plain_pair: Pair, functions: dict[Any, Any]
) -> None:
    functions[D.Custom] = lambda batch, *, collate_fn_map: len(batch)  # noqa: ARG005  # PyTorch's signature
    words = r"collate_fn\.functions\[<class '.*Custom'>\] cannot be sent"
    with pytest.raises(DatasetPicklingError, match=words):
        iter(plain_pair.ours(D.Made("custom"), 4))
