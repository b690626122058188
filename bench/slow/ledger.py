"""The state that all processes share which use one emulated slow store: a clock and a log.

The log holds one record per open. A record lies within one memory page and is written by one
system call, so the log is exact, also when processes are killed at any moment. All of it is
memory without a name: it is gone when the last process that uses it is, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    State = tuple[str, int]

# One record of the log, and the header of the file, which holds the shared clock. 256 divides the
# page size: a write of one record is never split by a signal.
_RECORD_BYTES = 256
_RECORD_HEAD = struct.Struct("<dqiH")
_PATH_BYTES = _RECORD_BYTES - _RECORD_HEAD.size


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


class Ledger:
    """The state that all processes share: one clock, and the log of opens.

    There is one ledger per state in a process, because POSIX locks belong to processes:
    closing a second descriptor of the same file would drop the lock held through the first.

    Args:
        fd: The state; it is closed with the ledger.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(fd, _RECORD_BYTES)
        # A memoryview stores an aligned double at once: a kill cannot leave half of one.
        self._busy_until = memoryview(self._memory).cast("d")
        self.lock = threading.Lock()

    def reserve(self, latency_seconds: float, transfer_seconds: float) -> float:
        """Return when a transfer that is requested now will be complete (monotonic clock)."""
        with self._locked():
            ready = max(time.monotonic() + latency_seconds, self._busy_until[0])
            ready += transfer_seconds
            self._busy_until[0] = ready
        return ready

    def append(self, record: OpenRecord) -> None:
        """Add a record to the log: one system call, atomic."""
        path = os.fsencode(record.path)[-_PATH_BYTES:]
        head = _RECORD_HEAD.pack(record.ready_seconds, record.size_bytes, record.pid, len(path))
        os.write(self._fd, (head + path).ljust(_RECORD_BYTES, b"\0"))

    def records(self) -> list[OpenRecord]:
        """Return the log, oldest first."""
        data = os.pread(self._fd, self.count() * _RECORD_BYTES, _RECORD_BYTES)
        found = []
        for start in range(0, len(data), _RECORD_BYTES):
            ready, size, pid, length = _RECORD_HEAD.unpack_from(data, start)
            name = data[start + _RECORD_HEAD.size :][:length]
            found.append(OpenRecord(ready, size, pid, os.fsdecode(name)))
        return found

    def count(self) -> int:
        """Return the number of records."""
        return os.fstat(self._fd).st_size // _RECORD_BYTES - 1

    def clear(self) -> None:
        """Forget all records and make the store idle."""
        with self._locked():
            os.ftruncate(self._fd, _RECORD_BYTES)
            self._busy_until[0] = 0.0

    def close(self) -> None:
        """Give back the descriptor and the memory of this process."""
        self._busy_until.release()
        self._memory.close()
        os.close(self._fd)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude the other threads, then the other processes. A killed holder lets go."""
        with self.lock:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)


_ledgers: dict[State, Ledger] = {}
_registry_lock = threading.Lock()


def create_ledger() -> State:
    """Make a ledger that lives as long as this process, and what has opened it by then.

    Returns:
        What other processes of this user find it by.
    """
    fd = os.memfd_create("slowstore")
    os.ftruncate(fd, _RECORD_BYTES)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    state = f"/proc/{os.getpid()}/fd/{fd}", os.fstat(fd).st_ino
    _ledgers[state] = Ledger(fd)
    return state


def ledger_of(state: State) -> Ledger:
    """Return this process's only ledger of a state, opening it if need be.

    Raises:
        FileNotFoundError: The process that made it has closed it, or is gone.
    """
    with _registry_lock:
        if state not in _ledgers:
            path, inode = state
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            if os.fstat(fd).st_ino != inode:  # another file has got the number since
                os.close(fd)
                raise FileNotFoundError(f"{path}: the slow store has been closed")
            _ledgers[state] = Ledger(fd)
        return _ledgers[state]


def close_ledger(state: State) -> None:
    """Close this process's ledger of a state, if it has one."""
    with _registry_lock:
        ledger = _ledgers.pop(state, None)
    if ledger is not None:
        ledger.close()


def _renew_locks_after_fork() -> None:
    global _registry_lock
    _registry_lock = threading.Lock()  # a thread that is gone may have held the old one
    for ledger in _ledgers.values():
        ledger.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks_after_fork)
