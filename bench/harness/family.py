"""Processes of a program: which there are, and what CPU time and memory each kind uses."""

import contextlib
import os
import time
from collections import Counter

import psutil

WORKERS = ("reader", "prefetcher", "supervisor")
#: Kinds besides those of the workers.
PEER, MOUNT, FORKSERVER, OTHER = "peer", "mount", "forkserver", "other"
#: By the name of a process, as ``/proc/PID/comm`` shows it.
KINDS = {**{f"ovl-{kind}": kind for kind in (*WORKERS, PEER)}, "slowfs": MOUNT}


def is_running(process: psutil.Process) -> bool:
    """Return whether this very process has not ended; one that ended waits for its parent."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def send(process: psutil.Process, number: int) -> bool:
    """Send a signal to a process and no other; return whether it was there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)  # refused where another one has its number by now
        return True
    return False


def descendants(pid: int) -> list[psutil.Process]:
    """Return all processes below one; takes a millisecond or two."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def kinds_of(family: list[psutil.Process]) -> dict[psutil.Process, str]:
    """Return the kind of each process of a family, empty for those that are none of ours."""
    named, parents = {}, {}
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            named[process], parents[process] = process.name(), process.parent()
    kinds = {process: KINDS.get(name, "") for process, name in named.items()}
    for process, parent in parents.items():
        if kinds[process] == "supervisor" and kinds.get(parent) == "supervisor":
            kinds[process] = ""  # a worker that was forked just now still has its parent's name
        elif kinds[process] == "supervisor" and parent in kinds:
            kinds[parent] = FORKSERVER
    return kinds


def workers(family: list[psutil.Process]) -> dict[psutil.Process, str]:
    """Return those of a family that are workers, with their kind, the ended ones included."""
    return {process: kind for process, kind in kinds_of(family).items() if kind in WORKERS}


def cpu_by_kind(unnamed: str = OTHER) -> dict[str, dict[str, float]]:
    """Return by kind what the descendants of this process have used since each of them started.

    Takes some milliseconds. What a worker used that has died and was replaced is missing. There are
    ``n_processes``; ``seconds``, exact to the microsecond; and ``user_seconds`` and
    ``system_seconds`` in ticks of the kernel, usually 10 ms.
    """
    found: dict[str, Counter[str]] = {}
    for process, kind in kinds_of(descendants(os.getpid())).items():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended just now
            times = process.cpu_times()
            own = {"n_processes": 1, "seconds": cpu_seconds(process.pid)}
            own |= {"user_seconds": times.user, "system_seconds": times.system}
            found.setdefault(kind or unnamed, Counter()).update(own)  # adds them
    return found


def cpu_seconds(pid: int) -> float:
    """Return what a process has used, in all its threads, ended ones too; 0 if it is not there."""
    with contextlib.suppress(OSError):
        # The clock of another process: clock_getcpuclockid(3), which Python does not have.
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0


def private_bytes_by_kind(unnamed: str = OTHER) -> dict[str, list[int]]:
    """Return for each kind the bytes of memory that each process shares with no other."""
    found: dict[str, list[int]] = {}
    kinds = {psutil.Process(): "trainer", **kinds_of(descendants(os.getpid()))}
    for process, kind in kinds.items():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended just now
            found.setdefault(kind or unnamed, []).append(process.memory_full_info().uss)
    return found
