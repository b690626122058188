"""Our loader does what PyTorch's does: each statement is held against both."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

import overlapiter  # noqa: E402
from overlapiter.errors import BadExampleWarning, OptionError, WorkerDiedError  # noqa: E402
from overlapiter.explain import Cause, Explanation  # noqa: E402
from overlapiter.torch import DataLoader  # noqa: E402
from tests.chainer.scripts import wait_until, workers  # noqa: E402
from tests.torch import torch_datasets as D  # noqa: E402
from tests.torch.comparing import assert_alike, assert_same, seed_all, taken  # noqa: E402
from tests.torch.conftest import Pair  # noqa: E402

# --- the order --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": True, "drop_last": True},
        {"shuffle": True, "num_workers": 1, "prefetch_factor": 1},
        {"shuffle": True, "num_workers": 0},
        {"shuffle": True, "persistent_workers": True},
        {"sampler": [5, 1, 1, 9, -1]},
        {"sampler": D.Doubling(5)},
        {"batch_size": 1, "batch_sampler": D.Sizes()},
        {"batch_size": 1, "batch_sampler": [[3], [], [1, 2, 2]]},
        {"batch_size": None, "shuffle": True},
        {"batch_size": 50},
    ],
)
def test_the_order_is_that_of_pytorch(pair: Pair, image_folder: Path, options: Any) -> None:
    dataset = D.Images(image_folder, 11, draws=True)
    if options.get("batch_sampler") == [[3], [], [1, 2, 2]]:
        dataset = D.Made("int")
    assert_alike(pair, dataset, n_epochs=3, **{"batch_size": 3, **options})


@pytest.mark.parametrize(
    "sampler",
    [
        lambda d, g: data.RandomSampler(d, generator=g),
        lambda d, g: data.RandomSampler(d, replacement=True, num_samples=70, generator=g),
        lambda _, g: data.SubsetRandomSampler([1, 3, 5, 7, 9], generator=g),
        lambda _, g: data.WeightedRandomSampler([0.1] * 8, 40, generator=g),
    ],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_a_generator_is_drawn_from_as_pytorch_does_though_an_epoch_is_left_early(
    pair: Pair, image_folder: Path, sampler: Any, is_own: bool
) -> None:
    found = []
    for make in pair.each():
        torch.manual_seed(3)
        own = torch.Generator().manual_seed(5) if is_own else None
        dataset = D.Images(image_folder, 32)
        loader = make(dataset, 2, sampler=sampler(dataset, own), generator=own)
        seen: list[Any] = []
        for n_taken in (1, 3, 100, 0, 2):
            for number, batch in enumerate(loader):
                if number == n_taken:
                    break
                seen.append(batch)
            seen.append(torch.rand(1, generator=own))
        found.append(seen)
    assert_same(*found)


def test_persistent_workers_draw_on_as_pytorchs_though_an_epoch_is_left_early(
    plain_pair: Pair,
) -> None:
    found = []
    for make in plain_pair.each():
        seed_all(4)
        loader, seen = make(D.Made("drawn", 24), 2, shuffle=True, persistent_workers=True), []
        for n_taken in (1, 3, 0, 100):
            seen += [batch for _, batch in zip(range(n_taken), loader, strict=False)]
        found.append(seen)
    assert_same(*found)


def test_a_sampler_of_the_users_may_have_attributes_of_its_own(plain_pair: Pair) -> None:
    found = [taken(make(D.Made("int"), 3, sampler=D.Own()), 2) for make in plain_pair.each()]
    assert_same(*found)
    iterator = iter(loader := plain_pair.ours(D.Made("int"), 3, sampler=[5, 1, 2, 4]))
    next(iterator)
    other = plain_pair.ours(D.Made("int"), 3, sampler=[5, 1, 2, 4])
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [[4]]


def test_two_iterators_at_once_go_their_own_ways(pair: Pair, image_folder: Path) -> None:
    found = []
    for make in pair.each():
        torch.manual_seed(3)
        loader = make(D.Images(image_folder, 16, draws=True), 4, shuffle=True)
        one, other = iter(loader), iter(loader)
        seen = [next(one), next(other), next(one)]
        found.append([*seen, *other, *one, *loader])
    assert_same(*found)


def test_each_iteration_sees_the_dataset_as_it_is_then(plain_pair: Pair) -> None:
    found = []
    for make in plain_pair.each():
        loader, seen = make(D.Counting(), 2), []
        for offset in (0, 0, 100):
            loader.dataset.offset = offset
            seen.append(list(loader))
        found.append(seen)
    assert_same(*found)


def test_a_program_that_counts_mini_batches_has_the_same_supervisor_in_the_next_epoch(
    plain_pair: Pair,
) -> None:
    loader = plain_pair.ours(D.Made("int", 6), 2)
    supervisors = set()
    for _ in range(3):
        iterator = iter(loader)  # the one before still exists
        assert [next(iterator).tolist() for _ in range(len(loader))] == [[0, 1], [2, 3], [4, 5]]
        supervisors |= {process.pid for process in workers()["ovl-supervisor"]}
    assert len(supervisors) == 1
    assert next(iterator, None) is None


def test_persistent_workers_keep_what_they_know_of_the_dataset(plain_pair: Pair) -> None:
    found = []
    for make in plain_pair.each():
        loader = make(D.Counting(), 2, persistent_workers=True)
        found.append([list(loader), list(loader)])
    assert_same(*found)


@pytest.mark.parametrize(
    "keys",
    [
        ["a", "b", "c"],
        [("a", 1), ("b", 2)],
        [1.5],
        pytest.param(
            torch.arange(3), marks=pytest.mark.leaks_ok("PyTorch's loader shares them by sockets")
        ),
        [2**70, True],
    ],
)
def test_keys_may_be_anything_that_the_dataset_takes(plain_pair: Pair, keys: Any) -> None:
    assert_alike(plain_pair, D.Keyed(), sampler=keys, batch_size=2)


@pytest.mark.parametrize(
    "keys",
    [
        data.BatchSampler(data.SequentialSampler(range(10)), 4, drop_last=False),
        [slice(0, 4), slice(4, 10)],
        [np.array([1, 2]), np.array([3])],
        pytest.param(
            [torch.tensor([1, 2]), torch.tensor([True] * 10)],
            marks=pytest.mark.leaks_ok("PyTorch's loader shares them by sockets"),
        ),
    ],
)
def test_a_key_may_stand_for_several_examples(plain_pair: Pair, keys: Any) -> None:
    dataset = data.TensorDataset(torch.arange(10))
    assert_alike(plain_pair, dataset, batch_size=None, sampler=keys)
    assert_alike(plain_pair, dataset, batch_size=1, sampler=[[0, 1], [2, 3]])


@pytest.mark.parametrize("key", [{"a": 1}, {1, 2}, [np.array([1, 2])], "a"])
def test_keys_that_cannot_be_hashed_may_be_in_a_list(plain_pair: Pair, key: Any) -> None:
    assert_alike(plain_pair, D.Keyed(), batch_sampler=[[key, key], [key]])


def test_an_example_is_named_and_left_out_whatever_its_key(plain_pair: Pair) -> None:
    loader = plain_pair.ours(D.Refusing([0]), 2, sampler=[[0], [1], [0], [2]], bad_examples="skip")
    with pytest.warns(BadExampleWarning, match=r"example \[0\]"):
        assert [batch.tolist() for batch in loader] == [[1], [2]]
    assert [str(error.index) for error in loader.skipped] == ["[0]"]
    deadly = plain_pair.ours(
        D.Refusing([0], functools.partial(os._exit, 1)), 1, sampler=[np.array([1, 2]), [0], [2]]
    )
    iterator = iter(deadly)
    assert next(iterator).tolist() == [1]
    with pytest.raises(WorkerDiedError, match=r"example \[0\]"):
        next(iterator)
    assert next(iterator).tolist() == [2]


def test_a_trace_shows_keys_that_are_no_numbers(plain_pair: Pair, tmp_path: Path) -> None:
    with overlapiter.trace(tmp_path / "trace.json"):
        list(plain_pair.ours(D.Keyed(), sampler=[[1, 2], b"a"]))
        plain_pair.close()
    text = (tmp_path / "trace.json").read_text()
    assert '"index":"[1, 2]"' in text
    assert """"index":"b'a'\"""" in text


def test_a_trace_has_the_epochs_that_begin_in_its_block_and_no_others(
    plain_pair: Pair, tmp_path: Path
) -> None:
    loader = plain_pair.ours(D.Made("int", 4), 2)
    list(loader)
    with overlapiter.trace(tmp_path / "trace.json"):
        list(loader)
    list(loader)
    plain_pair.close()
    assert (tmp_path / "trace.json").read_text().count("dataset[i]") == 4


@pytest.mark.parametrize("keys", [["a"], [[1], [2]]])
def test_a_mini_batch_that_cannot_be_unpickled_here_is_named_by_its_keys(
    plain_pair: Pair, keys: Any
) -> None:
    loader = plain_pair.ours(D.Keyed(), len(keys), sampler=keys, collate_fn=D.one_way)
    with pytest.raises(LookupError, match="one way") as caught:
        list(loader)
    assert f"mini-batch, {keys[0]} to {keys[-1]}, cannot" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "sampler", [torch.tensor([3, 1, 2]), data.SubsetRandomSampler(torch.tensor([1, 2, 3]))]
)
@pytest.mark.parametrize("seed", [None, 1])
def test_tensors_of_whole_numbers_are_keys_with_staging_and_a_seed_too(
    pair: Pair, image_folder: Path, sampler: Any, seed: int | None
) -> None:
    if pair.staging is None and seed is None:
        pytest.skip("they stay tensors")
    batches = list(pair.ours(D.Images(image_folder, 16), 2, sampler=list(sampler), seed=seed))
    assert sorted(torch.cat([batch[1] for batch in batches]).tolist()) == [1, 2, 3]


@pytest.mark.parametrize(
    "sampler",
    [[1, 9, -2, 70, 3, -9], data.SequentialSampler(range(12))],
)
def test_what_an_index_beyond_the_length_means_is_up_to_the_dataset(
    pair: Pair, image_folder: Path, sampler: Any
) -> None:
    found = assert_alike(pair, D.Images(image_folder, 8), 2, sampler=sampler, batch_size=1)
    assert len(found) == 2 * len(sampler)


def test_a_sampler_without_an_end_in_sight_is_not_listed_in_advance(
    pair: Pair, image_folder: Path
) -> None:
    dataset = D.Images(image_folder, 16)
    found = []
    for make in pair.each():
        generator = torch.Generator().manual_seed(1)
        sampler = data.RandomSampler(
            dataset, replacement=True, num_samples=10**10, generator=generator
        )
        found.append(list(itertools.islice(make(dataset, 2, sampler=sampler), 20)))
    assert_same(*found)


@pytest.mark.parametrize(
    "options", [{"seed": 2**63}, {"seed": -1}, {"seed": None, "shuffle": False}]
)
def test_a_distributed_sampler_may_have_any_seed_of_pytorchs(
    pair: Pair, image_folder: Path, options: Any
) -> None:
    dataset = D.Images(image_folder, 16)
    sampler = data.DistributedSampler(dataset, num_replicas=2, rank=1, **options)
    assert len(assert_alike(pair, dataset, batch_size=4, sampler=sampler)) == 2


@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_seed_needs_whole_numbers_as_keys(plain_pair: Pair, n_workers: int) -> None:
    loader = plain_pair.ours(D.Keyed(), sampler=["a"], num_workers=n_workers, seed=1)
    with pytest.raises(OptionError, match="seed: needs whole numbers as keys, not 'a'"):
        list(loader)


@pytest.mark.parametrize("size", [2**62, NotImplementedError, -1])
@pytest.mark.parametrize("n_workers", [0, 1])
def test_without_staging_the_length_of_the_dataset_does_not_matter(
    plain_pair: Pair, size: Any, n_workers: int
) -> None:
    dataset = D.Sized(size)
    assert_alike(plain_pair, dataset, batch_size=2, sampler=[3, 1, 2], num_workers=n_workers)
    loader = plain_pair.ours(dataset, 2, sampler=[3, 1, 2], num_workers=n_workers)
    next(iter(loader))
    other = plain_pair.ours(dataset, 2, sampler=[3, 1, 2], num_workers=n_workers)
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [[2]]


# --- workers ----------------------------------------------------------------------------------


def test_workers_know_who_they_are_and_have_the_seeds_of_pytorch(plain_pair: Pair) -> None:
    found = []
    for make in plain_pair.each():
        torch.manual_seed(2)
        batches = list(make(D.Informed(), 2, worker_init_fn=D.prepare, collate_fn=D.to_list))
        for example in itertools.chain(*batches):
            del example["process"]
        found.append(batches)
    assert_same(*found)
    assert found[1][0][0]["is own"]
    assert data.get_worker_info() is None


def test_a_dataset_that_a_worker_init_fn_prepares_is_staged(pair: Pair, image_folder: Path) -> None:
    loader = pair.ours(D.Prepared(image_folder, 16), 4, worker_init_fn=D.prepare)
    assert len(list(loader)) == 4
    stats = loader.stats()
    assert stats is not None
    assert stats.files_staged == (0 if pair.staging is None else 16)


def test_workers_give_tensors_the_default_type_of_the_trainer(plain_pair: Pair) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = assert_alike(plain_pair, D.Made("tensor"), batch_size=4)
    finally:
        torch.set_default_dtype(before)
    assert found[0].dtype is torch.float64


def test_a_worker_init_fn_that_raises_is_reported_by_each_worker(plain_pair: Pair) -> None:
    first = []
    for make in plain_pair.each():
        loader = make(D.Made("int", 12), 2, worker_init_fn=D.refuse)
        first.append(taken(loader)[:2])  # PyTorch's says later that it lacks a variable
    assert_same(*first)


@pytest.mark.parametrize(
    "error", [ValueError("bad"), KeyError("key"), OSError(2, "no"), IndexError(), UnicodeError("x")]
)
def test_what_the_dataset_raises_comes_with_the_words_of_pytorch_and_iteration_goes_on(
    plain_pair: Pair, error: Exception
) -> None:
    found = assert_alike(plain_pair, D.Failing(error, (5, 7)), batch_size=2)
    assert len(found) == 6


def test_an_error_that_cannot_be_made_of_a_text_is_a_runtime_error(plain_pair: Pair) -> None:
    assert_alike(plain_pair, D.TwoArgumentsAt5(), batch_size=2)


def test_a_timeout_is_pytorchs_and_says_why(plain_pair: Pair) -> None:
    texts = []

    def time_out(iterator: Any) -> bool:
        with pytest.raises(RuntimeError) as caught:
            next(iterator)
        texts.append(str(caught.value))
        is_told = "is at example 0" in str(caught.value.__cause__)
        del caught  # which makes a cycle: in it, the queues of PyTorch's end before its iterator
        return is_told

    # PyTorch 2.11 leaves a worker behind as a zombie if that does not end within 5 s.
    original = iter(plain_pair.original(D.Slow(seconds=2.0), 2, timeout=0.3))
    ours = iter(plain_pair.ours(D.Slow(), 2, timeout=0.3))
    time_out(original)
    wait_until(lambda: time_out(ours))  # at first the workers start
    assert set(texts) == {"DataLoader timed out after 0.3 seconds"}


# --- arguments and attributes -----------------------------------------------------------------


def test_no_mini_batch_in_advance_is_refused_in_pytorchs_words() -> None:
    loader = DataLoader([1, 2, 3], num_workers=1, prefetch_factor=0)
    with pytest.raises(AssertionError, match="prefetch_factor must be greater than 0 for"):
        iter(loader)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"num_workers": 1, "prefetch_factor": -2},
        {"persistent_workers": True},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"drop_last": 1},
        {"multiprocessing_context": "spawn"},
        {"num_workers": 1, "multiprocessing_context": "thread"},
        {"num_workers": 1, "multiprocessing_context": 3},
    ],
)
def test_arguments_that_do_not_go_together_are_refused_in_pytorchs_words(options: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as original:
        data.DataLoader([1, 2, 3], **options)
    with pytest.raises(type(original.value)) as ours:
        DataLoader([1, 2, 3], **options)
    assert str(ours.value) == str(original.value)


@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset"])
def test_attributes_that_may_not_be_set_are_the_same(name: str) -> None:
    texts = []
    for kind in (data.DataLoader, DataLoader):
        loader = kind([1, 2, 3])
        with pytest.raises(ValueError, match="should not be set") as caught:
            setattr(loader, name, 1)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_all_attributes_of_pytorchs_are_there_with_the_same_values() -> None:
    original, ours = data.DataLoader([1, 2, 3], 2), DataLoader([1, 2, 3], 2)
    for name, value in vars(original).items():
        if not name.endswith("sampler"):
            assert getattr(ours, name) == value
    assert isinstance(ours, data.DataLoader)
    assert len(ours) == len(original) == len(iter(ours)) == 2


def test_the_class_can_be_subscripted_and_subclassed() -> None:
    class Own(DataLoader[int]):
        def __init__(self, dataset: Any, extra: str) -> None:
            super().__init__(dataset, 2, num_workers=1)
            self.extra = extra

        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield self.extra, batch

    assert str(DataLoader[int]).endswith("DataLoader[int]")
    loader = Own([4, 5, 6], "x")
    assert_same(list(loader), [("x", torch.tensor([4, 5])), ("x", torch.tensor([6]))])
    loader.close()


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 4, "shuffle": True}, {"batch_sampler": D.Sizes()}, {"batch_size": None}],
)
def test_a_loader_of_a_librarys_making_can_be_replaced_by_one_like_it(options: Any) -> None:
    original = data.DataLoader(D.Made("tuple"), num_workers=2, prefetch_factor=3, **options)
    loader = DataLoader.like(original, seed=1)
    found = []
    for each in (original, loader):
        torch.manual_seed(1)
        found.append(list(each))
    assert_same(*found)
    assert (loader.seed, loader.prefetch_factor) == (1, 3)
    loader.close()


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_every_start_method_is_accepted(plain_pair: Pair, context: str) -> None:
    loader = plain_pair.ours(D.Made("int"), 4, multiprocessing_context=context)
    assert_same(list(loader), list(data.DataLoader(D.Made("int"), 4)))


def test_too_many_workers_give_the_warning_of_pytorch() -> None:
    texts = []
    for kind in (data.DataLoader, DataLoader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kind([1, 2, 3], num_workers=1000)
        texts.append([(each.category, str(each.message)) for each in caught])
    assert texts[0] == texts[1]
    assert "1000 worker processes" in texts[0][0][1]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="is about machines without a GPU")
def test_pin_memory_without_a_gpu_warns_as_pytorch_does_and_changes_nothing(
    plain_pair: Pair,
) -> None:
    found = []
    for make in plain_pair.each():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = list(make(D.Made("tuple"), 4, pin_memory=True))
        # From Python 3.12 on each fork of a process that has threads warns, too.
        texts = [str(w.message) for w in caught if w.category is not DeprecationWarning]
        found.append((batches, texts))
    assert_same(*found)


def test_an_iterable_style_dataset_is_refused_with_the_reason() -> None:
    class Stream(data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([1])

    with pytest.raises(ValueError, match=r"Stream is an iterable-style dataset.*keep torch\.utils"):
        DataLoader(Stream())
    with pytest.raises(ValueError, match="iterable-style"):
        DataLoader(iter([1]))


def test_the_counters_are_those_of_the_latest_iteration(plain_pair: Pair) -> None:
    loader = plain_pair.ours(D.Made("int", 4), 2)
    assert len(list(zip(loader, loader, strict=True))) == 2  # two at once
    for _ in range(2):
        before = loader.stats()
        assert len(list(loader)) == 2
        after = loader.stats()
        assert before is not None
        assert after is not None
        assert after.batches_taken > before.batches_taken


def test_an_explanation_names_the_arguments_of_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Explanation(Cause.DECODING, "Give n_processes=4.", "give n_processes=4", 1.0, 4.0)
    monkeypatch.setattr("overlapiter.explain.explain", lambda *_: told)
    with contextlib.closing(DataLoader([1.0, 2.0], num_workers=1)) as loader:
        assert loader.explain() is None
        assert len([*loader]) == 2
        found = loader.explain()
    assert found is not None
    assert (found.text, found.change) == ("Give num_workers=4.", "give num_workers=4")
