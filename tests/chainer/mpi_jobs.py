"""Runs programs of this folder under mpiexec, and looks at what they leave behind."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.chainer.scripts import ENVIRONMENT, abandoned_memory, kill_all, wait_until
from tests.support.leftovers import memory_files
from tests.support.staged import being_copied, read_staged, staged_paths

#: The marks of a module whose tests start mpiexec.
NEEDS_MPIEXEC = [
    pytest.mark.mpi,
    pytest.mark.skipif(shutil.which("mpiexec") is None, reason="needs mpiexec"),
]

#: After which nothing may be left of a job, also of one that was killed.
GRACE_SECONDS = 60.0

#: Set in the environment of every process of a job.
_MARK = "OVERLAPITER_TEST_JOB"

#: How often to look at the processes of a job while it runs.
_LOOK_SECONDS = 0.2

#: In the command line of every process from the forkserver, and in its own.
_WORKER = "from multiprocessing"

#: Parts of the paths of what MPI consists of, InfiniBand's library among it.
_MPI = ("/libmpi", "/mpi4py/MPI", "/libpmix", "/libopen-pal", "/libucp", "/libibverbs")

_LAUNCHER = ("mpiexec", "--allow-run-as-root", "--oversubscribe")


class Job(NamedTuple):
    """A job that has ended.

    Attributes:
        exit_status: What mpiexec returned.
        results: What each rank reported, by rank; nothing of a rank that did not get that far.
        output: The standard output and the standard error stream of all ranks.
        n_looks: How often one of its workers was looked at, and had nothing of MPI.
    """

    exit_status: int
    results: list[Any]
    output: str
    n_looks: int


class Group(NamedTuple):
    """Ranks of a job that run the same program on the same node.

    Attributes:
        program: Path of the file; if relative, one of this folder.
        n_ranks: Number of ranks, which may be more than there are cores.
        arguments: Of the program.
        node: Name of a node to play: ``OVERLAPITER_NODE`` and, for root, the host name; empty for
            the node that this is.
        runner: What Python runs, and that the program.
    """

    program: str | Path
    n_ranks: int
    arguments: Sequence[object] = ()
    node: str = ""
    runner: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """Return what follows mpiexec's own options."""
        path = Path(__file__).parent / self.program
        command = [sys.executable, *self.runner, str(path), *map(str, self.arguments)]
        if self.node and plays_host_names():
            rename = 'hostname "$0" && exec "$@"'
            command = ["unshare", "--uts", "sh", "-c", rename, self.node, *command]
        if self.node:
            command = ["env", f"OVERLAPITER_NODE={self.node}", *command]
        return ["-n", str(self.n_ranks), *command]


@functools.cache
def plays_host_names() -> bool:
    """Return whether each group can have a host name of its own."""
    command = ["unshare", "--uts", "hostname", "node-0"]
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode
    )


def run_job(
    program: str | Path,
    n_ranks: int,
    folder: Path,
    *arguments: object,
    n_nodes: int = 1,
    runner: tuple[str, ...] = (),
    timeout_seconds: float = 200.0,
) -> Job:
    """Run ``program`` on ``n_ranks`` ranks; see :func:`run_groups`.

    Args:
        program: Its path, or the name of a file of this folder.
        n_ranks: Number of ranks, which may be more than there are cores.
        folder: Working directory, where each rank writes ``rank-N.json``.
        arguments: Of the program.
        n_nodes: If more than one, equal parts of the ranks find themselves on nodes that are named
            ``node-0``, ``node-1`` and so on.
        runner: What Python runs, and that the program.
        timeout_seconds: When the job is killed and the test fails.
    """
    nodes = [f"node-{i}" for i in range(n_nodes)] if n_nodes > 1 else [""]
    groups = [Group(program, n_ranks // n_nodes, arguments, node, runner) for node in nodes]
    return run_groups(groups, folder, timeout_seconds)


def run_groups(groups: Sequence[Group], folder: Path, timeout_seconds: float = 200.0) -> Job:
    """Run a job; fail if anything is left of it, or if a worker has anything of MPI at any time.

    Args:
        groups: Its ranks, in their order.
        folder: Working directory, where each rank writes ``rank-N.json``.
        timeout_seconds: When the job is killed and the test fails.
    """
    command = [word for group in groups for word in (":", *group.command())]
    for path in folder.glob("rank-*.json"):
        path.unlink()
    before = memory_files()
    mark = uuid.uuid4().hex
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [*_LAUNCHER, *command[1:]],
            cwd=folder,
            env={**ENVIRONMENT, _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            n_looks = _look_until_end(process, mark, timeout_seconds)
            wait_until(lambda: not _processes_of(mark), GRACE_SECONDS)
        finally:
            kill_all(_processes_of(mark))
            process.wait()
        text = (folder / "output.txt").read_text()
    wait_until(lambda: not abandoned_memory(before), GRACE_SECONDS)
    paths = [folder / f"rank-{rank}.json" for rank in range(sum(g.n_ranks for g in groups))]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    return Job(exit_status_of(process.returncode, text), results, text, n_looks)


def exit_status_of(returncode: int, output: str) -> int:
    """Return the exit status of a job.

    Open MPI's launcher now and then crashes when it has ended a job and has said how.

    Args:
        returncode: Of the launcher.
        output: What it has said.
    """
    said = re.findall(r"(?:Errorcode|Exit code): +(\d+)", output)
    return int(said[-1]) if said and returncode == -signal.SIGSEGV else returncode


def _look_until_end(process: subprocess.Popen[bytes], mark: str, timeout_seconds: float) -> int:
    """Wait for the end of a job; return how often one of its workers was looked at meanwhile."""
    n_looks = 0
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            process.wait(_LOOK_SECONDS)
            return n_looks
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise
        for worker in _processes_of(mark):
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                if _WORKER in " ".join(worker.cmdline()):
                    assert mpi_of(worker.pid) == [], worker
                    n_looks += 1


def mpi_of(pid: int) -> list[str]:
    """Return what of MPI is mapped into the memory of a process; empty once it is gone."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return [line for line in maps.splitlines() if any(part in line for part in _MPI)]


def _processes_of(mark: str) -> list[psutil.Process]:
    """Return the processes of a job, those that have lost their parent among them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark:
                found.append(process)
    return found


def check_staged(directory: Path, source: Path) -> int:
    """Check that each staged file is a whole copy and none half-copied; return how many."""
    assert being_copied(directory) == set()
    staged = staged_paths(directory, source)
    for name, extent in staged.items():
        assert read_staged(directory, extent) == (source / name).read_bytes()
    return len(staged)
