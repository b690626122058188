"""Segments: the files that hold the bytes, each appended to by one process.

A process holds the ``flock`` on every segment that it appends to. The kernel drops that lock when
the process ends, however it ends and in whatever container it ran; so it tells the living from the
dead. It is taken when the file is made, before any row of the index names it: a file without row
and lock is garbage. Names are random and never used twice. The place of an evicted file is written
to again only by the process that has evicted it, as long as its row in ``going`` says so.

Everything here raises OSError if the disk fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import resource
import secrets
from collections.abc import Iterator

#: What a disk says that is full.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
#: A segment that has grown to this size is closed, and another one begun.
SEGMENT_BYTES = 1 << 30
#: How a segment is opened by those that only read it.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
#: There is no such segment, or something that is not ours has its name, which is left alone.
_GONE = (FileNotFoundError, IsADirectoryError)
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_NAME = re.compile("[0-9a-f]{16}")
#: Python has no binding of it with flags. ctypes lets other threads run during the call.
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02


class OpenSegment:
    """A segment that this process writes to, whichever process owns it. Not safe for threads.

    Attributes:
        number: Its number, which is its name.
        fd: A descriptor.
        n_pending: Places whose bytes are neither published nor given up.
    """

    def __init__(self, number: int, fd: int) -> None:
        self.number = number
        self.fd = fd
        self.n_pending = 0

    def close(self) -> None:
        """Close the descriptor; closing twice is fine."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


class Segment(OpenSegment):
    """A new segment, which this process owns until it is closed. Not safe for threads.

    Places are multiples of ``block_bytes``, so that a hole gives back whole blocks.

    Attributes:
        most_bytes: How large it may become.
        end: Behind the last place that was given.
        reserved: Behind the last byte that was charged and allocated.
    """

    def __init__(self, folder: str, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.most_bytes = SEGMENT_BYTES
        if limit_bytes != resource.RLIM_INFINITY:
            self.most_bytes = min(SEGMENT_BYTES, limit_bytes // block_bytes * block_bytes)
        self._folder = folder
        super().__init__(*make_owned(folder))
        self.end = self.reserved = 0

    @property
    def room_bytes(self) -> int:
        """What may still be reserved."""
        return max(0, self.most_bytes - self.reserved)

    @property
    def surplus_bytes(self) -> int:
        """What is reserved and not given."""
        return self.reserved - self.end

    def can_take(self, size_bytes: int) -> bool:
        """Return whether so many bytes may be appended, or the segment is full."""
        return self.end + aligned(size_bytes, self._block_bytes) <= self.most_bytes

    def take(self, size_bytes: int) -> int:
        """Return where to write so many bytes, in whole blocks, of those that are reserved."""
        start = self.end
        self.end += size_bytes
        return start

    def extend(self, size_bytes: int) -> None:
        """Allocate what was charged, behind what is reserved; nothing if that raises OSError."""
        try:
            allocate(self.fd, self.reserved, size_bytes)
        except OSError as error:
            if error.errno not in _NO_ALLOCATION:
                cut(self.fd, self.reserved)  # a part may have been allocated
                raise
        self.reserved += size_bytes

    @property
    def is_removed(self) -> bool:
        """Whether its name is gone, so that no other process can read it."""
        return not os.fstat(self.fd).st_nlink

    def remove(self) -> None:
        """Remove the file, which no row of the index names any more, and end the ownership."""
        remove(self._folder, self.number)
        self.close()


def aligned(size_bytes: int, block_bytes: int) -> int:
    """Return a size in whole blocks, at least one: no two places begin where another one does."""
    return -(-max(size_bytes, 1) // block_bytes) * block_bytes


def segment_path(folder: str, segment: int) -> str:
    """Return the path of a segment in its folder."""
    return f"{folder}/{segment:016x}"


def allocate(fd: int, start: int, size_bytes: int) -> None:
    """Have the disk set blocks aside for a range of a file, whose size stays as it is.

    Raises:
        OSError: There is no room (ENOSPC), or the file system cannot do it (EOPNOTSUPP).
    """
    _call(fd, _KEEP_SIZE, start, size_bytes)


def punch_hole(fd: int, start: int, size_bytes: int) -> None:
    """Give the blocks of a range back to the disk; who reads it meanwhile sees zeros.

    Costs 8 to 20 µs on ext4, and several times as much, with a wait for the device, where that is
    mounted with ``discard``. Raises OSError if the disk failed, or the file system has no holes
    (EOPNOTSUPP).
    """
    _call(fd, _KEEP_SIZE | _PUNCH_HOLE, start, size_bytes)


def _call(fd: int, mode: int, start: int, size_bytes: int) -> None:
    while _fallocate(fd, mode, start, size_bytes):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def cut(fd: int, end: int) -> None:
    """Give back all blocks of a segment behind ``end``, those beyond the end of the file too."""
    with _as_far_as_files_may_grow():
        if os.fstat(fd).st_size <= end:
            os.ftruncate(fd, end + 1)  # one to the same size would leave what was allocated
        os.ftruncate(fd, end)


@contextlib.contextmanager
def _as_far_as_files_may_grow() -> Iterator[None]:
    """Leave out what this process's limit of file sizes (ulimit -f) forbids.

    Behind the end of a segment that it has filled to the limit there is nothing to give back. In
    one of a process with a higher limit, what that one had reserved and not written stays there.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise


def write(fd: int, data: bytes | memoryview, start: int) -> None:
    """Write bytes to a segment."""
    rest = memoryview(data)
    while rest:
        written_bytes = os.pwrite(fd, rest, start)
        start += written_bytes
        rest = rest[written_bytes:]


def make_owned(folder: str) -> tuple[int, int]:
    """Make a file and own it; return its number and a descriptor.

    It is a segment once the index has a row for it. Without one it is garbage as soon as the
    descriptor is closed.
    """
    while True:
        number = secrets.randbits(62) + 1
        path = segment_path(folder, number)
        fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return number, fd
        except BlockingIOError:  # another process takes it for garbage
            remove(folder, number)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def open_to_write(folder: str, number: int) -> int:
    """Return a descriptor of a segment, without its ownership."""
    return os.open(segment_path(folder, number), _FLAGS)


@contextlib.contextmanager
def _opened(folder: str, number: int) -> Iterator[int]:
    fd = open_to_write(folder, number)
    try:
        yield fd
    finally:
        os.close(fd)


def is_owned(folder: str, number: int) -> bool:
    """Return whether the process that appends to a segment lives."""
    with contextlib.suppress(*_GONE), _opened(folder, number) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def remove_garbage(folder: str, number: int) -> None:
    """Remove a file that no row of the index names, unless a process owns it."""
    try:
        fd = open_to_write(folder, number)
    except OSError:  # gone, or none of ours
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # who has made it sees that it is gone
        remove(folder, number)
    except BlockingIOError:
        pass
    finally:
        os.close(fd)


def punch(folder: str, number: int, places: list[tuple[int, int]], end: int | None = None) -> None:
    """Give back places of a segment, what was written longest ago first.

    A segment that is gone has given back everything. The places are starts and sizes in bytes, both
    in whole blocks; all behind ``end``, if that is given, is given back, too.
    """
    with contextlib.suppress(*_GONE), _opened(folder, number) as fd:
        holes = _joined(places)
        last = max((start + size_bytes for start, size_bytes in holes), default=0)
        if os.fstat(fd).st_size < last:  # ext4 punches no hole behind the end of a file
            with _as_far_as_files_may_grow():
                os.pwrite(fd, b"\0", last - 1)
        for start, size_bytes in holes:
            punch_hole(fd, start, size_bytes)
        if end is not None:
            cut(fd, end)


def _joined(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return places in order, neighbours joined."""
    holes: list[tuple[int, int]] = []
    for start, size_bytes in sorted(places):
        if holes and sum(holes[-1]) == start:
            start, size_bytes = holes[-1][0], holes.pop()[1] + size_bytes
        holes.append((start, size_bytes))
    return holes


def remove(folder: str, number: int) -> None:
    """Remove a segment; one that is gone is fine. Processes that read it still can."""
    with contextlib.suppress(*_GONE):
        os.unlink(segment_path(folder, number))


def listed(folder: str) -> set[int]:
    """Return the numbers of all segments in a folder."""
    with os.scandir(folder) as found:
        names = [entry.name for entry in found if not entry.is_dir(follow_symlinks=False)]
    return {int(name, 16) for name in names if _NAME.fullmatch(name)}


def is_full(error: OSError) -> bool:
    """Return whether the disk may be full; SQLite takes a full quota for a sick disk."""
    return error.errno in (*NO_ROOM, errno.EIO)
