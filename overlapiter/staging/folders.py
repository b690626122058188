"""The directories of the store: private, never somebody else's, and entered without a link.

A path that is handed to the kernel as a whole may lead anywhere if one of its directories has
become a link. So the directories of the store are opened one by one, from the staging directory
on, and what is done in them is done relative to the open directory.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import resource
import stat
import time
from collections.abc import Sequence

_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_PATH_BYTES = 4095
#: How the names begin of staged files that were taken aside to be removed.
TAKEN_AWAY = "evicted."
#: For so long a directory that was removed or replaced may still be used.
_TRUST_SECONDS = 0.1

#: Of the descriptors beyond the few that the process needs in any case, each tree takes a part.
_FEW_DESCRIPTORS, _SHARE_OF_DESCRIPTORS = 256, 16
_MOST_OPEN = 1024
_NO_NAMES = frozenset({"", ".", ".."})

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
        above: The directory in which it lies, if that is a directory of the store, too.

    Attributes:
        path: Where it lies.
    """

    def __init__(self, root: str, *names: str, above: Folder | None = None) -> None:
        self.path = os.path.join(root, *names)
        self._root = root
        self._names = names
        self._above = above
        self._opened: OpenFolder | None = None
        self._until_seconds = 0.0

    def below(self, name: str) -> Folder:
        """Return a directory that lies in this one."""
        return Folder(self.path, name, above=self)

    def opened(self) -> OpenFolder:
        """Return it open; opened anew, within a moment, if another one is in its place.

        Raises:
            OSError: It is not there, or a link leads to it.
        """
        opened, now = self._opened, time.monotonic()
        if opened is None or now > self._until_seconds:
            if opened is None or self._look() != identity_of(os.fstat(opened.fd)):
                opened = self._opened = self._open()
            self._until_seconds = now + _TRUST_SECONDS
        return opened

    def _look(self) -> Identity:
        """Tell which directory is in its place."""
        if self._above is None:
            return identity_of(os.stat(self.path))
        above = self._above.opened()
        return identity_of(os.stat(self._names[-1], dir_fd=above.fd, follow_symlinks=False))

    def _open(self) -> OpenFolder:
        if self._above is not None:
            return enter(self._above.opened(), self._names)
        return enter(OpenFolder(os.open(self._root, _FLAGS & ~os.O_NOFOLLOW)), self._names)

    def close(self) -> None:
        """Close it, once nobody uses it any more; whoever needs it opens it anew."""
        self._opened = None


def identity_of(found: os.stat_result) -> Identity:
    """Return what tells a file or directory from all others."""
    return found.st_dev, found.st_ino


def most_open_folders() -> int:
    """Return how many directories of a tree may be kept open, for all the open files there may be.

    None where these are few: opening a directory anew for each file costs but little.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_OPEN
    return min(_MOST_OPEN, max(0, limit - _FEW_DESCRIPTORS) // _SHARE_OF_DESCRIPTORS)


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


@functools.lru_cache(maxsize=1024)  # a file is looked for, and copied some moments later
def names_of(prefix: str, path: str) -> tuple[str, ...] | None:
    """Return the names that lead from the source to a file below it; None if no file has them.

    Args:
        prefix: The source, with a slash at its end.
        path: A path of which nothing is known.
    """
    names = tuple(path[len(prefix) :].split("/"))
    if not path.startswith(prefix) or "\0" in path or not _NO_NAMES.isdisjoint(names):
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
