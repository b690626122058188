"""What a program may leave: processes, and shared memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from bench.harness.family import is_running

#: A variable in the environment of a watched program: all that it starts inherit it, so that one
#: whose parent has died is still recognized.
MARK = "OVERLAPITER_FAULTS"
_GRACE_SECONDS = 20.0


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
    """Return the names in ``/dev/shm`` that were not there before; waits up to 20 s for none.

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
