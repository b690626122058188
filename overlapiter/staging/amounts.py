"""How many bytes lie in a staging directory. Walks it without following a link."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Container, Iterator

from overlapiter.staging.folders import TAKEN_AWAY

PARTS = ("files", "partial")


def is_empty(directory: str) -> bool:
    """Return whether nothing is staged, as far as the first level tells."""
    return not any(True for name in PARTS for _ in _entries(directory, name))


def partials(directory: str) -> Iterator[os.DirEntry[str]]:
    """Give what lies in the folders of partial files: being copied, or about to be removed."""
    return _entries(directory, "partial")


def _entries(directory: str, part: str) -> Iterator[os.DirEntry[str]]:
    """Give what lies in that part of the subdirectories of all sources; follows no link."""
    with os.scandir(directory) as sources:
        folders = [entry.path for entry in sources if entry.is_dir(follow_symlinks=False)]
    for folder in folders:
        path = os.path.join(folder, part)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(os.lstat(path).st_mode):
                with os.scandir(path) as entries:
                    yield from entries


def to_come_bytes(entry: os.DirEntry[str]) -> int:
    """Return how much of a partial file's size has no blocks of the disk yet."""
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    return max(0, found.st_size - 512 * found.st_blocks)


def bytes_below(directory: str) -> int:
    """Add up what is being copied, what is staged, and what is about to be removed.

    In the order in which files go from one to the next, so that none is missed on its way; what
    was met as a partial file is not counted again once it is published.
    """
    coming = {
        entry.inode(): _size_of(entry) for entry in partials(directory) if not _is_going(entry)
    }
    total_bytes = sum(coming.values())
    total_bytes += sum(_bytes_in(entry, coming) for entry in _entries(directory, "files"))
    return total_bytes + sum(_size_of(entry) for entry in partials(directory) if _is_going(entry))


def _is_going(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(TAKEN_AWAY)


def _bytes_in(entry: os.DirEntry[str], coming: Container[int]) -> int:
    if not entry.is_dir(follow_symlinks=False):
        return 0 if entry.inode() in coming else _size_of(entry)
    total_bytes = 0
    folders = [entry.path]
    while folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for below in entries:
                if below.is_dir(follow_symlinks=False):
                    folders.append(below.path)
                elif below.inode() not in coming:
                    total_bytes += _size_of(below)
    return total_bytes


def _size_of(entry: os.DirEntry[str]) -> int:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
