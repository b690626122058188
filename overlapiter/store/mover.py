"""The mover: copies staged files to a faster tier that has room again, or to a slower one."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from .copier import Content, Copier, Copy
from .extents import DamagedError, Extent, ExtentReader
from .outcome import MakeRoom, Outcome, Staged
from .segments import READ_FLAGS
from .store import Wanted


class Mover:
    """Reads files of a tier for another one. Safe for threads."""

    def __init__(self, copier: Copier, reader: ExtentReader, n_tiers: int) -> None:
        self._copier = copier
        self._reader = reader
        self._n_tiers = n_tiers
        self._lock = threading.Lock()

    def is_right(self, extent: Extent, *, is_suspect: bool) -> bool:
        """Return whether the bytes of a copy are those that were staged; reads all of them."""
        with self._lock:
            if is_suspect:  # its segment may have been removed or replaced
                self._reader.close()
            return self._reader.is_right(extent)

    def lift(self, file: Wanted, lower: Extent) -> Content | Copy | None:
        """Read a file for the fastest tier, or copy a large one there; None if that cannot be."""
        return self._moved(file, lower, range(1), None)

    def sink(
        self, files: Sequence[tuple[Wanted, Extent]], make_room: MakeRoom | None
    ) -> list[Copy]:
        """Copy files of one tier to slower ones that have room; return the copies."""
        if not files:
            return []
        tiers = range(files[0][1].tier + 1, self._n_tiers)
        moved = [self._moved(file, extent, tiers, make_room) for file, extent in files]
        contents = [each for each in moved if isinstance(each, Content)]
        copies, _ = self._copier.write(contents, tiers, make_room)
        return copies + [each for each in moved if isinstance(each, Copy)]

    def _moved(
        self, file: Wanted, extent: Extent, tiers: range, make_room: MakeRoom | None
    ) -> Content | Copy | None:
        """Return the content of a small file, the copy of a large one; None if there is none."""
        try:
            with self._lock:
                if not extent.is_whole:
                    data, found = self._reader.read(extent), Outcome.FOUND
                    return Content(file, data, extent.mtime, extent.checksum, found, 0, (0, 0))
                fd = os.open(self._reader.path_of(extent), READ_FLAGS)
        except (DamagedError, OSError):
            return None
        try:
            copied = self._copier.move(file, extent, fd, tiers, make_room)
        finally:
            os.close(fd)
        return None if isinstance(copied, Staged) else copied

    def close(self) -> None:
        """Close the segments that are open for reading."""
        with self._lock:
            self._reader.close()
