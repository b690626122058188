"""Segments: the files that hold the bytes, each appended to by one process.

The owner of a segment is the process that holds the ``flock`` on it. The kernel drops that lock when
the process ends, however it ends and in whatever container it ran; so it tells the living from the
dead. It is taken when the file is made, before any row of the index names it: a file without row
and lock is garbage. Names are random and never used twice, nor are the places in a segment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets

from .generation import segment_path
from .punching import allocate, punch_hole

#: A segment that has grown to this size is closed, and another one begun.
SEGMENT_BYTES = 1 << 30
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Segment:
    """A segment that this process owns. Not safe for threads.

    Args:
        folder: The folder of the segments.
        block_bytes: Places are multiples of it, so that a hole gives back whole blocks.

    Attributes:
        folder: The same.
        number: Its number, which is its name.
        fd: Its descriptor; closing it ends the ownership.
        end: Behind the last place that was given.
        reserved: Behind the last byte that was charged and allocated.
        n_pending: Places whose bytes are neither published nor given up.

    Raises:
        OSError: The disk failed.
    """

    def __init__(self, folder: str, block_bytes: int) -> None:
        self.folder = folder
        self._block_bytes = block_bytes
        self._path = ""
        self.fd = -1
        while self.fd < 0:
            self.number = secrets.randbits(62) + 1
            self._path = segment_path(folder, self.number)
            self.fd = _made(self._path)
        self.end = self.reserved = 0
        self.n_pending = 0

    @property
    def is_full(self) -> bool:
        """Whether no more is to be appended."""
        return self.end >= SEGMENT_BYTES

    def place(self, size_bytes: int) -> int | None:
        """Return where to write so many bytes; None if that takes a larger reservation."""
        start, end = self.end, self.end + aligned(size_bytes, self._block_bytes)
        if end > self.reserved:
            return None
        self.end = end
        self.n_pending += 1
        return start

    def extend(self, size_bytes: int) -> None:
        """Allocate what was charged, behind what is reserved.

        Raises:
            OSError: The disk has no room (ENOSPC, EDQUOT), or failed.
        """
        try:
            allocate(self.fd, self.reserved, size_bytes)
        except OSError as error:
            if error.errno not in _NO_ALLOCATION:
                raise
        self.reserved += size_bytes

    def cut(self) -> int:
        """Give back what is reserved and not used; return how many bytes that are."""
        surplus_bytes = self.reserved - self.end
        cut(self.fd, self.end)
        self.reserved = self.end
        return surplus_bytes

    def close(self) -> None:
        """End the ownership; closing twice is fine."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def remove(self) -> None:
        """Remove the file, which no row of the index names any more, and end the ownership."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self.close()


def aligned(size_bytes: int, block_bytes: int) -> int:
    """Return a size in whole blocks."""
    return -(-size_bytes // block_bytes) * block_bytes


def cut(fd: int, end: int) -> None:
    """Give back all blocks of a segment behind ``end``, those beyond the end of the file too."""
    if os.fstat(fd).st_size <= end:
        os.ftruncate(fd, end + 1)  # a truncation to the same size would leave what was allocated
    os.ftruncate(fd, end)


def _made(path: str) -> int:
    """Make a file and own it; -1 if another process took it for garbage in between."""
    fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:
            return fd
    except BlockingIOError:
        os.unlink(path)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return -1


def is_owned(folder: str, number: int) -> bool:
    """Return whether the process that appends to a segment lives."""
    try:
        fd = os.open(segment_path(folder, number), _FLAGS)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def seize(folder: str, number: int) -> int | None:
    """Own the segment of a process that has ended; return its descriptor, None if it lives.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: The disk failed.
    """
    fd = os.open(segment_path(folder, number), _FLAGS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


def punch(folder: str, number: int, places: list[tuple[int, int]]) -> None:
    """Give back places of a segment, what was written longest ago first.

    Args:
        folder: The folder of the segments.
        number: The segment; one that is gone has given back everything.
        places: Starts and sizes in bytes, both in whole blocks.

    Raises:
        OSError: The disk failed.
    """
    try:
        fd = os.open(segment_path(folder, number), _FLAGS)
    except FileNotFoundError:
        return
    try:
        for start, size_bytes in sorted(places):
            punch_hole(fd, start, size_bytes)
    finally:
        os.close(fd)


def remove(folder: str, number: int) -> None:
    """Remove a segment; one that is gone is fine. Processes that read it still can."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(segment_path(folder, number))


def listed(folder: str) -> set[int]:
    """Return the numbers of all segments in a folder."""
    found = set()
    for name in os.listdir(folder):
        with contextlib.suppress(ValueError):  # not one of ours
            found.add(int(name, 16))
    return found
