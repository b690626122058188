"""The origin: where the store gets what it copies, a mounted directory in the plainest case."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from types import BuiltinFunctionType
from typing import NamedTuple, Protocol

#: What can be opened and is no file, besides directories and devices.
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
_FLAGS = os.O_RDONLY | os.O_CLOEXEC
#: In a worker ``os.open`` is for the dataset's code, see :mod:`overlapiter.redirection`.
_open = os.open
#: Of the numbers that have 64 bits.
_HALF = 1 << 63


class Original(NamedTuple):
    """What an origin tells of a file; a copy is valid while it has the same."""

    size_bytes: int  # 0 where it is empty, or the origin does not tell
    #: When it was changed last, or a number that stands for this very content; it fits 64 bits with
    #: a sign, see :func:`original_of`.
    mtime_ns: int


class OriginalFile(Protocol):
    """A file of an origin, opened to be read once, from its start to its end."""

    def stat(self) -> Original:
        """Tell what the file is now. Raises OSError if the origin fails."""

    def read(self, size_bytes: int) -> bytes:
        """Return up to ``size_bytes`` more; none at the end. Raises OSError if the origin fails."""


class SizeUntoldError(OSError):
    """An origin does not tell the size of a file."""


class Origin(Protocol):
    """Gives the store the files of one source root. Safe for threads."""

    def stat(self, path: str) -> Original:
        """Tell what a file is now. Blocks. Raises OSError if it is missing or unreadable."""

    def open(self, path: str) -> contextlib.AbstractContextManager[OriginalFile]:
        """Open a file, for the length of a ``with`` block. Raises OSError as :meth:`stat`."""


class LocalOrigin:
    """Files below a mounted directory. What is no file is not waited for, and raises OSError."""

    def stat(self, path: str) -> Original:
        """Tell what a file is now."""
        return original_of(os.stat(path))

    def open(self, path: str) -> LocalFile:
        """Open a file, for the length of a ``with`` block."""
        if has_builtin_open():
            return LocalFile(path, _open_at_once(path, _FLAGS))
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            return LocalFile(path, os.dup(file.fileno()))


class LocalFile:
    """An open file of a mounted directory, whose descriptor is ``fd``; it is to be closed."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self.fd = fd

    def __enter__(self) -> LocalFile:
        """Return the file."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Close the file."""
        os.close(self.fd)

    def stat(self) -> Original:
        """Tell what the file is now."""
        found = os.fstat(self.fd)
        if not stat.S_ISREG(found.st_mode):
            raise _no_file(stat.S_IFMT(found.st_mode), self._path)
        return original_of(found)

    def read(self, size_bytes: int) -> bytes:
        """Return up to so many bytes more."""
        try:
            return os.read(self.fd, size_bytes)
        except OSError:
            if os.get_blocking(self.fd):
                raise
            os.set_blocking(self.fd, True)  # some file systems need it, to fetch a file from tape
            return os.read(self.fd, size_bytes)


def has_builtin_open() -> bool:
    """Return whether ``open`` is Python's: benchmarks and tests replace it to slow the store."""
    return isinstance(open, BuiltinFunctionType)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, or whatever has its name, without waiting for the other end of a FIFO.

    To look first what it is would cost the slow store another request for each file.
    """
    try:
        return _open(path, flags | os.O_NONBLOCK)
    except BlockingIOError:  # a file on which another process has a lease, which this open ends
        return _open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _no_file(stat.S_IFSOCK, path) from None
        raise


def original_of(found: os.stat_result) -> Original:
    """Return what a look at a file tells.

    Disks take dates beyond April 2262, whose nanoseconds need more than 64 bits: of these only the
    last 64 count, which change with the date as well.
    """
    return Original(found.st_size, (found.st_mtime_ns + _HALF) % (2 * _HALF) - _HALF)


def _no_file(kind: int, path: str) -> OSError:
    if kind == stat.S_IFDIR:
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return OSError(errno.EINVAL, f"{_KINDS.get(kind, 'a device')}, not a file", path)
