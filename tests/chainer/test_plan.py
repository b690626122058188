"""The plan: what cannot work is refused at construction, by its name, and with what would work."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import chainer
import pytest

from overlapiter import Staging, Tier
from overlapiter.chainer.arguments import count_readers
from overlapiter.chainer.datasets import DatasetPickler
from overlapiter.chainer.iterator import _face_of
from overlapiter.errors import OptionError, StagingError, StagingWarning
from overlapiter.node import Node, set_node
from overlapiter.planning import default_prefetchers, staging_plan
from overlapiter.workers.start.launch import pickled

N, SIZE_BYTES, BLOCK_BYTES = 4, 1000, 4096
BATCH = [0, 1, 2]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for n in range(N):
        (tmp_path / "source" / f"{n}.jpg").write_bytes(bytes(SIZE_BYTES))
    return tmp_path / "source"


@pytest.fixture
def dataset(source: Path) -> chainer.datasets.ImageDataset:
    return chainer.datasets.ImageDataset([f"{n}.jpg" for n in range(N)], str(source))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "staging"


def test_the_plan_is_in_absolute_paths_bytes_and_counts(dataset, source, monkeypatch):
    monkeypatch.chdir(source.parent)
    staging = Staging("staging", source="source", capacity="20KB", n_prefetchers=3)
    plan = staging_plan(staging, dataset, BATCH)
    assert [site.directory for site in plan.sites] == [f"{source.parent}/staging"]
    assert plan.source == str(source)
    assert plan.capacity_bytes == 20_000
    assert plan.validate == "mtime"
    assert (plan.n_prefetchers, plan.reads_in_flight) == (3, None)
    cores = len(os.sched_getaffinity(0))
    assert plan.n_first_prefetchers == min(3, cores)
    assert plan.reads_per_prefetcher == -(-64 // min(3, cores))


def test_all_prefetchers_are_started_where_their_reads_are_given(dataset, directory):
    plan = staging_plan(Staging(directory, n_prefetchers=9, reads_in_flight=50), dataset, BATCH)
    assert plan.n_first_prefetchers == 9
    assert plan.reads_per_prefetcher == 6


def test_the_defaults_follow_from_the_machine_and_the_disk(dataset, directory):
    plan = staging_plan(Staging(directory, validate="never"), dataset, BATCH)
    disk = os.statvfs(directory)
    disk_bytes = disk.f_blocks * disk.f_frsize
    assert plan.capacity_bytes is None
    assert plan.validate == "never"
    assert plan.sites[0].keep_free_bytes == pytest.approx(disk_bytes * 0.05, rel=0.01)
    assert plan.n_prefetchers == default_prefetchers(len(os.sched_getaffinity(0)))


def test_a_rank_plans_with_its_part_of_the_node(dataset, directory):
    set_node(Node("gpu1", local_rank=1, local_size=4, cores=12))
    try:
        plan = staging_plan(Staging(directory), dataset, BATCH)
        given = staging_plan(Staging(directory, reads_in_flight=50), dataset, BATCH)
        n_readers = count_readers(None)
    finally:
        set_node(None)
    assert n_readers == 12
    assert (plan.n_prefetchers, plan.n_sharers) == (default_prefetchers(12), 4)
    assert plan.first_reads_in_flight == 16
    assert (plan.least_reads_in_flight, plan.most_reads_in_flight) == (3, 64)
    assert given.first_reads_in_flight == 50  # is each rank's


def test_shares_are_shares_of_the_disk(dataset, directory):
    plan = staging_plan(Staging(directory, capacity="50%", keep_free=0), dataset, BATCH)
    disk = os.statvfs(directory)
    assert plan.capacity_bytes == disk.f_blocks * disk.f_frsize // 2
    assert plan.sites[0].keep_free_bytes == 0


def test_a_directory_that_is_no_tier_is_the_slowest_one(dataset, tmp_path):
    tiers = [Tier(tmp_path / "ram", "1MB"), Tier(tmp_path / "nvme", "2MB")]
    for directory, capacity, names in (
        (None, None, ["ram", "nvme"]),
        (tmp_path / "nvme", None, ["ram", "nvme"]),
        (tmp_path / "disk", "4MB", ["ram", "nvme", "disk"]),
    ):
        staging = Staging(directory, capacity=capacity, tiers=tiers)
        plan = staging_plan(staging, dataset, BATCH)
        assert [os.path.basename(site.directory) for site in plan.sites] == names
        assert plan.capacity_bytes == (3_000_000 if capacity is None else 7_000_000)
    assert staging_plan(Staging(directory, tiers=tiers), dataset, BATCH).capacity_bytes is None


def modes_below(directory: Path) -> set[int]:
    folders = [path for path in directory.rglob("*") if path.is_dir()]
    return {stat.S_IMODE(path.stat().st_mode) for path in folders}


def test_the_directory_is_made_and_is_private(dataset, directory):
    plan = staging_plan(Staging(directory), dataset, BATCH)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert modes_below(directory) == {0o700}
    assert staging_plan(Staging(directory), dataset, BATCH) == plan  # again, over what is there


def test_the_trainer_which_may_fork_opens_no_index(dataset, directory):
    staging_plan(Staging(directory), dataset, BATCH)
    assert [path.name for path in directory.rglob("*") if path.is_file()] == []


def test_what_an_earlier_version_staged_is_told_of_and_left_alone(dataset, directory):
    old = directory / f"source-{'0' * 12}"
    (old / "files").mkdir(parents=True)
    (old / "source.json").write_text("{}")
    (old / "files" / "0.jpg").write_bytes(b"staged")
    with pytest.warns(StagingWarning, match=f"evict {directory} --old"):
        staging_plan(Staging(directory), dataset, BATCH)
    assert (old / "files" / "0.jpg").read_bytes() == b"staged"


# --- the source -------------------------------------------------------------------------------


class Unknown:
    def __getitem__(self, index):
        return index

    def __len__(self) -> int:
        return N


def refused(option: str, staging: Staging, dataset) -> str:
    with pytest.raises(OptionError) as caught:
        staging_plan(staging, dataset, BATCH)
    assert caught.value.option == option
    return str(caught.value)


def test_a_source_that_is_not_there_is_refused(dataset, directory, source):
    for missing in (source / "none", source / "0.jpg"):
        staging = Staging(directory, source=missing)
        assert "check the path and the mount" in refused("source", staging, dataset)
    assert not directory.exists()


def test_a_root_of_the_dataset_that_is_not_there_is_refused(directory):
    dataset = chainer.datasets.ImageDataset(["a.jpg"], "/lustre/not/mounted")
    assert "/lustre/not/mounted" in refused("source", Staging(directory), dataset)


@pytest.mark.parametrize("held", [[1, 2, 3, 4], Unknown()])
def test_of_a_dataset_without_a_known_root_the_source_must_be_named(directory, held, source):
    assert "none is known" in refused("source", Staging(directory), held)
    assert staging_plan(Staging(directory, source=source), held, BATCH).source == str(source)


def test_of_several_roots_one_must_be_named(dataset, directory, tmp_path):
    other = chainer.datasets.ImageDataset(["a.jpg"] * N, str(tmp_path / "other"))
    pair = chainer.datasets.TupleDataset(dataset, other)
    text = refused("source", Staging(directory), pair)
    assert f"several were found ({tmp_path}/other, {tmp_path}/source)" in text
    named = Staging(directory, source=dataset._root)
    assert staging_plan(named, pair, BATCH).source == dataset._root


# --- the directory ----------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "staging", "deep/down", "../source/staging"])
def test_a_staging_directory_in_the_source_is_refused_before_anything_is_made(
    dataset, source, below
):
    text = refused("directory", Staging(source / below), dataset)
    assert "choose one on another disk" in text
    assert sorted(os.listdir(source)) == [f"{n}.jpg" for n in range(N)]


def test_a_source_below_the_staging_directory_is_refused(dataset, tmp_path):
    before = sorted(os.listdir(tmp_path))
    assert "holds the source" in refused("directory", Staging(tmp_path), dataset)
    (tmp_path / "link").symlink_to(tmp_path)
    assert "holds the source" in refused("directory", Staging(tmp_path / "link"), dataset)
    (tmp_path / "link").unlink()
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("other", ["ram", "ram/below", "link", "link/below", "."])
def test_a_tier_that_is_or_lies_in_another_one_is_refused(dataset, tmp_path, other):
    (tmp_path / "disks" / "ram").mkdir(parents=True)
    (tmp_path / "disks" / "link").symlink_to("ram")
    tiers = [Tier(tmp_path / "disks" / "ram", "1MB"), Tier(tmp_path / "disks" / other)]
    with pytest.raises(OptionError) as caught:
        staging_plan(Staging(tiers=tiers), dataset, BATCH)
    assert caught.value.option == "tiers"
    assert list((tmp_path / "disks" / "ram").iterdir()) == []


def test_a_directory_may_be_given_by_the_home_directory(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    staging = Staging("~/last", tiers=[Tier("~/ram", "1MB"), Tier(tmp_path / "last")])
    plan = staging_plan(staging, dataset, BATCH)
    assert [site.directory for site in plan.sites] == [f"{tmp_path}/ram", f"{tmp_path}/last"]
    assert (tmp_path / "ram").is_dir()
    assert not (tmp_path / "~").exists()


def test_a_directory_that_exists_keeps_its_mode_and_what_lies_there(dataset, directory):
    directory.mkdir(mode=0o755)
    (directory / "mine").write_text("mine")
    staging_plan(Staging(directory), dataset, BATCH)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert modes_below(directory) == {0o700}
    assert (directory / "mine").read_text() == "mine"


def failed(directory: Path, dataset) -> str:
    with pytest.raises(StagingError) as caught:
        staging_plan(Staging(directory), dataset, BATCH)
    assert caught.value.directory.startswith(str(directory))
    return str(caught.value)


def test_a_missing_parent_is_not_made(dataset, directory):
    assert "make it first" in failed(directory / "me", dataset)
    assert not directory.exists()


def test_a_parent_that_is_a_file_is_told(dataset, directory):
    directory.write_text("in the way")
    assert f"parent {directory} does not exist" in failed(directory / "me", dataset)


def test_a_directory_that_is_a_file_is_told(dataset, directory):
    directory.write_text("in the way")
    assert "is a file, not a directory" in failed(directory, dataset)


def test_a_directory_that_not_even_root_can_make_is_told(dataset):
    assert "choose a directory that you may write" in failed(Path("/proc/staging"), dataset)


def test_a_directory_that_not_even_root_can_write_is_told(dataset):
    assert "directory" in failed(Path("/proc/self/fd"), dataset)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes whatever the mode")
def test_a_directory_without_write_permission_is_told(dataset, directory):
    directory.mkdir(mode=0o500)
    assert "Permission denied" in failed(directory, dataset)


@pytest.mark.parametrize(
    "place", ["overlapiter", "overlapiter/g0001", "overlapiter/g0001/segments"]
)
def test_links_where_the_staging_directory_has_its_own_folders_are_not_followed(
    dataset, directory, tmp_path, place
):
    (directory / place).parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", directory / place)
    with pytest.raises(StagingError, match="is no directory"):
        staging_plan(Staging(directory), dataset, BATCH)
    assert os.listdir(tmp_path / "elsewhere") == []


# --- the capacity -----------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 3 * BLOCK_BYTES - 1])
def test_a_capacity_below_a_mini_batch_is_refused(dataset, directory, capacity):
    text = refused("capacity", Staging(directory, capacity=capacity), dataset)
    assert f"{capacity} bytes are less than" in text
    assert f"({3 * BLOCK_BYTES} bytes" in text


def test_a_capacity_of_a_mini_batch_is_enough_and_a_file_used_twice_counts_once(dataset, directory):
    staging = Staging(directory, capacity=3 * BLOCK_BYTES)
    assert staging_plan(staging, dataset, [0, 1, 2, 2, 1]) is not None


def test_files_that_are_missing_or_elsewhere_or_unknown_need_one_block(source, directory, tmp_path):
    staging = Staging(directory, source=source, capacity=4096)
    (tmp_path / "big.jpg").write_bytes(bytes(10**6))
    for dataset in (
        chainer.datasets.ImageDataset(["../big.jpg", "none.jpg"], str(source)),
        Unknown(),
    ):
        assert staging_plan(staging, dataset, [0, 1]).capacity_bytes == 4096


@pytest.mark.parametrize(("capacity", "n_looks"), [(3 * BLOCK_BYTES, 3), ("1TB", 1)])
def test_a_slow_store_is_asked_for_each_size_once_and_where_there_is_ample_room_for_one(
    monkeypatch, source, dataset, directory, capacity, n_looks
):
    looked_at = []

    def stat(path, *args, _underlying=os.stat, **options):
        if str(path).startswith(f"{source}/"):
            looked_at.append(path)
        return _underlying(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)
    staging_plan(Staging(directory, capacity=capacity, keep_free=0), dataset, BATCH)
    assert len(looked_at) == n_looks


def test_a_share_that_comes_to_nothing_is_refused(dataset, directory):
    text = refused("capacity", Staging(directory, capacity="0.00000000000001%"), dataset)
    assert "0 bytes are less" in text


# --- what the workers import ------------------------------------------------------------------


class Own(chainer.dataset.DatasetMixin):
    """Its pickle names the module it is defined in, and not Chainer."""


@pytest.mark.parametrize(("kind", "expected"), [(Own, True), (list, False)])
def test_chainer_is_imported_before_the_workers_start_if_the_dataset_derives_from_it(
    monkeypatch: pytest.MonkeyPatch, kind: type, expected: bool
) -> None:
    monkeypatch.setattr(Own, "__module__", "mine")
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    dataset = kind()
    parcel, modules = pickled(dataset, DatasetPickler, _face_of)
    try:
        assert not parcel.mentions("chainer")
        assert ("overlapiter.chainer.preload" in modules) == expected
    finally:
        parcel.close()


@pytest.mark.parametrize(
    ("n_cores", "n_prefetchers"), [(1, 1), (2, 2), (4, 2), (8, 2), (12, 3), (16, 4), (64, 8)]
)
def test_the_more_cores_the_more_prefetchers(n_cores, n_prefetchers):
    assert default_prefetchers(n_cores) == n_prefetchers


def test_a_source_above_few_of_the_files_is_warned_of(directory, source):
    deep = source / "deep"
    deep.mkdir()
    (deep / "0.jpg").write_bytes(b"x")
    names = ["deep/0.jpg", *(f"{n}.jpg" for n in range(N - 1))]
    dataset = chainer.datasets.ImageDataset(names, str(source))
    words = "3 of the 4 files of the first mini-batch do not lie"
    with pytest.warns(StagingWarning, match=words) as warned:
        staging_plan(Staging(directory, source=deep), dataset, [0, 1, 2, 3])
    assert warned[0].filename == __file__
