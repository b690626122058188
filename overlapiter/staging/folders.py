"""The directories of the store: private, never somebody else's, and entered without a link.

A path that is handed to the kernel as a whole may lead anywhere if one of its directories has
become a link. So the directories of the store are opened one by one, from the staging directory
on, and what is done in them is done relative to the open directory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Sequence

_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_PATH_BYTES = 4095
#: How the names begin of staged files that were taken aside to be removed.
TAKEN_AWAY = "evicted."
#: For so long a directory that was removed or replaced may still be used.
_TRUST_SECONDS = 0.1

#: Device and inode.
Identity = tuple[int, int]


class OpenFolder:
    """An open directory; closed when nobody refers to it any more.

    Attributes:
        fd: For the ``dir_fd`` of functions of ``os``; no descriptor to read from. Valid while the
            object is kept in a variable: ``opened().fd`` alone may be closed before it is used.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        """Close it."""
        os.close(self.fd)

    def names(self) -> list[str]:
        """Return what lies in it."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)


class Folder:
    """A directory of the store, kept open. Safe for threads.

    Args:
        root: The staging directory; the user may have given a link.
        names: The directories from there to this one, none of which may be a link.

    Attributes:
        path: Where it lies.
    """

    def __init__(self, root: str, *names: str) -> None:
        self.path = os.path.join(root, *names)
        self._root = root
        self._names = names
        self._opened: tuple[OpenFolder, Identity] | None = None
        self._until_seconds = 0.0

    def opened(self) -> OpenFolder:
        """Return it open; opened anew, within a moment, if another one is in its place.

        Raises:
            OSError: It is not there, or a link leads to it.
        """
        opened, now = self._opened, time.monotonic()
        if opened is None or now > self._until_seconds:
            identity = identity_of(os.stat(self.path))
            if opened is None or opened[1] != identity:
                opened = self._opened = self._open()
            self._until_seconds = now + _TRUST_SECONDS
        return opened[0]

    def _open(self) -> tuple[OpenFolder, Identity]:
        root = OpenFolder(os.open(self._root, _FLAGS & ~os.O_NOFOLLOW))
        opened = enter(root, self._names)
        return opened, identity_of(os.fstat(opened.fd))

    def close(self) -> None:
        """Close it, once nobody uses it any more; whoever needs it opens it anew."""
        self._opened = None


def identity_of(found: os.stat_result) -> Identity:
    """Return what tells a file or directory from all others."""
    return found.st_dev, found.st_ino


def enter(folder: OpenFolder, names: Sequence[str], *, make: bool = False) -> OpenFolder:
    """Enter a directory below an open one, none on the way being a link.

    Args:
        folder: Where to begin.
        names: The directories from there to the other one.
        make: Whether those that are missing are made, with mode 0700.

    Raises:
        OSError: One is missing, or is something else.
    """
    for name in names:
        try:
            fd = os.open(name, _FLAGS, dir_fd=folder.fd)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder.fd)
            fd = os.open(name, _FLAGS, dir_fd=folder.fd)
        folder = OpenFolder(fd)
    return folder


def names_of(prefix: str, path: str) -> tuple[str, ...] | None:
    """Return the names that lead from the source to a file below it; None if no file has them.

    Args:
        prefix: The source, with a slash at its end.
        path: A path of which nothing is known.
    """
    names = tuple(path[len(prefix) :].split("/"))
    if not path.startswith(prefix) or "\0" in path or not {"", ".", ".."}.isdisjoint(names):
        return None
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return None
    return names


def key_of(path: str) -> str:
    """Return the name of what belongs to a source file but lies beside the tree."""
    return hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()


def refuse_too_long(staged: str) -> None:
    """Raise OSError if the path of a copy is one that no program can open."""
    if len(os.fsencode(staged)) > _MOST_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def refuse_foreign(path: str) -> None:
    """Raise OSError unless ``path`` is a directory, not a link to one, and the user's own.

    One that others may enter is closed to them.
    """
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "a link, or another user's, is in its place")
    if found.st_mode & 0o077:  # nobody else may plant a link in it
        os.chmod(path, 0o700)


def make_private(path: str) -> None:
    """Make a directory and its missing parents, all with mode 0700."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_private(os.path.dirname(path.rstrip("/")))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def subdirectory(directory: str, source: str, place: str = "") -> str:
    """Return the part of a staging directory that belongs to one source root, at one place."""
    digest = hashlib.blake2b(os.fsencode(source + place), digest_size=6).hexdigest()
    name = os.path.basename(source) or "root"
    return os.path.join(directory, f"{name}-{digest}")
