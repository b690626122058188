"""Processes of a program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil

#: The names of the workers, as ``/proc/PID/comm`` shows them.
KINDS = {"ovl-reader": "reader", "ovl-prefetcher": "prefetcher", "ovl-supervisor": "supervisor"}


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
