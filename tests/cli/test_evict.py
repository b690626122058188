"""`overlapiter evict`: what is chosen goes, and nothing else."""

from __future__ import annotations

import contextlib
import os
import pty
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from overlapiter.store.generation import generation_of, index_path
from overlapiter.store.site import Run, Site
from overlapiter.store.store import Store
from tests.support.staged import charged_bytes, staged_paths

from .commands import ENVIRONMENT, command, is_at_rest, overlapiter, stage
from .conftest import N_FILES

#: Each file takes a block of the disk.
ALL_BYTES = 4096 * N_FILES


@pytest.fixture(autouse=True)
def staged(source: Path, fast: Path, listing: Path) -> None:
    """Stage everything."""
    stage(listing, "--source", source, "--to", fast, "--capacity", "1MB")


def age(fast: Path, seconds_of: Callable[[str], float]) -> None:
    """Have files look as if they had been staged so many seconds ago, and not used since."""
    with contextlib.closing(sqlite3.connect(index_path(generation_of(str(fast))))) as connection:
        for (path,) in connection.execute("SELECT path FROM staged").fetchall():
            at = time.time() - seconds_of(os.fsdecode(path))
            row = int(at), int(at), path
            connection.execute("UPDATE staged SET at=?, used=? WHERE path=?", row)
        connection.commit()


def test_everything_goes_and_the_disk_has_it_back(source, fast, listing) -> None:
    (fast / "notes.txt").write_text("mine")
    done = overlapiter("evict", fast, "--all")
    assert done.returncode == 0
    assert done.stdout == f"removed {N_FILES} files, 123 kB\n"
    assert done.stderr == ""
    assert charged_bytes(fast) == 0
    assert is_at_rest(fast)
    assert (fast / "notes.txt").read_text() == "mine"
    again = overlapiter("evict", fast, "--all")
    assert (again.returncode, again.stdout[:17]) == (0, "nothing to remove")
    assert overlapiter("check", fast).returncode == 0
    assert "Nothing is staged." in overlapiter("status", fast).stdout
    stage(listing, "--source", source, "--to", fast)
    assert len(staged_paths(fast)) == N_FILES


def test_a_dry_run_removes_nothing(fast) -> None:
    done = overlapiter("evict", fast, "--all", "--dry-run")
    assert done.returncode == 0
    assert done.stdout.startswith(f"would remove {N_FILES} files, 123 kB (c0/0.bin, c0/12.bin, ")
    assert len(staged_paths(fast)) == N_FILES


def test_an_empty_pattern_is_that_of_no_file(fast) -> None:
    done = overlapiter("evict", fast, "--matching", "")
    assert (done.returncode, done.stdout[:17]) == (0, "nothing to remove")
    assert len(staged_paths(fast)) == N_FILES


def test_what_was_used_the_longest_ago_makes_room(fast) -> None:
    age(fast, lambda name: 1000 + int(Path(name).stem))
    done = overlapiter("evict", fast, "--to-free", "40kB")
    assert done.stdout == "removed 10 files, 41.0 kB\n"
    assert {int(Path(name).stem) for name in staged_paths(fast)} == set(range(N_FILES - 10))
    assert charged_bytes(fast) == ALL_BYTES - 10 * 4096


def test_what_no_run_uses_makes_room_first(source, fast, tmp_path) -> None:
    age(fast, lambda _name: 1000)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_text("x")
    overlapiter("stage", "-", "--source", tmp_path / "other", "--to", fast, stdin="x")
    store = Store(Site(str(fast)), str(source), Run(7, {}))
    store.look([])
    try:
        done = overlapiter("evict", fast, "--to-free", "4kB")
    finally:
        store.close()
    assert done.stdout == "removed 1 file, 4.1 kB\n"
    assert len(staged_paths(fast, source)) == N_FILES


def test_a_share_to_free_is_one_of_what_is_staged(source, fast) -> None:
    assert overlapiter("evict", fast, "--to-free", "0%").stdout.startswith("nothing to remove")
    assert overlapiter("evict", fast, "--to-free", "50%").returncode == 0
    assert len(staged_paths(fast)) == N_FILES / 2
    other = source.parent / "other"
    other.mkdir()
    (other / "x").write_bytes(bytes(1000))
    overlapiter("stage", "-", "--source", other, "--to", fast, stdin="x")
    done = overlapiter("evict", fast, "--source", other, "--to-free", "50%")
    assert done.stdout == "removed 1 file, 4.1 kB\n"


def test_only_what_is_old_goes(fast) -> None:
    assert overlapiter("evict", fast, "--older-than", "1h").stdout.startswith("nothing to remove")
    age(fast, lambda name: 0 if name == "c0/0.bin" else 7200)
    assert overlapiter("evict", fast, "--older-than", "1.5h").returncode == 0
    assert staged_paths(fast).keys() == {"c0/0.bin"}


def test_the_files_of_a_list_go(source, fast) -> None:
    text = f"c0/0.bin 7\n{source}/c1/1.bin 7\n../../notes 7\nnowhere 7\n"
    done = overlapiter("evict", fast, "-", stdin=text)
    assert done.stdout == "removed 2 files, 8.2 kB\n"
    assert len(staged_paths(fast)) == N_FILES - 2


def test_a_list_is_understood_without_its_source(source, fast) -> None:
    for name in ("scan 12", "scan"):
        (source / name).write_text("a number at the end of its name, or not")
    overlapiter("stage", "-", "-0", "--source", source, "--to", fast, stdin="scan 12\0scan\0")
    source.rename(source.with_name("unmounted"))
    done = overlapiter("evict", fast, "-", stdin="scan 12\nc0/0.bin 7\n")
    assert done.stdout.startswith("removed 2 files"), done.stderr
    assert len(staged_paths(fast)) == N_FILES
    assert "scan" in staged_paths(fast)


def test_the_files_of_a_pattern_go(source, fast) -> None:
    assert "10 files" in overlapiter("evict", fast, "--matching", "c0").stdout
    assert "1 file" in overlapiter("evict", fast, "--matching", f"{source}/c1/1.*").stdout
    assert "nothing" in overlapiter("evict", fast, "--matching", "c").stdout
    names = staged_paths(fast).keys()
    assert len(names) == N_FILES - 11
    assert not [name for name in names if name.startswith("c0")]


def test_the_files_of_a_source_go_by_the_name_that_is_given(source, fast) -> None:
    link = source.with_name("link")
    link.symlink_to(source)
    words = ("evict", fast, "--source", link)
    done = overlapiter(*words, "-", stdin=f"{link}/c0/0.bin\nc0/3.bin\n")
    assert done.stdout.startswith("removed 2 files"), done.stderr
    done = overlapiter(*words, "--matching", link / "c1")
    assert done.stdout.startswith("removed 10 files")
    done = overlapiter("export", fast, source.with_name("out"), link / "c2", "--source", link)
    assert done.stdout.startswith("copied 10 files")


def test_running_jobs_are_mentioned(source, fast) -> None:
    store = Store(Site(str(fast)), str(source), Run(7, {}))
    store.look([])
    try:
        done = overlapiter("evict", fast, "--to-free", "1kB")
    finally:
        store.close()
    assert f"1 run may be using {fast}: what is removed is read from the source" in done.stderr
    assert done.stdout == "removed 1 file, 4.1 kB\n"


@pytest.mark.parametrize(("answer", "n_left"), [(b"n\n", N_FILES), (b"y\n", 0), (b"\x04", N_FILES)])
def test_a_terminal_is_asked(fast, answer, n_left) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("evict", fast, "--all"),
        env=ENVIRONMENT,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while b"[y/N] " not in shown:
        shown += os.read(ours, 4096)
    os.write(ours, answer)
    output, _ = process.communicate(timeout=100)
    os.close(ours)
    assert b"remove 30 files, 123 kB (" in shown
    assert process.returncode == (1 if n_left else 0)
    assert len(staged_paths(fast)) == n_left
    assert bool(output) == (not n_left)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say what to remove"),
        (["--all", "list.txt"], "say what to remove"),
        (["--all", "--to-free", "1GB"], "not allowed with"),
        (["--old", "--source", "/lustre"], "--old: leave out --source"),
        (["--older-than", "old"], "'old' is no age; write 30min, 12h, 7d or 2w"),
        (["--to-free", "some"], "'some' is no size"),
        (["--to-free", "101%"], "is more than the whole"),
    ],
)
def test_a_command_line_that_cannot_work_is_explained(fast, words, message) -> None:
    done = overlapiter("evict", fast, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(staged_paths(fast)) == N_FILES


def test_a_list_needs_to_know_of_which_source(fast, tmp_path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "x").write_text("x")
    overlapiter("stage", "-", "--source", tmp_path / "second", "--to", fast, stdin="x")
    done = overlapiter("evict", fast, "-", stdin="x")
    assert done.returncode == 2
    assert "add --source" in done.stderr
    words = ("evict", fast, "-", "--source", tmp_path / "second")
    assert overlapiter(*words, stdin="x").stdout == "removed 1 file, 4.1 kB\n"


# --- what an earlier version left -----------------------------------------------------------------


@pytest.fixture
def old(fast: Path, tmp_path: Path) -> list[str]:
    """Leave what an earlier version would; return its names."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "source.json").write_text("{}")
    tree = fast / "imagenet-0123456789ab"
    (tree / "files" / "n01").mkdir(parents=True)
    (tree / "source.json").write_text("{}")
    (tree / "files" / "n01" / "a.jpg").write_text("a")
    (tree / "files" / "link").symlink_to(tmp_path / "precious")
    (fast / "link-0123456789ab").symlink_to(tmp_path / "precious")
    (fast / "overlapiter.usage").write_bytes(b"old")
    (fast / "overlapiter.users").mkdir()
    return ["imagenet-0123456789ab", "link-0123456789ab", "overlapiter.usage", "overlapiter.users"]


def test_what_an_earlier_version_left_is_removed_on_request(fast, old, tmp_path) -> None:
    (fast / "notes.txt").write_text("mine")
    (fast / "mine-0123456789ab").mkdir()
    before = {path.name for path in fast.iterdir()}
    done = overlapiter("evict", fast, "--all", "--dry-run")
    assert f"note: {fast} holds what an earlier version staged (imagenet-0123" in done.stderr
    done = overlapiter("evict", fast, "--old", "--dry-run")
    assert done.stdout == f"would remove {', '.join(old[:3])} and 1 more\n"
    assert {path.name for path in fast.iterdir()} == before
    done = overlapiter("evict", fast, "--old")
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in fast.iterdir()} == before - set(old)
    assert (tmp_path / "precious" / "source.json").exists()
    assert len(staged_paths(fast)) == N_FILES
    again = overlapiter("evict", fast, "--old")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith("nothing to remove: no earlier version")


def test_a_directory_of_an_earlier_version_alone_is_recognised(tmp_path) -> None:
    (tmp_path / "overlapiter.runs.jsonl").write_text("{}")
    done = overlapiter("evict", tmp_path, "--all")
    assert done.returncode == 1
    assert "is no staging directory" in done.stderr
    assert f"`overlapiter evict {tmp_path} --old` removes it" in done.stderr
    assert overlapiter("evict", tmp_path, "--old").returncode == 0
    assert list(tmp_path.glob("overlapiter*")) == []
