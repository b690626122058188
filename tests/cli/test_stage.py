"""`overlapiter stage`: a list of files is staged, and what was begun is gone on with."""

from __future__ import annotations

import errno
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.chainer.scripts import wait_until
from tests.support.staged import charged_bytes, evict, query, staged_paths

from .commands import (
    ENVIRONMENT,
    command,
    hanging_command,
    is_at_rest,
    overlapiter,
    run,
    slow_command,
    staged_files,
    without_privileges,
)
from .conftest import N_FILES


def stage(source: Path, fast: Path, listing: object, *words: object, stdin: str | None = None):
    return overlapiter("stage", listing, "--source", source, "--to", fast, *words, stdin=stdin)


def test_all_files_of_a_list_are_staged_and_found_by_the_second_run(
    source, fast, listing, contents
) -> None:
    first = stage(source, fast, listing)
    assert first.returncode == 0, first.stderr
    assert staged_files(fast) == contents
    assert first.stdout.startswith(f"staged {N_FILES} files 30.4 kB in ")
    assert first.stderr == ""  # no terminal: no bar
    second = stage(source, fast, listing)
    assert second.returncode == 0
    assert second.stdout.startswith(f"found {N_FILES} files ")
    assert second.stdout.count("\n") == 1
    assert is_at_rest(fast)


def test_a_source_root_of_any_bytes_is_staged_and_shown(source, fast, listing, tmp_path) -> None:
    root = source.rename(tmp_path / os.fsdecode(b"caf\xe9 \xff"))
    assert stage(root, fast, listing).returncode == 0
    for words in (["status"], ["ls"], ["check"], ["check", "--source", root], ["ls", f"{root}/c0"]):
        done = overlapiter(words[0], fast, *words[1:])
        assert done.returncode == 0, done.stderr
        shown = [root.name, r"caf\udce9 \udcff"]
        assert any(name in done.stdout for name in shown), done.stdout


def test_large_files_are_staged_among_small_ones(source, fast) -> None:
    (source / "large").write_bytes(os.urandom(3 << 20))
    done = stage(source, fast, "-", stdin="c0/0.bin\nlarge\nc0/3.bin\n")
    assert done.returncode == 0, done.stdout
    assert staged_files(fast)["large"] == (source / "large").read_bytes()
    assert overlapiter("check", fast, "--checksum").returncode == 0


def test_only_what_has_changed_is_staged_again(source, fast, listing) -> None:
    stage(source, fast, listing)
    (source / "c1" / "4.bin").write_bytes(b"new")
    again = stage(source, fast, listing)
    assert "staged 1 file 3 B in " in again.stdout
    assert staged_files(fast)["c1/4.bin"] == b"new"


def test_what_is_listed_again_counts_as_used_again(source, fast, listing) -> None:
    stage(source, fast, listing)
    query(fast, "UPDATE staged SET used=used - 3 * 86400")
    stage(source, fast, "-", stdin="c0/0.bin\nc0/3.bin\n")
    recent = query(fast, "SELECT path FROM staged WHERE used > (SELECT MIN(used) FROM staged)")
    assert sorted(recent) == [(b"c0/0.bin",), (b"c0/3.bin",)]


def test_a_list_may_come_from_standard_input_with_absolute_paths(source, fast, contents) -> None:
    text = "".join(f"{source}/{name}\n" for name in contents)
    assert stage(source, fast, "-", stdin=text).returncode == 0
    assert staged_files(fast) == contents


def test_no_list_makes_it_write_outside(source, fast, tmp_path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "lustre-too").mkdir()
    (tmp_path / "lustre-too" / "x").write_text("x")
    evil = ["../secret", "c0/../../secret", str(tmp_path / "secret"), f"{source}-too/x", "/"]
    evil += ["c0/\0x", "c0/../../fast/../secret", ".", "c0", "x" * 300, "c0/0.bin/x", "~/x"]
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    done = stage(source, fast, "-", stdin="\n".join([*evil, "c0/0.bin"]))
    assert done.returncode == 1
    assert staged_files(fast).keys() == {"c0/0.bin"}
    after = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert {p for p in after if fast not in p.parents} == before.keys()
    assert before.items() <= after.items()
    assert "not below the source: ../secret, c0/../../secret" in done.stdout


def test_what_is_missing_or_empty_is_named_and_the_rest_is_staged(source, fast) -> None:
    (source / "empty").write_bytes(b"")
    done = stage(source, fast, "-", stdin="c0/0.bin\nempty\nnowhere\n")
    assert done.returncode == 1
    assert "missing 1 file /" in done.stdout
    assert "nowhere (No such file or directory)\n" in done.stdout
    assert "empty 1 file " in done.stdout
    assert staged_files(fast).keys() == {"c0/0.bin"}


@pytest.mark.skipif(not shutil.which("setpriv"), reason="root reads whatever the mode")
def test_each_reason_is_told_with_its_own_files(source, fast, contents) -> None:
    (source / "c0" / "0.bin").chmod(0)
    names = ["nowhere", "c1", *contents, "neither"]
    words = command("stage", "-", "--source", source, "--to", fast)
    done = run(without_privileges(words), stdin="\n".join(names))
    assert done.returncode == 1
    (_, told) = done.stdout.split("missing 4 files ")
    (both,) = {reason for reason in told.strip().split("; ") if "No such" in reason}
    assert {*told.strip().split("; ")} - {both} == {
        f"{source}/c1 (Is a directory)",
        f"{source}/c0/0.bin (Permission denied)",
    }
    assert f"{source}/nowhere" in both
    assert f"{source}/neither" in both
    again = stage(source, fast, "-", stdin="c1\n")
    assert f"missing 1 file {source}/c1 (Is a directory): none can be read; see" in again.stdout


# --- what is no file, and what gives no answer ----------------------------------------------------


def test_what_is_no_file_is_named_and_never_opened(source, fast, listing) -> None:
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as bound, listing.open("a") as file:
        bound.bind(os.path.relpath(source / "socket"))  # a long path would not do
        file.write("fifo\nsocket\nc2\n")
        file.flush()
        done = stage(source, fast, listing)
    assert done.returncode == 1
    assert f"staged {N_FILES} files" in done.stdout
    for name, reason in (("fifo", "a FIFO, not a file"), ("socket", "a socket, not a file")):
        assert f"{source}/{name} ({reason})" in done.stdout
    assert f"{source}/c2 (Is a directory)" in done.stdout


def test_files_without_an_answer_are_left_out_and_the_rest_is_staged(
    source, fast, listing, contents
) -> None:
    hanging = [source / f"c{n}/{n}.bin" for n in range(3)]
    words = ["stage", listing, "--source", source, "--to", fast, "--timeout", 1.5]
    done = run(hanging_command(hanging, *words, "--reads-in-flight", 4))  # so 7 in each part
    assert done.returncode == 1
    assert f"staged {N_FILES - 3} files" in done.stdout, done.stdout
    assert "unread 3 files" in done.stdout
    assert "(no answer for 1.5 s)" in done.stdout
    assert all(str(path) in done.stdout for path in hanging)
    again = stage(source, fast, listing)
    assert "staged 3 files" in again.stdout
    assert staged_files(fast) == contents
    assert is_at_rest(fast)


def test_a_source_that_gives_no_answer_at_all_is_given_up(source, fast, listing, contents) -> None:
    hanging = [source / name for name in contents]
    words = ["stage", listing, "--source", source, "--to", fast, "--timeout", 0.2]
    done = run(hanging_command(hanging, *words, "--reads-in-flight", 2))
    assert done.returncode == 1
    assert "left 2" in done.stdout
    assert "the source has no answer: see whether it is mounted" in done.stdout


@pytest.mark.parametrize("hanging", ["", "c0/0.bin 0"])
def test_a_source_that_does_not_answer_at_first_is_named(source, fast, listing, hanging) -> None:
    words = ["stage", listing, "--source", source, "--to", fast, "--timeout", 0.3]
    done = run(hanging_command([source / hanging], *words))
    assert done.returncode == 1
    assert f"{source / hanging}: no answer for 0.3 s; see whether it is mounted" in done.stderr
    assert not fast.exists()


# The command in a process in which a file of a name fails to open with an error of that number.
FAILING = """
import builtins, os, sys
from overlapiter.cli.main import main
number, failing, *words = sys.argv[1:]
real = open
def fail(file, *others, **more):
    if file == failing:
        raise OSError(int(number), os.strerror(int(number)), file)
    return real(file, *others, **more)
builtins.open = fail
sys.exit(main(words))
"""


@pytest.mark.parametrize(
    ("number", "fate"),
    [(errno.ESTALE, "unread"), (errno.ENOTCONN, "unread"), (errno.ELOOP, "missing")],
)
def test_a_store_that_fails_is_told_from_a_file_that_is_missing(
    source, fast, listing, number, fate
) -> None:
    path = source / "c0" / "0.bin"
    words = [sys.executable, "-c", FAILING, str(number), str(path), "stage", str(listing)]
    done = run([*words, "--source", str(source), "--to", str(fast)])
    assert done.returncode == 1
    assert f"{fate} 1 file {path} ({os.strerror(number)})\n" in done.stdout


# --- room -----------------------------------------------------------------------------------------


def test_the_capacity_ends_it_cleanly(source, fast, listing) -> None:
    done = stage(source, fast, listing, "--capacity", "40kB", "--reads-in-flight", 4)
    assert done.returncode == 1
    assert "is full: raise --capacity" in done.stdout
    assert 5 <= len(staged_files(fast)) <= 9  # each takes a block of the disk
    assert charged_bytes(fast) <= 40_000
    assert is_at_rest(fast)


def test_in_a_directory_that_is_full_all_that_is_staged_is_found(source, fast) -> None:
    names = sorted(str(path.relative_to(source)) for path in source.rglob("*.bin"))
    assert stage(source, fast, "-", stdin="\n".join(names[-5:])).returncode == 0
    words = ("--capacity", "28kB", "--reads-in-flight", 1, "--json")
    done = stage(source, fast, "-", *words, stdin="\n".join(names))
    facts = {each["fate"]: each["n_files"] for each in map(json.loads, done.stdout.splitlines())}
    assert facts == {"staged": 1, "found": 5, "no room": len(names) - 6}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--capacity", "much"], "'much' is no size"),
        (["--reads-in-flight", "0"], "give at least 1"),
        (["--reads-in-flight", "x"], "'x' is no count"),
        (["--timeout", "0"], "give more than 0"),
        (["--timeout", "inf"], "--timeout: give more than 0, and less than 1e+09"),
        (["--source", "/nowhere"], "/nowhere is no directory"),
        (["--to", ""], "is empty"),
        (["--capacity", "10"], "capacity: 10 bytes are less than"),
        (["--keep-free", "100%"], "keep_free: 100% leaves no room"),
        (["--keep-free", "9000TB"], "keep_free: 9000TB leaves no room on the disk of"),
    ],
)
def test_a_command_line_that_cannot_work_is_explained(
    source, fast, listing, words, message
) -> None:
    done = stage(source, fast, listing, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert not fast.exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.txt", None, "missing.txt cannot be read"),
        ("empty.txt", b"\n \n", "empty.txt is empty; give one path a line"),
        ("other.txt", b"/somewhere/else/1.jpg\n", "no entry of the list lies below"),
        (
            "photo.jpg",
            b"\xff\xd8\xff\xe0\0\x10JFIF\0\n\xdb\n\0\xc3",
            "photo.jpg is no list of text",
        ),
        ("wide.txt", "c0/0.bin\n".encode("utf-16"), "wide.txt is no list of text"),
    ],
)
def test_a_list_that_cannot_work_is_explained_and_nothing_is_made(
    source, fast, tmp_path, name, text, message
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    done = stage(source, fast, tmp_path / name)
    assert done.returncode == 2
    assert message in done.stderr
    assert not fast.exists()


@pytest.mark.parametrize("command", ["stage", "doctor", "export"])
def test_a_place_that_cannot_be_made_is_explained(source, fast, listing, command) -> None:
    fast.mkdir()
    (fast / "file").touch()
    for name, reason in (
        ("a/b", "its parent, does not exist; make it first"),
        ("file", "is no directory; name another one"),
    ):
        words = (listing, "--source", source, "--to", fast / name)
        done = overlapiter(command, *((fast, fast / name) if command == "export" else words))
        assert done.returncode == 2
        assert reason in done.stderr
    assert [path.name for path in fast.iterdir()] == ["file"]


def test_a_file_larger_than_all_the_room_is_told_apart_from_the_disk(source, fast) -> None:
    (source / "large").write_bytes(bytes(200_000))
    done = stage(source, fast, "-", "--capacity", "100kB", stdin="large\nc0/0.bin\n")
    assert done.returncode == 1
    assert "staged 1 file" in done.stdout
    assert (
        "too big 1 file larger than all the room there is: raise --capacity, or lower"
        in done.stdout
    )
    assert str(source / "large") in done.stdout


# --- interruptions, and who else is there ---------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_leaves_nothing_half_done_and_can_be_gone_on_from(
    source, fast, listing, contents, number
) -> None:
    words = ["stage", listing, "--source", source, "--to", fast, "--reads-in-flight", 1]
    process = subprocess.Popen(
        slow_command(source, 0.3, 1e9, *words),  # nine seconds in all
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(staged_paths(fast)) >= 3)
    process.send_signal(number)
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 128 + number, errors
    assert "nothing is left half-done; run the same command again" in errors
    assert "Traceback" not in errors
    assert output == ""
    found = staged_files(fast)
    assert 3 <= len(found) < N_FILES
    assert f"interrupted: {len(found)} of {N_FILES} files are staged" in errors
    assert found.items() <= contents.items()
    assert is_at_rest(fast)
    (ended,) = json.loads(overlapiter("status", fast, "--json").stdout)["runs"]
    assert (ended["end"], ended["counters"]["files_staged"]) == ("interrupted", len(found))
    again = stage(source, fast, listing)
    assert f"found {len(found)} file" in again.stdout
    assert staged_files(fast) == contents


def test_an_interruption_ends_it_while_the_source_hangs(source, fast, listing, contents) -> None:
    hanging = [source / name for name in contents]
    process = subprocess.Popen(
        hanging_command(hanging, "stage", listing, "--source", source, "--to", fast),
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(json_of_users(fast)) == 1)
    wait_until(lambda: psutil.Process(process.pid).num_threads() > N_FILES)  # it reads
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    assert f"interrupted: 0 of {N_FILES} files are staged" in errors
    assert stage(source, fast, listing).returncode == 0
    assert is_at_rest(fast)


def json_of_users(fast: Path) -> list[object]:
    done = overlapiter("status", fast, "--json")
    return json.loads(done.stdout)["users"] if done.returncode == 0 else []


def test_a_terminal_shows_a_bar(source, fast, listing) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("stage", listing, "--source", source, "--to", fast),
        env={**ENVIRONMENT, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    shown = bytearray()
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    text = shown.decode()
    assert f"{N_FILES}/{N_FILES}" in text
    assert "files/s" in text
    assert "30.4 kB, " in text
    assert b"\r" not in output


def test_a_source_within_another_one_is_mentioned(source, fast, listing) -> None:
    stage(source, fast, listing)
    done = stage(source / "c0", fast, "-", stdin="0.bin\n")
    assert done.returncode == 0
    assert f"note: of {source}, files are staged in {fast}, too" in done.stderr
    assert stage(source, fast, listing).stderr.startswith(f"note: of {source}/c0, files")
    evict(fast, source / "c0", ["0.bin"])
    assert stage(source, fast, listing).stderr == ""


def test_a_source_that_was_staged_by_another_name_is_found(source, fast, listing) -> None:
    link = source.with_name("link")
    link.symlink_to(source)
    assert "staged" in stage(link, fast, listing).stdout
    done = stage(source, fast, listing)
    assert done.stderr == ""
    assert done.stdout.startswith(f"found {N_FILES} files")
    assert len(staged_paths(fast, source)) == N_FILES


def test_what_an_earlier_version_left_is_mentioned_and_left_alone(source, fast, listing) -> None:
    fast.mkdir()
    (fast / "overlapiter.usage").write_bytes(b"old")
    done = stage(source, fast, listing)
    assert done.returncode == 0
    assert done.stderr.count("note: ") == 1
    assert f"`overlapiter evict {fast} --old` removes them" in done.stderr
    assert (fast / "overlapiter.usage").read_bytes() == b"old"
