"""With a seed, mini-batches follow from (seed, epoch, index) alone, byte for byte."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainer.datasets import TransformDataset
from chainer.serializers import load_npz, save_npz

from overlapiter import OverlapIterator, Staging
from overlapiter.order import seeded_order
from tests.chainer.iterator_datasets import Augmented, numbered_images
from tests.chainer.test_iterator_kills import content, kill_one
from tests.conftest import make_images

N_IMAGES = 30
N_BATCHES = 14  # of 8: three borders of an epoch, none of them at the end of a mini-batch


def distort(example: Any) -> Any:
    """Change an image by numbers from both streams."""
    pixels, label = example
    shift = random.random() + np.random.rand(*pixels.shape[1:]).astype(np.float32)
    return (pixels + shift).astype(np.float32), label


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeded")
    make_images(folder, N_IMAGES)
    return folder


def make(folder: Path, n_processes: int, **options: Any) -> OverlapIterator:
    dataset = TransformDataset(numbered_images(folder, N_IMAGES), distort)
    return OverlapIterator(dataset, 8, seed=11, n_processes=n_processes, **options)


def take(iterator: OverlapIterator, n_batches: int = N_BATCHES) -> list[Any]:
    return [content(next(iterator)) for _ in range(n_batches)]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    with make(folder, 1) as iterator:
        return take(iterator)


def test_every_example_of_every_epoch_is_another_and_has_its_place(expected: list[Any]) -> None:
    seen = [example for batch in expected for example in batch]
    assert len({pixels for pixels, _ in seen}) == len(seen)
    labels = [int(np.frombuffer(label, np.int32)[0]) for _, label in seen]
    for epoch in range(len(labels) // N_IMAGES):
        order = labels[epoch * N_IMAGES : (epoch + 1) * N_IMAGES]
        assert order == seeded_order(11, epoch, N_IMAGES).tolist()


@pytest.mark.parametrize("n_processes", [2, 7])
def test_the_number_of_readers_changes_nothing(
    folder: Path, expected: list[Any], n_processes: int
) -> None:
    np.random.seed(n_processes)  # the global state of the trainer has no say, either
    random.seed(n_processes)
    with make(folder, n_processes, n_prefetch=n_processes) as iterator:
        assert take(iterator) == expected


@pytest.mark.parametrize("n_prefetchers", [1, 3])
def test_staging_and_the_number_of_prefetchers_change_nothing(
    folder: Path, tmp_path: Path, expected: list[Any], n_prefetchers: int
) -> None:
    staging = Staging(tmp_path / "fast", source=folder, n_prefetchers=n_prefetchers, keep_free=0)
    for _ in range(2):  # nothing staged before, and everything
        with make(folder, 2, staging=staging) as iterator:
            assert take(iterator) == expected
            assert iterator.stats().opens_source == 0


@pytest.mark.parametrize("name", ["ovl-reader", "ovl-prefetcher", "ovl-supervisor"])
def test_workers_that_are_killed_change_nothing(
    folder: Path, tmp_path: Path, expected: list[Any], name: str
) -> None:
    staging = Staging(tmp_path / "fast", source=folder, n_prefetchers=2, keep_free=0)
    numbers = random.Random(2)
    n_killed = 0
    with make(folder, 2, staging=staging) as iterator:
        for step in range(N_BATCHES):
            if step in (2, 6, 9):
                n_killed += kill_one(name, signal.SIGKILL, numbers)
            assert content(next(iterator)) == expected[step]
    assert n_killed >= 2


@pytest.mark.parametrize("n_taken", [1, 3, 6])
def test_a_snapshot_in_the_middle_of_an_epoch_is_resumed_exactly(
    folder: Path, tmp_path: Path, expected: list[Any], n_taken: int
) -> None:
    with make(folder, 2) as first:
        assert take(first, n_taken) == expected[:n_taken]
        save_npz(tmp_path / "snapshot.npz", first)
        assert take(first, 2) == expected[n_taken : n_taken + 2]
    with make(folder, 3) as second:
        load_npz(tmp_path / "snapshot.npz", second)
        assert take(second, N_BATCHES - n_taken) == expected[n_taken:]


def test_copies_and_resets_go_on_from_the_same_seed(folder: Path, expected: list[Any]) -> None:
    with make(folder, 2) as iterator:
        take(iterator, 5)
        with iterator.__copy__() as other:
            assert take(other, 4) == expected[5:9]
        iterator.reset()
        assert take(iterator, 6) == expected[:6]


def test_another_seed_gives_another_order_and_other_numbers() -> None:
    batches = []
    for seed in (1, 2):
        with OverlapIterator(Augmented(64), 64, seed=seed, n_processes=2) as iterator:
            batches.append({label: pixels for pixels, label in content(next(iterator))})
    assert [*batches[0]] != [*batches[1]]
    assert all(batches[0][label] != batches[1][label] for label in batches[0])
