"""Processes that stage at the same time, watched from outside."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overlapiter.staging.room import Room
from overlapiter.staging.store import Outcome, Store

BLOCK_BYTES = 4096


def without_locks(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOLCK) -> None:
    """Let ``flock`` fail as on a file system that has none, also in forked children."""

    def flock(_fd: int, _how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def make_files(folder: Path, n_files: int, most_blocks: int, seed: int = 0) -> list[str]:
    """Write files of random numbers of blocks, all old, into some folders; return their paths."""
    numbers = random.Random(seed)
    names = []
    for number in range(n_files):
        path = folder / f"n{number % 7}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbers.randbytes(BLOCK_BYTES * numbers.randint(1, most_blocks)))
        os.utime(path, (10**9, 10**9))
        names.append(str(path))
    return names


def forked(function: Callable[[], None]) -> int:
    """Run a function in a child; its exit status says whether it ended well."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function()
        status = 0
    finally:
        os._exit(status)


def stager(store: Store, names: list[str], seed: int, *, evicts: bool) -> Callable[[], None]:
    """Return what stages all files in an order of its own, some of which may not fit."""

    def stage() -> None:
        store.create()
        numbers = random.Random(seed)
        for name in numbers.sample(names, len(names)):

            def make_room() -> bool:
                return any(store.evict(other) for other in numbers.sample(names, 20))

            answer = store.fetch(name, make_room if evicts else None)
            assert answer.outcome is not Outcome.SOURCE_FAILED
        store.close()

    return stage


def watched(pids: list[int], look: Callable[[], int]) -> Iterator[int]:
    """Give what is seen, again and again, until all children have ended, all well."""
    running = set(pids)
    while running:
        yield look()
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                assert status in (0, signal.SIGKILL)


def disk_bytes(disk: Path) -> int:
    """Return what is in use of a tmpfs at one moment; files take whole blocks of it."""
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def counts(directory: Path) -> tuple[int | None, int]:
    return Room(str(directory), None, 0).counts()
