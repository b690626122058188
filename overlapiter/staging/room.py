"""Room in the staging directory: the capacity and the free space that is kept.

Bytes in use are counted in one small file, ``overlapiter.usage``, that all processes of the node
share under an ``fcntl`` lock, which the kernel drops when its holder dies. A reservation is made
before the first byte is written, so the capacity is never exceeded, at any moment. The lock is
held for microseconds; a process that was stopped while it held it is not waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import struct
import threading
import time
from collections.abc import Iterator

from overlapiter.errors import StagingError

from .marks import MARK_FILE
from .records import RUNS_FILE, USERS_FOLDER

USAGE_FILE = "overlapiter.usage"
#: What the disk has to spare is asked for anew when this process has used 1/256 of it.
_SHARES = 256
_USAGE = struct.Struct("<qq")  # bytes in use, and how often that has changed
_LOCK_POLL_SECONDS = 0.002
_LOCK_PATIENCE_SECONDS = 1.0


class BusyError(Exception):
    """Another process holds the usage file for too long."""


class Room:
    """Decides whether a file fits into the staging directory.

    Args:
        directory: The staging directory.
        capacity_bytes: Most bytes of staged files; None for no limit.
        keep_free_bytes: Free space to leave on the disk.
    """

    def __init__(self, directory: str, capacity_bytes: int | None, keep_free_bytes: int) -> None:
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._keep_free_bytes = keep_free_bytes
        self._threads = threading.Lock()
        self._allowance_bytes = 0
        self._owed_bytes = 0  # given back, but not counted yet
        self._is_patient = True

    @property
    def is_counting(self) -> bool:
        """Whether bytes are counted, because there is a capacity."""
        return self._capacity_bytes is not None

    def reserve(self, size_bytes: int) -> bool:
        """Set ``size_bytes`` aside for a file; return False if they do not fit.

        Raises:
            OSError: The disk does not answer.
            BusyError: Nobody can tell, for another process keeps the count to itself.
        """
        if self._keep_free_bytes and not self._is_disk_roomy(size_bytes):
            return False
        if self._capacity_bytes is None:
            return True
        with self._usage() as usage:
            used_bytes = _bytes_below(self._directory) if usage.is_new() else usage.read()
            if used_bytes + size_bytes > self._capacity_bytes:
                return False
            usage.write(used_bytes + size_bytes)
        return True

    def _is_disk_roomy(self, size_bytes: int) -> bool:
        """Ask the disk, or go by what it said while that leaves plenty for everybody else."""
        with self._threads:
            if size_bytes <= self._allowance_bytes:
                self._allowance_bytes -= size_bytes
                return True
            disk = os.statvfs(self._directory)
            spare_bytes = disk.f_bavail * disk.f_frsize - self._keep_free_bytes
            self._allowance_bytes = max(0, spare_bytes - size_bytes) // _SHARES
            return size_bytes <= spare_bytes

    def release(self, size_bytes: int) -> None:
        """Give back what :meth:`reserve` set aside; at the next occasion if the count is held."""
        if self._capacity_bytes is not None and size_bytes:
            with contextlib.suppress(BusyError), self._usage(size_bytes):
                pass

    def recount(self) -> None:
        """Count the bytes in use anew, from the files themselves, where a capacity is set.

        Walks the staging directory; call it before the prefetchers start. If a file is being
        copied meanwhile, by another job perhaps, the old count is kept: it includes that file.

        Raises:
            StagingError: The directory cannot be read or written.
        """
        if self._capacity_bytes is None:
            return
        try:
            with self._usage() as usage:
                is_new, n_changes = usage.is_new(), usage.n_changes()
            if not is_new and _is_copying(self._directory):
                return
            used_bytes = _bytes_below(self._directory)  # takes a while, so others may count on
            with self._usage() as usage:
                is_quiet = is_new or not _is_copying(self._directory)
                if is_quiet and usage.n_changes() == n_changes:
                    usage.write(used_bytes)
        except BusyError:  # the prefetchers find out, and tell
            return
        except OSError as error:
            message = f"cannot count what is staged ({error.strerror})"
            raise StagingError(self._directory, message) from error

    @contextlib.contextmanager
    def _usage(self, released_bytes: int = 0) -> Iterator[_Usage]:
        """Hold the usage file. Raises BusyError if another process does so for too long."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._threads:  # closing any descriptor of the file would drop another thread's lock
            self._owed_bytes += released_bytes
            fd = os.open(os.path.join(self._directory, USAGE_FILE), flags, 0o600)
            try:
                self._lock(fd)
                usage = _Usage(fd)
                if self._owed_bytes and not usage.is_new():
                    usage.write(max(0, usage.read() - self._owed_bytes))
                self._owed_bytes = 0
                yield usage
            finally:
                os.close(fd)

    def _lock(self, fd: int) -> None:
        deadline = time.monotonic() + (_LOCK_PATIENCE_SECONDS if self._is_patient else 0)
        while True:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # which one depends on the system
                self._is_patient = time.monotonic() < deadline
                if not self._is_patient:  # nor the next time, until it can be had again
                    raise BusyError from None
                time.sleep(_LOCK_POLL_SECONDS)
            else:
                self._is_patient = True
                return


class _Usage:
    """The locked usage file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def is_new(self) -> bool:
        """Return whether nobody has counted yet; the old file may have been removed."""
        return os.fstat(self._fd).st_size != _USAGE.size

    def read(self) -> int:
        return self._numbers()[0]

    def n_changes(self) -> int:
        return self._numbers()[1]

    def write(self, used_bytes: int) -> None:
        os.pwrite(self._fd, _USAGE.pack(used_bytes, self.n_changes() + 1), 0)

    def _numbers(self) -> tuple[int, int]:
        data = os.pread(self._fd, _USAGE.size, 0)
        used_bytes, n_changes = _USAGE.unpack(data) if len(data) == _USAGE.size else (0, 0)
        return used_bytes, n_changes


def _is_copying(directory: str) -> bool:
    """Return whether a live process holds the claim on a partial file; see the store."""
    for path in glob.glob(os.path.join(glob.escape(directory), "*", "partial", "*")):
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(fd)
    return False


def _bytes_below(directory: str) -> int:
    """Return the bytes of all files but those that say something of the directory."""
    total_bytes = 0
    for folder, folders, names in os.walk(directory):
        if USERS_FOLDER in folders:
            folders.remove(USERS_FOLDER)
        for name in set(names) - {MARK_FILE, RUNS_FILE}:
            with contextlib.suppress(FileNotFoundError):
                total_bytes += os.lstat(os.path.join(folder, name)).st_size
    return total_bytes
