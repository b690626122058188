"""Processes of a program: which there are, and what CPU time and memory each kind uses."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable

import psutil

#: The names of the workers, as ``/proc/PID/comm`` shows them.
KINDS = {"ovl-reader": "reader", "ovl-prefetcher": "prefetcher", "ovl-supervisor": "supervisor"}
#: Kinds besides those of :data:`KINDS`.
MOUNT, FORKSERVER, OTHER = "mount", "forkserver", "other"
_SERVER_NAME = "slowfs"


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


def cpu_by_kind(unnamed: str = OTHER) -> dict[str, dict[str, float]]:
    """Return what the descendants of this process have used since each of them started.

    Takes some milliseconds. What a worker used that has died and was replaced is missing.

    Args:
        unnamed: The kind of the processes that are none of overlapiter's.

    Returns:
        For each kind ``n_processes``, ``seconds``, exact to the microsecond, and ``user_seconds``
        and ``system_seconds``, each in ticks of the kernel, usually 10 ms.
    """
    found: dict[str, Counter[str]] = {}
    for process, kind in _kinds(unnamed).items():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended just now
            times = process.cpu_times()
            own = {"n_processes": 1, "seconds": cpu_seconds(process.pid)}
            own |= {"user_seconds": times.user, "system_seconds": times.system}
            found.setdefault(kind, Counter()).update(own)  # adds them
    return found


def cpu_seconds(pid: int) -> float:
    """Return what one process has used, in all its threads, those that have ended included.

    It is 0 for a process that is not there.
    """
    with contextlib.suppress(OSError):
        # The clock of another process: clock_getcpuclockid(3), which Python does not have.
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0


def private_bytes_by_kind(unnamed: str = OTHER) -> dict[str, list[int]]:
    """Return for each kind the bytes of memory that each process shares with no other."""
    found: dict[str, list[int]] = {}
    for process, kind in {psutil.Process(): "trainer", **_kinds(unnamed)}.items():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended just now
            found.setdefault(kind, []).append(process.memory_full_info().uss)
    return found


def _kinds(unnamed: str) -> dict[psutil.Process, str]:
    family = descendants(os.getpid())
    kinds, named = dict.fromkeys(family, unnamed), workers(family)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == _SERVER_NAME:
                kinds[process] = MOUNT
            elif named.get(process) == "supervisor" and process.parent() in kinds:
                kinds[process.parent()] = FORKSERVER
    return kinds | named
