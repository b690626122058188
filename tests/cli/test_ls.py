"""`overlapiter ls` and `overlapiter export`: what is staged is shown, and copied out."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from overlapiter.store.generation import generation_of, index_path
from tests.support.staged import evict, flip, staged_paths

from .commands import ENVIRONMENT, command, overlapiter, run, stage
from .conftest import N_FILES


@pytest.fixture(autouse=True)
def staged(source: Path, fast: Path, listing: Path) -> None:
    """Stage everything, a large file too."""
    (source / "large").write_bytes(os.urandom(3 << 20))
    with listing.open("a") as file:
        file.write("large\n")
    stage(listing, "--source", source, "--to", fast)


def names_in(text: str) -> list[str]:
    return [line.rsplit(" ", 1)[1] for line in text.splitlines()]


def test_all_staged_files_are_listed_in_order(source, fast, contents) -> None:
    done = overlapiter("ls", fast)
    assert done.returncode == 0
    assert names_in(done.stdout) == sorted(f"{source}/{name}" for name in {*contents, "large"})
    line = next(line for line in done.stdout.splitlines() if line.endswith("c0/3.bin"))
    assert re.fullmatch(rf" 1,003 2020-09-13 1\d:\d\d [0-9.]+ m?s {source}/c0/3.bin", line)


@pytest.mark.parametrize(
    ("pattern", "n_files"),
    [
        *[("c0", 10), ("c0/", 10), ("c0/1*", 3), ("*1.bin", 3), ("c[01]/*", 20)],
        *[("{source}/c2", 10), ("{source}", 31), ("{source}/", 31), ("{source}s", 0)],
    ],
)
def test_a_pattern_chooses_files(source, fast, pattern, n_files) -> None:
    done = overlapiter("ls", fast, pattern.format(source=source))
    assert len(done.stdout.splitlines()) == n_files


@pytest.mark.parametrize(
    ("pattern", "n_files"), [("{link}/c0/*", 10), ("{link}", 31), ("{source}/c0", 10), ("c0", 10)]
)
def test_a_pattern_begins_with_the_source_as_it_is_given(source, fast, pattern, n_files) -> None:
    link = source.with_name("link")
    link.symlink_to(source)
    done = overlapiter("ls", fast, "--source", link, pattern.format(link=link, source=source))
    assert len(done.stdout.splitlines()) == n_files


def test_a_pattern_without_a_file_is_an_error_for_scripts(fast) -> None:
    done = overlapiter("ls", fast, "c")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_thousands_of_sources_are_listed(fast) -> None:
    with contextlib.closing(sqlite3.connect(index_path(generation_of(str(fast))))) as connection:
        roots = [(os.fsencode(f"/old/{n}"),) for n in range(3000)]
        connection.executemany("INSERT INTO source (root, place) VALUES (?, '')", roots)
        connection.commit()
    done = overlapiter("ls", fast, "c0")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 10


def test_a_pattern_that_is_too_long_is_no_damage(fast) -> None:
    done = overlapiter("ls", fast, 60_000 * "x")
    assert done.returncode == 1
    assert "pattern too complex" in done.stderr
    assert "damaged" not in done.stderr


def test_json_is_an_object_a_line(source, fast) -> None:
    done = overlapiter("ls", fast, "c0/3.bin", "--json")
    (facts,) = map(json.loads, done.stdout.splitlines())
    found = (source / "c0" / "3.bin").stat()
    assert facts.pop("staged_seconds") > found.st_mtime
    assert facts == {
        "path": f"{source}/c0/3.bin",
        "source": str(source),
        "size_bytes": found.st_size,
        "mtime_ns": found.st_mtime_ns,
    }


def test_names_of_any_bytes_are_listed_as_they_are(source, fast) -> None:
    name = os.fsdecode(b"caf\xe9 \x1b[2J")
    (source / name).write_bytes(b"x")
    overlapiter_stage = command("stage", "-", "--source", source, "--to", fast, "--labels", "no")
    subprocess.run(
        overlapiter_stage, input=os.fsencode(name), env=ENVIRONMENT, check=True, capture_output=True
    )
    listed = subprocess.run(
        command("ls", fast, "caf*"), env=ENVIRONMENT, check=True, capture_output=True
    )
    assert listed.stdout.endswith(os.fsencode(f"{source}/{name}\n"))


def test_a_reader_that_has_seen_enough_is_no_error(fast) -> None:
    process = subprocess.Popen(
        command("ls", fast), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=100)
    assert errors == b""


# --- export ---------------------------------------------------------------------------------------


def tree_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in files
    }


def test_a_tree_like_the_source_is_copied_out(source, fast, tmp_path) -> None:
    done = overlapiter("export", fast, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"copied {N_FILES + 1} files, 3.2 MB, to {tmp_path / 'out'}\n"
    assert tree_of(tmp_path / "out") == tree_of(source)
    again = overlapiter("export", fast, tmp_path / "out")
    assert again.returncode == 0
    assert f"found {N_FILES + 1} files, there already" in again.stdout


# The command in a process that is interrupted by what a signal says, when it has just opened a new
# file, and again when it has ended.
INTERRUPTED = """
import builtins, os, signal, sys
from overlapiter.cli.main import main
real_open, real_signal = open, signal.signal
def open_new(name, mode="r", *others, **more):
    file = real_open(name, mode, *others, **more)
    if mode == "xb":
        os.kill(os.getpid(), int(sys.argv[1]))
    return file
def restored(number, handler):
    signal.signal = real_signal
    os.kill(os.getpid(), int(sys.argv[1]))
    return real_signal(number, handler)
def set_first(number, handler):
    if number == signal.SIGINT:  # the last one
        signal.signal = restored
    return real_signal(number, handler)
builtins.open, signal.signal = open_new, set_first
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_copy_leaves_nothing_half_done(source, fast, tmp_path, number) -> None:
    words = [sys.executable, "-c", INTERRUPTED, f"{number:d}", "export", fast, tmp_path / "out"]
    done = run([*map(str, words)])
    assert done.returncode == 128 + number, done.stderr
    assert done.stderr == ""
    assert tree_of(tmp_path / "out") == {}
    assert overlapiter("export", fast, tmp_path / "out").returncode == 0
    assert tree_of(tmp_path / "out") == tree_of(source)


def test_a_copy_on_a_disk_that_rounds_mtimes_is_found_again(fast, tmp_path) -> None:
    assert overlapiter("export", fast, tmp_path / "out").returncode == 0
    for path in (tmp_path / "out").rglob("*.bin"):
        mtime_ns = path.stat().st_mtime_ns
        os.utime(path, ns=(mtime_ns, mtime_ns - mtime_ns % 10**9))
    again = overlapiter("export", fast, tmp_path / "out")
    assert (again.returncode, again.stderr) == (0, "")
    assert f"found {N_FILES + 1} files, there already" in again.stdout


def test_a_name_that_no_disk_can_have_holds_up_no_other_file(fast, tmp_path) -> None:
    long = "c0/" + 300 * "x"
    with contextlib.closing(sqlite3.connect(index_path(generation_of(str(fast))))) as connection:
        connection.execute("UPDATE staged SET path=? WHERE path=?", (long.encode(), b"c0/0.bin"))
        connection.commit()
    done = overlapiter("export", fast, tmp_path / "out")
    assert done.returncode == 1
    assert f"not copied: {long} (File name too long)" in done.stdout
    assert len(tree_of(tmp_path / "out")) == N_FILES


@pytest.mark.parametrize("words", ["evict {} --all --dry-run", "ls {}", "doctor {}"])
def test_a_variable_that_is_not_set_is_no_source(source, fast, monkeypatch, words) -> None:
    monkeypatch.chdir(source)
    done = overlapiter(*words.format(fast).split(), "--source", "")
    assert done.returncode == 2
    assert "--source: is empty; name the root of the files" in done.stderr


@pytest.mark.parametrize("words", [("{fast}", ""), ("", "out")])
def test_a_variable_that_is_not_set_is_no_directory(fast, tmp_path, monkeypatch, words) -> None:
    monkeypatch.chdir(tmp_path)
    done = overlapiter("export", *(word.format(fast=fast) for word in words))
    assert done.returncode == 2
    assert "the name is empty" in done.stderr


def test_a_part_is_copied_out(source, fast, tmp_path) -> None:
    assert overlapiter("export", fast, tmp_path / "out", "c1/*").returncode == 0
    assert tree_of(tmp_path / "out" / "c1") == tree_of(source / "c1")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["c1"]
    assert overlapiter("export", fast, tmp_path / "none", "nowhere").returncode == 1


@pytest.mark.parametrize("name", ["c0/3.bin", "large"])
def test_a_damaged_copy_is_named_and_not_copied_out(fast, tmp_path, name) -> None:
    flip(fast, staged_paths(fast)[name])
    done = overlapiter("export", fast, tmp_path / "out")
    assert done.returncode == 1
    assert f"not copied: {name} (damaged, or evicted meanwhile)" in done.stdout
    assert len(tree_of(tmp_path / "out")) == N_FILES
    assert not list((tmp_path / "out").rglob(".overlapiter*"))


def test_what_is_there_stays_and_links_lead_nowhere(fast, tmp_path) -> None:
    out, precious = tmp_path / "out", tmp_path / "precious"
    precious.mkdir()
    (precious / "1.bin").write_text("precious")
    (out / "c0").mkdir(parents=True)
    (out / "c0" / "0.bin").write_text("mine")
    (out / "c0" / "3.bin").symlink_to(precious / "1.bin")
    (out / "c1").symlink_to(precious)
    (out / "c2").write_text("a file")
    done = overlapiter("export", fast, out)
    assert done.returncode == 1
    assert "c0/0.bin, c0/3.bin (something else is there, and is left alone)" in done.stdout
    assert "(c1 is no folder, and is left alone)" in done.stdout
    assert "(c2 is no folder, and is left alone)" in done.stdout
    assert (out / "c0" / "0.bin").read_text() == "mine"
    assert [path.read_text() for path in precious.iterdir()] == ["precious"]
    assert (out / "large").exists()


def test_a_name_that_leads_elsewhere_is_not_written(fast, tmp_path) -> None:
    with contextlib.closing(sqlite3.connect(index_path(generation_of(str(fast))))) as connection:
        for before, after in (
            (b"c0/0.bin", b"../evil"),
            (b"c0/3.bin", b"/tmp/evil"),
            (b"c0/6.bin", b"c0/../x"),
        ):
            connection.execute("UPDATE staged SET path=? WHERE path=?", (after, before))
        connection.commit()
    done = overlapiter("export", fast, tmp_path / "out")
    assert done.returncode == 1
    assert "(no name of a file below TO)" in done.stdout
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "out" / "x").exists()
    assert not Path("/tmp/evil").exists()


def test_several_sources_need_a_choice(fast, tmp_path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "x").write_text("x")
    overlapiter("stage", "-", "--source", tmp_path / "second", "--to", fast, stdin="x")
    done = overlapiter("export", fast, tmp_path / "out")
    assert done.returncode == 2
    assert "add --source" in done.stderr
    words = ("export", fast, "--source", tmp_path / "second", tmp_path / "out")
    assert overlapiter(*words).returncode == 0
    assert (tmp_path / "out" / "x").read_text() == "x"
    evict(fast, tmp_path / "second", ["x"])


@pytest.mark.skipif(not shutil.which("setpriv"), reason="root writes whatever the mode")
def test_a_place_that_may_not_be_written_is_explained(fast, tmp_path) -> None:
    (tmp_path / "out").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if not os.geteuid() else []
    words += command("export", fast, tmp_path / "out")
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Permission denied; run the command as the user" in done.stderr
    assert "copied 0 files" in done.stdout
