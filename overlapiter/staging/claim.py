"""The claim on a file: an exclusive ``flock`` on its partial file.

The kernel drops it when its owner dies, so a killed process never blocks another one. One that
was stopped, or hangs, is waited for as long as it writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

_POLL_SECONDS = 0.002
_LONGEST_POLL_SECONDS = 0.05
#: How long the owner of a claim may go without writing a byte.
_PATIENCE_SECONDS = 5.0


class Partial:
    """A partial file; once claimed, nobody else writes to it.

    Attributes:
        name: Its path.
        fd: Its descriptor.
        size_bytes: What another owner had copied before it died.
        copy: The staged file at the time of the claim; None if there was none.
        is_published: Whether it has been renamed to the staged file.
    """

    def __init__(self, name: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.name = name
        self.fd = os.open(name, flags, 0o600)
        self.size_bytes = 0
        self.copy: os.stat_result | None = None
        self.is_published = False

    def is_claimed(self, staged: str) -> bool:
        """Try to claim it; False if another owner has it, or has published or removed the file."""
        if not try_lock(self.fd):
            return False
        held = os.fstat(self.fd)
        self.size_bytes = held.st_size
        self.copy = lstat(staged)
        return held.st_nlink > 0 and (self.copy is None or self.copy.st_ino != held.st_ino)

    def progress(self) -> tuple[int, int, int]:
        """Return something that changes whenever its owner writes."""
        held = os.fstat(self.fd)
        return held.st_ino, held.st_size, held.st_mtime_ns


class Claims:
    """The claims of one process, whose threads may share it."""

    def __init__(self) -> None:
        self._stuck: set[str] = set()  # their owners write nothing: not waited for again

    @contextlib.contextmanager
    def hold(self, name: str, staged: str) -> Iterator[Partial | None]:
        """Hold the claim on a file; None if another process keeps it and writes nothing.

        Args:
            name: The partial file.
            staged: The staged file that it becomes.

        Raises:
            OSError: The staging disk failed.
        """
        partial = self._wait(name, staged)
        if partial is None:
            yield None
            return
        try:
            yield partial
        finally:
            if not partial.is_published:
                with contextlib.suppress(OSError):
                    os.unlink(name)
            os.close(partial.fd)

    def _wait(self, name: str, staged: str) -> Partial | None:
        patience_seconds = 0.0 if name in self._stuck else _PATIENCE_SECONDS
        poll_seconds = _POLL_SECONDS
        progress = None
        deadline = 0.0
        while True:
            partial = Partial(name)
            is_claimed = False
            try:
                is_claimed = partial.is_claimed(staged)
                before, progress = progress, partial.progress()
            finally:
                if not is_claimed:
                    os.close(partial.fd)
            if is_claimed:
                self._stuck.discard(name)
                return partial
            now = time.monotonic()
            if progress != before:
                deadline = now + patience_seconds
            if now >= deadline:
                self._stuck.add(name)
                return None
            time.sleep(poll_seconds)
            poll_seconds = min(1.5 * poll_seconds, _LONGEST_POLL_SECONDS)


def try_lock(fd: int) -> bool:
    """Claim an open partial file, or return False if another process has done so."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lstat(path: str) -> os.stat_result | None:
    """Return what is known of a path itself; None if there is nothing."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
