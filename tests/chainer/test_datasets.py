"""Which files Chainer's datasets read, and how their long lists travel."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import zipfile
from pathlib import Path

import chainer.datasets as D
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.chainer.datasets import DatasetPickler, PackedPairs, PackedPaths
from overlapiter.sources import declared_paths, source_roots
from overlapiter.workers.start.parcel import pickled_pieces

N = 6


@pytest.fixture
def folder(image_folder: Path, tmp_path: Path) -> Path:
    """A folder with N images, two zip files with half of them each, and lists."""
    for n in range(N):
        (tmp_path / f"{n}.jpg").write_bytes((image_folder / f"{n:05}.jpg").read_bytes())
    for number, half in enumerate([range(N // 2), range(N // 2, N)]):
        with zipfile.ZipFile(tmp_path / f"{number}.zip", "w") as archive:
            for n in half:
                archive.write(tmp_path / f"{n}.jpg", f"{n}.jpg")
    (tmp_path / "list.txt").write_text("".join(f"{n}.jpg {n}\n" for n in range(N // 2)))
    return tmp_path


@pytest.fixture
def images(folder: Path) -> D.ImageDataset:
    return D.ImageDataset([f"{n}.jpg" for n in range(N)], str(folder))


def opened_below(folder: Path, read) -> list[str]:
    """Return the files below a folder that a call opens, in order."""
    real, seen = builtins.open, []

    def noting_open(file, *args, **kwargs):
        if str(file).startswith(str(folder)):
            seen.append(str(file))
        return real(file, *args, **kwargs)

    builtins.open = io.open = noting_open
    try:
        read()
    finally:
        builtins.open = io.open = real
    return seen


def assert_declares_what_it_opens(dataset, folder: Path, indices) -> None:
    for index in indices:
        declared = declared_paths(dataset, index)
        assert declared == opened_below(folder, lambda index=index: dataset[index])
        assert declared


def other(images: D.ImageDataset) -> D.LabeledImageDataset:
    return D.LabeledImageDataset([(f"{N - 1 - n}.jpg", n) for n in range(N)], images._root)


@pytest.mark.parametrize("index_type", [int, np.intp, np.int32])
def test_image_datasets_declare_their_files(images, folder, index_type):
    indices = [index_type(i) for i in range(-N, N)]
    assert_declares_what_it_opens(images, folder, indices)
    assert_declares_what_it_opens(other(images), folder, indices)
    assert source_roots(images) == source_roots(other(images)) == {str(folder)}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda base: D.TransformDataset(base, lambda example: example),
        lambda base: D.SubDataset(base, 1, 5),
        lambda base: D.SubDataset(base, 1, 5, np.array([5, 3, 1, 0, 2, 4])),
        lambda base: D.SubDataset(base, 0, 6, [-1, -2, 3, 2, -5, 0]),
        lambda base: D.SubDataset(D.SubDataset(base, 0, 5, [5, 4, 3, 2, 1, 0]), 1, 4),
        lambda base: D.split_dataset_random(base, 4, seed=3)[1],
        lambda base: D.get_cross_validation_datasets(base, 3)[1][0],
        lambda base: D.get_cross_validation_datasets(base, 3)[2][1],
        lambda base: D.get_cross_validation_datasets_random(base, 3, seed=1)[0][0],
        lambda base: D.TupleDataset(base, range(N)),
        lambda base: D.TupleDataset(base, other(base), np.arange(N)),
        lambda base: D.DictDataset(image=base, other=other(base), label=[*range(N)]),
        lambda base: D.TupleDataset(D.TransformDataset(D.SubDataset(base, 0, N), abs), other(base)),
    ],
)
@pytest.mark.parametrize("negative", [False, True])
def test_wrappers_declare_the_files_of_what_they_wrap(images, folder, wrap, negative):
    dataset = wrap(images)
    n = len(dataset)
    assert_declares_what_it_opens(dataset, folder, range(-n, 0) if negative else range(n))
    assert source_roots(dataset) == {str(folder)}


def test_concatenated_datasets_declare_the_files_of_the_part(images, folder):
    dataset = D.ConcatenatedDataset(images, D.SubDataset(images, 2, 2), other(images))
    assert_declares_what_it_opens(dataset, folder, range(2 * N))
    mixed = D.ConcatenatedDataset(images, [1, 2, 3])
    assert declared_paths(mixed, N + 1) == declared_paths(mixed, 100) == []


def test_zipped_datasets_declare_the_archive(folder):
    archive = str(folder / "1.zip")
    zipped = D.ZippedImageDataset(archive)
    labeled = D.LabeledZippedImageDataset(str(folder / "0.zip"), str(folder / "list.txt"))
    for index in range(-3, 3):
        assert declared_paths(zipped, index) == [archive]
        assert declared_paths(labeled, index) == [str(folder / "0.zip")]
    assert source_roots(zipped) == source_roots(labeled) == {str(folder)}


def test_a_dataset_of_several_archives_declares_the_one_that_holds_the_example(folder):
    names = [str(folder / f"{number}.zip") for number in range(2)]
    dataset = D.MultiZippedImageDataset(names)
    for index in range(N):
        again = pickle.loads(pickle.dumps(dataset))  # with no archive open yet
        assert declared_paths(dataset, index) == [names[index // 3]]
        assert opened_below(folder, lambda again=again, i=index: again[i]) == [names[index // 3]]
        for archive in again._zfs:
            if archive._zf is not None:
                archive._zf.close()
    assert source_roots(dataset) == {str(folder)}


class Transformed(D.LabeledImageDataset):
    """A user's class that reads what Chainer's does."""

    def __init__(self, pairs, root) -> None:
        super().__init__(pairs, root)
        self.mean = 0


class Masked(D.LabeledImageDataset):
    """A user's class that reads another file, too."""

    def get_example(self, i):
        with open(os.path.join(self._root, "list.txt")) as file:
            return *super().get_example(i), len(file.read())


def test_the_files_of_a_subclass_are_declared_unless_it_reads_by_code_of_its_own(folder):
    pairs = [(f"{n}.jpg", n) for n in range(N)]
    assert_declares_what_it_opens(Transformed(pairs, str(folder)), folder, range(N))
    assert declared_paths(Masked(pairs, str(folder)), 0) is None
    assert declared_paths(D.TransformDataset(Masked(pairs, str(folder)), abs), 0) is None
    assert source_roots(Masked(pairs, str(folder))) == {str(folder)}


def test_zipped_datasets_declare_the_archive_in_the_workers_too(folder):
    archive = str(folder / "1.zip")
    for dataset in (D.ZippedImageDataset(archive), D.MultiZippedImageDataset([archive])):
        assert declared_paths(pickled(dataset)[0], 0) == [archive]


class Reading:
    """A dataset whose files are unknown."""

    def __init__(self, base) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index):
        return self.base[index]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda unknown, known: D.TupleDataset(known, unknown),
        lambda unknown, known: D.DictDataset(a=unknown, b=known),
        lambda unknown, _: D.TransformDataset(unknown, abs),
        lambda unknown, _: D.SubDataset(unknown, 1, 3),
        lambda unknown, known: D.ConcatenatedDataset(known, unknown),
    ],
)
def test_with_one_unknown_part_all_files_must_be_discovered(images, wrap):
    dataset = wrap(Reading(images), images)
    assert declared_paths(dataset, len(dataset) - 1) is None
    assert source_roots(dataset) == {images._root}


def test_the_roots_of_all_parts_are_found(images, tmp_path):
    elsewhere = D.ImageDataset(["a.jpg"] * N, str(tmp_path / "elsewhere"))
    roots = {images._root, str(tmp_path / "elsewhere")}
    assert source_roots(D.TupleDataset(images, elsewhere)) == roots
    assert source_roots(D.DictDataset(a=images, b=elsewhere)) == roots
    assert source_roots(D.ConcatenatedDataset(images, elsewhere, [1])) == roots
    assert source_roots(Reading(D.TupleDataset(images, elsewhere))) == roots


def test_a_relative_root_is_meant_from_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert source_roots(D.ImageDataset(["a"], "images")) == {str(tmp_path / "images")}


# --- packing ----------------------------------------------------------------------------------

texts = st.text(st.characters(), max_size=6)  # any character, lone surrogates among them


@given(st.lists(texts), st.data())
def test_packed_paths_are_the_list(paths, data):
    packed = PackedPaths(paths)
    assert [*packed] == paths
    assert len(packed) == len(paths)
    assert [packed[i] for i in range(-len(paths), 0)] == paths
    cut = data.draw(st.slices(len(paths)))
    assert packed[cut] == paths[cut]
    for beyond in (len(paths), -len(paths) - 1):
        with pytest.raises(IndexError):
            packed[beyond]
    assert [*pickle.loads(pickle.dumps(packed))] == paths


@given(st.lists(st.tuples(texts, st.integers(-(2**63), 2**63 - 1)), min_size=1), st.data())
def test_packed_pairs_are_the_list(pairs, data):
    packed = PackedPairs(pairs)
    assert [*packed] == pairs
    assert {type(label) for _, label in packed} == {int}
    cut = data.draw(st.slices(len(pairs)))
    assert packed[cut] == pairs[cut]
    assert packed[np.int32(-1)] == pairs[-1]


def test_names_that_are_no_text_survive_packing():
    path = os.fsdecode(b"caf\xe9/\xff.jpg")
    assert os.fsencode(PackedPaths(["ü", path, "日本"])[1]) == b"caf\xe9/\xff.jpg"


def pickled(thing) -> tuple[object, int, int]:
    """Return what arrives, the bytes of the pickle, and the number of buffers beside it."""
    sent, *buffers = pickled_pieces(thing, DatasetPickler)
    return pickle.loads(sent, buffers=buffers), sent.nbytes, len(buffers)


PATHS = [f"{n:06}/ü{n}.jpg" for n in range(3000)]
PAIRS = [(path, n) for n, path in enumerate(PATHS)]


def test_long_lists_travel_packed_wherever_the_dataset_sits():
    labeled = D.LabeledImageDataset(PAIRS, "/lustre")
    nested = D.TupleDataset(
        D.TransformDataset(D.ImageDataset(PATHS, "/lustre"), abs), Reading(labeled)
    )
    arrived, n_bytes, n_buffers = pickled({"train": [nested]})
    images, again = arrived["train"][0]._datasets
    assert type(images._dataset._paths) is PackedPaths
    assert type(again.base._pairs) is PackedPairs
    assert [*images._dataset._paths] == PATHS
    assert [*again.base._pairs] == PAIRS
    assert n_bytes < 3000
    assert n_buffers == 5
    assert declared_paths(arrived["train"][0]._datasets[0], -1) == [f"/lustre/{PATHS[-1]}"]
    assert type(labeled._pairs) is list  # the user's own is as it was


def test_a_packed_dataset_reads_the_same_examples(folder):
    names = [f"{n % N}.jpg" for n in range(1200)]
    dataset = D.LabeledImageDataset([(name, n) for n, name in enumerate(names)], str(folder))
    arrived, _, _ = pickled(dataset)
    for index in (0, 700, -1):
        for one, expected in zip(arrived[index], dataset[index], strict=True):
            assert np.array_equal(one, expected)
            assert one.dtype == expected.dtype
    assert len(arrived) == len(dataset)


def test_a_packed_dataset_packs_again():
    arrived, _, _ = pickled(pickled(D.ImageDataset(PATHS))[0])
    assert [*arrived._paths] == PATHS


class Special(D.ImageDataset):
    """A user's class with lists and a constructor of its own."""

    def __init__(self, extra) -> None:
        super().__init__(PATHS, "/lustre")
        self.extra = extra


class Own:
    """A user's class whose attributes are called like Chainer's."""

    def __init__(self) -> None:
        self._paths, self._pairs = PATHS, PAIRS


def test_the_classes_of_users_keep_their_lists():
    own, _, _ = pickled(Own())
    assert (own._paths, own._pairs) == (PATHS, PAIRS)
    special, _, _ = pickled(Special([1, 2] * 1000))
    assert type(special) is Special
    assert special.extra == [1, 2] * 1000
    assert special._paths == PATHS


@pytest.mark.parametrize(
    "pairs",
    [
        PAIRS[:10],
        [*PAIRS, ("x.jpg", 2.5)],
        [*PAIRS, ("x.jpg", True)],
        [*PAIRS, ("x.jpg", 1, 2)],
        [*PAIRS, ["x.jpg", 1]],
        [*PAIRS, (Path("x.jpg"), 1)],
        [*PAIRS, ("x.jpg", 2**63)],
    ],
)
def test_lists_of_anything_special_travel_as_they_are(pairs):
    arrived, _, _ = pickled(D.LabeledImageDataset(pairs))
    assert arrived._pairs == pairs
