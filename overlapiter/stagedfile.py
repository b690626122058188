"""The file object that a dataset gets for a staged file, in place of the one that ``open`` gives.

:func:`open_bytes` makes it of bytes that were read from the store and verified,
:func:`open_instead` of a file with another name.
"""

from __future__ import annotations

import _io
import errno
import io
import locale
import os
import sys
from collections.abc import Callable
from typing import IO, Any, NoReturn, SupportsIndex

Opener = Callable[[str, int], int]
Name = str | bytes | os.PathLike[str] | os.PathLike[bytes]

#: The modes in which ``open`` reads and does not write.
READ_MODES = frozenset({"r", "rb", "br", "rt", "tr"})


class StagedFile(io.BytesIO):
    """A file opened for reading in binary mode whose content is in memory.

    Made of bytes, it shares them: nothing is copied. It differs from what ``open(name, "rb")``
    gives in that it reads nothing ahead: there is no ``raw`` file, and the position of the
    descriptor is that of the file whenever :meth:`fileno` returns.
    """

    # An attribute that has a slot costs no dictionary: one file is made for every image.
    __slots__ = ("name",)
    name: str | bytes  # the path as the caller of ``open`` wrote it
    mode = "rb"  # as ``open`` has it, whether it was called with "rb" or "br"
    closefd = True  # as a FileIO has it, for callers that want no buffer
    _descriptor = -1

    def fileno(self) -> int:
        """Return a descriptor, for reading only, of a copy in memory: made once, when asked for.

        It lives until :meth:`close`. Its position is set to that of this file, which does not
        follow it: after reading from the descriptor, ``seek``.

        Raises:
            OSError: There are no more descriptors, or no memory.
        """
        position = self.tell()
        if self._descriptor < 0:
            self._descriptor = _descriptor_of(self.getvalue())
        os.lseek(self._descriptor, position, os.SEEK_SET)
        return self._descriptor

    def close(self) -> None:
        """Drop the content and the descriptor."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
        io.BytesIO.close(self)  # super() would take as long again

    # Without it, what Python does for any io object costs as much again as making this one.
    __del__ = close

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a position, which is refused before the start as by a file on a disk."""
        if offset < 0:  # BytesIO itself would go to 0, or raise another error
            before = self.tell()
            start = super().seek(0, whence)
            if start + offset < 0:
                super().seek(before)
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().seek(offset, whence)

    def peek(self, _size: int = 0, /) -> bytes:
        """Return some of the bytes that come next, without moving; none at the end alone."""
        position = self.tell()
        found = self.read(io.DEFAULT_BUFFER_SIZE)
        super().seek(position)
        return found

    def writable(self) -> bool:
        """Return False."""
        return False

    def write(self, _data: Any, /) -> NoReturn:
        """Raise ``UnsupportedOperation``."""
        raise io.UnsupportedOperation("write")

    writelines = write

    def truncate(self, _size: int | None = None, /) -> NoReturn:
        """Raise ``UnsupportedOperation``."""
        raise io.UnsupportedOperation("truncate")

    def readall(self) -> bytes:
        """Return what is left, as a ``FileIO`` does."""
        return self.read()

    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r}>"


def open_bytes(
    data: bytes,
    name: Name,
    mode: str = "rb",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Opener | None = None,  # noqa: ARG001  # there is nothing to open
) -> IO[Any]:
    """Return what ``open(name, mode, ...)`` would, or raise that, of a file with this content.

    The file shares ``data``; ``mode`` is one of :data:`READ_MODES`.
    """
    if mode not in READ_MODES:
        raise ValueError(f"a staged file is opened for reading, not in mode {mode!r}")
    is_binary = "b" in mode
    if is_binary:
        is_doubtful = buffering == 1 or not (encoding is errors is newline is None)
    else:
        is_doubtful = buffering == 0
    if is_doubtful or not closefd:  # open itself says what is wrong with these arguments
        _io.open(os.devnull, mode, buffering, encoding, errors, newline, closefd).close()
    file = StagedFile(data)
    file.name = name if type(name) is str else os.fspath(name)
    if is_binary:
        return file
    if sys.version_info < (3, 11) and encoding in (None, "locale"):
        # TextIOWrapper would ask for the descriptor, to see whether this is a terminal.
        encoding = locale.getpreferredencoding(False)
    text = io.TextIOWrapper(file, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc]  # as open does
    return text


def open_instead(path: str, name: Name, mode: str = "rb", *args: Any, **kwargs: Any) -> IO[Any]:
    """Return what ``open(name, mode, ...)`` would if the file at ``path`` had this name.

    It is opened by the ``open`` of the interpreter, whatever has replaced it: a replacement that
    looks at the name would take it for the file of that name.

    Raises:
        OSError: ``path`` cannot be opened; ``filename`` is ``path``.
    """
    kwargs["opener"] = lambda _name, flags: os.open(path, flags)
    return _io.open(name, mode, *args[:5], **kwargs)  # an opener of None comes behind


def _descriptor_of(data: bytes) -> int:
    """Return a new descriptor, for reading only, of a file in memory with this content."""
    writable = os.memfd_create("overlapiter-file")
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(writable, rest) :]
        return os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writable)
