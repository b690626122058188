"""Examples that cannot be read: left out where the user asks for it, counted and listed."""

from __future__ import annotations

import dataclasses
import os
import pickle
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainer.dataset import concat_examples as chainers_concat_examples

import overlapiter
from overlapiter import OverlapIterator, Skip
from overlapiter.errors import (
    BadExampleWarning,
    EmptyBatchError,
    ExampleError,
    OptionError,
    TooManyBadExamplesError,
)
from overlapiter.scatter import ScatteredOrder
from tests.chainer.conftest import Maker
from tests.chainer.iterator_datasets import (
    Culprit,
    DeclaredCulprit,
    Pixels,
    indices_of,
    numbered_images,
)
from tests.conftest import make_images

pytestmark = [
    pytest.mark.filterwarnings("ignore::overlapiter.errors.BadExampleWarning"),
    # They look for the files of a dataset that declares none by asking it for the example.
    pytest.mark.filterwarnings("ignore:3 prefetchers died"),
]

DEEDS = {
    "raises": "KeyError: 'no example {i}'",
    "raises_unpicklable": "CustomError: code {i}: deep inside",
    "gives_unpicklable": "cannot pickle '_thread.lock' object",
    "exits_with_words": "SystemExit: bad",
    "interrupts": "KeyboardInterrupt",
    "raises_mute": "MuteError: <",
    "exits_hard": "3 file readers died (exit status 7) on it",
    "crashes": "3 file readers died (signal 11 SIGSEGV) on it",
}


class Bad(Pixels):
    """Raises for the given indices; gives ``(array, index)`` for the others."""

    def __init__(self, n: int, bad: set[int]) -> None:
        super().__init__(n)
        self.bad = bad

    def get_example(self, i: int) -> Any:
        if i in self.bad:
            raise ValueError(f"bad {i}")
        return super().get_example(i)


class CrashesBefore(Pixels):
    """The first examples kill the worker that reads them."""

    def __init__(self, n: int, first_good: int) -> None:
        super().__init__(n)
        self.first_good = first_good

    def get_example(self, i: int) -> Any:
        if i < self.first_good:
            os._exit(5)
        return super().get_example(i)


class BadAndGated(Bad):
    """As :class:`Bad`; from the second time on, the first example waits for a file."""

    def __init__(self, n: int, bad: set[int], gate: Path) -> None:
        super().__init__(n, bad)
        self.gate = gate
        self.n_times = 0  # as its file reader sees it

    def get_example(self, i: int) -> Any:
        self.n_times += i == 0
        while i == 0 and self.n_times > 1 and not self.gate.exists():
            time.sleep(0.005)
        return super().get_example(i)

    def source_paths(self, _: int) -> list[str]:
        return []


def take(iterator: Any, n: int) -> list[list[int]]:
    return [indices_of(next(iterator)) for _ in range(n)]


@pytest.mark.parametrize(
    ("deed", "index"), [*((deed, 6) for deed in DEEDS), ("raises", 0), ("exits_hard", 0)]
)
def test_an_example_is_left_out_and_the_others_are_what_they_were(
    make_ours: Maker, deed: str, index: int
) -> None:
    iterator = make_ours(Culprit(16, index, deed), 4, shuffle=False, bad_examples=Skip(1))

    batches = [next(iterator) for _ in range(8)]

    expected = [[i for i in range(k, k + 4) if i != index] for k in (0, 4, 8, 12)] * 2
    assert [indices_of(batch) for batch in batches] == expected
    for batch in batches:
        for array, i in batch:
            assert np.array_equal(array, Pixels(16)[int(i)][0])
    (error,) = iterator.skipped
    assert isinstance(error, ExampleError)
    assert error.index == index
    assert DEEDS[deed].format(i=index) in error.reason
    assert [e.index for e in batches[index // 4].skipped] == [index]
    assert iterator.stats().examples_skipped >= 2
    assert (iterator.epoch, iterator.current_position, iterator.is_new_epoch) == (2, 0, True)


def test_missing_and_truncated_files_are_listed_with_their_paths(
    make_ours: Maker, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    make_images(source, 12)
    (source / "00003.jpg").unlink()
    (source / "00010.jpg").write_bytes((source / "00011.jpg").read_bytes()[:200])
    staging = overlapiter.Staging(tmp_path / "fast", source=source, n_prefetchers=1, keep_free=0)
    options: dict[str, Any] = {"staging": staging} if make_ours.kind == "staged" else {}

    dataset = numbered_images(source, 12)
    iterator = make_ours(dataset, 6, shuffle=False, bad_examples=Skip("20%"), **options)

    assert take(iterator, 2) == [[0, 1, 2, 4, 5], [6, 7, 8, 9, 11]]
    paths = [error.paths for error in iterator.skipped]
    assert paths == [(str(source / "00003.jpg"),), (str(source / "00010.jpg"),)]
    missing, truncated = (error.reason for error in iterator.skipped)
    assert "FileNotFoundError" in missing
    assert "truncated" in truncated.lower()


def test_a_converter_takes_what_is_left_of_a_mini_batch(make_ours: Maker) -> None:
    iterator = make_ours(Bad(8, {1, 4}), 4, shuffle=False, bad_examples=Skip(2))
    for batch in (next(iterator), next(iterator)):
        ours = overlapiter.concat_examples(batch)
        for one, other in zip(ours, chainers_concat_examples([*batch]), strict=True):
            assert np.array_equal(one, other)
        assert len(ours[0]) == 3


def test_a_mini_batch_of_which_nothing_is_left_is_passed_over_with_its_epoch(
    make_ours: Maker,
) -> None:
    iterator = make_ours(Bad(12, {8, 9, 10, 11}), 4, shuffle=False, bad_examples=Skip(4))

    assert take(iterator, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert (iterator.epoch, iterator.current_position, iterator.is_new_epoch) == (1, 4, True)
    assert iterator.previous_epoch_detail == pytest.approx(2 / 3)
    assert take(iterator, 1) == [[4, 5, 6, 7]]
    assert not iterator.is_new_epoch


def test_nothing_but_bad_examples_at_the_end_is_the_end(make_ours: Maker) -> None:
    iterator = make_ours(
        Bad(10, {8, 9}), 4, repeat=False, shuffle=False, bad_examples=Skip(limit=2)
    )
    assert [indices_of(batch) for batch in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (iterator.epoch, iterator.current_position, iterator.is_new_epoch) == (1, 0, True)
    with pytest.raises(StopIteration):
        next(iterator)


def test_bad_examples_before_the_first_good_one_are_left_out(make_ours: Maker) -> None:
    iterator = make_ours(Bad(12, set(range(9))), 4, shuffle=False, bad_examples=Skip(9))
    assert take(iterator, 1) == [[9, 10, 11]]
    assert [error.index for error in iterator.skipped] == list(range(9))


def test_a_dataset_without_any_good_example_is_no_endless_search(make_ours: Maker) -> None:
    dataset = Bad(6, set(range(6)))
    iterator = make_ours(dataset, 4, shuffle=False, bad_examples=Skip("100%"))
    with pytest.raises(TooManyBadExamplesError) as caught:
        next(iterator)
    assert len(caught.value.examples) == 6


def test_bad_mini_batches_at_both_sides_of_an_epoch_border_are_no_whole_epoch(
    make_ours: Maker,
) -> None:
    orders = iter([[0, 1], [1, 0], [0, 1], [1, 0]] * 9)
    iterator = make_ours(
        Bad(2, {1}), 1, order_sampler=lambda _order, _: np.array(next(orders)), bad_examples=Skip(1)
    )
    assert take(iterator, 4) == [[0]] * 4


def test_many_examples_in_a_row_may_kill_their_readers(make_ours: Maker) -> None:
    iterator = make_ours(
        CrashesBefore(16, 5), 16, shuffle=False, n_processes=1, bad_examples=Skip(5)
    )
    assert take(iterator, 1) == [list(range(5, 16))]
    assert [error.index for error in iterator.skipped] == [0, 1, 2, 3, 4]


def test_the_files_of_an_example_that_kills_its_readers_are_listed(make_ours: Maker) -> None:
    folder = str(make_ours.staging.source)
    dataset = DeclaredCulprit(8, 2, "exits_hard", folder)
    iterator = make_ours(dataset, 4, shuffle=False, bad_examples=Skip(1))
    next(iterator)
    assert iterator.skipped[0].paths == (f"{folder}/2",)


def test_an_epoch_that_is_passed_over_is_told_of_though_the_wait_is_left(
    make_ours: Maker, tmp_path: Path
) -> None:
    dataset = BadAndGated(8, {4, 5, 6, 7}, tmp_path / "gate")
    # One reader, so that it has counted how often the first example was read; and one thread that
    # stages, so that the next epoch does not come to it first.
    make_ours.staging = dataclasses.replace(make_ours.staging, reads_in_flight=1)
    iterator = make_ours(dataset, 4, shuffle=False, n_processes=1, bad_examples=Skip(4))
    take(iterator, 1)
    iterator.dataset_timeout = 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("error", iterator.TimeoutWarning)
        with pytest.raises(iterator.TimeoutWarning):
            next(iterator)
    dataset.gate.touch()
    iterator.dataset_timeout = None
    assert take(iterator, 1) == [[0, 1, 2, 3]]
    assert (iterator.epoch, iterator.is_new_epoch) == (1, True)
    assert iterator.previous_epoch_detail == 0.5


def test_a_warning_that_is_an_error_loses_no_example(make_ours: Maker) -> None:
    iterator = make_ours(Bad(8, {1}), 4, shuffle=False, bad_examples=Skip(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", BadExampleWarning)
        with pytest.raises(BadExampleWarning):
            next(iterator)
        assert take(iterator, 2) == [[0, 2, 3], [4, 5, 6, 7]]


def test_beyond_the_limit_the_examples_are_named_and_the_next_ones_can_still_be_had(
    make_ours: Maker,
) -> None:
    iterator = make_ours(Bad(16, {2, 5, 9}), 4, shuffle=False, bad_examples=Skip(2))
    assert take(iterator, 2) == [[0, 1, 3], [4, 6, 7]]
    with pytest.raises(TooManyBadExamplesError, match=r"3 examples .* at most 2") as caught:
        next(iterator)
    assert [error.index for error in caught.value.examples] == [2, 5, 9]
    assert isinstance(caught.value.__cause__, ExampleError)
    assert "ValueError: bad 9" in caught.value.__cause__.worker_traceback
    assert iterator.current_position == 12
    # The next epoch holds nothing that is new.
    assert take(iterator, 5) == [[12, 13, 14, 15], [0, 1, 3], [4, 6, 7], [8, 10, 11],
                                 [12, 13, 14, 15]]  # fmt: skip


def test_an_example_that_comes_again_counts_once(make_ours: Maker) -> None:
    iterator = make_ours(Bad(6, {4}), 3, shuffle=False, bad_examples=Skip(1))
    assert take(iterator, 20) == [[0, 1, 2], [3, 5]] * 10
    assert len(iterator.skipped) == 1


def test_the_first_one_is_warned_of_once(make_ours: Maker) -> None:
    iterator = make_ours(Bad(12, {1, 6}), 4, shuffle=False, bad_examples=Skip(3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        take(iterator, 6)
    (warning,) = caught
    assert warning.category is BadExampleWarning
    assert warning.filename == __file__
    for words in ("example 1 could not be read", "ValueError: bad 1", "up to 3", "'skipped'"):
        assert words in str(warning.message)


@pytest.fixture
def ten_of_them() -> Iterator[OverlapIterator]:
    with OverlapIterator(Bad(1000, set(range(10))), 10, n_processes=1, shuffle=False,
                         bad_examples="skip") as iterator:  # fmt: skip
        yield iterator


def test_by_default_one_percent_may_be_left_out(ten_of_them: OverlapIterator) -> None:
    assert take(ten_of_them, 1) == [list(range(10, 20))]


def test_with_a_seed_leaving_out_changes_no_other_example(make_ours: Maker) -> None:
    expected = {}
    with OverlapIterator(Pixels(24), 4, n_processes=1, seed=5) as whole:
        expected = {i: a.tobytes() for _ in range(6) for a, i in next(whole)}
    iterator = make_ours(Bad(24, {3, 17}), 4, seed=5, n_processes=3, bad_examples=Skip(2))
    seen = {int(i): a.tobytes() for _ in range(6) for a, i in next(iterator)}
    assert seen == {int(i): data for i, data in expected.items() if i not in (3, 17)}


def test_the_choice_can_be_read_back_and_travels_with_copies() -> None:
    choice = Skip(limit=7)
    with OverlapIterator(Bad(8, {1}), 4, n_processes=1, shuffle=False, bad_examples=choice) as one:
        assert one.bad_examples is choice
        for other in (one.__copy__(), pickle.loads(pickle.dumps(one))):
            with other:
                assert other.bad_examples == choice
                assert take(other, 1) == [[0, 2, 3]]


@pytest.mark.parametrize("choice", ["ignore", None, True, 3])
def test_any_other_choice_is_refused_with_the_known_ones(choice: Any) -> None:
    with pytest.raises(OptionError, match=r"'raise', 'skip' or overlapiter\.Skip"):
        OverlapIterator(Pixels(4), 2, bad_examples=choice)


@pytest.mark.parametrize("limit", [-1, 1.5, "5", "101%", "x%", None, True])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(OptionError, match="limit"):
        Skip(limit)


@pytest.mark.parametrize(
    ("limit", "size", "n"), [(0, 10, 0), (5, 3, 5), ("1%", 1, 1), ("1%", 101, 2), ("7%", 100, 7)]
)
def test_a_share_is_rounded_up(limit: Any, size: int, n: int) -> None:
    assert Skip(limit).max_examples(size) == n


def test_ranks_that_share_an_order_pass_over_no_mini_batch(make_ours: Maker) -> None:
    """The others would wait for the rank that passes over one."""
    sampler = ScatteredOrder(0, 2, 0, shuffle=False)  # of this rank are 0, 2, 4, 6
    iterator = make_ours(Bad(8, {0, 2, 6}), 2, order_sampler=sampler, bad_examples=Skip(3))

    with pytest.raises(EmptyBatchError) as caught:
        next(iterator)
    assert [error.index for error in caught.value.examples] == [0, 2]
    assert indices_of(next(iterator)) == [4]

    evaluation = make_ours(
        Bad(8, {0, 2}), 2, repeat=False, order_sampler=sampler, bad_examples=Skip(2)
    )
    assert [indices_of(batch) for batch in evaluation] == [[4, 6]]
