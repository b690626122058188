"""Compares staged files with their sources, many at once."""

from __future__ import annotations

import concurrent.futures
import enum
import errno
import itertools
import os
import threading
from collections.abc import Generator
from typing import NamedTuple

from overlapiter.origins.origin import Origin, Original
from overlapiter.staging.inventory import FILES_FOLDER, Entry, Kind, Subdirectory, entries

_BATCH = 1024
_CHUNK_BYTES = 1 << 20
_GONE = {errno.ENOENT, errno.ENOTDIR}


class Fault(enum.Enum):
    """What can be wrong with an entry among the staged files."""

    OUTDATED = "outdated"  # size or mtime differ from the source's
    CORRUPTED = "corrupted"  # the content does
    GONE = "gone"  # its source is no more
    MODE = "mode"  # others may read it
    LINK = "link"
    FOREIGN = "foreign"
    UNVERIFIED = "unverified"  # the source cannot be read


#: Faults of copies that overlapiter made, and that may be removed.
REMOVABLE = {Fault.OUTDATED, Fault.CORRUPTED, Fault.GONE}


class Finding(NamedTuple):
    """What is wrong with an entry.

    Attributes:
        name: Its path below the source root.
        fault: What is wrong; None if all is well.
        size_bytes: Its size.
        inode: By which to know it again.
        reason: Why it cannot be verified; else empty.
    """

    name: str
    fault: Fault | None
    size_bytes: int
    inode: int
    reason: str = ""


class Verifier:
    """Compares the files of one subdirectory with their sources.

    Args:
        sub: The subdirectory.
        source: Its source root.
        origin: Gives the source files.
        is_reading: Whether to compare what is in them, too.
        n_reads: Files that are looked at at the same time.
    """

    def __init__(
        self, sub: Subdirectory, source: str, origin: Origin, *, is_reading: bool, n_reads: int
    ) -> None:
        self._sub = sub
        self._files = os.path.join(sub.path, FILES_FOLDER)
        self._source = source
        self._origin = origin
        self._is_reading = is_reading
        self._n_reads = n_reads
        self._stopped = threading.Event()

    def run(self) -> Generator[Finding, None, None]:
        """Give a finding for each entry. Blocks between them."""
        walk = entries(self._sub)
        pool = concurrent.futures.ThreadPoolExecutor(self._n_reads)
        try:
            while batch := list(itertools.islice(walk, _BATCH)):
                yield from pool.map(self._look, batch)
        finally:
            self._stopped.set()
            pool.shutdown(cancel_futures=True)

    def _look(self, entry: Entry) -> Finding:
        found = entry.found
        reason = ""
        try:
            fault = self._fault(entry, Original(found.st_size, found.st_mtime_ns))
        except OSError as error:
            fault, reason = Fault.UNVERIFIED, error.strerror or str(error)
        return Finding(entry.name, fault, found.st_size, found.st_ino, reason)

    def _fault(self, entry: Entry, copy: Original) -> Fault | None:
        if entry.kind is not Kind.FILE:
            return Fault.LINK if entry.kind is Kind.LINK else Fault.FOREIGN
        path = os.path.join(self._source, entry.name)
        try:
            original = self._origin.stat(path)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return Fault.GONE if entry.is_private else Fault.FOREIGN
        if original != copy:
            if self._has_changed(entry):  # a job has just replaced it
                return None
            return Fault.OUTDATED if entry.is_private else Fault.FOREIGN
        staged = os.path.join(self._files, entry.name)
        if self._is_reading and not self._is_equal(path, staged):
            return None if self._has_changed(entry) else Fault.CORRUPTED
        return None if entry.is_private else Fault.MODE

    def _has_changed(self, entry: Entry) -> bool:
        try:
            found = os.lstat(os.path.join(self._files, entry.name))
        except OSError:
            return True
        return (found.st_ino, found.st_mtime_ns) != (entry.found.st_ino, entry.found.st_mtime_ns)

    def _is_equal(self, path: str, staged: str) -> bool:
        fd = os.open(staged, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb", buffering=0) as copy, self._origin.open(path) as original:
            while piece := original.read(_CHUNK_BYTES):
                if self._stopped.is_set():
                    raise InterruptedError(errno.EINTR, "interrupted")
                if _read_fully(copy.fileno(), len(piece)) != piece:
                    return False
            return not os.read(fd, 1)


def _read_fully(fd: int, size_bytes: int) -> bytes:
    pieces = []
    while size_bytes and (piece := os.read(fd, size_bytes)):
        pieces.append(piece)
        size_bytes -= len(piece)
    return b"".join(pieces)
