"""What has happened and could not be written to the index yet: the next transaction writes it."""

from __future__ import annotations

import collections

from .index import Cursor
from .tables import lower, run_by_key


class Owed:
    """What has happened and the index does not know yet.

    Attributes:
        lowered: For each segment the bytes that were given back, or never allocated.
        unpledged: For each segment the bytes that the disk has set aside, or refused to.
        ended: Keys of the files that this process does not copy any more.
    """

    def __init__(self) -> None:
        self.lowered: collections.Counter[int] = collections.Counter()
        self.unpledged: collections.Counter[int] = collections.Counter()
        self.ended: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.lowered or self.unpledged or self.ended)

    def add(self, other: Owed) -> None:
        """Owe what another one does."""
        self.lowered += other.lowered
        self.unpledged += other.unpledged
        self.ended += other.ended

    def pay(self, cursor: Cursor, owner: int) -> None:
        """Write it."""
        lower(cursor, self.lowered, owner)
        rows = [(size_bytes, number) for number, size_bytes in self.unpledged.items()]
        cursor.executemany("UPDATE segment SET pledged=pledged-? WHERE id=?", rows)
        run_by_key(cursor, f"DELETE FROM copying WHERE owner={owner} AND key IN", self.ended)
