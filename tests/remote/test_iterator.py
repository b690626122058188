"""Training from an object store: what SerialIterator gives of the same files, whatever happens."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainer.datasets import LabeledImageDataset, ZippedImageDataset
from chainer.iterators import SerialIterator, ShuffleOrderSampler
from PIL import Image

from overlapiter import OverlapIterator, Staging, local_path
from overlapiter.errors import ExampleError, StagingWarning
from tests.chainer.iterator_datasets import DeclaredFiles, SourceFiles
from tests.chainer.scripts import wait_until
from tests.remote.stores import Objects, ObjectStore

BATCH_SIZE = 4


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class LocalPaths(SourceFiles):
    """As a C library reads them: by a path."""

    def get_example(self, i: int) -> tuple[Any, Any]:
        path = local_path(f"{self.folder}/{self.names[i]}")
        descriptor = os.open(path, os.O_RDONLY)
        with open(descriptor, "rb") as file:
            return np.frombuffer(file.read(), np.uint8), np.int32(i)


def iterator_of(dataset: Any, directory: Path, options: Any, **others: Any) -> OverlapIterator:
    names = ("source", "capacity", "look_ahead", "retry_seconds")
    chosen = {name: others.pop(name) for name in names if name in others}
    chosen = {"keep_free": 0, "n_prefetchers": 1, **chosen}
    staging = Staging(directory, storage_options=options, **chosen)
    others = {"n_processes": 2, "dataset_timeout": None, "shuffle": False, **others}
    return OverlapIterator(dataset, BATCH_SIZE, staging=staging, **others)


def content(batch: Any) -> list[tuple[bytes, int]]:
    return [(values.tobytes(), int(index)) for values, index in batch]


def serial(dataset: Any, **options: Any) -> Iterator[list[tuple[bytes, int]]]:
    return map(content, SerialIterator(dataset, BATCH_SIZE, **{"shuffle": False, **options}))


# --- what comes -------------------------------------------------------------------------------


def test_two_iterators_give_what_the_files_hold_and_each_object_is_read_once(
    objects: Objects, tmp_path: Path
) -> None:
    options = objects.store.options
    samplers = [[ShuffleOrderSampler(np.random.RandomState(n)) for n in (0, 1)] for _ in range(2)]
    remote, local = (
        DeclaredFiles(str(root), objects.names) for root in (objects.root, objects.folder)
    )
    ranks = [
        iterator_of(
            remote, tmp_path / "fast", options, source=objects.root, shuffle=None, order_sampler=s
        )
        for s in samplers[0]
    ]
    expected = [serial(local, shuffle=None, order_sampler=s) for s in samplers[1]]
    for _ in range(2 * len(objects.names) // BATCH_SIZE):
        for rank, right in zip(ranks, expected, strict=True):
            assert content(next(rank)) == next(right)
    for rank in ranks:
        rank.finalize()
    assert objects.requests("GET") == dict.fromkeys(objects.names, 1)

    objects.store.forget()
    with iterator_of(remote, tmp_path / "fast", options, source=objects.root) as later:
        right = serial(local)
        for _ in range(len(objects.names) // BATCH_SIZE):
            assert content(next(later)) == next(right)
        assert later.stats().opens_source == 0
    assert objects.requests("GET") == {}


def test_an_image_dataset_of_chainer_needs_a_root_alone(objects: Objects, tmp_path: Path) -> None:
    pairs = [(f"{n}.png", n) for n in range(8)]
    for name, number in pairs:
        noise = np.random.default_rng(number).integers(0, 256, (8, 9, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "png")
        objects.put(name, file.getvalue())
    remote, local = (LabeledImageDataset(pairs, str(r)) for r in (objects.root, objects.folder))
    with iterator_of(remote, tmp_path / "fast", objects.store.options) as iterator:
        right = serial(local)
        for _ in range(4):
            assert content(next(iterator)) == next(right)
        assert iterator.stats().opens_source == 0


@pytest.mark.parametrize("kind", [SourceFiles, LocalPaths])
def test_what_is_not_staged_is_read_where_it_is(
    objects: Objects, tmp_path: Path, kind: type[SourceFiles], recwarn: Any
) -> None:
    warnings.simplefilter("always")  # that there is no room
    dataset = kind(objects.root, objects.names)
    right = serial(SourceFiles(str(objects.folder), objects.names))
    with iterator_of(
        dataset, tmp_path / "fast", objects.store.options, source=objects.root, capacity=4096
    ) as iterator:
        for _ in range(8):
            assert content(next(iterator)) == next(right)
        assert iterator.stats().opens_source > 8
    said = [str(warning.message) for warning in recwarn]
    assert any("is full" in text or "larger than all the room" in text for text in said), said


def test_a_staged_object_has_a_local_path(objects: Objects, tmp_path: Path) -> None:
    dataset = LocalPaths(objects.root, objects.names)
    right = serial(SourceFiles(str(objects.folder), objects.names))
    options = objects.store.options
    with iterator_of(dataset, tmp_path / "fast", options, source=objects.root) as iterator:
        for _ in range(8):
            assert content(next(iterator)) == next(right)
        assert iterator.stats().opens_source == 0


# --- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(("protocol", "fault"), [("s3", "reset"), ("http", "busy")])
def test_a_store_that_fails_for_a_while_is_waited_for(
    objects: Objects, tmp_path: Path, protocol: str, fault: str
) -> None:
    root = objects.root if protocol == "s3" else objects.plain
    options = objects.store.options if protocol == "s3" else None
    objects.store.fail(fault, 30)
    right = serial(DeclaredFiles(str(objects.folder), objects.names))
    with iterator_of(
        DeclaredFiles(root, objects.names), tmp_path / "fast", options, source=root
    ) as iterator:
        for _ in range(6):
            assert content(next(iterator)) == next(right)
        assert iterator.stats().opens_source == 0


def test_an_object_that_changed_between_runs_is_read_anew(objects: Objects, tmp_path: Path) -> None:
    dataset = DeclaredFiles(objects.root, objects.names)
    for salt in (b"", b"A"):
        if salt:  # of the same size, and perhaps in the same second
            objects.put(objects.names[5], salt * 3050)
        objects.store.forget()
        right = serial(DeclaredFiles(str(objects.folder), objects.names))
        options = objects.store.options
        with iterator_of(dataset, tmp_path / "fast", options, source=objects.root) as iterator:
            for _ in range(6):
                assert content(next(iterator)) == next(right)
        changed = [objects.names[5]] if salt else objects.names
        assert objects.requests("GET") == dict.fromkeys(changed, 1)


def test_wrong_credentials_are_a_clear_error_that_does_not_tell_them(
    objects: Objects, tmp_path: Path
) -> None:
    options = {**objects.store.options, "secret": "not-the-secret"}
    dataset = DeclaredFiles(objects.root, objects.names)
    with iterator_of(dataset, tmp_path / "fast", options, source=objects.root) as iterator:
        with pytest.raises(PermissionError, match="check the credentials") as caught:
            next(iterator)
        assert "not-the-secret" not in repr(iterator.staging)
    assert caught.value.filename.startswith(f"{objects.root}/0/")
    context = caught.value.__cause__
    assert isinstance(context, ExampleError)
    assert "not-the-secret" not in f"{caught.value}{context}"
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"not-the-secret" not in path.read_bytes()


def test_a_token_that_expires_amid_training_is_an_error_that_says_what_to_look_at(
    objects: Objects, tmp_path: Path
) -> None:
    dataset = DeclaredFiles(objects.root, objects.names)
    right = serial(DeclaredFiles(str(objects.folder), objects.names))
    options = objects.store.options
    with iterator_of(
        dataset, tmp_path / "fast", options, source=objects.root, look_ahead=1, repeat=False
    ) as iterator:
        assert content(next(iterator)) == next(right)
        objects.store.fail("expired", 10_000)
        with pytest.raises(OSError, match="whether the credentials have expired") as caught:
            list(iterator)
        assert caught.value.filename.startswith(objects.root)


def test_files_whose_size_is_not_told_are_read_right_and_the_user_is_told_that_none_is_staged(
    objects: Objects, tmp_path: Path
) -> None:
    names = [f"{number}-untold" for number in range(8)]
    for number, name in enumerate(names):
        objects.put(name, bytes([number]) * 3000)
    objects.store.forget()
    right = serial(DeclaredFiles(str(objects.folder), names))
    with iterator_of(
        DeclaredFiles(objects.plain, names),
        tmp_path / "fast",
        None,
        source=objects.plain,
        repeat=False,
    ) as iterator:
        with pytest.warns(StagingWarning, match="does not tell the size of some files") as warned:
            found = [*map(content, iterator)]
        assert found == [next(right), next(right)]
        assert len(warned) == 1
        assert iterator.stats().files_refused == len(names)
    # Two of these, ahead and where it is read, ask for the size that HEAD did not tell.
    reads = objects.store.requests("GET")
    assert reads == {f"plain/{objects.bucket}/train/{name}": 3 for name in names}


def test_a_missing_object_is_named_at_once(objects: Objects, tmp_path: Path) -> None:
    objects.delete(objects.names[6])
    dataset = DeclaredFiles(objects.root, objects.names)
    right = serial(DeclaredFiles(str(objects.folder), objects.names))
    options = objects.store.options
    with iterator_of(dataset, tmp_path / "fast", options, source=objects.root) as iterator:
        assert content(next(iterator)) == next(right)
        with pytest.raises(FileNotFoundError) as caught:
            next(iterator)
        assert caught.value.filename == f"{objects.root}/{objects.names[6]}"
        next(right)
        assert content(next(iterator)) == next(right)


def test_a_store_that_dies_is_an_error_that_names_the_object_until_it_is_back(
    tmp_path: Path,
) -> None:
    with ObjectStore() as store:
        objects = Objects(store, tmp_path / "local")
        dataset = DeclaredFiles(objects.root, objects.names)
        expected = [*serial(DeclaredFiles(str(objects.folder), objects.names), repeat=False)]
        with iterator_of(
            dataset,
            tmp_path / "fast",
            store.options,
            source=objects.root,
            look_ahead=2,
            retry_seconds=0.3,
        ) as iterator:
            assert content(next(iterator)) == expected[0]
            store.kill()
            failed = None
            n_taken = 1
            while failed is None:
                try:
                    assert content(next(iterator)) == expected[n_taken % len(expected)]
                except OSError as error:
                    failed = error
                n_taken += 1
            assert failed.filename.startswith(objects.root)
            assert "cannot be read" in str(failed)
            store.start()
            wait_until(lambda: taken(iterator))


def taken(iterator: Any) -> bool:
    try:
        next(iterator)
    except OSError:
        return False
    return True


# --- other protocols --------------------------------------------------------------------------


def test_files_of_a_zip_archive_are_staged_one_by_one(objects: Objects, tmp_path: Path) -> None:
    archive = tmp_path / "images.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name in objects.names:
            file.write(objects.folder / name, f"train/{name}")
    dataset = SourceFiles("zip://train", objects.names)
    right = serial(SourceFiles(str(objects.folder), objects.names))
    options = {"fo": str(archive)}
    with iterator_of(dataset, tmp_path / "fast", options, source="zip://train") as iterator:
        for _ in range(8):
            assert content(next(iterator)) == next(right)
        assert iterator.stats().files_staged == len(objects.names)


@pytest.mark.parametrize("source", ["tar://.", "tar://"])
def test_of_a_tar_whose_names_begin_with_a_dot_the_dot_is_the_source(
    objects: Objects, tmp_path: Path, source: str
) -> None:
    archive = tmp_path / "images.tar"
    with tarfile.open(archive, "w") as file:
        file.add(objects.folder, ".")
    dataset = SourceFiles("tar://.", objects.names)
    right = serial(SourceFiles(str(objects.folder), objects.names))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StagingWarning)
        options = {"fo": str(archive)}
        with iterator_of(dataset, tmp_path / "fast", options, source=source) as iterator:
            for _ in range(8):
                assert content(next(iterator)) == next(right)
            n_staged = iterator.stats().files_staged
    if source == "tar://.":
        assert (n_staged, caught) == (len(objects.names), [])
    else:
        assert n_staged == 0
        assert "names no file below the source" in str(caught[0].message)


def test_a_file_url_is_a_source_as_any(objects: Objects, tmp_path: Path) -> None:
    root = f"file://{objects.folder}"
    right = serial(DeclaredFiles(str(objects.folder), objects.names))
    dataset = DeclaredFiles(root, objects.names)
    with iterator_of(dataset, tmp_path / "fast", None, source=root) as iterator:
        for _ in range(8):
            assert content(next(iterator)) == next(right)
        assert iterator.stats().opens_source == 0


def test_an_archive_that_many_examples_read_is_staged_once(
    objects: Objects, tmp_path: Path
) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(8):
            pixels = io.BytesIO()
            Image.new("RGB", (4, 4), (number, 0, 0)).save(pixels, "png")
            archive.writestr(f"{number}.png", pixels.getvalue())
    objects.put("all.zip", file.getvalue())
    local = ZippedImageDataset(str(objects.folder / "all.zip"))
    remote = pickle.loads(pickle.dumps(local))
    remote._zipfilename = f"{objects.root}/all.zip"
    with iterator_of(remote, tmp_path / "fast", objects.store.options) as iterator:
        for _ in range(4):
            assert len(next(iterator)) == BATCH_SIZE
        assert iterator.stats().files_staged == 1
    assert objects.requests("GET") == {"all.zip": 1}
