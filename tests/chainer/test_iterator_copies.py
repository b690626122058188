"""Staged copies of every size and kind: what comes of them, and how little it takes."""

from __future__ import annotations

import contextlib
import glob
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest

from overlapiter import OverlapIterator, Staging, Tier
from tests.chainer.faults import SourceFiles
from tests.chainer.file_datasets import HdfRows, KeptOpen, LocalPaths, MappedRows
from tests.chainer.iterator_datasets import DeclaredFiles
from tests.chainer.iterator_datasets import SourceFiles as UndeclaredFiles
from tests.chainer.scripts import (
    Program,
    are_gone,
    kill_all,
    wait_for_workers,
    wait_until,
    workers,
)
from tests.support.staged import (
    assert_accounted,
    charged_bytes,
    evict,
    flip,
    mend,
    pretend_reboot,
    staged_paths,
    zero,
)

LARGE_BYTES = 3 << 20

# --- the short way ----------------------------------------------------------------------------


@contextlib.contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def test_what_a_run_has_compared_goes_past_the_prefetchers(
    source: SourceFiles, tmp_path: Path
) -> None:
    with source.iterate(tmp_path / "fast") as run:
        run.take_until_staged()
        before = run.iterator.stats()
        with stopped(workers()["ovl-prefetcher"]):
            run.take(9)
            after = run.iterator.stats()
    assert after.opens_staged - before.opens_staged >= 4 * (9 - run.iterator.n_prefetch - 1)
    for name in ("files_found_staged", "files_staged", "opens_source"):
        assert getattr(after, name) == getattr(before, name)


def test_what_an_earlier_run_has_staged_is_compared_once(
    source: SourceFiles, tmp_path: Path
) -> None:
    with source.iterate(tmp_path / "fast") as run:
        run.take(3)
    with source.iterate(tmp_path / "fast") as run:
        run.take(12)
        stats = run.iterator.stats()
    assert (stats.files_found_staged, stats.files_staged, stats.opens_source) == (12, 0, 0)


def test_a_run_without_work_keeps_no_more_of_the_disk_than_its_files_take(
    source: SourceFiles, tmp_path: Path
) -> None:
    fast = tmp_path / "fast"
    with source.iterate(fast) as run:
        run.take_until_staged()
        sizes = [extent.size for extent in staged_paths(fast).values()]
        files_bytes = sum(-(-size // 4096) * 4096 for size in sizes)
        wait_until(lambda: charged_bytes(fast) == files_bytes)
        assert_accounted(fast)
        evict(fast, source.folder, source.names[:6])
        run.take(6)
        run.take_until_staged()
    assert staged_paths(fast).keys() == set(source.names)
    assert_accounted(fast)


def test_a_source_that_is_gone_for_good_holds_up_no_later_epoch(
    source: SourceFiles, tmp_path: Path
) -> None:
    with source.iterate(tmp_path / "fast") as run:
        run.take_until_staged()
        source.folder.rename(tmp_path / "away")
        run.take(9)
        assert run.iterator.stats().opens_source == 0


# --- damage and boots -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DeclaredFiles, UndeclaredFiles])
@pytest.mark.parametrize("n_readers", [1, 4])
def test_a_damaged_copy_is_read_from_the_source_once_and_staged_anew(
    source: SourceFiles, tmp_path: Path, n_readers: int, kind: type[UndeclaredFiles]
) -> None:
    fast = tmp_path / "fast"
    source.dataset = kind(source.folder, source.names)
    with source.iterate(fast, n_processes=n_readers) as run:
        run.take_until_staged()
        before = run.iterator.stats()
        for name in source.names[::5]:
            flip(fast, staged_paths(fast)[name])
        run.take(9)
        run.take_until_staged()
        after = run.iterator.stats()
    assert after.files_staged - before.files_staged == 3
    # Once for each time that it was on its way when the damage was found.
    assert 3 <= after.opens_source - before.opens_source <= 3 * (run.iterator.n_prefetch + 2)
    assert run.warnings == []
    assert_accounted(fast)


@pytest.mark.parametrize("validate", ["mtime", "never"])
def test_after_another_boot_what_never_reached_the_disk_is_staged_anew(
    source: SourceFiles, tmp_path: Path, validate: Any
) -> None:
    fast = tmp_path / "fast"
    with source.iterate(fast) as run:
        run.take(3)
    for name in source.names[::5]:
        zero(fast, staged_paths(fast)[name])
    pretend_reboot(fast)
    for n_lost in (3, 0):
        staging = Staging(
            fast, source=source.folder, keep_free=0, n_prefetchers=2, validate=validate
        )
        options = {"n_processes": 2, "dataset_timeout": None, "shuffle": False}
        with OverlapIterator(source.dataset, 4, staging=staging, **options) as iterator:
            for number in range(6):
                found = [(values.tobytes(), int(index)) for values, index in next(iterator)]
                assert found == source.epoch[number % 3]
            stats = iterator.stats()
        assert (stats.files_staged, stats.opens_source) == (n_lost, 0)
    assert_accounted(fast)


# --- tiers ------------------------------------------------------------------------------------


def test_a_tier_in_memory_that_was_emptied_fills_again_from_the_next_one(tmp_path: Path) -> None:
    source = SourceFiles(tmp_path / "source", n_files=24, most_bytes=4000)
    ram, nvme = tmp_path / "ram", tmp_path / "nvme"

    def take_epochs(ram_blocks: int) -> Any:
        staging = Staging(
            tiers=[Tier(ram, ram_blocks * 4096), Tier(nvme)], source=source.folder, keep_free=0
        )
        options = {"n_processes": 2, "dataset_timeout": None, "shuffle": False}
        with OverlapIterator(source.dataset, 4, staging=staging, **options) as iterator:
            for number in range(12):
                found = [(values.tobytes(), int(index)) for values, index in next(iterator)]
                assert found == source.epoch[number % 6]
            return iterator.stats()

    take_epochs(8)  # as many as a mini-batch in each prefetcher
    assert staged_paths(ram).keys().isdisjoint(staged_paths(nvme))
    n_lost = len(staged_paths(ram))
    assert 0 < n_lost < 24
    for path in sorted(ram.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    stats = take_epochs(100)
    assert stats.files_staged == n_lost
    assert stats.opens_source == 0
    assert staged_paths(ram).keys() == set(source.names)
    assert staged_paths(nvme) == {}
    for directory in (ram, nvme):
        assert_accounted(directory)


# --- large files ------------------------------------------------------------------------------


def written_arrays(folder: Path) -> list[np.ndarray[Any, Any]]:
    """Write arrays as .npy and as HDF5, small and large in turn; return them."""
    folder.mkdir()
    arrays = []
    for number in range(8):
        n_rows = LARGE_BYTES // 4000 if number % 2 else 5
        random = np.random.default_rng(number)
        arrays.append(random.integers(0, 2**31, (n_rows, 1000), dtype=np.int32))
        np.save(folder / f"{number}.npy", arrays[-1])
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["rows"] = arrays[-1]
    for path in folder.iterdir():
        os.utime(path, (10**9, 10**9))
    return arrays


@pytest.mark.parametrize(("kind", "suffix"), [(MappedRows, ".npy"), (HdfRows, ".h5")])
def test_rows_of_arrays_come_from_copies_of_any_size(
    tmp_path: Path, kind: type[DeclaredFiles], suffix: str
) -> None:
    arrays = written_arrays(tmp_path / "source")
    dataset = kind(tmp_path / "source", [f"{number}{suffix}" for number in range(8)])
    for run in range(2):
        staging = Staging(tmp_path / "fast", source=dataset.folder, keep_free=0)
        options = {"shuffle": False, "n_processes": 2, "dataset_timeout": None}
        with OverlapIterator(dataset, 4, staging=staging, **options) as iterator:
            for number in range(4):
                for row, index in next(iterator):
                    assert index // 4 == number % 2
                    assert (row == arrays[index][index % len(arrays[index])]).all()
            stats = iterator.stats()
        assert (stats.files_staged, stats.opens_source) == (0 if run else 8, 0)
        assert stats.opens_staged >= 16
    extents = staged_paths(tmp_path / "fast")
    assert [extents[name].is_whole for name in dataset.names] == [False, True] * 4
    assert_accounted(tmp_path / "fast")


@pytest.mark.parametrize("number", [0, 1])  # a small file, and a large one
def test_a_file_that_each_process_opens_once_is_opened_as_its_copy_by_all(
    tmp_path: Path, number: int
) -> None:
    array = written_arrays(tmp_path / "source")[number]
    dataset = KeptOpen(tmp_path / "source", [f"{number}.npy"] * 120)
    staging = Staging(tmp_path / "fast", source=dataset.folder, keep_free=0, n_prefetchers=2)
    with OverlapIterator(dataset, 4, shuffle=False, n_processes=4, staging=staging) as iterator:
        for _ in range(30):
            for row, index in next(iterator):
                assert (row == array[index % len(array)]).all()
        stats = iterator.stats()
    assert stats.opens_staged
    assert (stats.files_staged, stats.opens_source) == (1, 0)


def test_large_files_that_are_damaged_while_they_are_in_use_are_staged_anew(
    tmp_path: Path,
) -> None:
    source = SourceFiles(tmp_path / "source", n_files=12, most_bytes=2 * LARGE_BYTES)
    fast = tmp_path / "fast"
    with source.iterate(fast) as run:
        run.take_until_staged()
        whole = [extent for extent in staged_paths(fast).values() if extent.is_whole]
        assert len(whole) > 3
        for extent in whole[:3]:
            flip(fast, extent)
        run.take(9)
        run.take_until_staged()
        assert run.iterator.stats().files_staged == len(source.names) + 3
    assert_accounted(fast)


def test_a_path_that_a_library_gets_ends_as_that_of_the_source_and_lives_as_long_as_the_example(
    tmp_path: Path,
) -> None:
    source = SourceFiles(tmp_path / "source", n_files=12, most_bytes=2 * LARGE_BYTES)
    fast = tmp_path / "fast"
    dataset = LocalPaths(source.folder, source.names)
    staging = Staging(fast, source=source.folder, keep_free=0, n_prefetchers=2)
    with OverlapIterator(
        dataset, 4, shuffle=False, n_processes=2, dataset_timeout=None, staging=staging
    ) as iterator:
        for number in range(9):
            for (data, path, index), right in zip(
                next(iterator), source.epoch[number % 3], strict=True
            ):
                assert (data.tobytes(), int(index)) == right
                found = Path(os.fsdecode(path.tobytes()))
                assert fast in found.parents
                assert found.name == Path(source.names[int(index)]).name
                wait_until(lambda found=found: not found.exists())
        assert iterator.stats().opens_source == 0
        wait_until(lambda: not glob.glob(f"{fast}/overlapiter/*/local/*/*/*"))
    assert_accounted(fast)


@pytest.mark.parametrize("size_bytes", [1000, LARGE_BYTES])
def test_of_a_path_that_a_library_got_nothing_is_left_after_a_kill(
    tmp_path: Path, size_bytes: int
) -> None:
    body = """
    import os, time
    import overlapiter
    from tests.chainer.file_datasets import LocalPaths

    class Stuck(LocalPaths):
        def get_example(self, i):
            found = overlapiter.local_path(os.path.join(self.folder, self.names[i]))
            time.sleep(1000)

    if __name__ == "__main__":
        os.mkdir("source")
        for name in "abcd":
            with open(f"source/{name}", "wb") as file:
                file.write(bytes(%d))
        staging = overlapiter.Staging("fast", source="source", keep_free=0, n_prefetchers=1)
        it = overlapiter.OverlapIterator(
            Stuck("source", "abcd"), 1, shuffle=False, n_processes=1, staging=staging
        )
        print("ready", flush=True)
        next(it)
    """
    fast = tmp_path / "fast"
    with Program(tmp_path, body % size_bytes) as program:
        program.wait_for("ready")
        wait_until(lambda: glob.glob(f"{fast}/overlapiter/*/local/*/*/a"))
        # None is to be replaced, so the trainer is stopped, and the supervisor killed first.
        kinds = ("ovl-supervisor", "ovl-reader", "ovl-prefetcher")
        trainer = psutil.Process(program.process.pid)
        wait_for_workers(dict.fromkeys(kinds, 1), trainer)
        found = workers(trainer)
        killed = [process for kind in kinds for process in found[kind]]
        trainer.suspend()
        kill_all(killed)
        assert are_gone(killed)
        program.process.kill()
    assert list(fast.rglob("local/*/*/*"))
    mend(fast, tmp_path / "source")
    assert not list(fast.rglob("local/*"))
    assert_accounted(fast)
