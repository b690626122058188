"""How much may be charged: within the capacity, and of what the disk has."""

from __future__ import annotations

import os

from .index import Cursor, StaleError
from .segments import Segment, aligned
from .site import Site
from .tables import number_of, total_bytes

#: A reservation is extended by at most so much at a time, and by this share of the capacity: what
#: a process has reserved and not used is lost to the others.
_PIECE_BYTES, _PIECE_SHARE = 16 << 20, 2048
#: What is left free for the index and its log to grow, at most and as a share of the disk.
_INDEX_BYTES, INDEX_SHARE = 64 << 20, 16
_LEAST_BLOCK_BYTES = 4096


class Limits:
    """The limits of a store, on a disk of ``disk_bytes``; places are multiples of a block."""

    def __init__(self, site: Site, folder: str) -> None:
        self._site = site
        self._folder = folder
        disk = os.statvfs(folder)
        self.disk_bytes = disk.f_blocks * disk.f_frsize
        self.block_bytes = block_bytes_of(disk)

    @property
    def kept_free_bytes(self) -> int:
        """What is to be left free on the disk, so that enough is when the index has grown."""
        index_bytes = min(_INDEX_BYTES, self.disk_bytes // INDEX_SHARE)
        return self._site.keep_free_bytes + index_bytes

    def can_ever_hold(self, size_bytes: int) -> bool:
        """Return whether a file would fit if nothing else were there."""
        most_bytes = self.disk_bytes - self.kept_free_bytes
        if self._site.capacity_bytes is not None:
            most_bytes = min(most_bytes, self._site.capacity_bytes)
        return aligned(size_bytes, self.block_bytes) <= most_bytes

    def piece_bytes(self, segment: Segment, missing_bytes: int) -> int:
        """Return by how much to extend a reservation that lacks so many bytes."""
        most_bytes = self._site.capacity_bytes or self.disk_bytes
        piece_bytes = aligned(min(_PIECE_BYTES, most_bytes // _PIECE_SHARE), self.block_bytes)
        return max(missing_bytes, min(piece_bytes, segment.room_bytes))

    def spare_bytes(self, cursor: Cursor) -> int:
        """Return what may be charged: within the capacity, and of what the disk can give.

        A reservation is pledged from the transaction that charges it until the disk has set the
        blocks aside: in between the disk does not know of it.
        """
        disk = os.statvfs(self._folder)
        statement = "SELECT COALESCE(SUM(pledged), 0) FROM segment WHERE owner > 0"
        pledged_bytes = number_of(cursor.execute(statement).fetchone())
        spare_bytes = disk.f_bavail * disk.f_frsize - self.kept_free_bytes - pledged_bytes
        if self._site.capacity_bytes is not None:
            spare_bytes = min(spare_bytes, self._site.capacity_bytes - total_bytes(cursor))
        return spare_bytes

    def charge(
        self, cursor: Cursor, segment: Segment, owner: int, size_bytes: int, least_bytes: int
    ) -> int:
        """Charge a segment for more bytes; for fewer, but ``least_bytes``, if there is less room.

        Returns the bytes, 0 if there is no room. Raises StaleError if another process owns it now.
        """
        spare_bytes = self.spare_bytes(cursor)
        granted_bytes = min(size_bytes, spare_bytes // self.block_bytes * self.block_bytes)
        if granted_bytes < least_bytes:
            return 0
        charged = cursor.execute(
            "UPDATE segment SET charged=charged+?, pledged=pledged+? WHERE id=? AND owner=?",
            (granted_bytes, granted_bytes, segment.number, owner),
        )
        if not charged.rowcount:
            raise StaleError(f"segment {segment.number:x} was taken over")
        cursor.execute("UPDATE fact SET value=value+? WHERE name='total'", (granted_bytes,))
        return granted_bytes


def block_bytes_of(disk: os.statvfs_result) -> int:
    """Return the bytes of which every place has a multiple."""
    return max(_LEAST_BLOCK_BYTES, disk.f_frsize)
