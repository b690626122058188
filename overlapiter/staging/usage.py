"""The usage file: what is known of a staging directory, shared by all processes of the node.

``overlapiter.usage`` is held for microseconds, under a ``flock``, which the kernel drops when its
holder dies. Where the file system has no locks, whoever renames the file to a name of its own
holds it; the name says who that is, so what a dead process held is renamed again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator

from overlapiter.staging.holder import NO_LOCKS, is_stale, new_tag

USAGE_FILE = "overlapiter.usage"
_FORMAT = struct.Struct("<13q")
_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_POLL_SECONDS = 0.0002
_LONGEST_POLL_SECONDS = 0.001
_PATIENCE_SECONDS = 1.0
#: A file that others rename may be missed in a listing; not so often in a row.
_LOOKS_FOR_MISSING = 200
_PROBE = "overlapiter.probe."


class BusyError(Exception):
    """Nobody can tell what is in use: another process holds the usage file, or is counting."""


@dataclasses.dataclass(slots=True)
class Usage:
    """What the usage file says.

    Attributes:
        boot: In which boot the bytes were counted; 0 if they never were.
        used_bytes: Bytes that are in use at most; what is granted while they are not counted, too.
        n_recounts: How often they have been counted from the files themselves.
        recount_due_seconds: When that may be done again, in seconds since 1970.
        granted_bytes: Bytes that were ever granted.
        granted_inodes: Files and directories that were ever granted.
        disk_bytes: Bytes that were free on the disk when somebody last looked.
        disk_inodes: The same of inodes; negative where their number is not fixed.
        looked_bytes: What ``granted_bytes`` was then.
        looked_inodes: What ``granted_inodes`` was then.
        looked_seconds: And when that was, in seconds since 1970.
        advanced_until_ms: When the last advance ends; see :mod:`.advance`.
        n_advances: How many there are that have not been given back, while they have not ended.
        afterwards: What is to be done once all this is written, while the file is still held.
        otherwise: What is written if that fails, packed; by default what was there before.
    """

    boot: int = 0
    used_bytes: int = 0
    n_recounts: int = 0
    recount_due_seconds: int = 0
    granted_bytes: int = 0
    granted_inodes: int = 0
    disk_bytes: int = 0
    disk_inodes: int = 0
    looked_bytes: int = 0
    looked_inodes: int = 0
    looked_seconds: int = 0
    advanced_until_ms: int = 0
    n_advances: int = 0
    otherwise: bytes = b""
    afterwards: list[Callable[[], None]] = dataclasses.field(default_factory=list)

    def packed(self) -> bytes:
        """Return it as it is in the file."""
        return _FORMAT.pack(
            self.boot, self.used_bytes, self.n_recounts, self.recount_due_seconds,
            self.granted_bytes, self.granted_inodes, self.disk_bytes, self.disk_inodes,
            self.looked_bytes, self.looked_inodes, self.looked_seconds,
            self.advanced_until_ms, self.n_advances,
        )  # fmt: skip


class UsageFile:
    """The usage file of a staging directory. Safe for threads.

    Args:
        directory: The staging directory.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, USAGE_FILE)
        self._threads = threading.Lock()
        self._is_patient = True
        self._has_locks = True
        self._own_path = ""

    @contextlib.contextmanager
    def hold(self) -> Iterator[Usage]:
        """Hold the file; what is changed in the usage by the end of the block is written.

        Raises:
            OSError: The disk does not answer.
            BusyError: Another process holds it for too long.
        """
        with self._threads:  # which poll each other no more than they must
            fd = self._take()
            try:
                before, usage = _read(fd)
                yield usage
                after = usage.packed()
                if after != before:
                    os.pwrite(fd, after, 0)
                try:
                    for action in usage.afterwards:
                        action()
                except OSError:
                    os.pwrite(fd, usage.otherwise or before, 0)  # not granted, then
                    raise
            finally:
                self._give_back(fd)

    def look(self) -> Usage:
        """Return the usage as it was a moment ago, holding it only where there are no locks.

        Raises:
            OSError: The disk does not answer.
            BusyError: Another process holds it for too long.
        """
        try:
            fd = os.open(self._path, _OPEN_FLAGS)
        except FileNotFoundError:  # renamed by who holds it, or nobody has made it
            with self.hold() as usage:
                return usage
        try:
            return _read(fd)[1]
        finally:
            os.close(fd)

    def _take(self) -> int:
        start_seconds = time.monotonic()
        patience_seconds = _PATIENCE_SECONDS if self._is_patient else 0
        poll_seconds = _POLL_SECONDS
        n_missed = 0
        while True:
            fd, is_missing = self._locked() if self._has_locks else self._renamed()
            if fd >= 0:
                self._is_patient = True
                return fd
            now = time.monotonic()
            n_missed = n_missed + 1 if is_missing else 0
            if n_missed >= _LOOKS_FOR_MISSING:
                self._make()
            self._is_patient = is_missing or now < start_seconds + patience_seconds
            if not self._is_patient:  # nor the next time, until it can be had again
                raise BusyError
            time.sleep(poll_seconds)
            poll_seconds = min(2 * poll_seconds, _LONGEST_POLL_SECONDS)

    def _give_back(self, fd: int) -> None:
        os.close(fd)
        if self._own_path:
            path, self._own_path = self._own_path, ""
            os.rename(path, self._path)

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o600))

    # --- with locks ---------------------------------------------------------------------------

    def _locked(self) -> tuple[int, bool]:
        """Open and lock the file; return -1 if another has it, and whether there is none."""
        try:
            fd = os.open(self._path, _OPEN_FLAGS)
        except FileNotFoundError:
            self._has_locks = self._can_lock()
            if self._has_locks:  # then nobody renames it
                self._make()
            return -1, False
        is_held = False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = self._is_ours(fd)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self._has_locks = False
        finally:
            if not is_held:
                os.close(fd)
        return fd if is_held else -1, False

    def _can_lock(self) -> bool:
        """Return whether the file system has locks."""
        path = os.path.join(self._directory, _PROBE + new_tag())
        fd = os.open(path, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return False
        else:
            return True
        finally:
            os.close(fd)
            os.unlink(path)

    def _is_ours(self, fd: int) -> bool:
        """Return whether an open file is the usage file, and nothing else."""
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # somebody's precious file
            os.unlink(self._path)
            return False
        return found.st_nlink == 1  # else it was removed meanwhile

    # --- without ------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        """Return the names of the file: its own, and that which its holder gave it."""
        return [name for name in os.listdir(self._directory) if name.startswith(USAGE_FILE)]

    def _renamed(self) -> tuple[int, bool]:
        """Rename and open the file; return -1 if another has it, and whether there is none."""
        own_path = f"{self._path}.{new_tag()}"
        try:
            os.rename(self._path, own_path)
        except FileNotFoundError:
            names = self._names()
            if not self._take_over(names, own_path):
                return -1, not names
        fd = os.open(own_path, _OPEN_FLAGS)
        found = os.fstat(fd)
        if found.st_nlink > 1 or not stat.S_ISREG(found.st_mode):  # somebody's precious file
            os.close(fd)
            os.unlink(own_path)
            return -1, False
        self._own_path = own_path
        return fd, False

    def _take_over(self, names: list[str], own_path: str) -> bool:
        for name in names:
            if name == USAGE_FILE:  # given back meanwhile
                continue
            path = os.path.join(self._directory, name)
            with contextlib.suppress(FileNotFoundError):
                age_seconds = time.time() - os.lstat(path).st_ctime  # since it was renamed
                if is_stale(name[len(_HELD) :], age_seconds):
                    os.rename(path, own_path)  # of several who want it, one succeeds
                    return True
        return False


_HELD = f"{USAGE_FILE}."


def _read(fd: int) -> tuple[bytes, Usage]:
    """Return what is in the file, and what that says; nothing if somebody has spoilt it."""
    data = os.pread(fd, _FORMAT.size + 1, 0)
    if len(data) != _FORMAT.size:
        return _NOTHING, Usage()
    return data, Usage(*_FORMAT.unpack(data))


_NOTHING = Usage().packed()
