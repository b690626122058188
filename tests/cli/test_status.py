"""`overlapiter status`: what is staged, whose it is, how full, and how well it works."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overlapiter.store.generation import generation_of, index_path
from overlapiter.store.site import Run, Site
from overlapiter.store.store import Store
from tests.chainer.scripts import wait_until
from tests.support.staged import staged_paths

from .commands import ENVIRONMENT, command, hanging_command, overlapiter, run, stage
from .conftest import N_FILES

TRAINING = """
import os, subprocess, sys
import overlapiter
from tests.cli.test_status import Files
from tests.support.engine import Engine

def main():
    source, fast = sys.argv[1:]
    staging = overlapiter.Staging(fast, source=source, capacity="1MB", n_prefetchers=1)
    with Engine(Files(source), 10, n_readers=1, staging=staging) as engine:
        for _ in range(6):
            next(engine)
        subprocess.run([sys.executable, "-m", "overlapiter", "status", fast, "--json"], check=True)

if __name__ == "__main__":
    main()
"""


class Files:
    """A dataset of the files of a source."""

    def __init__(self, source: str) -> None:
        self._paths = sorted(map(str, Path(source).rglob("*.bin")))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> bytes:
        with open(self._paths[index], "rb") as file:
            return file.read(1)

    def source_paths(self, index: int) -> list[str]:
        return [self._paths[index]]


def status(directory: Path) -> dict[str, Any]:
    done = overlapiter("status", directory, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_training_is_shown_while_it_runs_and_remembered_afterwards(source, fast) -> None:
    done = run([sys.executable, "-c", TRAINING, str(source), str(fast)])
    assert done.returncode == 0, done.stderr
    during = json.loads(done.stdout)
    (user,) = during["users"]
    assert user["state"] == "running"
    assert user["capacity_bytes"] == 10**6
    assert user["counters"]["files_staged"] == N_FILES
    assert user["counters"]["opens_staged"] >= 6 * 10
    assert during["runs"] == []
    assert [holding["n_files"] for holding in during["holdings"]] == [N_FILES]
    after = status(fast)
    assert after["users"] == []
    (ended,) = after["runs"]
    assert ended["end"] == "closed"
    assert ended["counters"]["files_staged"] == N_FILES
    assert ended["staging"]["source"] == str(source)
    checked = overlapiter("check", fast)
    assert checked.returncode == 0, checked.stdout
    text = overlapiter("status", fast).stdout
    assert f"{source} {N_FILES} 30.4 kB" in text
    assert "Who uses it: no run at present." in text
    assert " closed " in text
    assert " 100.0% " in text
    assert "took waited from staging times found staged times refused\n" in text
    assert f" {ended['counters']['wait_share']:.0%} 100.0% " in text


def test_a_training_that_was_killed_is_remembered_as_killed(source, fast) -> None:
    killed = TRAINING.replace("subprocess.run", "os.kill(os.getpid(), 9)  #")
    assert run([sys.executable, "-c", killed, str(source), str(fast)]).returncode == -9
    wait_until(lambda: not status(fast)["users"])
    assert [ended["end"] for ended in status(fast)["runs"]] == ["killed"]


def test_nothing_staged_is_no_error(source, fast) -> None:
    done = overlapiter("stage", "-", "--source", source, "--to", fast, stdin="nowhere")
    assert done.returncode == 1
    done = overlapiter("status", fast, "--runs", 0)
    assert done.returncode == 0
    assert "Nothing is staged." in done.stdout
    assert str(source) not in done.stdout
    assert "No run" not in done.stdout  # none was asked for
    assert "The last runs" in overlapiter("status", fast, "--runs", 10**20).stdout


def test_a_directory_of_other_things_is_no_staging_directory(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = overlapiter("status", tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path} is no staging directory; name the one" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("n", ["-1", "x"])
def test_a_number_of_runs_that_makes_no_sense_is_refused(tmp_path, n) -> None:
    assert overlapiter("status", tmp_path, "--runs", n).returncode == 2


def test_runs_that_go_on_are_told_from_those_that_were_killed(source, fast, listing) -> None:
    words = ["stage", listing, "--source", source, "--to", fast, "--reads-in-flight", 1]
    hanging = hanging_command([source / "c2" / "8.bin"], *words)  # the last one
    killed = subprocess.Popen(hanging, env=ENVIRONMENT)
    wait_until(lambda: bool(staged_paths(fast)))
    (alive,) = status(fast)["users"]
    assert (alive["state"], alive["command"]) == ("running", "overlapiter stage")
    assert alive["trainer_pid"] == killed.pid
    killed.send_signal(signal.SIGKILL)
    killed.wait(timeout=30)
    facts = {"command": "python \x1b[31mtrain.py", "trainer_pid": 1, "job": "SLURM_JOB_ID=7"}
    store = Store(Site(str(fast)), str(source), Run(7, facts))
    store.look([])
    try:
        users = {user["state"]: user["command"] for user in status(fast)["users"]}
        text = overlapiter("status", fast).stdout
    finally:
        store.close()
    assert users == {"running": facts["command"], "killed": "overlapiter stage"}
    assert "SLURM_JOB_ID=7" in text
    assert "\x1b" not in text


def test_records_that_make_no_sense_do_no_harm(source, fast, listing) -> None:
    stage(listing, "--source", source, "--to", fast)
    records = [("3", "[]"), ("{", "{"), ("{}", '{"files_staged": "x"}')]
    with contextlib.closing(sqlite3.connect(index_path(generation_of(str(fast))))) as connection:
        for n, record in enumerate(records):
            row = (n, *record)
            connection.execute("INSERT INTO run VALUES (?, 1, ?, 1.0, 1, 2.0, 'closed', ?)", row)
        connection.commit()
    done = overlapiter("status", fast)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("closed") == 4


def test_a_directory_that_is_missing_is_explained(tmp_path) -> None:
    done = overlapiter("status", tmp_path / "nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith(f"overlapiter status: there is no {tmp_path}/nowhere: the first")


@pytest.mark.parametrize("command", ["status", "ls", "check"])
def test_what_an_earlier_version_left_is_mentioned(source, fast, listing, command) -> None:
    stage(listing, "--source", source, "--to", fast)
    (fast / "overlapiter.users").mkdir()
    done = overlapiter(command, fast)
    assert done.returncode == 0
    assert done.stderr == (
        f"note: {fast} holds what an earlier version staged (overlapiter.users), in a form that "
        f"this one does not read: `overlapiter evict {fast} --old` removes it\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
def test_a_directory_that_may_not_be_read_is_explained(fast) -> None:
    fast.mkdir(mode=0o700)
    other_user = ["setpriv", "--reuid=65533", "--clear-groups"]
    if subprocess.run([*other_user, sys.executable, "-c", ""], check=False).returncode:
        pytest.skip("another user cannot run this Python")
    done = run([*other_user, *command("status", fast)])
    assert done.returncode == 1
    reason = "Permission denied; run the command as the user whose directory it is"
    assert done.stderr == f"overlapiter status: {fast}: {reason}\n"
