"""`overlapiter status`: what is staged, whose it is, how full, and how well it works."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from overlapiter.staging.records import USERS_FOLDER, recorded_run

from .commands import overlapiter, run
from .conftest import N_FILES

TRAINING = """
import os, subprocess, sys
import overlapiter
from tests.cli.test_status import Files

def main():
    source, fast = sys.argv[1:]
    staging = overlapiter.Staging(fast, source=source, capacity="1MB", n_prefetchers=1)
    it = overlapiter.OverlapIterator(Files(source), 10, n_processes=1, staging=staging)
    for _ in range(6):
        next(it)
    subprocess.run([sys.executable, "-m", "overlapiter", "status", fast, "--json"], check=True)
    it.finalize()

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
    assert "Who uses it: nobody now." in text
    assert " closed " in text
    assert " 100.0% " in text
    assert "from staging times found staged not staged\n" in text


def test_nothing_staged_is_no_error(source, fast) -> None:
    done = overlapiter("stage", "-", "--source", source, "--to", fast, stdin="nowhere")
    assert done.returncode == 1
    (fast / "overlapiter.runs.jsonl").unlink()
    done = overlapiter("status", fast)
    assert done.returncode == 0
    assert "Nothing is staged." in done.stdout
    assert str(source) not in done.stdout
    assert "No run has ended yet." in done.stdout


def test_a_directory_of_other_things_is_no_staging_directory(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = overlapiter("status", tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path} is no staging directory; name the one" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("n", ["-1", "x"])
def test_a_number_of_runs_that_makes_no_sense_is_refused(tmp_path, n) -> None:
    assert overlapiter("status", tmp_path, "--runs", n).returncode == 2


def test_runs_of_all_kinds_are_told_apart(tmp_path) -> None:
    facts = {"command": "python \x1b[31mtrain.py", "trainer_pid": 1, "staging": {}}
    with recorded_run(str(tmp_path), facts, dict, pytest.fail):
        (alive,) = (tmp_path / USERS_FOLDER).iterdir()
        record = json.loads(alive.read_text())
        for name, changed in [("dead", {"start_ticks": 1}), ("far", {"host": "node-7"})]:
            other = {**record, "owner": {**record["owner"], **changed}}
            alive.with_name(f"{name}.json").write_text(json.dumps(other))
        (tmp_path / USERS_FOLDER / "none.json").write_text("{")
        states = sorted(user["state"] for user in status(tmp_path)["users"])
        text = overlapiter("status", tmp_path).stdout
    assert states == ["elsewhere", "killed", "running"]
    assert "node-7" in text
    assert "\x1b" not in text


def test_records_that_make_no_sense_do_no_harm(tmp_path) -> None:
    lines = [{"counters": 3}, {"counters": {"opens_staged": "x"}}, {"ended_seconds": "y"}, {}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "overlapiter.runs.jsonl").write_text(text + "rubbish\n[1]\n")
    done = overlapiter("status", tmp_path)
    assert done.returncode == 0
    assert "The last runs" in done.stdout


def test_a_directory_that_is_missing_is_explained(tmp_path) -> None:
    done = overlapiter("status", tmp_path / "nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith(f"overlapiter status: there is no {tmp_path}/nowhere: the first")
