"""The staging disk fails in many ways: the mini-batches stay, and staging goes on by itself."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from overlapiter import local_path
from overlapiter.store.generation import generation_of
from overlapiter.store.segments import aligned
from tests.chainer.faults import Image, SourceFiles
from tests.chainer.iterator_datasets import DeclaredFiles
from tests.chainer.scripts import PROMPT_SECONDS, wait_until, workers
from tests.store.disks import mounted, mounted_tmpfs
from tests.support.staged import (
    DAMAGE,
    INDEX_DAMAGE,
    assert_accounted,
    being_copied,
    blocks_on_disk,
    evict,
    mend,
    query,
    segments,
    staged_paths,
    zero,
)

#: What the index takes at most here, its log and its reserve included.
INDEX_BYTES = 1 << 20

# --- full -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most_bytes", [3_000, 90_000])
def test_a_disk_that_fills_up_at_any_byte_is_passed_by_and_used_again_when_there_is_room(
    tmp_path: Path, seed: int, most_bytes: int
) -> None:
    source = SourceFiles(tmp_path / "source", most_bytes=most_bytes, seed=seed)
    room_bytes = random.Random(seed).randrange(source.total_bytes)
    disk_bytes = 2 * source.total_bytes + INDEX_BYTES

    def is_all_staged() -> bool:
        return staged_paths(disk / "fast").keys() == set(source.names)

    with mounted_tmpfs(tmp_path / "disk", disk_bytes) as disk:
        with (disk / "filler").open("wb") as filler:  # whatever else is on that disk
            filler.truncate(0)
            os.posix_fallocate(filler.fileno(), 0, disk_bytes - room_bytes - INDEX_BYTES // 3)
        with source.iterate(disk / "fast") as run:
            run.take(9)
            fill_up(disk / "more")
            damaged = list(staged_paths(disk / "fast").values())[:3]
            for extent in damaged:
                with contextlib.suppress(OSError):  # evicted meanwhile: no room for it any more
                    zero(disk / "fast", extent)  # they are to be staged anew
            gone = set(damaged).difference(staged_paths(disk / "fast").values())
            run.take(6)
            fill_up(disk / "even more")  # what was evicted meanwhile
            # Small files may all lie in what the index has given up and not used.
            run.take_until(lambda stats: stats.files_refused or is_all_staged())
            run.take(6)
            before, was_all_staged = run.iterator.stats(), is_all_staged()
            for name in ("filler", "more", "even more"):
                (disk / name).unlink()
            run.take_until_staged()
            after = run.iterator.stats()
        assert after.files_staged > before.files_staged or was_all_staged
        assert is_all_staged()
        assert being_copied(disk / "fast") == set()
        # What was evicted before it was zeroed was filled by that.
        assert_accounted(disk / "fast", sum(aligned(extent.size, 4096) for extent in gone))
    # None, if it was enough to evict what is needed later, or to try again.
    assert len(run.warnings) <= 1
    assert [text for text in run.warnings if f"{disk / 'fast'} is full" not in text] == []


def test_on_a_disk_that_something_else_fills_to_the_last_block_what_is_needed_last_makes_room(
    tmp_path: Path,
) -> None:
    source = SourceFiles(tmp_path / "source", n_files=600, most_bytes=20_000)
    with (
        mounted_tmpfs(tmp_path / "disk", 3 * source.total_bytes) as disk,
        source.iterate(disk / "fast") as run,
    ):
        run.take(len(source.epoch) // 2)
        run.settle()
        query(disk / "fast", "PRAGMA wal_checkpoint(TRUNCATE)")  # so that its log has no room
        fill_up(disk / "more")
        before = run.iterator.stats()
        run.take_until(lambda stats: stats.files_evicted > 50)
        run.take_until(lambda stats: stats.files_staged > before.files_staged + 50)
        run.take(len(source.epoch))
        (disk / "more").unlink()
        reserve = Path(generation_of(str(disk / "fast"))) / "reserve"
        wait_until(lambda: reserve.exists())  # it is made again once a prefetcher is at rest
    assert_accounted(disk / "fast")


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


@pytest.mark.parametrize("option", ["capacity", "keep_free"])
def test_below_a_limit_that_is_reached_staging_goes_on(
    source: SourceFiles, tmp_path: Path, option: str
) -> None:
    disk_bytes = 2 * source.total_bytes + INDEX_BYTES
    largest_bytes = max((source.folder / name).stat().st_size for name in source.names)
    with mounted_tmpfs(tmp_path / "disk", disk_bytes) as disk:
        value = source.total_bytes // 2 if option == "capacity" else disk_bytes // 4
        if option == "keep_free":
            with (disk / "filler").open("wb") as filler:
                n_bytes = disk_bytes - INDEX_BYTES // 3 - value - 2 * largest_bytes
                os.posix_fallocate(filler.fileno(), 0, n_bytes)
        with source.iterate(disk / "fast", **{option: value}) as run:
            run.take(12)
            assert run.iterator.stats().files_staged > 0
            assert len(staged_paths(disk / "fast")) < len(source.names)
            if option == "keep_free":
                (disk / "filler").unlink()
                run.take_until_staged()
            assert run.warnings or run.iterator.stats().files_evicted
        assert option == "keep_free" or blocks_on_disk(disk / "fast") <= value
    assert [("is full" in text) for text in run.warnings] in ([], [True])


class PartlyPathed(DeclaredFiles):
    """Reads every other file as a library in C does, by the path of the copy."""

    def get_example(self, i: int) -> Any:
        if i % 2:
            return super().get_example(i)
        path = local_path(self.source_paths(i)[0])
        fd = os.open(path, os.O_RDONLY)
        try:
            return np.frombuffer(os.read(fd, 1 << 24), np.uint8), i
        finally:
            os.close(fd)


def half_done(directory: Path) -> list[str]:
    """Return what is claimed, not given back yet, or left as a path, once all processes ended."""
    numbers = {f"{segment:016x}" for (segment,) in query(directory, "SELECT id FROM segment")}
    counts = {
        "segments of a process": query(directory, "SELECT 1 FROM segment WHERE owner > 0"),
        "claimed files": being_copied(directory),
        "places to give back": query(directory, "SELECT 1 FROM going"),
        "segments without a row or the reverse": numbers ^ {s.name for s in segments(directory)},
        "paths": [*directory.glob("overlapiter/g*/local/*")],
    }
    return [what for what, found in counts.items() if found]


def test_a_run_that_ends_while_it_stages_leaves_next_to_nothing_half_done(tmp_path: Path) -> None:
    source = SourceFiles(tmp_path / "source", n_files=24, most_bytes=2_500_000)
    source.dataset = PartlyPathed(source.folder, source.names)
    fast = tmp_path / "fast"
    cut_short = []
    for number in range(8):
        with source.iterate(fast, capacity="11MB", look_ahead=8, shuffle=None) as run:
            for _ in range(1 + number):
                with run.listening():
                    next(run.iterator)
        if left := half_done(fast):  # the workers may take 0.4 s to end, on a busy machine, too
            cut_short.append((number, left))
            mend(fast, source.folder)
            assert half_done(fast) == []
        assert_accounted(fast)
        shutil.rmtree(fast)
    assert len(cut_short) <= 2, cut_short


# --- removed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [None, 10**8])
@pytest.mark.parametrize("how", ["removed", "renamed away"])
def test_a_staging_directory_that_goes_away_is_made_anew_and_staging_goes_on(
    tmp_path: Path, how: str, capacity: int | None
) -> None:
    source = SourceFiles(tmp_path / "source", n_files=120)
    fast = tmp_path / "fast"
    with source.iterate(fast, capacity=capacity) as run:
        for number in range(3):
            run.take(4)
            run.take_until(lambda _: staged_paths(fast))
            gone = fast / "overlapiter" if number == 1 else fast
            if how == "renamed away":
                gone = gone.rename(tmp_path / f"gone {number}")
            shutil.rmtree(gone, ignore_errors=True)  # it is being written to
        run.take_until_staged()
        assert run.iterator.stats().workers_replaced == 0
    assert len(run.warnings) <= 1
    with source.iterate(fast, capacity=capacity) as run:
        run.take_until_staged()
    assert staged_paths(fast).keys() == set(source.names)
    assert_accounted(fast)
    folders = [fast, *(path for path in fast.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def removed_segments() -> int:
    """Count the segments that our workers have open, and that take room without a name."""
    n_removed = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
            links = [os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
            n_removed += sum("/segments/" in link and "(deleted)" in link for link in links)
    return n_removed


def test_a_directory_that_is_removed_once_all_is_staged_gives_its_room_back_and_is_made_anew(
    tmp_path: Path,
) -> None:
    source = SourceFiles(tmp_path / "source", most_bytes=2_500_000)
    fast = tmp_path / "fast"
    with source.iterate(fast) as run:
        run.take_until_staged()
        shutil.rmtree(fast / "overlapiter")
        assert removed_segments() > 0
        run.take_until(lambda _: len(staged_paths(fast)) == len(source.names))
        run.take_until_staged()
        wait_until(lambda: not removed_segments())  # a prefetcher that has nothing to do, too
        assert run.iterator.stats().files_staged == 2 * len(source.names)
    assert run.warnings == []
    assert_accounted(fast)


@pytest.mark.parametrize("look_ahead", [2, 32])
@pytest.mark.parametrize("deed", DAMAGE)
def test_staged_bytes_that_are_damaged_never_reach_a_mini_batch_and_are_staged_anew(
    source: SourceFiles, tmp_path: Path, deed: str, look_ahead: int
) -> None:
    fast = tmp_path / "fast"
    with source.iterate(fast, look_ahead=look_ahead) as run:
        run.take(4)
        wait_until(lambda: len(staged_paths(fast)) == len(source.names))
        for _ in range(2):
            for extent in list(staged_paths(fast).values())[::3]:
                DAMAGE[deed](fast, extent)
            run.take(5)
        run.take_until_staged()
    with source.iterate(fast, look_ahead=look_ahead) as other:  # whose readers open it anew
        other.take(5)
        other.take_until_staged()
        n_staged = run.iterator.stats().files_staged + other.iterator.stats().files_staged
    assert n_staged > len(source.names)
    assert run.warnings == other.warnings == []
    assert staged_paths(fast).keys() == set(source.names)


@pytest.mark.parametrize("look_ahead", [2, 32])
def test_staged_files_that_another_run_evicts_are_read_from_the_source_and_staged_anew(
    source: SourceFiles, tmp_path: Path, look_ahead: int
) -> None:
    fast = tmp_path / "fast"
    with source.iterate(fast, look_ahead=look_ahead) as run:
        run.take(4)
        for _ in range(3):
            run.take_until(lambda _: len(staged_paths(fast)) == len(source.names))
            evict(fast, source.folder, source.names[::3])
            run.take(5)
        run.take(look_ahead)
        run.take_until_staged()
        assert run.iterator.stats().files_staged > len(source.names)
    assert staged_paths(fast).keys() == set(source.names)
    assert_accounted(fast)
    assert run.warnings == []


@pytest.mark.parametrize("deed", INDEX_DAMAGE)
def test_an_index_that_is_damaged_is_thrown_away_and_staging_begins_anew(
    source: SourceFiles, tmp_path: Path, deed: str
) -> None:
    fast = tmp_path / "fast"
    with source.iterate(fast) as run:
        run.take(4)
        wait_until(lambda: len(staged_paths(fast)) == len(source.names))
        INDEX_DAMAGE[deed](fast)
        run.take(4)
        run.take_until_staged()
    assert len(run.warnings) <= 1
    with source.iterate(fast) as run:
        run.take_until_staged()
    assert staged_paths(fast).keys() == set(source.names)
    assert_accounted(fast)


# --- sick -------------------------------------------------------------------------------------


def test_a_disk_that_becomes_read_only_still_gives_what_is_staged(
    source: SourceFiles, tmp_path: Path
) -> None:
    image = Image(tmp_path / "image")
    options = ("-o", "loop,errors=remount-ro", str(image.path))
    with (
        mounted(tmp_path / "disk", *options) as disk,
        source.iterate(disk / "fast") as run,
    ):
        run.take(4)
        wait_until(lambda: len(staged_paths(disk / "fast")) == len(source.names))
        zero(disk / "fast", staged_paths(disk / "fast")[source.names[5]])
        make_read_only(disk)
        run.take(6)
        before = run.iterator.stats()
        run.take(9)
        now = run.iterator.stats()
        assert now.opens_staged > before.opens_staged
        assert now.opens_source > before.opens_source
    assert len(run.warnings) == 1
    assert "failed (" in run.warnings[0]


@pytest.mark.parametrize("was_used", [False, True])
def test_a_disk_that_is_read_only_from_the_start_is_passed_by_until_it_is_well(
    source: SourceFiles, tmp_path: Path, was_used: bool
) -> None:
    with mounted_tmpfs(tmp_path / "disk", 4 << 20) as disk:
        if was_used:
            with source.iterate(disk / "fast") as run:
                run.take(4)
        assert remount(disk, "ro")
        with source.iterate(disk / "fast") as run:
            run.take(6)
            assert run.iterator.stats().opens_source >= 6
            assert remount(disk, "rw")
            run.take_until_staged()
    assert len(run.warnings) == 1
    assert "Read-only file system" in run.warnings[0]


def make_read_only(disk: Path) -> None:
    """Have the kernel find an error in a mounted ext4, as when its device fails."""
    number = disk.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
    trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
    if not trigger.exists():
        pytest.skip("this kernel finds no error when asked to")
    trigger.write_text("1")


def remount(disk: Path, how: str) -> bool:
    """Return whether it could be; not while a file is being written."""
    command = ["mount", "-o", f"remount,{how}", str(disk)]
    return not subprocess.run(command, check=False, capture_output=True).returncode


def test_a_disk_that_gives_input_output_errors_is_passed_by(
    source: SourceFiles, tmp_path: Path
) -> None:
    image = Image(tmp_path / "image")
    with (
        mounted(tmp_path / "disk", "-o", "loop", str(image.path)) as disk,
        source.iterate(disk / "fast") as run,
    ):
        run.take(4)
        wait_until(lambda: len(staged_paths(disk / "fast")) == len(source.names))
        image.lose(segments(disk / "fast"))
        before = run.iterator.stats().opens_source
        run.take(9)
        assert run.iterator.stats().opens_source > before
        image.recover()
        run.take_until_staged()
    assert len(run.warnings) <= 1


def test_finalize_is_bounded_whatever_happened_to_the_disk(
    source: SourceFiles, tmp_path: Path
) -> None:
    with mounted_tmpfs(tmp_path / "disk", 1 << 20) as disk, source.iterate(disk / "fast") as run:
        run.take(2)
        fill_up(disk / "filler")
        run.take(2)
        shutil.rmtree(disk / "fast", ignore_errors=True)  # it is being written to
        run.take(2)
        remount(disk, "ro")
        run.take(2)
        start = time.monotonic()
        run.iterator.finalize()
        assert time.monotonic() - start < PROMPT_SECONDS


def test_a_directory_that_cannot_be_looked_into_is_passed_by_also_by_new_readers(
    tmp_path: Path,
) -> None:
    source = SourceFiles(tmp_path / "source", n_files=40)
    root = tmp_path / "fast" / "overlapiter"
    with source.iterate(tmp_path / "fast") as run:
        run.take(2)
        root.rename(tmp_path / "gone")
        root.symlink_to(root)  # whatever looks into it fails, as where the disk is sick
        workers()["ovl-reader"][0].kill()
        run.take(20)
        assert run.iterator.stats().workers_replaced >= 1
    assert len(run.warnings) == 1
