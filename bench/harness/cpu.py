"""CPU time of each kind of process below this one, from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness.family import descendants, workers

if TYPE_CHECKING:
    from bench.harness.family import Process

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: Kinds besides those of :data:`bench.harness.family.KINDS`.
MOUNT, FORKSERVER, OTHER = "mount", "forkserver", "other"
_SERVER_NAME = "slowfs"


def cpu_by_kind(unnamed: str = OTHER) -> dict[str, dict[str, float]]:
    """Return what the descendants of this process have used since each of them started.

    Takes about a millisecond. What a worker used that has died and was replaced is missing.

    Args:
        unnamed: The kind of the processes that are none of overlapiter's.

    Returns:
        For each kind ``n_processes``, ``seconds``, exact to the microsecond, and ``user_seconds``
        and ``system_seconds``, each in ticks of the kernel, usually 10 ms.
    """
    family = descendants(os.getpid())
    kinds = _kinds(family, unnamed)
    found: dict[str, dict[str, float]] = {}
    for process in family:
        try:
            own = {"n_processes": 1, **cpu_of(process.pid)}
        except OSError:  # ended just now
            continue
        total = found.setdefault(kinds[process.pid], dict.fromkeys(own, 0))
        for name, value in own.items():
            total[name] += value
    return found


def cpu_of(pid: int) -> dict[str, float]:
    """Return what one process has used, in all its threads, those that have ended included.

    Raises:
        OSError: There is no such process.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return {
        # The clock of another process: clock_getcpuclockid(3), which Python does not have.
        "seconds": time.clock_gettime((~pid << 3) | 2),
        "user_seconds": int(fields[11]) / _TICKS_PER_SECOND,
        "system_seconds": int(fields[12]) / _TICKS_PER_SECOND,
    }


def private_bytes_by_kind(unnamed: str = OTHER) -> dict[str, list[int]]:
    """Return for each kind the bytes of memory that each process shares with no other."""
    family = descendants(os.getpid())
    found: dict[str, list[int]] = {"trainer": [_private_bytes(os.getpid())]}
    for pid, kind in _kinds(family, unnamed).items():
        with contextlib.suppress(OSError):  # ended just now
            found.setdefault(kind, []).append(_private_bytes(pid))
    return found


def _private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found = [line.split() for line in lines if line.startswith("Private_")]
    return sum(int(kibibytes) * 1024 for name, kibibytes, _ in found if "Hugetlb" not in name)


def _kinds(family: list[Process], unnamed: str) -> dict[int, str]:
    kinds = {process.pid: unnamed for process in family}
    kinds |= {process.pid: MOUNT for process in family if process.name == _SERVER_NAME}
    named = workers(family)
    parents = {process.parent_pid for process, kind in named.items() if kind == "supervisor"}
    kinds |= {pid: FORKSERVER for pid in parents if pid in kinds}
    return kinds | {process.pid: kind for process, kind in named.items()}
