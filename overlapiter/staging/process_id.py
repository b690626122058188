"""Who owns something in the staging directory, and whether that process still lives.

A process is known by host, boot, pid namespace, pid and start time, so neither a pid that was
given out again nor a reboot makes a dead owner look alive.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import socket
from collections.abc import Mapping

from overlapiter.node import boot_id

_STAT_START_TICKS = 19  # of what follows the name; see proc(5)


class Life(enum.Enum):
    """Whether an owner lives, as far as this process can tell."""

    ALIVE = "alive"
    ENDED = "ended"
    UNKNOWN = "unknown"  # on another host, or in another container


@dataclasses.dataclass(frozen=True)
class ProcessId:
    """A process.

    Attributes:
        host: Name of its node.
        boot_id: Of the system since it was started; empty where the kernel does not tell.
        pid_namespace: In which ``pid`` means something; 0 where the kernel does not tell.
        pid: Its number there.
        start_ticks: When it was started, in clock ticks since the boot.
    """

    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int

    @classmethod
    def this_process(cls) -> ProcessId:
        """Return this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), boot_id(), _namespace(), pid, start_ticks(pid) or 0)

    @classmethod
    def from_facts(cls, facts: object) -> ProcessId | None:
        """Return the owner that a record names, or None if the record is none."""
        if not isinstance(facts, Mapping):
            return None
        values = [facts.get(field.name) for field in dataclasses.fields(cls)]
        host, boot_id, pid_namespace, pid, ticks = values
        if not isinstance(host, str) or not isinstance(boot_id, str):
            return None
        if not isinstance(pid_namespace, int) or not isinstance(pid, int) or pid <= 0:
            return None
        return cls(host, boot_id, pid_namespace, pid, ticks) if isinstance(ticks, int) else None

    def facts(self) -> dict[str, object]:
        """Return it as a record holds it."""
        return dataclasses.asdict(self)

    def life(self) -> Life:
        """Say whether it lives. Reads files of ``/proc`` alone."""
        if self.host != socket.gethostname():
            return Life.UNKNOWN
        if self.boot_id != boot_id():
            return Life.ENDED
        if self.pid_namespace != _namespace():
            return Life.UNKNOWN
        return Life.ALIVE if start_ticks(self.pid) == self.start_ticks else Life.ENDED


def start_ticks(pid: int) -> int | None:
    """Return when a process was started, in ticks since the boot; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    if not words or words[0] in (b"Z", b"X"):
        return None
    return int(words[_STAT_START_TICKS])


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
