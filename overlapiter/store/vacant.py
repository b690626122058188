"""Vacant places: of evicted small files, to which a process writes other files of as many blocks.

A place is vacant from the transaction that evicts its file until another one publishes the next
file there, or until its blocks are given back. All that time its segment is charged for it, and a
row in ``going`` names it and this process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from .segments import Segment, open_to_write
from .tables import Evicted


class Borrowed:
    """A segment in which this process writes to vacant places, whichever process owns it.

    Attributes:
        number: Its number.
        fd: A descriptor.
        n_pending: Places whose bytes are neither published nor given up.

    Raises:
        OSError: It is gone, or the disk failed.
    """

    def __init__(self, folder: str, number: int) -> None:
        self.number = number
        self.fd = open_to_write(folder, number)
        self.n_pending = 0

    def close(self) -> None:
        """Close the descriptor; closing twice is fine."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


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
        self._borrowed: dict[int, Borrowed] = {}  # those with pending places, or about to have some
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

    def borrow(self, number: int) -> Borrowed:
        """Return a segment, opened; it is returned once none of its places is pending.

        Raises:
            OSError: It is gone, or the disk failed.
        """
        if number not in self._borrowed:
            self._borrowed[number] = Borrowed(self._folder, number)
        return self._borrowed[number]

    def is_borrowed(self, segment: Segment | Borrowed) -> bool:
        """Return whether a segment was borrowed here and has places that are pending."""
        return self._borrowed.get(segment.number) is segment

    @property
    def is_pending(self) -> bool:
        """Whether bytes are being written to any place."""
        return bool(self._borrowed)

    def settle(self, segment: Borrowed) -> None:
        """Close a segment unless places in it are pending."""
        if not segment.n_pending:
            del self._borrowed[segment.number]
            segment.close()
