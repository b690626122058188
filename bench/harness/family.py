"""Processes of a program and what they leave, as ``/proc`` shows it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The names of the workers, as ``/proc/PID/comm`` shows them.
KINDS = {"ovl-reader": "reader", "ovl-prefetcher": "prefetcher", "ovl-supervisor": "supervisor"}
#: A variable in the environment of a watched program: all that it starts inherit it, so that one
#: whose parent has died is still recognized.
MARK = "OVERLAPITER_FAULTS"
_GRACE_SECONDS = 2.0


class Process(NamedTuple):
    """One process at one moment.

    Attributes:
        pid: Its number, which may be given to another one after its end.
        start_ticks: When it started, which tells the two apart.
        parent_pid: Its parent.
        name: As ``/proc/PID/comm`` shows it.
        state: The letter that ``ps`` shows.
    """

    pid: int
    start_ticks: int
    parent_pid: int
    name: str
    state: str

    @property
    def identity(self) -> tuple[int, int]:
        """What no other process has."""
        return self.pid, self.start_ticks

    @property
    def has_ended(self) -> bool:
        """Whether it waits for its parent to be told."""
        return self.state in "ZX"


def look_at(pid: int) -> Process | None:
    """Return a process, or None if there is none of this number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(") ")
    fields = tail.split()
    return Process(pid, int(fields[19]), int(fields[1]), head.partition("(")[2], fields[0])


def is_running(process: Process) -> bool:
    """Return whether this very process has not ended."""
    now = look_at(process.pid)
    return now is not None and now.identity == process.identity and not now.has_ended


def send(process: Process, number: int) -> bool:
    """Send a signal to a process and no other; return whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if is_running(process):
                signal.pidfd_send_signal(handle, number)
                return True
        finally:
            os.close(handle)
    return False


def descendants(pid: int) -> list[Process]:
    """Return all processes below one; takes a millisecond or two."""
    looks = (look_at(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    others = [process for process in looks if process is not None]
    family, pids = [], {pid}
    while found := [process for process in others if process.parent_pid in pids]:
        family += found
        pids = {process.pid for process in found}
    return family


def workers(family: list[Process]) -> dict[Process, str]:
    """Return those of a family that are workers, with their kind, the ended ones included."""
    supervisors = {process.pid for process in family if process.name == "ovl-supervisor"}
    return {
        process: KINDS[process.name]
        for process in family
        # A worker that was forked just now still bears the name of its supervisor.
        if process.name in KINDS
        and not (process.name == "ovl-supervisor" and process.parent_pid in supervisors)
    }


def marked(value: str) -> list[Process]:
    """Return all processes that were started with ``MARK=value``, of whatever parent."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile, or another user's
            continue
        process = look_at(int(name)) if f"{MARK}={value}".encode() in variables else None
        if process is not None and not process.has_ended:
            found.append(process)
    return found


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
            others = {int(pid) for pid in filter(str.isdecimal, os.listdir("/proc"))} - ours
            mapped = mapped_inodes(others)
            new = [name for name in new if files[name] not in mapped]
        if not new or time.monotonic() > deadline:
            return new
        time.sleep(0.01)
