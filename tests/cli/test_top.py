"""What ``overlapiter top`` shows of a training that runs in another process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overlapiter.cli.jobs import find_jobs
from tests.chainer.scripts import wait_until

from .commands import ENVIRONMENT, REPOSITORY, command, overlapiter

# A training without any end, whose store is slow.
TRAINING = """
import sys
from pathlib import Path
from bench.slow.store import attach
from tests.support.engine import engine_of
from bench.claims.explained import Job, TimedFiles

def main():
    job, folder = Job(n_files=60, decode_seconds=0.001, train_seconds=0.005), Path(sys.argv[1])
    dataset = TimedFiles(job.files(folder / "source"), job.decode_seconds)
    with job.store(folder / "source") as store:
        dataset = attach(dataset, store)
        with engine_of(job, dataset, folder / "source", folder / "fast") as engine:
            job.train(engine, 3)
            print("trains", flush=True)
            while True:
                job.train(engine, 1)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def training(tmp_path: Path) -> Iterator[int]:
    """The process of a training."""
    script = tmp_path / "train_it.py"
    script.write_text(TRAINING)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path],
        env={**ENVIRONMENT, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "trains\n"
    yield process.pid
    process.kill()
    process.communicate()


def test_a_training_is_found_explained_and_counted(training: int, tmp_path: Path) -> None:
    done = overlapiter("top", training, "--once")

    assert done.returncode == 0, done.stderr
    head, row, *_ = done.stdout.splitlines()
    assert "examples/s" in head
    assert row.split()[:2] == ["train_it.py", str(training)]
    assert f"{training}: The trainer waited for data " in done.stdout

    (found,) = json.loads(overlapiter("top", training, "--once", "--json").stdout)

    assert found["pid"] == training
    assert found["stats"]["examples_taken"] >= 24
    assert found["explanation"].startswith("The trainer waited")
    assert found["cause"]
    _check_counters(training, tmp_path / "overlapiter.prom")


def test_without_a_terminal_there_are_lines_again_and_again_and_none_of_a_training_that_ended(
    training: int,
) -> None:
    words = command("top", training, "--interval", "0.1", "--json")
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        first, *later = (json.loads(top.stdout.readline())[0]["stats"] for _ in range(6))
        top.kill()
    # Of the time between two of them, however long one of these is on a busy machine.
    assert min(stats["seconds"] for stats in later) < first["seconds"]

    (job,) = find_jobs(training)
    os.kill(training, signal.SIGKILL)
    # Its workers, which hold the counters too, end by themselves; we go on holding them.
    wait_until(lambda: job.inode not in {each.inode for each in find_jobs()})


def _check_counters(training: int, file: Path) -> None:
    """Check what is written for node_exporter."""
    file.mkdir()
    assert overlapiter("top", training, "--once", "--prometheus", file).returncode == 1
    assert not list(file.parent.glob(".overlapiter-*"))
    file.rmdir()
    assert overlapiter("top", training, "--once", "--prometheus", file).returncode == 0

    lines = file.read_text().splitlines()
    (job,) = find_jobs(training)
    labels = f'{{pid="{training}",program="train_it.py",iterator="{job.inode}"}}'
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values[f"overlapiter_examples_taken_total{labels}"]) >= 24
    assert float(values[f"overlapiter_n_readers{labels}"]) == 1
    assert "# TYPE overlapiter_examples_taken_total counter" in lines
    assert "# TYPE overlapiter_n_readers gauge" in lines
    assert "# HELP overlapiter_n_readers File reader processes." in lines
    told = [line.split(maxsplit=3)[3] for line in lines if line.startswith("# HELP")]
    assert not [words for words in told if words.startswith(("Of these", "The same", "Their"))]


# A training whose first mini-batch comes, and whose second one waits for a FIFO.
STALLED = """
import sys
from pathlib import Path
from tests.support.engine import Engine

class Files:
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return len(Path(self.paths[index]).read_bytes())

if __name__ == "__main__":
    with Engine(Files(sys.argv[1:]), 1, n_readers=1) as engine:
        next(engine)
        print("waits", flush=True)
        next(engine)
"""


def test_a_mini_batch_that_does_not_come_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of the first mini-batch")
    os.mkfifo(tmp_path / "fifo")
    script = tmp_path / "stalled.py"
    script.write_text(STALLED)
    words = [sys.executable, "-W", "ignore", script, tmp_path / "file", tmp_path / "fifo"]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"

        def seen() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(
                overlapiter("top", process.pid, "--once", "--json").stdout
            )[0]
            return found

        def is_told() -> bool:
            found.update(seen())
            stats = found["stats"]
            others = max(stats["wait_start_seconds"], stats["wait_assembling_seconds"])
            return stats["waiting_for_readers_seconds"] > max(1.5, others)

        found: dict[str, Any] = {}
        wait_until(is_told)  # the supervisor counts about once a second
        row = overlapiter("top", process.pid, "--once").stdout.splitlines()[1]
        process.kill()

    stats = found["stats"]
    assert stats["wait_seconds"] > stats["waiting_seconds"] > 1.5
    assert found["cause"] == "stalled"
    assert "mostly for file readers to read or decode it" in found["explanation"]
    assert row.split()[0] == "stalled.py"
    assert row.split().count("reading") == 1


def test_no_training_is_no_success_and_has_no_counters(tmp_path: Path) -> None:
    file = tmp_path / "overlapiter.prom"
    file.write_text("overlapiter_n_readers{} 1\n")  # of one that has ended
    done = overlapiter("top", 1, "--once", "--prometheus", file)
    assert done.returncode == 1
    assert "run it there, as the user of the job" in done.stderr
    assert file.read_text() == "\n"
