"""Records: who uses a staging directory now, and what earlier runs have done."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from overlapiter.staging import records
from overlapiter.staging.marks import MARK_FILE, read_mark, write_mark
from overlapiter.staging.process_id import Life, ProcessId, start_ticks
from overlapiter.staging.records import RUNS_FILE, USERS_FOLDER, add_run, bury, present, runs
from overlapiter.staging.records import recorded_run as recorded

HOLDER = """
import sys
from overlapiter.staging.records import recorded_run
with recorded_run(sys.argv[1], {}, dict, print):
    print("present", flush=True)
    sys.stdin.read()
"""


def holder(directory: Path) -> subprocess.Popen[str]:
    """Return a process that has recorded a run, which ends when its standard input does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "present\n"
    return process


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=20)


def refuse(text: str) -> None:
    raise AssertionError(text)


def test_a_run_is_present_while_it_goes_on_and_remembered_afterwards(tmp_path: Path) -> None:
    with recorded(str(tmp_path), {"batch_size": 32}, lambda: {"files_staged": 7}, refuse):
        (run,) = present(str(tmp_path))
        assert run.owner == ProcessId.this_process()
        assert run.owner.life() is Life.ALIVE
        assert run.facts["batch_size"] == 32
        assert runs(str(tmp_path)) == []
    assert present(str(tmp_path)) == []
    (ended,) = runs(str(tmp_path))
    assert ended["end"] == "closed"
    assert ended["counters"] == {"files_staged": 7}


def test_two_runs_of_one_process_are_both_present(tmp_path: Path) -> None:
    with recorded(str(tmp_path), {}, dict, refuse), recorded(str(tmp_path), {}, dict, refuse):
        assert len(present(str(tmp_path))) == 2


def test_a_run_that_raises_has_failed(tmp_path: Path) -> None:
    with pytest.raises(KeyError), recorded(str(tmp_path), {}, dict, refuse):
        raise KeyError
    assert [run["end"] for run in runs(str(tmp_path))] == ["failed"]


def test_a_run_that_somebody_stopped_was_interrupted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), recorded(str(tmp_path), {}, dict, refuse):
        raise KeyboardInterrupt
    assert [run["end"] for run in runs(str(tmp_path))] == ["interrupted"]


def test_records_are_for_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with recorded(str(tmp_path), {}, dict, refuse):
            pass
        with recorded(str(tmp_path), {}, dict, refuse):
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*")}
    finally:
        os.umask(old)
    assert modes.pop(USERS_FOLDER) == 0o700
    assert len(modes) == 2
    assert set(modes.values()) == {0o600}


def test_a_killed_run_is_found_dead_and_remembered_as_killed(tmp_path: Path) -> None:
    process = holder(tmp_path)
    (run,) = present(str(tmp_path))
    assert run.owner.pid == process.pid
    assert run.owner.life() is Life.ALIVE
    assert bury(str(tmp_path)) == 0
    process.send_signal(signal.SIGKILL)
    finish(process)
    assert run.owner.life() is Life.ENDED
    with recorded(str(tmp_path), {}, dict, refuse):  # the next run does it
        assert [other.owner.pid for other in present(str(tmp_path))] == [os.getpid()]
    assert [ended["end"] for ended in runs(str(tmp_path))] == ["killed", "closed"]


def test_a_process_that_nobody_has_reaped_has_ended(tmp_path: Path) -> None:
    process = holder(tmp_path)
    (run,) = present(str(tmp_path))
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert run.owner.life() is Life.ENDED
    finish(process)


def test_another_life_of_the_same_pid_is_another_owner() -> None:
    this = ProcessId.this_process()
    facts = this.facts()
    assert ProcessId.from_facts(facts) == this
    for name, value in [("start_ticks", 1), ("boot_id", "another")]:
        other = ProcessId.from_facts({**facts, name: value})
        assert other is not None
        assert other.life() is Life.ENDED, name
    for name, value in [("host", "elsewhere"), ("pid_namespace", 1)]:
        other = ProcessId.from_facts({**facts, name: value})
        assert other is not None
        assert other.life() is Life.UNKNOWN, name


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"owner": 3}', '{"owner": {"host": 1}}', "[" * 20_000, "\0" * 100],
)
def test_a_record_that_is_none_is_passed_by(tmp_path: Path, text: str) -> None:
    (tmp_path / USERS_FOLDER).mkdir()
    (tmp_path / USERS_FOLDER / "x.json").write_text(text)
    (tmp_path / RUNS_FILE).write_text(text + "\n")
    assert present(str(tmp_path)) == []
    assert bury(str(tmp_path)) == 0
    with recorded(str(tmp_path), {}, dict, refuse):
        assert len(present(str(tmp_path))) == 1
    assert runs(str(tmp_path))[-1]["end"] == "closed"


def test_links_are_not_followed_and_pipes_not_waited_for(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    directory = tmp_path / "staging"
    (directory / USERS_FOLDER).mkdir(parents=True)
    os.mkfifo(directory / USERS_FOLDER / "pipe.json")
    os.symlink(precious, directory / USERS_FOLDER / "link.json")
    os.symlink(precious, directory / RUNS_FILE)
    with recorded(str(directory), {}, dict, refuse):
        assert len(present(str(directory))) == 1
    assert precious.read_text() == "mine"
    assert runs(str(directory)) == []


def test_a_folder_of_users_that_is_a_link_is_told_of(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    directory = tmp_path / "staging"
    directory.mkdir()
    os.symlink(elsewhere, directory / USERS_FOLDER)
    told: list[str] = []
    with recorded(str(directory), {}, dict, told.append):
        assert present(str(directory)) == []
    assert list(elsewhere.iterdir()) == []
    assert len(told) == 1
    assert "overlapiter status" in told[0]


def test_a_directory_that_vanished_does_not_stop_a_run(tmp_path: Path) -> None:
    told: list[str] = []
    with recorded(str(tmp_path / "gone"), {}, dict, told.append):
        pass
    assert len(told) == 1


def test_the_records_of_runs_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_MOST_RUNS_BYTES", 4096)
    for number in range(200):
        add_run(str(tmp_path), {"number": number}, "closed", {})
        assert (tmp_path / RUNS_FILE).stat().st_size <= 4096
    numbers = [run["number"] for run in runs(str(tmp_path))]
    assert numbers == list(range(numbers[0], 200))
    assert len(numbers) > 10
    assert [path.name for path in tmp_path.iterdir()] == [RUNS_FILE]


def test_a_process_that_never_was_has_no_start() -> None:
    assert start_ticks(2**22 + 1) is None


def test_a_mark_says_which_source_is_mirrored(tmp_path: Path) -> None:
    assert read_mark(str(tmp_path)) is None
    write_mark(str(tmp_path), "/lustre/a much longer name than the next")
    write_mark(str(tmp_path), "/lustre/\udcff")
    assert read_mark(str(tmp_path)) == "/lustre/\udcff"
    assert stat.S_IMODE((tmp_path / MARK_FILE).stat().st_mode) == 0o600
    (tmp_path / MARK_FILE).write_text(json.dumps(["no", "mark"]))
    assert read_mark(str(tmp_path)) is None


def test_a_mark_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text('{"source": "/etc"}')
    (tmp_path / "sub").mkdir()
    os.symlink(tmp_path / "precious", tmp_path / "sub" / MARK_FILE)
    write_mark(str(tmp_path / "sub"), "/lustre")
    assert read_mark(str(tmp_path / "sub")) is None
    assert (tmp_path / "precious").read_text() == '{"source": "/etc"}'
