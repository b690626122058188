"""Processes of a program, and the shared memory that they leave."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

#: The names of the workers, as ``/proc/PID/comm`` shows them.
KINDS = {"ovl-reader": "reader", "ovl-prefetcher": "prefetcher", "ovl-supervisor": "supervisor"}
#: A variable in the environment of a watched program: all that it starts inherit it, so that one
#: whose parent has died is still recognized.
MARK = "OVERLAPITER_FAULTS"
_GRACE_SECONDS = 2.0


def is_running(process: psutil.Process) -> bool:
    """Return whether this very process has not ended; one that ended waits for its parent."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def send(process: psutil.Process, number: int) -> bool:
    """Send a signal to a process and no other; return whether it was there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if is_running(process):
            process.send_signal(number)
            return True
    return False


def descendants(pid: int) -> list[psutil.Process]:
    """Return all processes below one; takes a millisecond or two."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def workers(family: Iterable[psutil.Process]) -> dict[psutil.Process, str]:
    """Return those of a family that are workers, with their kind, the ended ones included."""
    named = {}
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            named[process] = process.name(), process.ppid()
    supervisors = {process.pid for process, (name, _) in named.items() if name == "ovl-supervisor"}
    return {
        process: KINDS[name]
        for process, (name, parent_pid) in named.items()
        # A worker that was forked just now still bears the name of its supervisor.
        if name in KINDS and not (name == "ovl-supervisor" and parent_pid in supervisors)
    }


def marked(value: str) -> list[psutil.Process]:
    """Return all processes that were started with ``MARK=value``, of whatever parent."""

    def found() -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # ended meanwhile, or another user's
                if process.environ().get(MARK) == value and is_running(process):
                    yield process

    return list(found())


def memory_files() -> dict[str, int]:
    """Return the names and inodes of all shared memory; a folder there is a place for data."""
    found = {}
    for entry in os.scandir("/dev/shm"):
        with contextlib.suppress(FileNotFoundError):
            if entry.is_file(follow_symlinks=False):
                found[entry.name] = entry.inode()
    return found


def mapped_inodes(pids: Iterable[int]) -> set[int]:
    """Return the inodes of the files that these processes have mapped.

    By name a semaphore would not be found: it gets its own when it is mapped already.
    """
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            inodes |= {int(line.split(maxsplit=5)[4]) for line in lines}
    return inodes


def new_shared_memory(before: Iterable[str]) -> list[str]:
    """Return the names in ``/dev/shm`` that were not there before; waits up to 2 s for none.

    What other programs have mapped is none of it.
    """
    deadline = time.monotonic() + _GRACE_SECONDS
    while True:
        files = memory_files()
        if new := sorted(files.keys() - set(before)):
            ours = {process.pid for process in marked(os.environ.get(MARK, ""))} | {os.getpid()}
            mapped = mapped_inodes(set(psutil.pids()) - ours)
            new = [name for name in new if files[name] not in mapped]
        if not new or time.monotonic() > deadline:
            return new
        time.sleep(0.01)
