"""Runs programs as a user does, each in a process of its own, and looks at their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.support.leftovers import mapped_inodes, memory_files

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"},
    "PYTHONPATH": f"{REPOSITORY / 'tests' / 'quick_start'}{os.pathsep}{REPOSITORY}",
    "OMP_NUM_THREADS": "1",
}


#: What must not wait for something that never ends takes less, also on a machine that is busy. What
#: ``held_back`` holds back goes on after 45 s, when the kernel breaks the lease.
PROMPT_SECONDS = 30.0


def wait_until(condition: Callable[[], object], timeout_seconds: float = 60.0) -> None:
    """Return when the condition holds; fail if it does not come to hold."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def write_script(folder: Path, body: str) -> Path:
    """Write a program, given indented, into ``folder``."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(body))
    return path


def run_script(
    folder: Path,
    body: str,
    *,
    launcher: tuple[str, ...] = (),
    runner: tuple[str, ...] = (),
    timeout_seconds: float = 200,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with ``folder`` as its working directory.

    Args:
        folder: The directory.
        body: The program, indented.
        launcher: What starts Python.
        runner: What Python runs, and that the program.
        timeout_seconds: When it is killed, and the test fails.
    """
    return subprocess.run(
        [*launcher, sys.executable, *runner, str(write_script(folder, body))],
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


class Program:
    """A program that runs in a process group of its own; kills what is left of it at the end."""

    def __init__(self, folder: Path, body: str) -> None:
        self._errors_path = folder / "errors.txt"
        with self._errors_path.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(write_script(folder, body))],
                cwd=folder,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc_info: object) -> None:
        kill_all(self.descendants())
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def wait_for(self, line: str) -> None:
        """Return when the program has printed this line."""
        assert self.process.stdout is not None
        for printed in self.process.stdout:
            if printed.strip() == line:
                return
        raise AssertionError(f"the program ended without {line!r}: {self.errors()}")

    def descendants(self) -> list[psutil.Process]:
        """Return the processes that the program started, with the helpers of multiprocessing."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def interrupt(self) -> None:
        """Press Ctrl-C: send SIGINT to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        """Wait until the program ends, which it is about to do; return its exit status."""
        return self.process.wait(PROMPT_SECONDS)

    def errors(self) -> str:
        """Return what went to the standard error stream so far."""
        return self._errors_path.read_text()


def workers(parent: psutil.Process | None = None) -> dict[str, list[psutil.Process]]:
    """Return our processes below ``parent`` (this process) by their names, as ``ps`` shows them."""
    found: dict[str, list[psutil.Process]] = {}
    for process in (parent or psutil.Process()).children(recursive=True):
        try:
            name = Path(f"/proc/{process.pid}/comm").read_text().strip()
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
        except (OSError, psutil.NoSuchProcess):
            continue
        if name.startswith("ovl-"):
            found.setdefault(name, []).append(process)
    return found


def wait_for_workers(
    n_expected: dict[str, int], parent: psutil.Process | None = None
) -> list[psutil.Process]:
    """Return our processes below ``parent`` when there are as many of each name as expected.

    The first mini-batch may come before the last worker has started.
    """
    found: dict[str, list[psutil.Process]] = {}

    def are_all_there() -> bool:
        found.clear()
        found.update(workers(parent))
        return {name: len(them) for name, them in found.items()} == n_expected

    wait_until(are_all_there)
    return [process for them in found.values() for process in them]


def kill_all(processes: list[psutil.Process]) -> None:
    """Kill processes, of which some may end before it is their turn."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def abandoned_memory(before: dict[str, int]) -> list[str]:
    """Return the names of shared memory that was not there before and that no process has mapped.

    Args:
        before: The ``memory_files`` that were there.
    """
    new = {name: inode for name, inode in memory_files().items() if name not in before}
    mapped = mapped_inodes(psutil.pids()) if new else set()
    return [name for name, inode in new.items() if inode not in mapped]


def are_gone(processes: list[psutil.Process], timeout_seconds: float = PROMPT_SECONDS) -> bool:
    """Return whether all processes end within the time. A zombie has ended."""
    deadline = time.monotonic() + timeout_seconds
    while any(_is_alive(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _is_alive(process: psutil.Process) -> bool:
    try:
        # A zombie's other threads may still end, and hold its files meanwhile.
        n_threads = len(os.listdir(f"/proc/{process.pid}/task"))
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return process.is_running() and not (is_zombie and n_threads == 1)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return False


def complaints(errors: str) -> list[str]:
    """Return the lines of a standard error stream that a user would worry about."""
    words = ("Traceback", "Exception ignored", "leaked", "Error", "Warning", "warn")
    return [line for line in errors.splitlines() if any(word in line for word in words)]
