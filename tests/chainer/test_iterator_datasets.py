"""Chainer's datasets, unchanged: each file crosses the slow store once, no reader goes there."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainer import datasets as d
from chainer.dataset import DatasetMixin
from PIL import Image

from bench.slow.store import SlowStore, attach
from overlapiter import OverlapIterator, Staging
from tests.chainer.iterator_datasets import DeclaredFiles, SourceFiles, numbered_images
from tests.conftest import make_images

N_FILES = 12


def brighten(example: Any) -> Any:
    pixels, label = example
    return pixels + 1, label


class Preprocessed(DatasetMixin):
    """Wraps a dataset as Chainer's ImageNet example does; its files are unknown."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    def get_example(self, i: int) -> Any:
        pixels, label = self.base[i]
        return pixels[:, 2:-2, 2:-2] / 255, label


class Pairs(DatasetMixin):
    """Reads two files for each example, undeclared."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base) // 2

    def get_example(self, i: int) -> Any:
        return self.base[2 * i][0] - self.base[2 * i + 1][0]


class Mirrored(d.LabeledImageDataset):
    """Reads, by code of its own, other files than its base class does."""

    def get_example(self, i: int) -> Any:
        path, label = self._pairs[len(self) - 1 - i]
        with Image.open(os.path.join(self._root, path)) as image:
            return np.array(image), np.int32(label)


class BehindMissing(SourceFiles):
    """Looks for a file that is not there before it reads one that is."""

    def get_example(self, i: int) -> Any:
        try:
            open(os.path.join(self.folder, f"{i}.cache"), "rb").close()
        except FileNotFoundError:
            return super().get_example(i)


class FromInside(SourceFiles):
    """Goes into the folder of the files while it reads one, by its name alone."""

    def get_example(self, i: int) -> Any:
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            with open(self.names[i], "rb") as file:
                return np.frombuffer(file.read(), np.uint8), np.int32(i)
        finally:
            os.chdir(before)


class ListOfNames(list):  # type: ignore[type-arg]  # of texts
    """A list that gives what is in files."""

    def __getitem__(self, i: Any) -> Any:
        with Image.open(super().__getitem__(i)) as image:
            return np.array(image)


def plain(root: Path) -> Any:
    return d.ImageDataset([f"{i:05}.jpg" for i in range(N_FILES)], str(root))


def labeled(root: Path) -> Any:
    return numbered_images(root, N_FILES)


def zipped(root: Path) -> Path:
    """Return an archive of the images, beside which nothing lies."""
    archive = root / "zipped" / "images.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(root.glob("*.jpg"))[:N_FILES]:
            file.write(path, path.name)
    return archive


def names(root: Path) -> list[str]:
    return [path.name for path in sorted(root.glob("*.jpg"))[:N_FILES]]


#: How the dataset is made of a folder, and how many files it has.
DATASETS: dict[str, tuple[Callable[[Path], Any], int]] = {
    "ImageDataset": (plain, N_FILES),
    "LabeledImageDataset": (labeled, N_FILES),
    "SubDataset": (lambda root: d.SubDataset(labeled(root), 2, 9, list(range(11, -1, -1))), 7),
    "TransformDataset": (lambda root: d.TransformDataset(labeled(root), brighten), N_FILES),
    "ConcatenatedDataset": (
        lambda root: d.ConcatenatedDataset(
            d.SubDataset(labeled(root), 0, 5), d.SubDataset(labeled(root), 5, N_FILES)
        ),
        N_FILES,
    ),
    "TupleDataset": (lambda root: d.TupleDataset(plain(root), np.arange(N_FILES)), N_FILES),
    "DictDataset": (lambda root: d.DictDataset(x=plain(root), t=list(range(N_FILES))), N_FILES),
    "cross validation": (
        lambda root: d.get_cross_validation_datasets_random(labeled(root), 3, seed=0)[0][0],
        8,
    ),
    "ZippedImageDataset": (lambda root: d.ZippedImageDataset(str(zipped(root))), 1),
    "LabeledZippedImageDataset": (
        lambda root: d.LabeledZippedImageDataset(str(zipped(root)), str(root / "list.txt")),
        1,
    ),
    "MultiZippedImageDataset": (lambda root: d.MultiZippedImageDataset([str(zipped(root))]), 1),
    "a user's own around another": (lambda root: Preprocessed(labeled(root)), N_FILES),
    "a user's own that opens files": (lambda root: SourceFiles(root, names(root)), N_FILES),
    "a user's own inside their folder": (lambda root: FromInside(root, names(root)), N_FILES),
    "a user's own that declares them": (lambda root: DeclaredFiles(root, names(root)), N_FILES),
    "a user's own of Chainer's kind": (lambda root: Mirrored(labeled(root)._pairs, root), N_FILES),
    "a user's own list": (lambda root: ListOfNames(root / name for name in names(root)), N_FILES),
    "all of these around each other": (
        lambda root: d.TransformDataset(
            d.SubDataset(Preprocessed(d.ConcatenatedDataset(labeled(root))), 0, 10), brighten
        ),
        10,
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of images of the test's own."""
    make_images(tmp_path / "source", N_FILES, (16, 16))
    return tmp_path / "source"


@pytest.fixture
def store(folder: Path) -> Iterator[SlowStore]:
    """The folder as a slow store."""
    with SlowStore(folder, open_seconds=0.001) as store:
        yield store


def flattened(example: Any) -> list[Any]:
    if isinstance(example, dict):
        example = tuple(example.values())
    return list(example) if isinstance(example, tuple) else [example]


@pytest.mark.parametrize("kind", DATASETS)
def test_each_file_is_opened_once_in_three_epochs_and_no_reader_goes_to_the_source(
    tmp_path: Path, folder: Path, store: SlowStore, kind: str
) -> None:
    make_dataset, n_files = DATASETS[kind]
    dataset = make_dataset(folder)
    staging = Staging(tmp_path / "fast", source=folder, n_prefetchers=2, keep_free=0)

    slow = attach(dataset, store)
    with OverlapIterator(slow, 4, shuffle=False, n_processes=2, staging=staging) as iterator:
        while iterator.epoch < 3:
            start = iterator.current_position
            for number, example in enumerate(next(iterator)):
                expected = dataset[(start + number) % len(dataset)]
                for one, other in zip(flattened(example), flattened(expected), strict=True):
                    np.testing.assert_array_equal(one, other)
        stats = iterator.stats()

    opens = store.opens_by_path()
    assert set(opens.values()) == {1}
    assert len(opens) == n_files
    assert stats.files_staged == n_files
    assert stats.bytes_staged == sum(os.path.getsize(folder / path) for path in opens)
    assert stats.opens_source == 0
    if "Zipped" in kind:  # each reader keeps the archive open
        assert 1 <= stats.opens_staged <= 2
    else:
        assert stats.opens_staged >= 3 * n_files


def test_a_file_behind_one_that_is_missing_is_staged(tmp_path: Path, folder: Path) -> None:
    dataset = BehindMissing(folder, names(folder))
    staging = Staging(tmp_path / "fast", source=folder, n_prefetchers=1, keep_free=0)
    with OverlapIterator(dataset, 4, shuffle=False, n_processes=1, staging=staging) as iterator:
        for _ in range(3 * N_FILES // 4):
            for data, number in next(iterator):
                assert data.tobytes() == (folder / f"{int(number):05}.jpg").read_bytes()
        stats = iterator.stats()
    assert stats.files_staged == N_FILES
    assert stats.opens_staged >= 3 * N_FILES
    # The missing one is looked for at the source each time, and nothing else is.
    assert stats.opens_source == stats.opens_staged


def test_of_several_files_that_nobody_declares_all_are_staged_in_the_end(
    tmp_path: Path, folder: Path, store: SlowStore
) -> None:
    staging = Staging(tmp_path / "fast", source=folder, n_prefetchers=1, keep_free=0, look_ahead=1)
    dataset = attach(Pairs(labeled(folder)), store)
    with OverlapIterator(dataset, 2, n_processes=1, staging=staging) as iterator:
        while iterator.epoch < 4:
            next(iterator)
        opens, stats = store.opens, iterator.stats()
        while iterator.epoch < 8:
            next(iterator)

        assert stats.files_staged == N_FILES
        assert iterator.stats().opens_source == stats.opens_source
        assert store.opens == opens


def test_the_source_is_taken_from_the_dataset_where_it_is_known(
    tmp_path: Path, folder: Path
) -> None:
    dataset = Preprocessed(d.TransformDataset(labeled(folder), brighten))
    staging = Staging(tmp_path / "fast", n_prefetchers=1, keep_free=0)

    with OverlapIterator(dataset, 4, n_processes=1, staging=staging) as iterator:
        for _ in range(3):
            next(iterator)
        stats = iterator.stats()

    assert (stats.files_staged, stats.opens_source) == (N_FILES, 0)


def test_a_second_run_finds_all_files_staged(
    tmp_path: Path, folder: Path, store: SlowStore
) -> None:
    staging = Staging(tmp_path / "fast", source=folder, n_prefetchers=1, keep_free=0)
    for run in range(2):
        dataset = attach(labeled(folder), store)
        with OverlapIterator(dataset, 4, n_processes=1, staging=staging) as iterator:
            for _ in range(3):
                next(iterator)
            stats = iterator.stats()
        assert store.opens == N_FILES  # all by the first run
        assert (stats.files_staged, stats.files_found_staged >= N_FILES) == (
            (0, True) if run else (N_FILES, stats.files_found_staged >= N_FILES)
        )


def test_training_and_validation_share_one_staging_directory(
    tmp_path: Path, folder: Path, store: SlowStore
) -> None:
    staging = Staging(tmp_path / "fast", source=folder, n_prefetchers=1, keep_free=0)
    dataset = attach(labeled(folder), store)
    with (
        OverlapIterator(dataset, 4, n_processes=1, staging=staging) as train,
        OverlapIterator(dataset, 4, repeat=False, n_processes=1, staging=staging) as val,
    ):
        for _ in range(3):
            next(train)
            next(val)
        stats = train.stats(), val.stats()

    assert store.opens_by_path().most_common(1)[0][1] == 1
    assert sum(each.files_staged for each in stats) == N_FILES
    assert sum(each.opens_source for each in stats) == 0
