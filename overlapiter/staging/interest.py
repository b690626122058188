"""Interest: which staged files other processes of the node are about to read.

Each process knows its own order. That it does not evict what another one has just staged, and
reads in a moment, it knows from a small table that all of them share: the hash of a path leads to
the time until which somebody wants it kept. Two paths may share an entry, and entries may be lost:
the table spares reads of the slow store, nothing else depends on it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import struct
import time
from collections.abc import Iterable, Iterator

from overlapiter.staging.records import USERS_FOLDER, is_presence_of

INTEREST_FILE = "interest"
_N_ENTRIES = 1 << 18
_ENTRY = struct.Struct("<Q")  # milliseconds, and in the last bits who wants it
_WHO_BITS = 20
#: How long what is handed out to be staged is wanted.
_KEPT_MS = 10_000
#: A run that begins is seen after so long.
_TRUST_SECONDS = 1.0


class Interest:
    """The table of one source root. Safe for threads and processes; no disk makes it raise.

    Args:
        path: The file that holds it; made if missing.
        who: A number of this run, the same in all its processes: that of the process which
            noted its presence.
    """

    def __init__(self, path: str, who: int) -> None:
        self._path = path
        self._users = os.path.join(os.path.dirname(path), os.pardir, USERS_FOLDER)
        self._until_seconds = 0.0
        self._was_alone = False
        self._pid = who
        self._who = who % (1 << _WHO_BITS)

    def want(self, paths: Iterable[str]) -> None:
        """Say that this run is about to read the copies of ``paths``, if there is another run."""
        if self._is_alone():
            return
        entry = _ENTRY.pack((_now_ms() + _KEPT_MS) << _WHO_BITS | self._who)
        with contextlib.suppress(OSError), self._opened(os.O_RDWR | os.O_CREAT) as fd:
            for path in paths:
                os.pwrite(fd, entry, _offset(path))

    def _is_alone(self) -> bool:
        """Return whether no other run was there a moment ago; each notes its presence."""
        now_seconds = time.monotonic()
        if now_seconds > self._until_seconds:
            self._until_seconds = now_seconds + _TRUST_SECONDS
            names: list[str] = []
            with contextlib.suppress(OSError):
                names = os.listdir(self._users)
            # One alone may be another run's, where ours could not be written.
            self._was_alone = len(names) == 1 and is_presence_of(names[0], self._pid)
        return self._was_alone

    def is_wanted_by_others(self, paths: Iterable[str]) -> bool:
        """Return whether another run is about to read the copy of any of ``paths``."""
        with contextlib.suppress(OSError), self._opened(os.O_RDONLY) as fd:
            return any(self._is_others(os.pread(fd, _ENTRY.size, _offset(p))) for p in paths)
        return False

    def _is_others(self, data: bytes) -> bool:
        if len(data) < _ENTRY.size:
            return False
        (entry,) = _ENTRY.unpack(data)
        left_ms = int(entry >> _WHO_BITS) - _now_ms()
        return entry & ((1 << _WHO_BITS) - 1) != self._who and 0 <= left_ms <= _KEPT_MS

    @contextlib.contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        # Not kept open, so that the disk can be made read-only or taken away.
        fd = os.open(self._path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # somebody planted it
                raise OSError(errno.EPERM, "it is not ours", self._path)
            yield fd
        finally:
            os.close(fd)


def _offset(path: str) -> int:
    # The same for every process, which Python's own hash is not.
    digest = hashlib.blake2b(os.fsencode(path), digest_size=8).digest()
    return int.from_bytes(digest, "little") % _N_ENTRIES * _ENTRY.size


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000  # since the boot, for all processes of the node
