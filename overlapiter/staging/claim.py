"""The claim on a file: who holds it copies the file, the others wait for that.

It is an exclusive ``flock`` on the partial file. The kernel drops it when its owner dies, so a
killed process never blocks another one. One that was stopped, or hangs, is waited for as long as
it writes.

On a file system without ``flock`` the claim is a link that leads nowhere and is never followed:
one owner alone can make it, and it says who that is from the first moment on::

    5d41402abc4b2a76.claim -> TAG
    5d41402abc4b2a76.TAG          what that owner has copied

A claim whose owner is dead is removed and made anew. Should two do so at the same moment, the file
is copied twice: each writes to a partial file of its own, so that nothing is mixed up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator

from overlapiter.staging.folders import Folder, OpenFolder
from overlapiter.staging.holder import NO_LOCKS, is_stale, new_tag

_POLL_SECONDS = 0.002
_LONGEST_POLL_SECONDS = 0.05
#: How long the owner of a claim may go without writing a byte.
_PATIENCE_SECONDS = 5.0
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
#: How the names of claims end, where there are no locks.
CLAIM = ".claim"

#: Changes whenever the owner of a claim writes.
Progress = tuple[int, int, int]


class Partial:
    """A partial file; once claimed, nobody else writes to it.

    Attributes:
        folder: The directory in which it lies.
        name: Its name there.
        fd: Its descriptor.
        size_bytes: What is reserved for it.
        left: Name of the partial file of an owner that died, and its reservation.
        is_locked: Whether the kernel keeps others away; else two may copy the same file.
        is_published: Whether it has been renamed to the staged file.
    """

    def __init__(self, folder: OpenFolder, name: str, *, is_locked: bool) -> None:
        self.folder = folder
        self.name = name
        self.is_locked = is_locked
        self.fd = os.open(name, _FLAGS | os.O_CREAT, 0o600, dir_fd=folder.fd)
        self.size_bytes = 0
        self.left: tuple[str, int] | None = None
        self.is_published = False

    def is_claimed(self) -> bool:
        """Try to lock it; False if another owner has it, or has published or removed it."""
        if not try_lock(self.fd):
            return False
        held = os.fstat(self.fd)
        if held.st_nlink == 0 or (held.st_size and not self._is_here(held)):
            return False
        if held.st_nlink > 1 or not stat.S_ISREG(held.st_mode):  # somebody's precious file
            os.unlink(self.name, dir_fd=self.folder.fd)
            return False
        if held.st_size:
            self.left = self.name, held.st_size
        return True

    def _is_here(self, held: os.stat_result) -> bool:
        """Return whether an open file still has this name; what is published is never empty."""
        try:
            here = os.stat(self.name, dir_fd=self.folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (here.st_dev, here.st_ino) == (held.st_dev, held.st_ino)

    def remove_left(self) -> int:
        """Remove what an owner that died had copied; return the reservation that ends so."""
        left, self.left = self.left, None
        if left is None:
            return 0
        name, size_bytes = left
        if name == self.name:
            os.ftruncate(self.fd, 0)
            return size_bytes
        return _remove(self.folder, name)

    def remove(self) -> int:
        """Remove it; return the reservation that ends so."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        with contextlib.suppress(OSError):
            os.unlink(self.name, dir_fd=self.folder.fd)
        return size_bytes

    def close(self) -> None:
        """Close it, which ends the claim."""
        os.close(self.fd)
        del self.folder  # an exception may keep this object for longer than that should be open


class Claims:
    """The claims of one process, whose threads may share it.

    Args:
        folder: Where partial files lie.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._has_locks = True
        self._stuck: set[str] = set()  # their owners write nothing: not waited for again

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[Partial | None]:
        """Hold the claim on a file; None if another process keeps it and writes nothing.

        Removes the partial file at the end, unless it was published.

        Args:
            key: Of the file: the name of its partial file.

        Raises:
            OSError: The staging disk failed.
        """
        partial = self._wait(key)
        if partial is None:
            yield None
            return
        try:
            yield partial
        finally:
            if not partial.is_published:
                partial.remove()
            if partial.name != key:
                _remove_claim(partial.folder, key, partial.name[len(key) + 1 :])
            partial.close()

    def _wait(self, key: str) -> Partial | None:
        patience_seconds = 0.0 if key in self._stuck else _PATIENCE_SECONDS
        poll_seconds = _POLL_SECONDS
        progress: Progress | None = None
        deadline = 0.0
        left: list[str] = []
        while True:
            before = progress
            folder = self._folder.opened()
            if self._has_locks:
                partial, progress = self._lock(folder, key)
            else:
                partial, progress = _record(folder, key, left)
            if partial is not None:
                self._stuck.discard(key)
                return partial
            now = time.monotonic()
            if progress != before:
                deadline = now + patience_seconds
            if now >= deadline:
                self._stuck.add(key)
                return None
            time.sleep(poll_seconds)
            poll_seconds = min(1.5 * poll_seconds, _LONGEST_POLL_SECONDS)

    def _lock(self, folder: OpenFolder, key: str) -> tuple[Partial | None, Progress]:
        partial = Partial(folder, key, is_locked=True)
        is_claimed = False
        progress = (0, 0, 0)
        try:
            is_claimed = partial.is_claimed()
            if not is_claimed:
                progress = _progress(os.fstat(partial.fd))
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self._has_locks = False
            partial.remove()
        finally:
            if not is_claimed:
                partial.close()
        return (partial if is_claimed else None), progress

    def sweep(self, free: Callable[[Callable[[], int]], int]) -> int:
        """Remove the partial files whose owner is dead; return how many.

        Args:
            free: Calls what removes a file, and counts what it returns as free.
        """
        removed = 0
        with contextlib.suppress(OSError):
            folder = self._folder.opened()
            for name in folder.names():
                with contextlib.suppress(OSError):
                    removed += _sweep(folder, name, free)
        return removed


# --- without locks ----------------------------------------------------------------------------


def _record(
    folder: OpenFolder, key: str, left: list[str]
) -> tuple[Partial | None, Progress | None]:
    """Try to make the link; ``left`` gathers partial files of owners that died."""
    tag = new_tag()
    try:
        os.symlink(tag, key + CLAIM, dir_fd=folder.fd)
    except FileExistsError:
        tag, found = _look(folder, key)
        if found is None:
            return None, None
        if is_stale(tag, time.time() - found.st_mtime):
            left[:] = [f"{key}.{tag}"]
            _remove_claim(folder, key, tag)
        return None, _progress(found)
    try:
        partial = Partial(folder, f"{key}.{tag}", is_locked=False)
    except OSError:
        _remove_claim(folder, key, tag)
        raise
    if left:
        partial.left = left.pop(), 0
    return partial, None


def _look(folder: OpenFolder, key: str) -> tuple[str, os.stat_result | None]:
    """Return the tag of a claim, and its partial file, or the claim while there is none."""
    try:
        found = os.stat(key + CLAIM, dir_fd=folder.fd, follow_symlinks=False)
        tag = _tag_in(folder, key + CLAIM)
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(f"{key}.{tag}", dir_fd=folder.fd, follow_symlinks=False)
    except FileNotFoundError:  # its owner is done
        return "", None
    return tag, found


def _tag_in(folder: OpenFolder, name: str) -> str:
    """Return the tag of a claim; nothing if it is none."""
    try:
        tag = os.readlink(name, dir_fd=folder.fd)
    except OSError as error:
        if error.errno == errno.EINVAL:  # something else is in its place
            return ""
        raise
    return "" if "/" in tag else tag


def _remove_claim(folder: OpenFolder, key: str, tag: str) -> None:
    """Remove a claim, unless it is already another owner's."""
    with contextlib.suppress(FileNotFoundError):
        if _tag_in(folder, key + CLAIM) == tag:
            os.unlink(key + CLAIM, dir_fd=folder.fd)


# --- what dead owners left --------------------------------------------------------------------


def _sweep(folder: OpenFolder, name: str, free: Callable[[Callable[[], int]], int]) -> bool:
    found = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
    age_seconds = time.time() - found.st_mtime
    if name.endswith(CLAIM):
        key = name[: -len(CLAIM)]
        tag, found_partial = _look(folder, key)
        if found_partial is not None:
            age_seconds = time.time() - found_partial.st_mtime
        if is_stale(tag, age_seconds):
            _remove_claim(folder, key, tag)
        return False
    key, _, tag = name.partition(".")
    if tag:
        if is_stale(tag, age_seconds):
            free(lambda: _remove(folder, name))
        return is_stale(tag, age_seconds)
    return _sweep_unlocked(folder, name, free, age_seconds)


def _sweep_unlocked(
    folder: OpenFolder, name: str, free: Callable[[Callable[[], int]], int], age_seconds: float
) -> bool:
    fd = os.open(name, _FLAGS, dir_fd=folder.fd)
    try:
        try:
            is_left = try_lock(fd)
        except OSError as error:
            is_left = error.errno in NO_LOCKS and is_stale("", age_seconds)
        if is_left:
            # Its owner may have published it, or another one begun anew, meanwhile.
            here = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            is_left = here.st_ino == os.fstat(fd).st_ino
        if is_left:
            free(lambda: _remove(folder, name))
        return is_left
    finally:
        os.close(fd)


def _remove(folder: OpenFolder, name: str) -> int:
    """Remove a partial file; return its reservation."""
    try:
        size_bytes = os.stat(name, dir_fd=folder.fd, follow_symlinks=False).st_size
        os.unlink(name, dir_fd=folder.fd)
    except FileNotFoundError:  # somebody else did
        return 0
    return size_bytes


def _progress(found: os.stat_result) -> Progress:
    return found.st_ino, found.st_size, found.st_mtime_ns


def try_lock(fd: int) -> bool:
    """Claim an open partial file, or return False if another process has done so."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
