"""`overlapiter check`: everything that is wrong is found, and what may be is mended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess

import pytest

from overlapiter.store.generation import generation_of, index_path
from tests.chainer.scripts import wait_until
from tests.support.staged import (
    DAMAGE,
    INDEX_DAMAGE,
    being_copied,
    charged_bytes,
    flip,
    segments,
    staged_paths,
)

from .commands import (
    ENVIRONMENT,
    command,
    hanging_command,
    is_at_rest,
    overlapiter,
    run,
    stage,
    staged_files,
    without_privileges,
)
from .conftest import N_FILES


@pytest.fixture
def staged(source, fast, listing):
    """Stage everything; return where each file lies."""
    stage(listing, "--source", source, "--to", fast)
    return staged_paths(fast)


def spoil(fast, statement: str) -> None:
    """Change the index past the store."""
    with contextlib.closing(sqlite3.connect(index_path(generation_of(str(fast))))) as connection:
        connection.execute(statement)
        connection.commit()


def test_nothing_is_wrong_with_what_was_staged(fast, staged) -> None:
    before = {path: path.lstat().st_ctime_ns for path in segments(fast)}
    done = overlapiter("check", fast)
    assert done.returncode == 0
    assert f"good {N_FILES} files" in done.stdout
    assert f"nothing else is wrong, {charged_bytes(fast):,} bytes are in use" in done.stdout
    assert {path: path.lstat().st_ctime_ns for path in segments(fast)} == before
    assert len(json.loads(overlapiter("status", fast, "--json").stdout)["runs"]) == 1
    assert len(staged) == N_FILES


def test_bad_copies_are_told_apart_and_dropped_by_a_repair(source, fast, staged, contents) -> None:
    (source / "c1" / "1.bin").write_bytes(b"changed")
    (source / "c2" / "2.bin").unlink()
    flip(fast, staged["c0/3.bin"])
    expected = (
        "1 file outdated, their sources have changed: c1/1.bin",
        "1 file without a source, which was removed: c2/2.bin",
        "1 file damaged, not what was copied: c0/3.bin",
    )
    done = overlapiter("check", fast)
    assert done.returncode == 1
    for line in expected:
        assert f"wrong {line}" in done.stdout
    assert str(fast) not in done.stdout  # of which there is nothing to tell
    assert len(staged_paths(fast)) == N_FILES
    done = overlapiter("check", fast, "--repair")
    assert done.returncode == 0, done.stdout
    for line in expected:
        assert f"repaired {line}" in done.stdout
    assert staged_files(fast).keys() == contents.keys() - {"c1/1.bin", "c2/2.bin", "c0/3.bin"}
    assert is_at_rest(fast)
    assert overlapiter("check", fast).returncode == 0


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ["c0/3.bin", "large"])
def test_damage_of_every_kind_is_found_and_mended(source, fast, listing, kind, name) -> None:
    (source / "large").write_bytes(os.urandom(3 << 20))
    with listing.open("a") as file:
        file.write("large\n")
    stage(listing, "--source", source, "--to", fast)
    DAMAGE[kind](fast, staged_paths(fast)[name])
    done = overlapiter("check", fast)
    assert done.returncode == 1
    assert "damaged, not what was copied: " in done.stdout
    assert "outdated" not in done.stdout
    done = overlapiter("check", fast, "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert name not in staged_paths(fast)
    assert overlapiter("check", fast).returncode == 0
    stage(listing, "--source", source, "--to", fast)
    assert len(staged_files(fast)) == N_FILES + 1


@pytest.mark.parametrize("kind", INDEX_DAMAGE)
def test_a_damaged_index_is_explained_and_thrown_away(source, fast, staged, listing, kind) -> None:
    INDEX_DAMAGE[kind](fast)
    done = overlapiter("check", fast)
    assert done.returncode == 1
    if kind == "removed":
        assert f"nothing has been staged in {fast} yet" in done.stderr
    else:
        assert f"wrong the index of {fast} is damaged (" in done.stdout
        for command in ("status", "ls"):
            assert "the index is damaged" in overlapiter(command, fast).stderr
        done = overlapiter("check", fast, "--repair")
        assert done.returncode == 0
        assert "what was staged is thrown away\n" in done.stdout
    stage(listing, "--source", source, "--to", fast)
    assert len(staged_files(fast)) == len(staged) == N_FILES
    assert overlapiter("check", fast).returncode == 0


def test_a_source_with_other_content_needs_the_checksum(source, fast, staged) -> None:
    path = source / "c0" / "6.bin"
    found = path.stat()
    path.write_bytes(bytes([1]) * found.st_size)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert overlapiter("check", fast).returncode == 0
    done = overlapiter("check", fast, "--checksum")
    assert done.returncode == 1
    assert "wrong 1 file not what their sources hold, though size and mtime are" in done.stdout
    assert overlapiter("check", fast, "--checksum", "--repair").returncode == 0
    assert staged_paths(fast).keys() == staged.keys() - {"c0/6.bin"}
    assert overlapiter("check", fast, "--checksum").returncode == 0


def test_what_killed_jobs_left_is_found_and_removed(source, fast, listing) -> None:
    words = ["stage", listing, "--source", source, "--to", fast, "--reads-in-flight", 1]
    killed = subprocess.Popen(hanging_command([source / "c2" / "8.bin"], *words), env=ENVIRONMENT)
    wait_until(lambda: bool(staged_paths(fast)) and bool(being_copied(fast)))
    assert overlapiter("check", fast).returncode == 0  # it goes on
    killed.send_signal(signal.SIGKILL)
    killed.wait(timeout=30)
    (segments(fast)[0].parent / f"{7:016x}").write_bytes(b"garbage")
    done = overlapiter("check", fast)
    assert done.returncode == 1
    assert "segments left behind by jobs that were killed" in done.stdout
    done = overlapiter("check", fast, "--repair")
    assert done.returncode == 0, done.stdout
    assert "segments left behind by jobs that were killed" in done.stdout
    assert is_at_rest(fast)
    assert overlapiter("check", fast).returncode == 0
    runs = json.loads(overlapiter("status", fast, "--json").stdout)["runs"]
    assert [run["end"] for run in runs] == ["closed", "killed"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE fact SET value=value+4096 WHERE name='total'",
        "UPDATE segment SET charged=charged-4096",
    ],
)
def test_a_wrong_count_of_bytes_is_found_and_mended(fast, staged, statement) -> None:
    right_bytes = charged_bytes(fast)
    spoil(fast, statement)
    done = overlapiter("check", fast)
    assert done.returncode == 1
    assert "wrong the count of bytes in use says " in done.stdout
    done = overlapiter("check", fast, "--repair")
    assert done.returncode == 0, done.stdout
    assert "repaired the count of bytes in use says " in done.stdout
    assert charged_bytes(fast) == right_bytes
    assert len(staged_paths(fast)) == len(staged)
    assert overlapiter("check", fast).returncode == 0


def test_a_segment_that_something_else_writes_into_is_told(fast, staged) -> None:
    with max(segments(fast), key=lambda path: path.stat().st_size).open("ab") as file:
        file.write(bytes(3 << 20))
    done = overlapiter("check", fast)
    assert done.returncode == 1
    assert "something else writes there; `overlapiter evict --all` begins anew" in done.stdout
    assert overlapiter("evict", fast, "--all").returncode == 0
    assert overlapiter("check", fast).returncode == 0
    assert staged


# --- sources --------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves_mount_point", [False, True])
def test_a_source_that_is_not_mounted_condemns_nothing(
    source, fast, staged, leaves_mount_point
) -> None:
    source.rename(source.with_name("away"))
    if leaves_mount_point:
        source.mkdir()
    done = overlapiter("check", fast, "--repair")
    assert done.returncode == 1
    assert (
        f"not compared, their sources cannot be read now ({source} is not there, empty or not "
        "readable: is it" in done.stdout
    )
    assert staged_paths(fast) == staged


def test_a_source_without_an_answer_condemns_nothing(source, fast, staged) -> None:
    words = ("check", fast, "--checksum", "--repair", "--timeout", 1.5)
    done = run(hanging_command([source / "c0" / "0.bin"], *words))
    assert done.returncode == 1
    assert f"good {N_FILES - 1} files" in done.stdout
    assert "cannot be read now (no answer for 1.5 s): c0/0.bin" in done.stdout
    assert staged_paths(fast) == staged


def test_what_was_not_looked_at_is_not_said_to_be_good(source, fast, staged) -> None:
    hanging = [source / name for name in staged]
    words = ("check", fast, "--checksum", "--timeout", 0.2, "--reads-in-flight", 2)
    done = run(hanging_command(hanging, *words))
    assert done.returncode == 1
    assert "good 0 files" in done.stdout
    assert "files not looked at: the source has no answer" in done.stdout


@pytest.mark.skipif(not shutil.which("setpriv"), reason="root reads whatever the mode")
def test_a_source_that_may_not_be_listed_condemns_nothing(source, fast, staged) -> None:
    (source / "c0" / "0.bin").unlink()
    assert staged
    source.chmod(0o100)
    try:
        done = run(without_privileges(command("check", fast)))
    finally:
        source.chmod(0o700)
    assert done.returncode == 1
    assert f"good {N_FILES - 1} files" in done.stdout, done.stderr
    assert f"({source} is not there, empty or not readable: is it" in done.stdout


def test_a_source_that_became_a_fifo_is_no_trap(source, fast, staged) -> None:
    (source / "c0" / "0.bin").unlink()
    os.mkfifo(source / "c0" / "0.bin")
    done = overlapiter("check", fast, "--checksum")
    assert done.returncode == 1
    assert "outdated, their sources have changed: c0/0.bin" in done.stdout
    assert staged


def test_sources_are_checked_apart(source, fast, staged, tmp_path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "x").write_text("x")
    overlapiter("stage", "-", "--source", tmp_path / "second", "--to", fast, stdin="x")
    (source / "c1" / "1.bin").unlink()
    assert overlapiter("check", fast, "--source", tmp_path / "second").returncode == 0
    done = overlapiter("check", fast)
    assert done.returncode == 1
    assert f"{source}\n good {N_FILES - 1} files\n" in done.stdout
    assert f"{tmp_path / 'second'}\n good 1 file\n" in done.stdout
    assert staged


def test_options_that_can_be_read_only_once_are_enough(fast, staged) -> None:
    done = run(command("check", fast, "--storage-options", "/dev/stdin"), stdin="{}")
    assert done.returncode == 0, done.stderr
    assert f"good {len(staged)} files" in done.stdout


def test_an_archive_without_its_options_is_named_and_all_else_is_checked(
    source, fast, staged, tmp_path
) -> None:
    options = tmp_path / "options.json"
    archive = shutil.make_archive(str(tmp_path / "images"), "zip", source)
    options.write_text(json.dumps({"fo": archive}))
    of_archive = ("--source", "zip://", "--storage-options", options)
    stage("-", *of_archive, "--to", fast, stdin="c0/0.bin")
    done = overlapiter("check", fast)
    assert done.returncode == 1
    assert f"{source}\n good {N_FILES} files\n" in done.stdout
    assert (
        f"wrong not compared: zip:// was staged from another store ([('fo', '{archive}')]); name"
        in done.stdout
    )
    done = overlapiter("check", fast, *of_archive)
    assert done.returncode == 0
    assert f"zip:// [('fo', '{archive}')]\n good 1 file\n" in done.stdout
    assert staged


def test_a_source_that_is_not_staged_is_explained(source, fast, staged, tmp_path) -> None:
    done = overlapiter("check", fast, "--source", tmp_path / "other")
    assert done.returncode == 2
    assert f"comes from {tmp_path / 'other'}, only from {source}" in done.stderr
    assert staged


def test_a_file_in_the_place_of_the_store_is_explained(tmp_path) -> None:
    (tmp_path / "overlapiter").write_text("")
    done = overlapiter("check", tmp_path)
    assert done.returncode == 1
    assert "Not a directory; something else has the name of a directory; move it" in done.stderr


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_a_directory_that_is_none_is_explained(tmp_path, kind) -> None:
    place = tmp_path / kind
    if kind == "file":
        place.write_text("")
    elif kind == "empty":
        place.mkdir()
    done = overlapiter("check", place)
    assert done.returncode == 1
    assert done.stderr.startswith("overlapiter check: ")
    assert str(place) in done.stderr
