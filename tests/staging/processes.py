"""Processes that stage at the same time, watched from outside."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import time
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


def watched(pids: list[int], look: Callable[[], int], *, stops: bool = False) -> Iterator[int]:
    """Give what is seen, again and again, until all children have ended, all well or killed.

    Args:
        pids: The children.
        look: What to look at.
        stops: Whether all children are stopped while it looks.
    """
    running = set(pids)
    while running:
        if stops:
            for pid in running:
                os.kill(pid, signal.SIGSTOP)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WUNTRACED if stops else os.WNOHANG)
            if ended and not os.WIFSTOPPED(status):
                running.remove(pid)
                assert status in (0, signal.SIGKILL)
        yield look()
        if stops:
            for pid in running:
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.003)  # some steps further


def used_bytes(directory: Path) -> int:
    """Return the sizes of the files that the capacity is for; nobody must change them."""
    files = [*directory.glob("*/files/**/*"), *directory.glob("*/partial/*")]
    return sum(path.lstat().st_size for path in files if path.is_file() and not path.is_symlink())


def disk_bytes(disk: Path) -> int:
    """Return what is in use of a tmpfs at one moment; files take whole blocks of it."""
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def counts(directory: Path) -> tuple[int | None, int]:
    return Room(str(directory), None, 0).counts()
