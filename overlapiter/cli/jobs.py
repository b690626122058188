"""The jobs of this user that run on this node, by the counters that their trainers hold open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from overlapiter.board import StatsBoard
from overlapiter.node import program_words

_NAME = "/memfd:overlapiter-stats"


class Job(NamedTuple):
    """An iterator of a running process, which may have several: each board has an inode.

    The board stays readable after the process has ended, without changing.
    """

    pid: int
    inode: int
    program: str
    board: StatsBoard


def boards_of(pid: int) -> Iterator[tuple[StatsBoard, int]]:
    """Give the boards that a process holds open, with their inodes; those of this version."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # it has ended, or is another user's
        return
    for name in names:
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile, or another version
            path = f"{folder}/{name}"
            if os.readlink(path).startswith(_NAME):
                with open(path, "r+b", buffering=0) as memory:
                    yield StatsBoard(memory.fileno()), os.fstat(memory.fileno()).st_ino


def find_jobs(pid: int | None = None) -> list[Job]:
    """Return the iterators of this user's processes, or of one process; the oldest first.

    Not of this process, which holds the counters that it has looked at, of ended jobs too.
    """
    pids = sorted({int(name) for name in os.listdir("/proc") if name.isdecimal()} - {os.getpid()})
    jobs: dict[int, Job] = {}
    for each in pids if pid is None else [pid]:
        for board, inode in boards_of(each):
            # A process forked from a trainer, which has a higher number mostly, holds it, too.
            jobs.setdefault(inode, Job(each, inode, _program_of(each), board))
    return [*jobs.values()]


def _program_of(pid: int) -> str:
    """Return the script or module of a process, or what stands in its place."""
    interpreter, *words = map(os.path.basename, program_words(pid))
    return f"{interpreter} -c" if words == ["-c"] else [interpreter, *words][-1]
