"""What `overlapiter status` shows, gathered: holdings, users with their counters, the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from overlapiter.staging.inventory import PARTIAL_FOLDER, Kind, entries, subdirectories
from overlapiter.staging.process_id import Life
from overlapiter.staging.records import Facts, Presence, present
from overlapiter.stats import StatsBoard


class Holding(NamedTuple):
    """What is staged of one source root.

    Attributes:
        name: Of the subdirectory.
        source: The source root; None if nobody knows.
        n_files: Staged files.
        size_bytes: What they take.
        n_partial: Files that are being copied, or were left half-copied.
    """

    name: str
    source: str | None
    n_files: int
    size_bytes: int
    n_partial: int


class Disk(NamedTuple):
    """The disk that the staging directory is on; 0 inodes where it has no fixed number."""

    size_bytes: int
    free_bytes: int
    n_inodes: int
    n_free_inodes: int


class User(NamedTuple):
    """A run that uses the staging directory.

    Attributes:
        state: ``"running"``, ``"killed"``, or ``"elsewhere"`` if it cannot be told from here.
        name: Of the user.
        host: The node.
        pid: The trainer's.
        job: The batch job; empty outside of one.
        command: The program.
        started_seconds: When it began, since the epoch of the clock.
        capacity_bytes: What it was allowed; None for no limit.
        counters: What it has done so far; empty if that cannot be told from here.
    """

    state: str
    name: str
    host: str
    pid: int
    job: str
    command: str
    started_seconds: float
    capacity_bytes: int | None
    counters: Mapping[str, object]

    def facts(self) -> Facts:
        """Return it as JSON has it."""
        return {**self._asdict(), "counters": dict(self.counters)}


_STATES = {Life.ALIVE: "running", Life.ENDED: "killed", Life.UNKNOWN: "elsewhere"}


def holdings(directory: str, advance: Callable[[int], None]) -> list[Holding]:
    """Count what is staged; ``advance`` is called with the size of each file."""
    found = []
    for sub in subdirectories(directory):
        n_files = size_bytes = 0
        for entry in entries(sub):
            if entry.kind is Kind.FILE:
                n_files += 1
                size_bytes += entry.found.st_size
                advance(entry.found.st_size)
        n_partial = 0
        with contextlib.suppress(OSError):
            n_partial = len(os.listdir(os.path.join(sub.path, PARTIAL_FOLDER)))
        name = os.path.basename(sub.path)
        found.append(Holding(name, sub.source, n_files, size_bytes, n_partial))
    return found


def disk_of(directory: str) -> Disk:
    """Ask the disk."""
    disk = os.statvfs(directory)
    unit = disk.f_frsize
    return Disk(disk.f_blocks * unit, disk.f_bavail * unit, disk.f_files, disk.f_favail)


def users(directory: str) -> list[User]:
    """Return the runs that use a directory, those that were killed included."""
    return [_user(presence) for presence in present(directory)]


def _user(presence: Presence) -> User:
    facts, life = presence.facts, presence.owner.life()
    staging = facts.get("staging")
    capacity = staging.get("capacity_bytes") if isinstance(staging, dict) else None
    pid, started = facts.get("trainer_pid"), facts.get("started_seconds")
    return User(
        state=_STATES[life],
        name=str(facts.get("user", "?")),
        host=presence.owner.host,
        pid=pid if isinstance(pid, int) else presence.owner.pid,
        job=str(facts.get("job", "")),
        command=str(facts.get("command", "?")),
        started_seconds=started if isinstance(started, (int, float)) else time.time(),
        capacity_bytes=capacity if isinstance(capacity, int) else None,
        counters=_live_counters(facts) if life is Life.ALIVE else {},
    )


def _live_counters(facts: Facts) -> dict[str, object]:
    """Read the counters where the trainer keeps them: in memory that it holds open."""
    pid, inode, n_readers = (facts.get(n) for n in ("trainer_pid", "board_inode", "n_readers"))
    staging = facts.get("staging")
    n_prefetchers = staging.get("n_prefetchers") if isinstance(staging, dict) else None
    if not isinstance(n_readers, int) or not isinstance(n_prefetchers, int):
        return {}
    with contextlib.suppress(OSError, ValueError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == inode and "memfd:overlapiter" in os.readlink(path):
                    return _counters(path, n_readers, n_prefetchers)
    return {}


def _counters(path: str, n_readers: int, n_prefetchers: int) -> dict[str, object]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size != StatsBoard.size_bytes(n_readers, n_prefetchers):
            return {}  # of another version
        board = StatsBoard(fd, n_readers, n_prefetchers)
    finally:
        os.close(fd)
    return dataclasses.asdict(board.snapshot(time.monotonic_ns()))
