"""The origin: where the store gets what it copies, a mounted directory in the plainest case."""

from __future__ import annotations

import contextlib
import io
import os
from typing import NamedTuple, Protocol


class Original(NamedTuple):
    """What an origin tells of a file; a copy is valid while it has the same.

    Attributes:
        size_bytes: Its size; 0 where it is empty, or the origin does not tell.
        mtime_ns: When it was changed last, or a number that stands for this very content.
    """

    size_bytes: int
    mtime_ns: int


class OriginalFile(Protocol):
    """A file of an origin, opened to be read once, from its start to its end."""

    def stat(self) -> Original:
        """Tell what the file is now. Raises OSError if the origin fails."""

    def read(self, size_bytes: int) -> bytes:
        """Return up to ``size_bytes`` more; none at the end. Raises OSError if the origin fails."""


class Origin(Protocol):
    """Gives the store the files of one source root. Safe for threads.

    Attributes:
        is_local: Whether the files have paths that any program can open.
    """

    is_local: bool

    def stat(self, path: str) -> Original:
        """Tell what a file is now. Blocks while the origin is asked.

        Raises:
            OSError: It is missing or unreadable.
        """

    def open(self, path: str) -> contextlib.AbstractContextManager[OriginalFile]:
        """Open a file, for the length of a ``with`` block.

        Raises:
            OSError: It is missing or unreadable.
        """


class LocalOrigin:
    """Files below a mounted directory."""

    is_local = True

    def stat(self, path: str) -> Original:
        """Tell what a file is now."""
        return _original(os.stat(path))

    def open(self, path: str) -> contextlib.AbstractContextManager[OriginalFile]:
        """Open a file, for the length of a ``with`` block."""
        # The builtin, looked up now: benchmarks and tests replace it to make the store slow.
        return _LocalFile(open(path, "rb", buffering=0))  # closed at the end of the block


class _LocalFile:
    """An open file of a mounted directory."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._fd = file.fileno()

    def __enter__(self) -> _LocalFile:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._file.close()

    def stat(self) -> Original:
        return _original(os.fstat(self._fd))

    def read(self, size_bytes: int) -> bytes:
        return os.read(self._fd, size_bytes)


def _original(found: os.stat_result) -> Original:
    return Original(found.st_size, found.st_mtime_ns)
