"""`overlapiter doctor`: measures, recommends, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from overlapiter.cli import probe
from overlapiter.cli.main import main
from tests.chainer.scripts import wait_until

from .commands import ENVIRONMENT, command, hanging_command, overlapiter, run, slow_command
from .conftest import N_FILES


@pytest.fixture
def many(tmp_path: Path) -> Path:
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(4000):
        (folder / f"{n}.bin").write_bytes(b"x" * 2000)
    return folder


def measured(root: Path, open_seconds: float, rate: float, *words: object) -> dict[str, Any]:
    words = ("doctor", "--source", root, "--seconds", 4, "--json", *words)
    done = run(slow_command(root, open_seconds, rate, *words))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_on_a_store_of_high_latency_the_reads_in_flight_grow_as_in_a_run(many, tmp_path) -> None:
    # So high that no core is too slow or too busy for that many reads.
    found = measured(many, 0.15, 1e12, "--to", tmp_path / "fast")
    assert {64, 128} <= {level["n_reads"] for level in found["levels"]}
    assert all(level["latency_seconds"] >= 0.15 for level in found["levels"])
    assert found["recommended"]["reads_in_flight"] is None
    assert sum(level["n_files"] for level in found["levels"]) <= 4000  # none is read twice
    assert found["unread"] == {}
    assert found["file_system"]["size_bytes"] > 0
    assert found["disk"]["write_bytes_per_second"] > 0
    assert found["disk"]["small_bytes"] == 2000
    assert found["disk"]["has_holes"] in (True, False)
    assert found["sqlite"].startswith("3.")
    assert found["dataset_bytes"] == 4000 * 2000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many"]  # it is made no more


@pytest.mark.slow  # the controller has tests of its own
@pytest.mark.alone
def test_on_a_store_of_low_bandwidth_they_shrink(many) -> None:
    # 400 files/s, however many are asked for at once.
    found = measured(many, 0.0, 400 * 2000, "--seconds", 12)
    assert min(level["n_reads"] for level in found["levels"]) < 64
    n_files, seconds = (sum(level[k] for level in found["levels"]) for k in ("n_files", "seconds"))
    assert n_files / seconds <= 440
    assert found["disk"] is None
    assert found["recommended"]["capacity"] is None


def test_the_report_can_be_pasted(source, listing, tmp_path) -> None:
    (tmp_path / "fast").mkdir()
    (tmp_path / "fast" / "overlapiter.doctor-left").mkdir()  # by one that was killed
    words = ("doctor", listing, "--source", source, "--to", tmp_path / "fast", "--seconds", 1)
    done = overlapiter(*words)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "fast").iterdir()) == []
    assert "reads_in_flight leave it out: it tunes itself while the job runs" in done.stdout
    assert "there were too few files to try another number" in " ".join(done.stdout.split())
    call = done.stdout[done.stdout.index("overlapiter.OverlapIterator(") :]
    script = "import overlapiter\ntrain, batch_size = range(4), 2\n"
    script += (
        "overlapiter.OverlapIterator = lambda *_, n_processes, staging: print(staging.source)\n"
    )
    assert "reads_in_flight" not in call
    script += call
    pasted = run([slow_command(tmp_path, 0, 1)[0], "-c", script])
    assert pasted.stdout == f"{source}\n"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--source", "/nowhere"], 2, "/nowhere is no directory"),
        (["--source", "."], 2, "--seconds: give more than 0"),
        (["--source", ".", "--ranks", "0"], 2, "give at least 1"),
        (["missing.txt", "--source", "."], 2, "missing.txt cannot be read"),
        (["--source", "EMPTY"], 1, "empty; check --source, whether you may read it, and LIST"),
        (["--source", "SOURCE", "--to", "/nowhere/fast"], 2, "its parent, does not exist"),
        (["--source", ".", "--to", "./fast"], 2, "lies below the source"),
        (["--source", "SOURCE", "--save", "/nowhere/x"], 2, "--save: /nowhere/x cannot be written"),
        (["--source", "SOURCE", "--save", "/tmp"], 2, "--save: /tmp cannot be written"),
    ],
)
def test_what_cannot_work_is_explained(source, tmp_path, words, status, message) -> None:
    (tmp_path / "empty").mkdir()
    places = {"EMPTY": str(tmp_path / "empty"), "SOURCE": str(source)}
    words = [re.sub("EMPTY|SOURCE", lambda name: places[name[0]], word) for word in words]
    seconds = 0 if "--seconds" in message else 0.5
    done = overlapiter("doctor", *words, "--seconds", seconds)
    assert done.returncode == status
    assert message in done.stderr


def test_what_is_no_file_and_what_gives_no_answer_is_named(source, listing) -> None:
    os.mkfifo(source / "fifo")
    with listing.open("a") as file:
        file.write("fifo 0\n")
    words = ("doctor", listing, "--source", source, "--seconds", 1, "--json")
    done = run(hanging_command([source / "c1/7.bin"], *words, timeout_seconds=3))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(level["n_files"] for level in found["levels"]) == N_FILES - 1
    assert sum(level["seconds"] for level in found["levels"]) < 3  # waiting for no answer is none
    silence, odd = "no answer for 3 s", "a FIFO, not a file"
    assert found["unread"] == {f"{source}/c1/7.bin": silence, f"{source}/fifo": odd}
    assert f"1 file could not be read ({silence}): {source}/c1/7.bin" in found["warnings"]


def test_a_source_that_cannot_be_listed_in_time_is_measured_as_far_as_it_was(source) -> None:
    (source / "hangs").mkdir()
    words = ("doctor", "--source", source, "--seconds", 2, "--json")
    done = run(hanging_command([source / "hangs"], *words))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(level["n_files"] for level in found["levels"]) > 0
    assert found["dataset_bytes"] is None


def test_large_files_count_as_a_whole_though_there_is_no_time_to_read_them(tmp_path) -> None:
    for n in range(40):
        with open(tmp_path / f"{n}.tar", "wb") as file:
            file.truncate(5_000_000)
    found = measured(tmp_path, 0.0, 1e8, "--seconds", 1)
    assert found["mean_bytes"] == pytest.approx(5_000_000)
    assert found["dataset_bytes"] == pytest.approx(40 * 5_000_000)
    n_files = sum(level["n_files"] for level in found["levels"])
    assert n_files != round(n_files)


def test_a_folder_that_cannot_be_listed_is_named(source, tmp_path, monkeypatch) -> None:
    (source / "sick").mkdir()
    scandir = os.scandir

    def list_folder(path: str) -> Any:
        if path.endswith("sick"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", list_folder)
    profile = tmp_path / "node.json"
    words = ["--source", str(source), "--seconds", "2", "--save", str(profile)]
    assert main(["doctor", *words]) == 0
    found = json.loads(profile.read_text())
    assert found["unlisted"] == {f"{source}/sick": "Input/output error"}
    assert f"1 folder could not be listed (Input/output error): {source}/sick" in found["warnings"]
    assert found["dataset_bytes"] is None


def test_classes_that_are_links_are_measured_and_none_twice(source, tmp_path) -> None:
    subset = tmp_path / "subset"
    subset.mkdir()
    for name, target in (("a", "c0"), ("b", "c1"), ("again", "c0")):
        (subset / name).symlink_to(source / target)
    (source / "c0" / "up").symlink_to(subset)
    (source / "c1" / "circle").symlink_to("circle")
    done = overlapiter("doctor", "--source", subset, "--seconds", 9, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(level["n_files"] for level in found["levels"]) == 20  # of c0 and c1
    assert list(found["unread"]) == [f"{subset}/b/circle"]


def test_two_that_measure_one_disk_leave_each_other_alone(tmp_path) -> None:
    with probe.scratch(str(tmp_path)) as one:
        with probe.scratch(str(tmp_path)) as other:
            assert os.path.isdir(one)
            assert one != other
        assert os.path.isdir(one)
    assert list(tmp_path.iterdir()) == []


def test_of_large_files_it_is_said_what_size_was_measured(tmp_path) -> None:
    found = probe.measure_disk(str(tmp_path), 5 << 20, 0.02)
    assert found.small_bytes == 4 << 20


def is_measuring(folder: Path) -> bool:
    """Return whether there is a file of the command's own."""
    with contextlib.suppress(FileNotFoundError):  # they come and go
        return bool(list(folder.glob("overlapiter.doctor-*/overlapiter")))
    return False


def test_an_interruption_leaves_nothing(source, tmp_path) -> None:
    words = ("doctor", "--source", source, "--to", tmp_path / "fast", "--seconds", 10)
    process = subprocess.Popen(command(*words), env=ENVIRONMENT)
    wait_until(lambda: is_measuring(tmp_path))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=100) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["lustre"]
