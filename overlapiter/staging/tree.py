"""The tree of staged files: looked at, added to and removed from without following a link."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence

from overlapiter.staging.claim import Partial
from overlapiter.staging.folders import (
    TAKEN_AWAY,
    Folder,
    Identity,
    OpenFolder,
    enter,
    identity_of,
    most_open_folders,
)
from overlapiter.staging.holder import new_tag

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_KNOWN = 4096


class Tree:
    """The staged files of one source root. Safe for threads and processes.

    A file is given by the names that lead to it from the root.

    Args:
        folder: The root.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._uid = os.geteuid()
        self._known: dict[Sequence[str], Identity] = {}  # directories that no link leads to
        self._folders: dict[Sequence[str], Folder] = {}  # some of them, kept open
        self._lock = threading.Lock()
        self._most_open = most_open_folders()

    def peek(self, names: Sequence[str]) -> os.stat_result | None:
        """Return what is known of a file that this user has made; None if there is none.

        Costs one look at the disk if there is none, else mostly two.

        Raises:
            OSError: The disk does not answer, or something is no directory but should be one.
        """
        above, path = names[:-1], "/".join((self._folder.path, *names))
        try:
            found = os.lstat(path)
            if not self.is_own_file(found):
                return None
            identity = identity_of(os.stat(path[: -len(names[-1])]))
            if self._known.get(above) != identity:
                found = self._enter_and_look(names, above)
        except FileNotFoundError:
            return None
        return found

    def _enter_and_look(self, names: Sequence[str], above: Sequence[str]) -> os.stat_result:
        folder = enter(self._folder.opened(), above)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[above] = identity_of(os.fstat(folder.fd))
        return os.stat(names[-1], dir_fd=folder.fd, follow_symlinks=False)

    def is_own_file(self, found: os.stat_result) -> bool:
        """Return whether what was found is a file, and this user's."""
        return stat.S_ISREG(found.st_mode) and found.st_uid == self._uid

    def place(self, names: Sequence[str]) -> Place:
        """Go to the place of a file, as far as its directories are there.

        Raises:
            OSError: The disk does not answer, or something is no directory but should be one.
        """
        root = self._folder.opened()
        try:
            return Place(root, names, self._folder_of(names[:-1]).opened())
        except FileNotFoundError:
            return Place(root, names, None)

    def _folder_of(self, names: Sequence[str]) -> Folder:
        """Return a directory of the tree, as one of few that are kept open."""
        if not names:
            return self._folder
        folder = self._folders.get(names)
        if folder is None:
            folder = self._folder_of(names[:-1]).below(names[-1])
            with self._lock:
                while self._folders and len(self._folders) >= self._most_open:
                    del self._folders[next(iter(self._folders))]  # the oldest
                self._folders[names] = folder
        return folder

    def close(self) -> None:
        """Close the directories that are kept open."""
        with self._lock:
            self._folders.clear()


class Place:
    """The place of a file in the tree; keeps its directory open, if there is one.

    Args:
        root: Of the tree.
        names: The names that lead from there to the file.
        folder: Its directory; None if it is missing.

    Attributes:
        was_taken: Whether something lay there at a look.
    """

    def __init__(self, root: OpenFolder, names: Sequence[str], folder: OpenFolder | None) -> None:
        self._root = root
        self._names = names
        self._name = names[-1]
        self._folder = folder
        self.was_taken = False

    @property
    def n_inodes(self) -> int:
        """How many files and directories may be made to put a file there."""
        return 1 if self._folder is not None else len(self._names)

    def look(self) -> os.stat_result | None:
        """Return what is known of what lies there, a link perhaps; None if there is nothing."""
        if self._folder is None:
            return None
        try:
            found = os.stat(self._name, dir_fd=self._folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        self.was_taken = True
        return found

    def open(self) -> int:
        """Open the file to be read; the caller closes it.

        Raises:
            OSError: It is not there, or is a link.
        """
        if self._folder is None:
            raise FileNotFoundError(self._name)
        return os.open(self._name, _FLAGS, dir_fd=self._folder.fd)

    def publish(self, partial: Partial) -> None:
        """Rename a partial file to the staged one, in the place of what lies there.

        Raises:
            OSError: Something is in the way, or the whole directory has gone.
        """
        try:
            self._rename(partial)
        except FileNotFoundError:  # its directory was removed meanwhile
            self._folder = None
            self._rename(partial)
        partial.is_published = True

    def _rename(self, partial: Partial) -> None:
        if self._folder is None:
            self._folder = enter(self._root, self._names[:-1], make=True)
        source_fd, target_fd = partial.folder.fd, self._folder.fd
        os.rename(partial.name, self._name, src_dir_fd=source_fd, dst_dir_fd=target_fd)

    def remove(self, aside: OpenFolder) -> int | None:
        """Remove the file, or a link; return the bytes that are free then.

        Of several processes that do so at once, one alone counts them. None if nobody can tell:
        see :func:`counted_bytes`.

        Args:
            aside: Where it is taken, under a name of our own, to be removed.
        """
        if self._folder is None:
            return 0
        return take_away(self._folder.fd, self._name, aside)


def take_away(fd: int, name: str, aside: OpenFolder) -> int | None:
    """Remove a staged file, or a link, from an open directory; see :meth:`Place.remove`."""
    own_name = TAKEN_AWAY + new_tag()
    try:
        before = os.stat(name, dir_fd=fd, follow_symlinks=False)  # the renaming sets ctime
        os.rename(name, own_name, src_dir_fd=fd, dst_dir_fd=aside.fd)
    except FileNotFoundError:
        return 0
    found = os.stat(own_name, dir_fd=aside.fd, follow_symlinks=False)
    os.unlink(own_name, dir_fd=aside.fd)
    if not stat.S_ISREG(found.st_mode):
        return 0
    is_same = identity_of(before) == identity_of(found)  # else it was published just now
    return counted_bytes(before) if is_same else found.st_size


def counted_bytes(found: os.stat_result) -> int | None:
    """Return as how much a staged file was counted; None if it was written to since then.

    It may have grown, so its size says nothing. Writing makes mtime and ctime the same, to the
    nanosecond; a copy that nobody has touched has the mtime of its source, and both atime and
    mtime of it until it is read.
    """
    is_untouched = found.st_mtime_ns != found.st_ctime_ns or found.st_atime_ns == found.st_mtime_ns
    return found.st_size if is_untouched else None
