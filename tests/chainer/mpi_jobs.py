"""Runs programs of this folder under mpiexec, and looks at what they leave behind."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.chainer.scripts import ENVIRONMENT, wait_until

#: The marks of a module whose tests start mpiexec.
NEEDS_MPIEXEC = [
    pytest.mark.mpi,
    pytest.mark.skipif(shutil.which("mpiexec") is None, reason="needs mpiexec"),
]

#: After which nothing may be left of a job, also of one that was killed.
GRACE_SECONDS = 5.0

#: Set in the environment of every process of a job.
_MARK = "OVERLAPITER_TEST_JOB"


class Job(NamedTuple):
    """A job that has ended.

    Attributes:
        exit_status: What mpiexec returned.
        results: What each rank reported, by rank; nothing of a rank that did not get that far.
        output: The standard output and the standard error stream of all ranks.
    """

    exit_status: int
    results: list[Any]
    output: str


def run_job(
    program: str | Path,
    n_ranks: int,
    folder: Path,
    *arguments: object,
    n_nodes: int = 1,
    timeout_seconds: float = 90.0,
) -> Job:
    """Run ``program`` on ``n_ranks`` ranks; fail if anything is left of it.

    Args:
        program: Its path, or the name of a file of this folder.
        n_ranks: Number of ranks, which may be more than there are cores.
        folder: Working directory, where each rank writes ``rank-N.json``.
        arguments: Of the program.
        n_nodes: If more than one, equal parts of the ranks find themselves on nodes that are named
            ``node-0``, ``node-1`` and so on.
        timeout_seconds: When the job is killed and the test fails.
    """
    for path in folder.glob("rank-*.json"):
        path.unlink()
    before = set(Path("/dev/shm").iterdir())
    mark = uuid.uuid4().hex
    with (folder / "output.txt").open("w+") as output:
        path = Path(__file__).parent / program
        process = subprocess.Popen(
            _command(n_ranks, n_nodes, [sys.executable, str(path), *map(str, arguments)]),
            cwd=folder,
            env={**ENVIRONMENT, _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            exit_status = process.wait(timeout_seconds)
            wait_until(lambda: not _processes_of(mark), GRACE_SECONDS)
        finally:
            for left in _processes_of(mark):
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
            process.wait()
        text = (folder / "output.txt").read_text()
    wait_until(lambda: not _abandoned_memory(before), GRACE_SECONDS)
    paths = [folder / f"rank-{rank}.json" for rank in range(n_ranks)]
    return Job(exit_status, [json.loads(p.read_text()) for p in paths if p.exists()], text)


def _command(n_ranks: int, n_nodes: int, program: list[str]) -> list[str]:
    """Return a call of mpiexec with a part for each node."""
    command = ["mpiexec", "--allow-run-as-root", "--oversubscribe"]
    for node in range(n_nodes):
        name = ["-x", f"OVERLAPITER_NODE=node-{node}"] if n_nodes > 1 else []
        separator = [":"] if node else []
        command += [*separator, "-n", str(n_ranks // n_nodes), *name, *program]
    return command


def _processes_of(mark: str) -> list[psutil.Process]:
    """Return the processes of a job, whoever their parent is by now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark:
                found.append(process)
    return found


def _abandoned_memory(before: set[Path]) -> list[Path]:
    """Return the new entries of /dev/shm that no process maps."""
    new = set(Path("/dev/shm").iterdir()) - before
    mapped = ""
    for path in Path("/proc").glob("[0-9]*/maps") if new else ():
        with contextlib.suppress(OSError):
            mapped += path.read_text()
    return [path for path in new if str(path) not in mapped and path.exists()]


def check_staged(directory: Path, source: Path) -> int:
    """Check that each staged file is a whole copy and none half-copied; return how many."""
    assert list(directory.glob("*/partial/*")) == []
    staged = [path for path in directory.glob("*/files/**/*") if path.is_file()]
    for path in staged:
        assert path.read_bytes() == (source / path.name).read_bytes()
    return len(staged)
