"""Staging that goes wrong: training goes on with the right bytes, and the user is told once."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overlapiter import OverlapIterator, Staging
from overlapiter.errors import StagingWarning
from tests.chainer.iterator_datasets import DeclaredFiles, SourceFiles
from tests.chainer.scripts import wait_until
from tests.support.staged import (
    assert_accounted,
    being_copied,
    cut,
    evict,
    segments,
    staged_paths,
)

FILE_BYTES = 40_960  # whole blocks
#: What the index, its log and its reserve take, about.
INDEX_BYTES = 250_000
N_FILES = 12
NAMES = [f"{i // 4}/{i}.bin" for i in range(N_FILES)]


def write_file(folder: Path, number: int, salt: int = 0) -> None:
    path = folder / NAMES[number]
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(100 * salt + number)
    path.write_bytes(random.integers(0, 256, FILE_BYTES, dtype=np.uint8).tobytes())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number in range(N_FILES):
        write_file(tmp_path / "source", number)
    return tmp_path / "source"


def iterator_of(source: Path, directory: Path, **options: Any) -> OverlapIterator:
    staging = Staging(directory, source=source, n_prefetchers=2, **{"keep_free": 0, **options})
    dataset = DeclaredFiles(source, NAMES)
    return OverlapIterator(dataset, 4, shuffle=False, n_processes=2, staging=staging)


def assert_right(batch: list[Any], source: Path) -> None:
    for values, index in batch:
        assert values.tobytes() == (source / NAMES[int(index)]).read_bytes()


def test_a_staging_directory_that_is_removed_while_running_changes_no_mini_batch(
    source: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings(), iterator_of(source, tmp_path / "fast") as iterator:
        warnings.simplefilter("ignore", StagingWarning)
        for step in range(20):
            if step in (4, 9):
                shutil.rmtree(tmp_path / "fast", ignore_errors=True)
            assert_right(next(iterator), source)


def test_what_was_staged_of_a_source_is_found_under_each_of_its_names(
    source: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(source)
    n_staged = []
    for name in (link, source, link):
        with iterator_of(name, tmp_path / "fast") as iterator:
            for _ in range(N_FILES // 4):
                assert_right(next(iterator), source)
            stats = iterator.stats()
        n_staged.append(stats.files_staged)
        assert stats.opens_source == 0
    assert n_staged == [N_FILES, 0, 0]


def test_a_source_root_of_any_bytes_is_staged(source: Path, tmp_path: Path) -> None:
    root = source.rename(tmp_path / os.fsdecode(b"caf\xe9 \xff"))
    for n_staged in (N_FILES, 0):
        with iterator_of(root, tmp_path / "fast") as iterator:
            for _ in range(N_FILES // 4):
                assert_right(next(iterator), root)
            assert iterator.stats().files_staged == n_staged


def test_staged_files_that_are_evicted_are_staged_again(source: Path, tmp_path: Path) -> None:
    with iterator_of(source, tmp_path / "fast", look_ahead=2) as iterator:
        for _ in range(3):
            next(iterator)
        evict(tmp_path / "fast", source, NAMES)

        def is_staged_again() -> bool:
            for _ in range(N_FILES // 4):
                assert_right(next(iterator), source)
            return len(staged_paths(tmp_path / "fast")) == N_FILES

        wait_until(is_staged_again)
        assert iterator.stats().files_staged > N_FILES

    assert staged_paths(tmp_path / "fast").keys() == set(NAMES)


def test_source_files_that_change_between_runs_are_staged_anew(
    source: Path, tmp_path: Path
) -> None:
    for run in range(3):
        with iterator_of(source, tmp_path / "fast") as iterator:
            for _ in range(3):
                assert_right(next(iterator), source)
            assert iterator.stats().files_staged == (N_FILES if run == 0 else 2)
            assert iterator.stats().opens_source == 0
        for number in (3, 7):  # of the same size
            write_file(source, number, salt=run + 1)


def test_staged_files_that_were_cut_short_between_runs_are_staged_anew(
    source: Path, tmp_path: Path
) -> None:
    fast = tmp_path / "fast"
    with iterator_of(source, fast) as iterator:
        next(iterator)
        wait_until(lambda: len(staged_paths(fast)) == N_FILES)
    for extent in staged_paths(fast).values():
        cut(fast, extent)

    with iterator_of(source, fast) as iterator:

        def is_staged_anew() -> bool:  # what a disk was too slow for is staged in a later epoch
            for _ in range(N_FILES // 4):
                assert_right(next(iterator), source)
            return iterator.stats().files_staged >= N_FILES

        wait_until(is_staged_anew)
    assert staged_paths(fast).keys() == set(NAMES)
    assert_accounted(fast)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with room for about five files."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={INDEX_BYTES + 5 * FILE_BYTES}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "none", str(disk)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("keep_free", [0, "5%"])
def test_a_staging_disk_that_is_full_is_warned_of_once_and_training_goes_on(
    source: Path, small_disk: Path, keep_free: Any
) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with iterator_of(source, small_disk / "fast", keep_free=keep_free) as iterator:
            for _ in range(12):
                assert_right(next(iterator), source)
            stats = iterator.stats()
            wait_until(lambda: not being_copied(small_disk / "fast"))  # nothing is cut short

    assert [warning.category for warning in heard] == [StagingWarning]
    assert stats.files_refused > 0
    assert stats.files_staged > 0
    assert being_copied(small_disk / "fast") == set()
    assert_accounted(small_disk / "fast")


@pytest.mark.parametrize(("n_examples", "n_telling"), [(600, 64), (9, 2)])
def test_a_source_below_which_nothing_is_opened_is_told_of_once(
    source: Path, tmp_path: Path, n_examples: int, n_telling: int
) -> None:
    (tmp_path / "link").symlink_to(source)
    dataset = SourceFiles(tmp_path / "link", (NAMES * 50)[:n_examples])
    staging = Staging(tmp_path / "fast", source=source, n_prefetchers=2, keep_free=0)
    with OverlapIterator(
        dataset, 300, repeat=False, shuffle=False, n_processes=1, staging=staging
    ) as iterator:
        words = f"none of {n_telling} examples opens a file below .*they open .*link/"
        with pytest.warns(StagingWarning, match=words) as heard:
            assert sum(map(len, iterator)) == n_examples
    assert [each.filename for each in heard] == [__file__]


class ReadsInThreads(SourceFiles):
    """Reads each example's file in a thread of its own."""

    def get_example(self, i: int) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(super().get_example, i).result()


def test_files_that_a_dataset_opens_in_threads_of_its_own_are_told_of_once(
    source: Path, tmp_path: Path
) -> None:
    staging = Staging(tmp_path / "fast", source=source, keep_free=0)
    dataset = ReadsInThreads(source, NAMES)
    words = "threads of its own .*source_paths"
    with OverlapIterator(dataset, 4, repeat=False, shuffle=False, staging=staging) as iterator:
        with pytest.warns(StagingWarning, match=words) as heard:
            batches = list(iterator)
        assert iterator.stats().files_staged == 0
    for batch in batches:
        assert_right(batch, source)
    assert (len(batches), len(heard)) == (N_FILES // 4, 1)


def test_the_staging_directory_is_private_and_links_in_it_are_not_followed(
    source: Path, tmp_path: Path
) -> None:
    with iterator_of(source, tmp_path / "fast") as iterator:
        next(iterator)
        wait_until(lambda: len(staged_paths(tmp_path / "fast")) == N_FILES)
    assert (tmp_path / "fast").stat().st_mode & 0o777 == 0o700
    victim = tmp_path / "victim"
    victim.write_bytes(b"do not touch")
    for path in segments(tmp_path / "fast"):
        path.unlink()
        path.symlink_to(victim)

    with iterator_of(source, tmp_path / "fast") as iterator:
        for _ in range(3):
            assert_right(next(iterator), source)
    assert victim.read_bytes() == b"do not touch"
