"""`overlapiter evict`: what is chosen goes, and nothing else."""

from __future__ import annotations

import os
import pty
import subprocess
import time
from pathlib import Path

import pytest

from overlapiter.staging.records import recorded_run

from .commands import ENVIRONMENT, command, overlapiter, stage, staged_files
from .conftest import N_FILES


@pytest.fixture
def files(source: Path, fast: Path, listing: Path) -> Path:
    """Stage everything; return the folder of staged files."""
    stage(listing, "--source", source, "--to", fast, "--capacity", "1MB")
    (found,) = fast.glob("lustre-*/files")
    return found


def test_everything_goes_but_what_is_not_ours(fast, files, tmp_path) -> None:
    (tmp_path / "precious").write_text("precious")
    (files / "c0" / "link").symlink_to(tmp_path / "precious")
    (fast / "notes.txt").write_text("mine")
    (files / "c1" / "notes.txt").write_text("mine")
    done = overlapiter("evict", fast, "--all")
    assert done.returncode == 0
    assert done.stdout == f"removed {N_FILES} files, 30.4 kB\n"
    assert "not made by overlapiter, and kept: 2 files" in done.stderr
    assert sorted(p.name for p in files.rglob("*")) == ["c0", "c1", "link", "notes.txt"]
    assert (fast / "notes.txt").exists()
    assert (tmp_path / "precious").read_text() == "precious"


def test_of_a_source_all_of_which_goes_nothing_is_left(source, fast, files) -> None:
    (files.parent / "partial" / "left").touch(0o600)  # of a job that was killed
    (files.parent / "interest").write_bytes(b"")
    assert overlapiter("evict", fast, "--all").returncode == 0
    assert list(fast.glob("lustre-*")) == []
    again = overlapiter("evict", fast, "--all")
    assert (again.returncode, again.stdout[:17]) == (0, "nothing to remove")
    assert overlapiter("check", fast).returncode == 0
    assert "Nothing is staged." in overlapiter("status", fast).stdout
    done = overlapiter("stage", "-", "--source", source, "--to", fast, stdin="c0/0.bin")
    assert done.returncode == 0
    assert staged_files(fast).keys() == {"c0/0.bin"}


def test_a_run_keeps_its_folders(fast, files) -> None:
    with recorded_run(str(fast), {}, dict, pytest.fail):
        assert overlapiter("evict", fast, "--all").returncode == 0
        assert list(files.iterdir()) == []
    assert overlapiter("evict", fast, "--all").returncode == 0
    assert not files.parent.exists()


def test_what_is_not_ours_keeps_the_folders(fast, files) -> None:
    (files.parent / "notes.txt").write_text("mine")
    assert overlapiter("evict", fast, "--all").returncode == 0
    assert sorted(p.name for p in files.parent.iterdir()) == [
        "files",
        "notes.txt",
        "partial",
        "source.json",
    ]


def test_a_dry_run_removes_nothing(fast, files) -> None:
    done = overlapiter("evict", fast, "--all", "--dry-run")
    assert done.returncode == 0
    assert done.stdout.startswith(f"would remove {N_FILES} files, 30.4 kB (c")
    assert len(staged_files(fast)) == N_FILES
    assert files.is_dir()


def test_what_was_not_used_for_the_longest_time_makes_room(fast, files) -> None:
    for n in range(N_FILES):  # the first ones were read, not long ago
        path = files / f"c{n % 3}" / f"{n}.bin"
        later_ns = time.time_ns() + (N_FILES - n) * 10**9
        os.utime(path, ns=(later_ns, path.stat().st_mtime_ns))
    done = overlapiter("evict", fast, "--to-free", "10kB")
    assert done.stdout == "removed 10 files, 10.2 kB\n"
    assert {int(Path(name).stem) for name in staged_files(fast)} == set(range(N_FILES - 10))


def test_a_share_to_free_is_one_of_what_is_staged(source, fast, files) -> None:
    assert overlapiter("evict", fast, "--to-free", "0%").stdout.startswith("nothing to remove")
    done = overlapiter("evict", fast, "--to-free", "50%")
    left_bytes = sum(map(len, staged_files(fast).values()))
    assert 30_435 / 2 - 1029 <= left_bytes <= 30_435 / 2
    assert done.returncode == 0
    other = source.parent / "other"
    other.mkdir()
    (other / "x").write_bytes(bytes(1000))
    overlapiter("stage", "-", "--source", other, "--to", fast, stdin="x")
    done = overlapiter("evict", fast, "--source", other, "--to-free", "50%")
    assert done.stdout == "removed 1 file, 1.0 kB\n"
    assert files.is_dir()


def test_only_what_is_old_goes(fast, files) -> None:
    assert overlapiter("evict", fast, "--older-than", "1h").stdout.startswith("nothing to remove")
    assert len(staged_files(fast)) == N_FILES
    kept = files / "c0" / "0.bin"
    used = max(max(p.stat().st_ctime, p.stat().st_atime) for p in files.rglob("*.bin"))
    time.sleep(max(0.0, used + 0.6 - time.time()))  # what is measured is age
    kept.chmod(0o600)  # touched just now
    assert overlapiter("evict", fast, "--older-than", "0.5s").returncode == 0
    assert staged_files(fast).keys() <= {"c0/0.bin"}


def test_the_files_of_a_list_go(source, fast, files) -> None:
    text = f"c0/0.bin 7\n{source}/c1/1.bin 7\n../../notes 7\nnowhere 7\n"
    done = overlapiter("evict", fast, "-", stdin=text)
    assert done.stdout.startswith("removed ")
    assert len(staged_files(fast)) in (N_FILES - 1, N_FILES - 2)
    assert files.is_dir()


def test_the_count_of_bytes_in_use_follows(source, fast, files, listing) -> None:
    overlapiter("evict", fast, "--to-free", "20kB")
    assert overlapiter("check", fast).returncode == 0
    words = ("stage", listing, "--source", source, "--to", fast, "--capacity", "31kB")
    assert overlapiter(*words).returncode == 0
    assert len(staged_files(fast)) == N_FILES
    assert files.is_dir()


def test_running_jobs_are_mentioned(fast, files) -> None:
    with recorded_run(str(fast), {}, dict, pytest.fail):
        done = overlapiter("evict", fast, "--to-free", "1kB")
    assert f"1 run may be using {fast}: what is removed is read from the source" in done.stderr
    assert done.stdout == "removed 1 file, 1.0 kB\n"
    assert files.is_dir()


@pytest.mark.parametrize(("answer", "n_left"), [(b"n\n", N_FILES), (b"y\n", 0), (b"\x04", N_FILES)])
def test_a_terminal_is_asked(fast, files, answer, n_left) -> None:
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
    assert b"remove 30 files, 30.4 kB (" in shown
    assert process.returncode == (1 if n_left else 0)
    assert len(staged_files(fast)) == n_left
    assert bool(output) == (not n_left)
    assert files.is_dir() == bool(n_left)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say what to remove"),
        (["--all", "list.txt"], "say what to remove"),
        (["--all", "--to-free", "1GB"], "not allowed with"),
        (["--older-than", "old"], "'old' is no age; write 30min, 12h, 7d or 2w"),
        (["--to-free", "some"], "'some' is no size"),
        (["--to-free", "101%"], "is more than the whole"),
    ],
)
def test_a_command_line_that_cannot_work_is_explained(fast, files, words, message) -> None:
    done = overlapiter("evict", fast, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(staged_files(fast)) == N_FILES
    assert files.is_dir()


def test_a_list_needs_to_know_of_which_source(fast, files, tmp_path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "x").write_text("x")
    overlapiter("stage", "-", "--source", tmp_path / "second", "--to", fast, stdin="x")
    done = overlapiter("evict", fast, "-", stdin="x")
    assert done.returncode == 2
    assert "add --source" in done.stderr
    words = ("evict", fast, "-", "--source", tmp_path / "second")
    assert overlapiter(*words, stdin="x").stdout == "removed 1 file, 1 B\n"
    assert files.is_dir()


def test_the_count_is_right_when_something_has_grown(fast, files) -> None:
    with (files / "c0" / "0.bin").open("ab") as file:
        file.write(bytes(300_000))
    assert overlapiter("evict", fast, "--to-free", "20kB").returncode == 0
    assert overlapiter("evict", fast, "--all").returncode == 0
    done = overlapiter("check", fast)
    assert done.returncode == 0, done.stdout
