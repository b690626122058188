"""The log that all processes share which use one emulated slow store; its end is their clock.

The log holds one record per open. A record lies within one memory page and is written by one
system call, so the log is exact, also when processes are killed at any moment. When the last file
is ready says until when the store is busy. It is memory without a name: it is gone when the last
process that uses it is, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

#: Where the process that made a log has it open, and its inode.
State = tuple[str, int]

_RECORD_BYTES = 256  # divides the page size: a signal never splits the write of one
_HEAD = struct.Struct("<dqiH")
_PATH_BYTES = _RECORD_BYTES - _HEAD.size
_RECORD = f"{_HEAD.format}{_PATH_BYTES}s"

#: One descriptor for each log: closing a second one would drop the lock held through the first.
_descriptors: dict[State, int] = {}
_lock = threading.RLock()


class OpenRecord(NamedTuple):
    """One open that crossed the slow store.

    Attributes:
        ready_seconds: When the file was ready to read, on the machine's monotonic clock.
        size_bytes: Size of the file, all of which was charged.
        pid: The process that opened it.
        path: Path relative to the root; only its last 234 bytes if it is longer.
    """

    ready_seconds: float
    size_bytes: int
    pid: int
    path: str


def create() -> State:
    """Make a log; return what other processes of this user find it by, while this one lives."""
    fd = os.memfd_create("slowstore")
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    state = f"/proc/{os.getpid()}/fd/{fd}", os.fstat(fd).st_ino
    _descriptors[state] = fd
    return state


def descriptor_of(state: State) -> int:
    """Return this process's only descriptor of a log, opening it if need be."""
    with _lock:
        if state not in _descriptors:
            path, inode = state
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            if os.fstat(fd).st_ino != inode:  # another file has got the number since
                os.close(fd)
                raise FileNotFoundError(f"{path}: the slow store has been closed")
            _descriptors[state] = fd
        return _descriptors[state]


def close(state: State, owner_pid: int) -> None:
    """Close a log in the process that made it, not in a fork of that."""
    with _lock:
        if os.getpid() == owner_pid:
            os.close(_descriptors.pop(state))


def add(
    state: State, path: str, size_bytes: int, latency_seconds: float, transfer_seconds: float
) -> float:
    """Log an open, and return when its file is complete (monotonic clock)."""
    with _locked(state) as fd:
        begin = (count(state) - 1) * _RECORD_BYTES
        busy_until = _HEAD.unpack(os.pread(fd, _HEAD.size, begin))[0] if begin >= 0 else 0.0
        ready = max(time.monotonic() + latency_seconds, busy_until) + transfer_seconds
        name = os.fsencode(path)[-_PATH_BYTES:]
        head = _HEAD.pack(ready, size_bytes, os.getpid(), len(name))
        os.write(fd, (head + name).ljust(_RECORD_BYTES, b"\0"))
    return ready


def count(state: State) -> int:
    """Return the number of records."""
    return os.fstat(descriptor_of(state)).st_size // _RECORD_BYTES


def records(state: State) -> list[OpenRecord]:
    """Return all records, oldest first."""
    data = os.pread(descriptor_of(state), count(state) * _RECORD_BYTES, 0)
    return [
        OpenRecord(ready, size, pid, os.fsdecode(name[:length]))
        for ready, size, pid, length, name in struct.iter_unpack(_RECORD, data)
    ]


def clear(state: State) -> None:
    """Forget all records."""
    with _locked(state) as fd:
        os.ftruncate(fd, 0)


@contextlib.contextmanager
def _locked(state: State) -> Iterator[int]:
    """Exclude the other threads, then the other processes. A killed holder lets go."""
    with _lock:
        fd = descriptor_of(state)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        try:
            yield fd
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN)


def _renew_lock_after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that is gone may have held the old one


os.register_at_fork(after_in_child=_renew_lock_after_fork)
