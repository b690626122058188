"""`overlapiter stage`: a list of files is staged, and what was begun is gone on with."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overlapiter.cli import stager as stager_module
from overlapiter.cli.stager import Fate, Stager
from overlapiter.origins.origin import LocalOrigin, Original, OriginalFile
from overlapiter.staging.records import recorded_run
from overlapiter.staging.room import Room
from overlapiter.staging.store import Store
from tests.chainer.scripts import wait_until

from .commands import (
    ENVIRONMENT,
    command,
    overlapiter,
    partial_files,
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
    assert "staged 0" not in second.stdout
    assert second.stdout.count("\n") == 1


def test_only_what_has_changed_is_staged_again(source, fast, listing) -> None:
    stage(source, fast, listing)
    (source / "c1" / "4.bin").write_bytes(b"new")
    again = stage(source, fast, listing)
    assert "staged 1 file 3 B in " in again.stdout
    assert staged_files(fast)["c1/4.bin"] == b"new"


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
    assert "missing 4 files " in done.stdout
    (_, told) = done.stdout.split("missing 4 files ")
    assert set(told.strip().split("; ")) in (
        {
            f"{source}/nowhere, {source}/neither (No such file or directory)",
            f"{source}/c1 (Is a directory)",
            f"{source}/c0/0.bin (Permission denied)",
        },
        {
            f"{source}/neither, {source}/nowhere (No such file or directory)",
            f"{source}/c1 (Is a directory)",
            f"{source}/c0/0.bin (Permission denied)",
        },
    )
    again = stage(source, fast, "-", stdin="c1\n")  # a directory is in the place of its copy, too
    assert f"missing 1 file {source}/c1 (Is a directory): of all there is none;" in again.stdout


def test_the_capacity_ends_it_cleanly(source, fast, listing) -> None:
    done = stage(source, fast, listing, "--capacity", "10kB", "--reads-in-flight", 4)
    assert done.returncode == 1
    assert "is full: raise --capacity" in done.stdout
    sizes = sum(map(len, staged_files(fast).values()))
    assert 5000 < sizes <= 10_000
    assert partial_files(fast) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--capacity", "much"], "'much' is no size"),
        (["--reads-in-flight", "0"], "give at least 1"),
        (["--reads-in-flight", "x"], "invalid int value"),
        (["--source", "/nowhere"], "/nowhere is no directory"),
        (["--to", ""], "is empty"),
    ],
)
def test_a_command_line_that_cannot_work_is_explained(
    source, fast, listing, words, message
) -> None:
    done = stage(source, fast, listing, *words)
    assert done.returncode == 2
    assert message in done.stderr


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


def test_a_directory_without_a_parent_is_explained(source, fast, listing) -> None:
    done = stage(source, fast / "a" / "b", listing)
    assert done.returncode == 1
    assert "does not exist; make it first" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_nothing_half_done_and_can_be_gone_on_from(
    source, fast, listing, contents, number, status
) -> None:
    words = ["stage", listing, "--source", source, "--to", fast, "--reads-in-flight", 2]
    process = subprocess.Popen(
        slow_command(source, 0.25, 1e9, *words),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(staged_files(fast)) >= 3)
    process.send_signal(number)
    output, errors = process.communicate(timeout=100)
    assert process.returncode == status, errors
    assert "nothing is left half-done; run the same command again" in errors
    assert "Traceback" not in errors
    assert output == ""
    found = staged_files(fast)
    assert 3 <= len(found) < N_FILES
    assert f"interrupted: {len(found)} of {N_FILES} files are staged" in errors
    assert found.items() <= contents.items()
    assert partial_files(fast) == []
    again = stage(source, fast, listing)
    assert f"found {len(found)} file" in again.stdout
    assert staged_files(fast) == contents


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
    with recorded_run(str(fast), {}, dict, pytest.fail):  # which keeps its folders
        overlapiter("evict", fast, "--source", source / "c0", "--all")
    assert len(list(fast.glob("c0-*"))) == 1
    assert stage(source, fast, listing).stderr == ""


# --- stopping in the middle of a file ---------------------------------------------------------


class Held(LocalOrigin):
    """An origin one file of which gives its second byte only when it is allowed to."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.begun = threading.Event()
        self.allowed = threading.Event()

    def open(self, path: str) -> contextlib.AbstractContextManager[OriginalFile]:
        opened = super().open(path)
        return HeldFile(opened, self) if path == self._path else opened


class HeldFile:
    """A file that gives one byte at a time."""

    def __init__(
        self, opened: contextlib.AbstractContextManager[OriginalFile], origin: Held
    ) -> None:
        self._opened = opened
        self._origin = origin
        self._n_read = 0

    def __enter__(self) -> OriginalFile:
        self._file = self._opened.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._opened.__exit__(*exception)

    def stat(self) -> Original:
        return self._file.stat()

    def read(self, size_bytes: int) -> bytes:
        del size_bytes
        self._n_read += 1
        if self._n_read == 2:
            self._origin.begun.set()
            assert self._origin.allowed.wait(30)
        return self._file.read(1)


@pytest.fixture
def held(source: Path, fast: Path) -> Iterator[tuple[Held, Stager, list[str]]]:
    """Give a stager of two files, the second of which is held in the middle."""
    fast.mkdir()
    paths = [str(source / "c0" / "0.bin"), str(source / "c0" / "3.bin")]
    origin = Held(paths[1])
    store = Store(str(fast), str(source), Room(str(fast), None, 0), origin=origin)
    store.create()
    stager = Stager(store, 2, [].append)
    yield origin, stager, paths
    origin.allowed.set()
    for thread in stager._threads:
        thread.join()
    store.close()


def test_a_stop_ends_a_read_in_the_middle_of_a_file(fast, held) -> None:
    origin, stager, paths = held
    answers = stager.run(paths)
    assert next(answers).fate is Fate.STAGED
    assert origin.begun.wait(30)
    assert len(partial_files(fast)) == 1

    def go_on_once_stopped() -> None:
        assert stager._stopped.wait(30)
        origin.allowed.set()

    thread = threading.Thread(target=go_on_once_stopped)
    thread.start()
    answers.close()
    thread.join()
    assert stager.is_at_rest
    assert staged_files(fast).keys() == {"c0/0.bin"}
    assert partial_files(fast) == []


def test_a_store_that_hangs_is_not_waited_for(held, monkeypatch) -> None:
    origin, stager, paths = held
    monkeypatch.setattr(stager_module, "_PATIENCE_SECONDS", 0.05)
    answers = stager.run(paths)
    assert next(answers).fate is Fate.STAGED
    assert origin.begun.wait(30)
    answers.close()
    assert not stager.is_at_rest


def test_a_capacity_below_what_is_there_is_told(source, fast, listing) -> None:
    words = ("stage", listing, "--source", source, "--to", fast)
    assert overlapiter(*words).stderr == ""
    done = overlapiter(*words, "--capacity", "20kB")
    assert done.returncode == 0
    assert f"note: {fast} holds 30,435 bytes, more than the capacity of 20,000" in done.stderr
    assert f"overlapiter evict {fast} --to-free 10435" in done.stderr
    assert "note" not in overlapiter(*words, "--capacity", "31kB").stderr
