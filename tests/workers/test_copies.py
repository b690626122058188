"""What a dataset's open gets in a worker: the staged copy if it is right, else the source."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from overlapiter.store import extents
from overlapiter.store.extents import SMALL_BYTES, WHOLE
from overlapiter.store.generation import generation_of, make_generation
from overlapiter.store.localfiles import remove_left
from overlapiter.store.site import Site
from overlapiter.workers.copies import StagedCopies
from tests.store.disks import mounted_tmpfs, run_as_root
from tests.support.staged import DAMAGE, copied, plan_for

SIZES = [1, 5000, SMALL_BYTES + 1]


class Reader:
    """Staged copies of some files, as a file reader has them for a part."""

    def __init__(self, folder: Path, sizes: list[int]) -> None:
        self.source, self.fast = folder / "source", folder / "fast"
        self.source.mkdir()
        self.copies = StagedCopies(plan_for(self.fast, self.source))
        self.paths = [f"{self.source}/{number}.nii.gz" for number in range(len(sizes))]
        self.contents = [random.Random(size).randbytes(size) for size in sizes]
        self.extents = []
        for path, data in zip(self.paths, self.contents, strict=True):
            Path(path).write_bytes(data)
            extent = copied(self.fast, self.source, path)
            if extent.size > SMALL_BYTES:
                extent = extent._replace(start=WHOLE)
            self.extents.append(extent)
            Path(path).unlink()
        self.begin_part()

    def begin_part(self) -> None:
        self.copies.begin_part({extent.key: extent for extent in self.extents})
        self.copies.begin_example()

    def read(self, number: int) -> bytes | None:
        """Return what a file holds that the dataset opens; None for that of the source."""
        file = self.copies.open(self.paths[number], "rb", (), {})
        if file is None:
            return None
        with file:
            assert file.name == self.paths[number]
            data = file.read()
            assert type(data) is bytes
            return data

    def read_by_path(self, number: int) -> bytes | None:
        path = self.copies.local_path(self.paths[number])
        return None if path is None else Path(path).read_bytes()

    def left(self) -> list[Path]:
        return list(self.fast.rglob("local/*/*/*"))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path, SIZES)
    yield reader
    reader.copies.close()


def test_files_of_any_size_come_from_their_copies(reader):
    for _ in range(2):
        for number, data in enumerate(reader.contents):
            assert reader.read(number) == data
            assert reader.read_by_path(number) == data
    assert (len(reader.copies.reads), reader.copies.opens_source) == (12, 0)
    assert reader.copies.opened == [path for path in reader.paths for _ in range(2)] * 2
    assert not reader.copies.has_missed


def test_a_file_that_is_not_in_the_table_is_for_the_source(reader):
    for path in (f"{reader.source}/other", f"{reader.source}-other/0.nii.gz"):
        assert reader.copies.open(path, "rb", (), {}) is None
        assert reader.copies.local_path(path) is None
    assert (len(reader.copies.reads), reader.copies.opens_source) == (0, 4)
    assert not reader.copies.has_missed


def test_a_path_is_found_however_it_is_written(reader, monkeypatch):
    monkeypatch.chdir(reader.source.parent)
    for path in ("source/1.nii.gz", "./source/../source/1.nii.gz", f"{reader.source}//1.nii.gz"):
        assert reader.copies.open(path, "rb", (), {}).read() == reader.contents[1]


@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("deed", DAMAGE)
@pytest.mark.parametrize("way", ["read", "read_by_path"])
def test_a_damaged_copy_is_never_given_and_makes_its_example_suspect(reader, way, deed, number):
    DAMAGE[deed](reader.fast, reader.extents[number])
    assert getattr(reader, way)(number) is None
    assert reader.copies.has_missed
    assert getattr(reader, way)(number) is None  # it is not looked at again
    assert reader.copies.opens_source == 2
    reader.copies.begin_example()
    assert not reader.copies.has_missed
    others = {0, 1, 2} - {number}
    assert all(getattr(reader, way)(other) == reader.contents[other] for other in others)
    assert not reader.copies.has_missed


@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("deed", ["a bit flipped", "zeroed", "cut"])
def test_what_is_damaged_after_it_was_read_once_is_noticed_as_well(reader, deed, number):
    assert reader.read(number) == reader.contents[number]
    DAMAGE[deed](reader.fast, reader.extents[number])
    assert reader.read(number) is None
    assert reader.copies.has_missed


def test_an_example_that_fails_on_its_copies_is_read_from_the_source_and_the_next_one_is_not(
    reader,
):
    assert reader.read(0) is not None
    reader.copies.distrust()
    assert reader.read(0) is reader.read_by_path(1) is None
    reader.copies.begin_example()
    assert reader.read(0) == reader.contents[0]


def test_what_open_refuses_the_copy_refuses(reader):
    for number in range(len(SIZES)):
        with pytest.raises(ValueError, match="unbuffered"):
            reader.copies.open(reader.paths[number], "r", (0,), {})
        with pytest.raises(LookupError):
            reader.copies.open(reader.paths[number], "r", (), {"encoding": "none such"})
    assert not reader.copies.has_missed


# --- paths ------------------------------------------------------------------------------------


def test_a_path_ends_as_that_of_the_source_does_and_is_gone_after_the_example(reader):
    paths = [reader.copies.local_path(path) for path in reader.paths]
    assert [os.path.basename(path) for path in paths] == ["0.nii.gz", "1.nii.gz", "2.nii.gz"]
    assert paths == [reader.copies.local_path(path) for path in reader.paths]  # and stays
    assert len(reader.left()) == 3
    reader.copies.begin_example()
    assert reader.left() == []
    assert not any(map(os.path.exists, paths))


def test_files_of_one_name_have_paths_of_their_own(reader):
    paths = {reader.copies.local_path(path) for path in reader.paths}
    assert len(paths) == 3
    assert len({os.path.dirname(path) for path in paths}) == 3


def test_a_large_file_takes_no_room_a_second_time(reader):
    path = reader.copies.local_path(reader.paths[2])
    assert os.stat(path).st_nlink == 2


def test_a_large_file_in_a_tier_in_memory_takes_no_room_a_second_time(tmp_path):
    path = tmp_path / "source" / "a.nii.gz"
    path.parent.mkdir()
    path.write_bytes(bytes(SMALL_BYTES + 1))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as ram:
        extent = copied(Path(ram), path.parent, path)._replace(start=WHOLE)
        make_generation(str(tmp_path / "slow"))
        plan = plan_for(tmp_path / "slow", path.parent)
        copies = StagedCopies(dataclasses.replace(plan, sites=(Site(ram), *plan.sites)))
        copies.begin_part({extent.key: extent})
        assert os.stat(copies.local_path(str(path))).st_nlink == 2
        copies.close()


@pytest.mark.parametrize(
    ("number", "is_given"), [(errno.EXDEV, True), (errno.EMLINK, True), (errno.EEXIST, False)]
)
def test_a_large_file_is_copied_only_where_it_cannot_be_linked(
    reader, monkeypatch, number, is_given
):
    def link(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    assert (reader.read_by_path(2) == reader.contents[2]) is is_given


def test_threads_of_a_dataset_share_what_is_open_and_have_paths_of_their_own(tmp_path):
    n_open = len(os.listdir("/proc/self/fd"))
    reader = Reader(tmp_path, [5000, *(SMALL_BYTES + 1 + number for number in range(8))])
    together = threading.Barrier(8, timeout=60)

    def are_right(number):
        together.wait()
        found = reader.read(0), reader.read_by_path(number)
        return found == (reader.contents[0], reader.contents[number])

    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            reader.begin_part()
            assert all(pool.map(are_right, range(1, 9)))
            reader.copies.close()
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_of_large_files_that_come_and_go_a_reader_remembers_the_last_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(extents, "_MOST_VERIFIED", 2)
    reader = Reader(tmp_path, [SMALL_BYTES + 1 + number for number in range(5)])
    for number, data in [*enumerate(reader.contents)] * 2:
        reader.copies.begin_example()
        assert reader.read(number) == data
        assert not reader.copies.have_changed()
    assert len(reader.copies._reader._verified) == 2
    reader.copies.close()


def test_a_large_file_is_verified_once_though_each_example_gets_a_path_of_its_own(reader):
    def read_bytes():
        return int(Path("/proc/self/io").read_text().split()[1])

    reader.copies.local_path(reader.paths[2])
    before = read_bytes()
    for _ in range(3):
        reader.copies.begin_example()
        assert os.stat(reader.copies.local_path(reader.paths[2])).st_nlink == 2
    assert read_bytes() - before < SIZES[2]


def test_the_files_of_a_living_process_stay_and_those_of_a_killed_one_go(reader):
    path = Path(reader.copies.local_path(reader.paths[1]))
    generation = generation_of(str(reader.fast))
    remove_left(generation)
    assert path.exists()
    left = path.parents[2] / "of-a-killed-process"
    (left / "0").mkdir(parents=True)
    (left / "0" / "a").write_bytes(b"left")
    remove_left(generation)
    assert path.exists()
    assert not left.exists()


@pytest.mark.parametrize("moment", ["made", "opened"])
def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    reader, monkeypatch, moment
) -> None:
    generation = generation_of(str(reader.fast))
    removals = iter([remove_left] * 2)  # at the first two attempts
    make, lock = tempfile.mkdtemp, fcntl.flock

    def mkdtemp(**options):
        folder = make(**options)
        next(removals, str)(generation)
        return folder

    def flock(fd, kind):
        if kind == fcntl.LOCK_EX:
            next(removals, str)(generation)
        lock(fd, kind)

    with monkeypatch.context() as patches:
        if moment == "made":
            patches.setattr(tempfile, "mkdtemp", mkdtemp)
        else:
            patches.setattr(fcntl, "flock", flock)
        path = Path(reader.copies.local_path(reader.paths[1]))
    assert list(removals) == []
    assert path.read_bytes() == reader.contents[1]
    remove_left(generation)
    assert path.exists()


def test_what_is_none_of_ours_among_the_files_of_killed_processes_is_left_alone(reader) -> None:
    path = Path(reader.copies.local_path(reader.paths[1]))
    folder = path.parents[2]
    (folder / "a file").touch()
    os.mkfifo(folder / "a fifo")
    (folder / "a link").symlink_to(reader.source)
    (folder / "of-a-killed-process").mkdir()
    remove_left(generation_of(str(reader.fast)))
    names = {"a file", "a fifo", "a link", path.parents[1].name}
    assert {found.name for found in folder.iterdir()} == names


def test_after_the_folder_of_paths_was_removed_there_is_another_one(reader):
    for _ in range(2):
        assert reader.read_by_path(1) == reader.contents[1]
        shutil.rmtree(Path(generation_of(str(reader.fast)), "local"))
        assert reader.read_by_path(0) == reader.contents[0]
        reader.begin_part()


def test_a_disk_that_turns_read_only_costs_no_reader_and_spoils_no_copy(tmp_path):
    with mounted_tmpfs(tmp_path / "fast", 8 << 20) as directory:
        reader = Reader(tmp_path, SIZES)
        assert reader.read_by_path(1) == reader.contents[1]
        assert reader.read_by_path(2) == reader.contents[2]
        run_as_root("mount", "-o", "remount,ro", str(directory))
        reader.begin_part()
        assert reader.read(1) == reader.contents[1]
        assert reader.read_by_path(2) is None
        run_as_root("mount", "-o", "remount,rw", str(directory))
        reader.begin_part()
        assert reader.read_by_path(1) == reader.contents[1]
        assert [reader.read(number) for number in range(3)] == reader.contents
        reader.copies.close()
