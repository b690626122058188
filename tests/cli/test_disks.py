"""Commands on disks that are full or read-only, and beside a process that was stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.disks import mounted_tmpfs, run_as_root
from tests.support.staged import charged_bytes, staged_paths, stopped_in_transaction

from .commands import command, overlapiter, run, stage, without_privileges
from .conftest import N_FILES


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_tmpfs(tmp_path / "disk", 4 << 20) as place:
        yield place


def fill(disk: Path) -> None:
    """Use a disk up to the last block."""
    with contextlib.suppress(OSError), (disk / "fill").open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert not os.statvfs(disk).f_bavail


def test_a_disk_that_is_full_to_the_last_block_is_looked_at_and_given_room(
    source, listing, disk, tmp_path
) -> None:
    stage(listing, "--source", source, "--to", disk / "me", "--keep-free", 0)
    fill(disk)
    assert f" {N_FILES} 30.4 kB" in overlapiter("status", disk / "me").stdout
    assert len(overlapiter("ls", disk / "me").stdout.splitlines()) == N_FILES
    done = overlapiter("check", disk / "me", "--repair")
    assert done.returncode == 1
    assert "is full: make room with `overlapiter evict` first" in done.stderr
    assert overlapiter("check", disk / "me").returncode == 0
    assert overlapiter("export", disk / "me", tmp_path / "out").returncode == 0
    done = overlapiter("export", disk / "me", disk / "out")
    assert done.returncode == 1
    assert f"{disk / 'out'}: " in done.stderr
    assert "No space left on device; remove something else from that disk" in done.stderr
    done = overlapiter("stage", listing, "--source", source, "--to", disk / "me", "--keep-free", 0)
    assert done.stdout.startswith(f"found {N_FILES} files"), done.stdout + done.stderr
    done = overlapiter("evict", disk / "me", "--to-free", "50%")
    assert done.returncode == 0, done.stderr
    assert len(staged_paths(disk / "me")) == N_FILES / 2
    assert overlapiter("check", disk / "me", "--repair").returncode == 0
    assert charged_bytes(disk / "me") == 4096 * N_FILES / 2


def test_a_full_disk_that_fills_up_again_after_a_command_is_given_room(
    source, listing, disk
) -> None:
    words = ("stage", listing, "--source", source, "--to", disk / "me", "--keep-free", 0)
    for _ in range(3):
        done = overlapiter(*words)
        assert done.returncode == 0, done.stderr
        fill(disk)
    done = overlapiter("evict", disk / "me", "--all")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"removed {N_FILES} files")


def test_a_disk_that_is_read_only_is_looked_at_and_not_changed(
    source, listing, disk, tmp_path
) -> None:
    stage(listing, "--source", source, "--to", disk / "me", "--keep-free", 0)
    run_as_root("mount", "-o", "remount,ro", str(disk))
    assert f" {N_FILES} 30.4 kB" in overlapiter("status", disk / "me").stdout
    assert overlapiter("check", disk / "me").returncode == 0
    assert overlapiter("export", disk / "me", tmp_path / "out").returncode == 0
    words = ("stage", listing, "--source", source, "--to", disk / "me")
    doctor = ("doctor", *words[2:], "--seconds", 1)
    for changing in (("evict", disk / "me", "--all"), words, doctor):
        done = overlapiter(*changing)
        assert done.returncode == 1
        assert "[Errno" not in done.stderr
        assert "read-only" in done.stderr.lower()
    run_as_root("mount", "-o", "remount,rw", str(disk))
    assert len(staged_paths(disk / "me")) == N_FILES


@pytest.mark.skipif(not shutil.which("setpriv"), reason="root writes whatever the mode")
def test_a_directory_that_may_not_be_written_is_looked_at_and_not_changed(
    source, listing, fast, tmp_path
) -> None:
    stage(listing, "--source", source, "--to", fast)
    folders = [fast, *(path for path in fast.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        for words in (
            ("status", fast),
            ("ls", fast),
            ("check", fast),
            ("export", fast, tmp_path / "o"),
        ):
            done = run(without_privileges(command(*words)))
            assert done.returncode == 0, done.stderr
        for words in (("evict", fast, "--all"), ("check", fast, "--repair")):
            done = run(without_privileges(command(*words)))
            assert done.returncode == 1
            assert f"{fast} is read-only: see its modes and owner" in done.stderr
    finally:
        for folder in folders:
            folder.chmod(0o700)
    assert len(staged_paths(fast)) == N_FILES


def test_a_process_that_was_stopped_holds_up_what_changes_something_only_for_a_while(
    source, fast, listing
) -> None:
    stage(listing, "--source", source, "--to", fast)
    with stopped_in_transaction(fast):
        assert overlapiter("status", fast).returncode == 0
        assert overlapiter("check", fast).returncode == 0
        done = overlapiter("evict", fast, "--all")
        assert done.returncode == 1
        assert "another process keeps the index locked" in done.stderr
    assert len(staged_paths(fast)) == N_FILES
    assert overlapiter("evict", fast, "--all").returncode == 0
