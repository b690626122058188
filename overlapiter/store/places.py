"""Places: where the bytes of files are written, new ones and those of evicted files.

The place of an evicted small file is vacant from the transaction that evicts it until another one
publishes the next file of as many blocks there, or until its blocks are given back. All that time
its segment is charged for it, and a row in ``going`` names it and this process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .extents import WHOLE
from .index import Cursor, StaleError
from .segments import OpenSegment, Segment, open_to_write, write
from .tables import Evicted, delete_going

#: Files written in one call, which takes 1,024 buffers: each file, and the zeros behind it.
_MOST_AT_ONCE = 256
#: And their bytes: for more, ext4 takes memory of 2 MiB in one piece, which a virtual machine may
#: have given back to its host, and gets again 4 KiB at a time.
_MOST_BYTES_AT_ONCE = 1 << 20
#: Behind a file; where the blocks of the disk are larger, as CephFS has 4 MiB, they are left out.
_MOST_ZEROS = 64 << 10


class Place(NamedTuple):
    """Where the bytes of a file are to be written; ends with publishing or giving up."""

    give_up: Callable[[Place], None]  # of the generation that gave it
    segment: OpenSegment  # owned by this process, or borrowed
    start: int  # where in it; WHOLE if the segment is for this file alone
    size: int  # the bytes that are charged, in whole blocks


def write_files(files: Sequence[tuple[Place, bytes | memoryview]]) -> None:
    """Write small files to their places. Raises OSError if the disk failed, or is full."""
    stretches: list[tuple[Place, list[tuple[int, bytes | memoryview]]]] = []
    end, n_bytes = None, 0
    for place, data in sorted(files, key=lambda file: (file[0].segment.number, file[0].start)):
        _, segment, start, size_bytes = place
        if start == WHOLE:  # it ends with its last byte
            size_bytes = len(data)
        n_bytes += size_bytes
        is_long = stretches and len(stretches[-1][1]) == _MOST_AT_ONCE
        if (segment.number, start) != end or n_bytes > _MOST_BYTES_AT_ONCE or is_long:
            stretches.append((place, []))
            n_bytes = size_bytes
        stretches[-1][1].append((size_bytes, data))
        end = segment.number, start + size_bytes
    for place, pieces in stretches:
        write_many(place.segment.fd, pieces, max(place.start, 0))


def write_many(fd: int, pieces: Sequence[tuple[int, bytes | memoryview]], start: int) -> None:
    """Write files to places of a segment that follow each other.

    Args:
        fd: The segment.
        pieces: For each place its size and the bytes. Whole blocks are written, so that none has to
            be read before.
        start: Where the first one begins.
    """
    most_zeros = max(size - len(data) for size, data in pieces)
    if most_zeros > _MOST_ZEROS:
        for size, data in pieces:
            write(fd, data, start)
            start += size
        return
    zeros = memoryview(bytes(most_zeros))
    buffers = [part for size, data in pieces for part in (data, zeros[: size - len(data)])]
    n_written = os.pwritev(fd, buffers, start)
    if n_written < sum(size for size, _ in pieces):  # the disk is full, as the next write will say
        write(fd, b"".join(buffers)[n_written:], start + n_written)


def fill(cursor: Cursor, places: Sequence[Place], owner: int) -> None:
    """Note that places hold files from now on. Raises StaleError if they were taken over."""
    own = {place.segment.number for place in places if isinstance(place.segment, Segment)}
    for number in own:
        statement = "SELECT 1 FROM segment WHERE id=? AND owner=?"
        if not cursor.execute(statement, (number, owner)).fetchone():
            raise StaleError(f"segment {number:x} was taken over")
    vacant = [(s.number, start) for _, s, start, _ in places if not isinstance(s, Segment)]
    if delete_going(cursor, vacant, owner) < len(vacant):
        raise StaleError("what this process has evicted was taken over")


class Vacant:
    """The vacant places of a process in a generation.

    Args:
        lock: Guards it; callers of what takes a single place or segment hold it.
        folder: The folder of the segments.

    Attributes:
        size_bytes: What all places take.
    """

    def __init__(self, lock: threading.RLock, folder: str) -> None:
        self._lock = lock
        self._folder = folder
        self._by_size: dict[int, list[Evicted]] = {}
        #: Those with pending places, or about to have some.
        self._borrowed: dict[int, OpenSegment] = {}
        self.size_bytes = 0

    def keep(self, places: Iterable[Evicted], most_bytes: int) -> list[Evicted]:
        """Keep places that were evicted; return those that nothing can be written to.

        These have segments of their own, lie beyond ``most_bytes``, to which this process may let
        files grow, or nowhere, if the index is damaged.
        """
        others = []
        with self._lock:
            for place in places:
                _, start, size_bytes = place
                if 0 <= start <= most_bytes - size_bytes:
                    self._by_size.setdefault(size_bytes, []).append(place)
                    self.size_bytes += size_bytes
                else:
                    others.append(place)
        return others

    def take_all(self) -> list[Evicted]:
        """Return all places, to be given back."""
        with self._lock:
            places = [place for there in self._by_size.values() for place in there]
            self._by_size, self.size_bytes = {}, 0
            return places

    def take(self, size_bytes: int) -> Evicted | None:
        """Return a place of exactly this size, to be written to, if there is one."""
        there = self._by_size.get(size_bytes)
        if not there:
            return None
        self.size_bytes -= size_bytes
        return there.pop()

    # --- their segments -----------------------------------------------------------------------

    def borrow(self, number: int) -> OpenSegment:
        """Return a segment, open until none of its places is pending. Raises OSError."""
        if number not in self._borrowed:
            self._borrowed[number] = OpenSegment(number, open_to_write(self._folder, number))
        return self._borrowed[number]

    def is_borrowed(self, segment: OpenSegment) -> bool:
        """Return whether a segment was borrowed here and has places that are pending."""
        return self._borrowed.get(segment.number) is segment

    @property
    def is_pending(self) -> bool:
        """Whether bytes are being written to any place."""
        return bool(self._borrowed)

    def settle(self, segment: OpenSegment) -> None:
        """Close a segment unless places in it are pending."""
        if not segment.n_pending:
            del self._borrowed[segment.number]
            segment.close()
