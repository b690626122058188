"""The staging disk fails in many ways: the mini-batches stay, and staging goes on by itself."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chainer.faults import Image, SourceFiles, mounted, mounted_tmpfs, staged_files
from tests.chainer.scripts import PROMPT_SECONDS, wait_until

# --- full -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most_bytes", [3_000, 90_000])
def test_a_disk_that_fills_up_at_any_byte_is_passed_by_and_used_again_when_there_is_room(
    tmp_path: Path, seed: int, most_bytes: int
) -> None:
    source = SourceFiles(tmp_path / "source", most_bytes=most_bytes, seed=seed)
    room_bytes = random.Random(seed).randrange(source.total_bytes)
    disk_bytes = 2 * source.total_bytes + (1 << 20)
    with mounted_tmpfs(tmp_path / "disk", disk_bytes) as disk:
        with (disk / "filler").open("wb") as filler:  # whatever else is on that disk
            filler.truncate(0)
            os.posix_fallocate(filler.fileno(), 0, disk_bytes - room_bytes - 24 * 4096)
        with source.iterate(disk / "fast") as run:
            run.take(9)
            fill_up(disk / "more")
            for path in staged_files(disk / "fast")[:3]:
                path.unlink(missing_ok=True)  # it may be evicted; others take what is free
            fill_up(disk / "even more")
            run.take_until(lambda stats: stats.files_refused)
            run.take(6)
            before = run.iterator.stats()
            for name in ("filler", "more", "even more"):
                (disk / name).unlink()
            run.take_until_staged()
            after = run.iterator.stats()
        assert after.files_staged > before.files_staged
        assert sorted(path.name for path in staged_files(disk / "fast")) == sorted(
            Path(name).name for name in source.names
        )
        assert list((disk / "fast").glob("*/partial/*")) == []
    # None, if it was enough to evict what is needed later.
    assert len(run.warnings) <= 1
    assert all(f"{disk / 'fast'} is full" in text for text in run.warnings)
    assert run.warnings or after.files_evicted


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
    disk_bytes = 2 * source.total_bytes + (1 << 20)
    largest_bytes = max((source.folder / name).stat().st_size for name in source.names)
    with mounted_tmpfs(tmp_path / "disk", disk_bytes) as disk:
        value = source.total_bytes // 2 if option == "capacity" else disk_bytes // 4
        if option == "keep_free":
            with (disk / "filler").open("wb") as filler:
                n_bytes = disk_bytes - value - 2 * largest_bytes
                os.posix_fallocate(filler.fileno(), 0, n_bytes)
        with source.iterate(disk / "fast", **{option: value}) as run:
            run.take(12)
            assert run.iterator.stats().files_staged > 0
            assert len(staged_files(disk / "fast")) < len(source.names)
            if option == "keep_free":
                (disk / "filler").unlink()
                run.take_until_staged()
            assert run.warnings or run.iterator.stats().files_evicted
        used_bytes = sum(path.stat().st_size for path in staged_files(disk / "fast"))
        assert option == "keep_free" or used_bytes <= value
    assert [("is full" in text) for text in run.warnings] in ([], [True])


# --- removed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [None, 10**8])
@pytest.mark.parametrize("how", ["removed", "renamed away"])
def test_a_staging_directory_that_goes_away_is_made_anew_and_staging_goes_on(
    source: SourceFiles, tmp_path: Path, how: str, capacity: int | None
) -> None:
    fast = tmp_path / "fast"
    with source.iterate(fast, capacity=capacity) as run:
        for number in range(3):
            run.take(4)
            run.take_until(lambda _: fast.exists())
            gone = fast
            if how == "renamed away":
                gone = fast.rename(tmp_path / f"gone {number}")
            shutil.rmtree(gone, ignore_errors=True)  # it is being written to
        run.take_until_staged()
        assert run.iterator.stats().files_staged > len(source.names)
    assert len(run.warnings) <= 1
    assert len(staged_files(fast)) == len(source.names)
    folders = [fast, *(path for path in fast.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def by_another(path: Path) -> None:
    """Put another file of the same size in its place."""
    path.with_name("new").write_bytes(os.urandom(path.stat().st_size))
    path.with_name("new").rename(path)


def by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def by_parent_file(path: Path) -> None:
    wait_until(lambda: is_replaced_by_file(path.parent))


def is_replaced_by_file(folder: Path) -> bool:
    try:
        folder.rename(folder.with_name(f"was {folder.name}"))
        folder.write_bytes(b"in the way")
    except OSError:  # a copy came meanwhile
        shutil.rmtree(folder.with_name(f"was {folder.name}"), ignore_errors=True)
        return False
    return True


DEEDS: dict[str, Callable[[Path], None]] = {
    "removed": Path.unlink,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 1),
    "garbage": lambda path: path.write_bytes(b"garbage"),
    "replaced": by_another,
    "a directory": by_directory,
    "a file in place of its folder": by_parent_file,
}


@pytest.mark.parametrize("look_ahead", [2, 32])
@pytest.mark.parametrize("deed", DEEDS)
def test_staged_files_that_somebody_damages_never_reach_a_mini_batch(
    source: SourceFiles, tmp_path: Path, deed: str, look_ahead: int
) -> None:
    fast = tmp_path / "fast"
    with source.iterate(fast, look_ahead=look_ahead) as run:
        run.take(4)
        wait_until(lambda: len(staged_files(fast)) == len(source.names))
        for _ in range(2):
            run.settle()  # nobody can tell what is damaged between a look and a read
            for path in sorted(staged_files(fast))[::3]:
                if path.is_file() and path.parent.parent.name == "files":
                    # A copy that is no good may go, or another come, at the same moment.
                    with contextlib.suppress(FileNotFoundError, FileExistsError):
                        DEEDS[deed](path)
            run.take(5)
        if "in place" not in deed and deed != "a directory":  # what is not ours stays
            run.take(look_ahead)
            run.take_until_staged()
            assert run.iterator.stats().files_staged > len(source.names)
    assert run.warnings == []


# --- sick -------------------------------------------------------------------------------------


def test_a_disk_that_becomes_read_only_still_gives_what_is_staged_and_is_used_again(
    source: SourceFiles, tmp_path: Path
) -> None:
    with mounted_tmpfs(tmp_path / "disk", 8 << 20) as disk:
        with source.iterate(disk / "fast") as run:
            run.take(4)
            wait_until(lambda: len(staged_files(disk / "fast")) == len(source.names))
            wait_until(lambda: is_read_only_with_gaps(disk, len(source.names)))
            run.take(3)
            before = run.iterator.stats()
            run.take(9)
            now = run.iterator.stats()
            assert now.opens_staged > before.opens_staged
            assert now.opens_source > before.opens_source
            wait_until(lambda: remount(disk, "rw"))
            run.take_until_staged()
        assert len(staged_files(disk / "fast")) == len(source.names)
    assert len(run.warnings) <= 1
    assert all("Read-only file system" in text for text in run.warnings)


def is_read_only_with_gaps(disk: Path, n_files: int) -> bool:
    """Remove every other staged file and remount the disk before all are staged again."""
    for path in sorted(staged_files(disk / "fast"))[::2]:
        path.unlink(missing_ok=True)
    wait_until(lambda: remount(disk, "ro"))
    if len(staged_files(disk / "fast")) < n_files:
        return True
    wait_until(lambda: remount(disk, "rw"))
    return False


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
        wait_until(lambda: len(staged_files(disk / "fast")) == len(source.names))
        image.lose(staged_files(disk / "fast"))
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
