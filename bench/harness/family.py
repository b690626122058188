"""What a process has: its descendants, as ``/proc`` shows them, threads, descriptors and files.

A look at the descendants costs well below a millisecond, so that a killer can look a thousand
times a second.
"""

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
#: A variable in the environment of whoever is watched: all that it starts inherit it, so that one
#: whose parent has died is still recognized.
MARK = "OVERLAPITER_FAULTS"
_GRACE_SECONDS = 2.0
_FORGET_AFTER_SECONDS = 1.0


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


class Family:
    """The descendants of a process, looked at again and again.

    Args:
        ancestor_pid: The process.
    """

    def __init__(self, ancestor_pid: int) -> None:
        self._ancestor_pid = ancestor_pid
        self._strangers: set[int] = set()  # not looked at each time
        self._forget_at = 0.0

    def look(self) -> list[Process]:
        """Return the descendants of now."""
        if time.monotonic() > self._forget_at:
            self._strangers.clear()
            self._forget_at = time.monotonic() + _FORGET_AFTER_SECONDS
        pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
        looks = (look_at(pid) for pid in pids if pid not in self._strangers)
        others = [process for process in looks if process is not None]
        family: list[Process] = []
        pids_of_family = {self._ancestor_pid}
        while found := [process for process in others if process.parent_pid in pids_of_family]:
            family += found
            pids_of_family |= {process.pid for process in found}
            others = [process for process in others if process.pid not in pids_of_family]
        self._strangers |= {process.pid for process in others}
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
    """Return all processes that were started with ``MARK=value``, whoever their parent is."""
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


class Belongings(NamedTuple):
    """What exists because of this process, each thing with its description."""

    processes: dict[object, str]
    threads: dict[object, str]
    descriptors: dict[object, str]
    shared_memory: dict[object, str]

    @classmethod
    def now(cls) -> Belongings:
        """Look around. Takes some milliseconds."""
        own_pid = os.getpid()
        found = [*Family(own_pid).look(), *marked(os.environ.get(MARK, ""))]
        processes = {p.identity: f"{p.name} ({p.state})" for p in found if p.pid != own_pid}
        threads = {tid: _first_line(f"/proc/self/task/{tid}/comm") for tid in _list("task")}
        descriptors = {(fd, target): target for fd, target in _descriptors()}
        memory = {name: name for name in memory_files()}
        return cls(processes, threads, descriptors, memory)

    def beyond(self, before: Belongings) -> dict[str, list[str]]:
        """Return the descriptions of what exists now and did not before."""
        triples = zip(self._fields, self, before, strict=True)
        return {name: [now[key] for key in now.keys() - was] for name, now, was in triples}


def leftovers(before: Belongings) -> dict[str, list[str]]:
    """Return what exists now and did not before; waits up to 2 s for it to vanish.

    What other programs keep in ``/dev/shm`` is none of it.
    """
    deadline = time.monotonic() + _GRACE_SECONDS
    while True:
        found = Belongings.now().beyond(before)
        if found["shared_memory"]:
            found["shared_memory"] = _none_of_others(found["shared_memory"])
        if not any(found.values()) or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


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


def new_shared_memory(before: set[str]) -> list[str]:
    """Return the names in ``/dev/shm`` that were not there before; waits as :func:`leftovers`."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while new := _none_of_others(memory_files().keys() - before):
        if time.monotonic() > deadline:
            return new
        time.sleep(0.01)
    return []


def usage(pid: int) -> dict[str, int]:
    """Return the descriptors, threads and resident memory of a process.

    Raises:
        OSError: It has ended.
    """
    wanted = {"VmRSS": "rss_bytes", "RssAnon": "anonymous_bytes", "RssShmem": "shared_bytes"}
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines)
    return {
        "n_descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "n_threads": len(os.listdir(f"/proc/{pid}/task")),
        **{wanted[k]: int(v.split()[0]) * 1024 for k, v in pairs if k in wanted},
    }


def _list(folder: str) -> list[str]:
    return os.listdir(f"/proc/self/{folder}")


def _descriptors() -> list[tuple[str, str]]:
    found = []
    for fd in _list("fd"):
        try:
            found.append((fd, os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:  # the one that listed the folder
            continue
    return found


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _none_of_others(names: Iterable[str]) -> list[str]:
    """Return those of the names in ``/dev/shm`` that no unmarked process has mapped."""
    files = memory_files()
    found = sorted(name for name in names if name in files)
    if not found:
        return found
    ours = {process.pid for process in marked(os.environ.get(MARK, ""))} | {os.getpid()}
    others = {int(pid) for pid in filter(str.isdecimal, os.listdir("/proc"))} - ours
    mapped = mapped_inodes(others)
    return [name for name in found if files[name] not in mapped]
