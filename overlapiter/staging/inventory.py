"""What lies in a staging directory. Walks it without following a link; asks no source."""

from __future__ import annotations

import contextlib
import enum
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from overlapiter.staging.checksums import SUMS_FOLDER
from overlapiter.staging.claim import CLAIM, try_lock
from overlapiter.staging.holder import NO_LOCKS, is_stale
from overlapiter.staging.interest import INTEREST_FILE
from overlapiter.staging.marks import MARK_FILE, read_mark, write_mark
from overlapiter.staging.records import RUNS_FILE, USERS_FOLDER
from overlapiter.staging.usage import USAGE_FILE

FILES_FOLDER = "files"
PARTIAL_FOLDER = "partial"
_SUBDIRECTORY = re.compile(r".*-[0-9a-f]{12}", re.DOTALL)
_OWN_NAMES = {USERS_FOLDER, RUNS_FILE, USAGE_FILE}
_OWN_PREFIX = "overlapiter."
_OF_SUBDIRECTORY = {FILES_FOLDER, PARTIAL_FOLDER, SUMS_FOLDER, MARK_FILE, INTEREST_FILE}


class Subdirectory(NamedTuple):
    """The part of a staging directory that mirrors one source root.

    Attributes:
        path: Where it lies.
        source: The source root; None if its mark is missing.
    """

    path: str
    source: str | None


class Kind(enum.Enum):
    """What an entry in the place of a staged file is."""

    FILE = "file"
    LINK = "link"
    OTHER = "other"  # a device, a pipe, a socket


class Entry(NamedTuple):
    """An entry among the staged files.

    Attributes:
        name: Its path below the source root.
        kind: What it is.
        found: What is known of the entry itself.
        folder_fd: The folder that holds it, open until the walk goes on.
    """

    name: str
    kind: Kind
    found: os.stat_result
    folder_fd: int

    def remove(self) -> bool:
        """Remove it; return False if it has gone already. Raises OSError if the disk failed."""
        try:
            os.unlink(os.path.basename(self.name), dir_fd=self.folder_fd)
        except FileNotFoundError:
            return False
        return True

    def restrict(self) -> None:
        """Give it the mode of a staged file. Raises OSError if the disk failed."""
        name = os.path.basename(self.name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(name, flags, dir_fd=self.folder_fd)
        try:
            os.fchmod(fd, 0o600)
        finally:
            os.close(fd)

    @property
    def is_private(self) -> bool:
        """Whether it is the user's own, with the mode of a staged file."""
        return self.found.st_uid == os.geteuid() and stat.S_IMODE(self.found.st_mode) == 0o600


def subdirectories(directory: str) -> list[Subdirectory]:
    """Return the subdirectories that overlapiter made, by name.

    Raises:
        OSError: The directory cannot be read.
    """
    found = []
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and _SUBDIRECTORY.fullmatch(entry.name) and _is_ours(entry.path):
                found.append(Subdirectory(entry.path, read_mark(entry.path)))
    return found


def _is_ours(path: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(os.lstat(os.path.join(path, FILES_FOLDER)).st_mode)
    return False


def is_staging_directory(directory: str) -> bool:
    """Return whether overlapiter has used a directory. Raises OSError if it cannot be read."""
    return not _OWN_NAMES.isdisjoint(os.listdir(directory)) or bool(subdirectories(directory))


def foreign_entries(directory: str) -> list[str]:
    """Return what lies beside the staged files and is not overlapiter's.

    Raises:
        OSError: The directory cannot be read.
    """
    ours = subdirectories(directory)
    known = {os.path.basename(sub.path) for sub in ours} | _OWN_NAMES
    names = [
        name
        for name in sorted(os.listdir(directory))
        if name not in known and not name.startswith(_OWN_PREFIX)
    ]
    for sub in ours:
        inside = sorted(set(os.listdir(sub.path)) - _OF_SUBDIRECTORY)
        names += [os.path.join(os.path.basename(sub.path), name) for name in inside]
    return names


def entries(sub: Subdirectory) -> Iterator[Entry]:
    """Give all entries among the staged files of a subdirectory, folders apart.

    Takes some microseconds for each. Entries that go while it walks are left out.
    """
    top = os.path.join(sub.path, FILES_FOLDER)
    for root, folders, names, fd in os.fwalk(top, follow_symlinks=False):
        prefix = os.path.relpath(root, top)
        for name in (*names, *folders):
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    path = name if prefix == "." else os.path.join(prefix, name)
                    yield Entry(path, _kind(found.st_mode), found, fd)


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return Kind.FILE
    return Kind.LINK if stat.S_ISLNK(mode) else Kind.OTHER


def open_folders(sub: Subdirectory) -> Iterator[str]:
    """Give the folders of a subdirectory that others may enter."""
    for root, _, _, fd in os.fwalk(sub.path, follow_symlinks=False):
        if os.fstat(fd).st_mode & 0o077:
            yield root


def close_folders(sub: Subdirectory) -> None:
    """Close the folders of a subdirectory to others. Raises OSError if the disk failed."""
    for _, _, _, fd in os.fwalk(sub.path, follow_symlinks=False):
        os.fchmod(fd, 0o700)


def remove_empty_folders(sub: Subdirectory) -> None:
    """Remove the folders of staged files that hold nothing any more; the top stays."""
    top = os.path.join(sub.path, FILES_FOLDER)
    for _, folders, _, fd in os.fwalk(top, topdown=False, follow_symlinks=False):
        for name in folders:
            with contextlib.suppress(OSError):  # it is not empty, or is a link
                os.rmdir(name, dir_fd=fd)


def remove_if_empty(sub: Subdirectory) -> bool:
    """Remove a subdirectory of which no file is staged or being copied; return whether it went.

    For one that no run uses: a run would make it anew. Anything of somebody else's keeps it.
    """
    if not _OF_SUBDIRECTORY.issuperset(os.listdir(sub.path)):
        return False
    try:
        for name in (PARTIAL_FOLDER, SUMS_FOLDER, FILES_FOLDER):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(os.path.join(sub.path, name))
        for name in (INTEREST_FILE, MARK_FILE):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(sub.path, name))
        os.rmdir(sub.path)
    except OSError:  # something is staged there, or is in the way
        if os.path.isdir(sub.path):
            _restore(sub)
        return False
    return True


def _restore(sub: Subdirectory) -> None:
    """Make again what a subdirectory has to have, when it was not empty after all."""
    for name in (FILES_FOLDER, PARTIAL_FOLDER):
        with contextlib.suppress(OSError):
            os.mkdir(os.path.join(sub.path, name), 0o700)
    if sub.source is not None:
        write_mark(sub.path, sub.source)


def orphans(sub: Subdirectory) -> list[str]:
    """Return the partial files, and without locks the claims, whose owner has ended."""
    folder = os.path.join(sub.path, PARTIAL_FOLDER)
    with contextlib.suppress(OSError):
        paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        return list(filter(_is_orphan, paths))
    return []


def _is_orphan(path: str) -> bool:
    tag = os.path.basename(path).partition(".")[2]
    with contextlib.suppress(OSError):
        changed_seconds = os.lstat(path).st_mtime
        if path.endswith(CLAIM):
            tag = os.readlink(path)
            with contextlib.suppress(FileNotFoundError):  # its owner writes to that
                changed_seconds = os.lstat(f"{path[: -len(CLAIM)]}.{tag}").st_mtime
        age_seconds = time.time() - changed_seconds
        return is_stale(tag, age_seconds) if tag else _is_unclaimed(path, age_seconds)
    return False


def _is_unclaimed(path: str, age_seconds: float) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return try_lock(fd)
    except OSError as error:
        return error.errno in NO_LOCKS and is_stale("", age_seconds)
    finally:
        os.close(fd)
