"""With a seed, mini-batches follow from (seed, epoch, index) alone, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainer.datasets import TransformDataset
from chainer.serializers import load_npz, save_npz

from overlapiter import OverlapIterator, Staging
from overlapiter.order import seeded_order
from tests.chainer.iterator_datasets import Augmented, numbered_images
from tests.chainer.test_iterator_kills import content, wait_and_kill
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


def test_the_number_of_readers_changes_nothing(folder: Path, expected: list[Any]) -> None:
    n_processes = 7
    np.random.seed(n_processes)  # the global state of the trainer has no say, either
    random.seed(n_processes)
    with make(folder, n_processes, n_prefetch=n_processes) as iterator:
        assert take(iterator) == expected


def test_staging_and_the_number_of_prefetchers_change_nothing(
    folder: Path, tmp_path: Path, expected: list[Any]
) -> None:
    for n_prefetchers in (3, 1):  # nothing staged before, and everything
        options = {"source": folder, "n_prefetchers": n_prefetchers, "keep_free": 0}
        with make(folder, 2, staging=Staging(tmp_path / "fast", **options)) as iterator:
            assert take(iterator) == expected
            assert iterator.stats().opens_source == 0


def test_workers_that_are_killed_change_nothing(
    folder: Path, tmp_path: Path, expected: list[Any]
) -> None:
    staging = Staging(tmp_path / "fast", source=folder, n_prefetchers=2, keep_free=0)
    names = {2: "ovl-reader", 5: "ovl-prefetcher", 8: "ovl-supervisor", 11: "ovl-reader"}
    with make(folder, 2, staging=staging) as iterator:
        for step in range(N_BATCHES):
            if step in names:
                wait_and_kill(names[step])
            assert content(next(iterator)) == expected[step]


def test_a_snapshot_in_the_middle_of_an_epoch_is_resumed_exactly(
    folder: Path, tmp_path: Path, expected: list[Any]
) -> None:
    places = (1, 3, 6)
    with make(folder, 2) as first:
        for step in range(8):
            if step in places:
                save_npz(tmp_path / f"{step}.npz", first)
            assert content(next(first)) == expected[step]
    for n_taken in places:
        with make(folder, 3) as second:
            load_npz(tmp_path / f"{n_taken}.npz", second)
            assert take(second, 8) == expected[n_taken : n_taken + 8]


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
