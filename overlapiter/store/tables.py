"""The tables of the index, and the statements that more than one module runs on them.

The total of all charges is kept in the transactions that change a charge, and changes only by what
they have really changed: a row that is gone, with its generation or its owner, changes nothing.

Where a row has something else than the numbers that belong there, IndexDamagedError is raised.
"""

from __future__ import annotations

import collections
import contextlib
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .extents import Extent
from .index import Cursor, IndexDamagedError
from .segments import aligned

#: Keys, and values of rows, in a statement; before SQLite 3.32 it had at most 999 of both.
_MOST_KEYS, _MOST_VALUES = 256, 640
#: Below all keys of 64 bits, but for one of them.
LEAST_KEY = -(1 << 63)
_NUMBERS, _PLACE = struct.Struct("<6q"), struct.Struct("<3q")

#: Where bytes lie that were evicted: segment, start (WHOLE for all of it), size in
#: whole blocks.
Evicted = tuple[int, int, int]


def run_by_key(cursor: Cursor, statement: str, keys: Sequence[int]) -> list[tuple[Any, ...]]:
    """Run a statement that ends with ``IN`` for some keys; return the rows that it gives.

    Each statement that runs gives the interpreter's lock to other threads, which may keep it for a
    while, in the middle of a transaction; so there are few.
    """
    rows: list[tuple[Any, ...]] = []
    for first in range(0, len(keys), _MOST_KEYS):
        piece = list(keys[first : first + _MOST_KEYS])
        n_marks = 1 << (len(piece) - 1).bit_length()  # few different statements, to be prepared
        piece += piece[-1:] * (n_marks - len(piece))
        marks = ",".join("?" * n_marks)
        rows += cursor.execute(f"{statement} ({marks})", piece).fetchall()
    return rows


def insert(cursor: Cursor, into: str, rows: Sequence[tuple[object, ...]]) -> int:
    """Insert rows by few statements, as :func:`run_by_key`; return how many there were not before.

    ``into`` is such as ``INSERT OR IGNORE INTO staged``; the rows are of one length.
    """
    n_inserted = first = 0
    while left := min(len(rows) - first, _MOST_VALUES // len(rows[0]) if rows else 0):
        n_rows = 1 << (left.bit_length() - 1)
        marks = ",".join([f"({','.join('?' * len(rows[0]))})"] * n_rows)
        values = [value for row in rows[first : first + n_rows] for value in row]
        n_inserted += cursor.execute(f"{into} VALUES {marks}", values).rowcount
        first += n_rows
    return n_inserted


def extent_of(row: Sequence[int], tier: int) -> Extent:
    """Return the extent of a row: key, segment, start, size, mtime and checksum."""
    _require(_NUMBERS, row)
    key, *others = row
    return Extent(key, tier, *others)


def places_of_rows(rows: Iterable[Evicted]) -> list[Evicted]:
    """Return rows of three numbers as what they say."""
    places = [*rows]
    for place in places:
        _require(_PLACE, place)
    return places


def in_blocks(column: str, block_bytes: int) -> str:
    """Return SQL for a size in whole blocks, at least one; see :func:`.segments.aligned`."""
    return f"(MAX({column}, 1) + {block_bytes - 1}) / {block_bytes} * {block_bytes}"


def number_of(row: Sequence[object] | None) -> int:
    """Return the number that a row holds."""
    number = row and row[0]
    if type(number) is not int:
        raise IndexDamagedError(f"no number: {row}")
    return number


def total_bytes(cursor: Cursor) -> int:
    """Return the bytes that all segments are charged for."""
    return number_of(cursor.execute("SELECT value FROM fact WHERE name='total'").fetchone())


def _require(numbers: struct.Struct, row: Sequence[object]) -> None:
    try:
        numbers.pack(*row)
    except struct.error as error:
        raise IndexDamagedError(f"no numbers: {row}") from error


@contextlib.contextmanager
def _of_rows() -> Iterator[None]:
    """Take it for damage, no mistake of ours, if what follows from rows has more than 64 bits."""
    try:
        yield
    except OverflowError as error:
        raise IndexDamagedError(f"too large a number: {error}") from error


def staged_extents(cursor: Cursor, keys: Sequence[int], tier: int) -> dict[int, Extent]:
    """Return the extents of those of some files that are staged."""
    select = "SELECT key, segment, start, size, mtime, checksum FROM staged WHERE key IN"
    return {row[0]: extent_of(row, tier) for row in run_by_key(cursor, select, keys)}


def places_of_extents(extents: Iterable[Extent], block_bytes: int) -> list[Evicted]:
    """Return where the bytes of files lie."""
    return [(e.segment, e.start, aligned(e.size, block_bytes)) for e in extents]


def move_to_going(
    cursor: Cursor, extents: Collection[Extent], owner: int, block_bytes: int
) -> list[Evicted]:
    """Note that files are evicted, and by which process; return where their bytes lie."""
    places = places_of_extents(extents, block_bytes)
    rows = [(*place, owner) for place in places]
    with _of_rows():
        insert(cursor, "INSERT OR REPLACE INTO going", rows)
    run_by_key(cursor, "DELETE FROM staged WHERE key IN", [e.key for e in extents])
    return places


def delete_going(cursor: Cursor, places: Iterable[tuple[int, int]], owner: int) -> int:
    """Delete a process's rows of ``going``, by segment and start; return how many there were."""
    starts: dict[int, list[int]] = {}
    for number, start in places:
        starts.setdefault(number, []).append(start)
    n_before = cursor.connection.total_changes
    for number, there in starts.items():
        statement = f"DELETE FROM going WHERE owner={owner} AND segment={number} AND start IN"
        run_by_key(cursor, statement, there)
    return cursor.connection.total_changes - n_before


def surpluses(cursor: Cursor, block_bytes: int) -> dict[int, int]:
    """Return for each closed segment by how much it is charged for more than its files take.

    SQLite hands over each row: to sort a million of them, or to make tuples of them, would take
    longer, and the first mini-batch after a boot waits for it.
    """
    n_blocks: collections.Counter[int] = collections.Counter()

    class Blocks:
        def step(self, segment: int, size_bytes: int) -> None:
            n_blocks[segment] += -(-size_bytes // block_bytes) or 1

        def finalize(self) -> None:
            """Return nothing."""

    counted: Any = Blocks  # of two values, where mypy knows of one
    cursor.connection.create_aggregate("counted", 2, counted)
    charged = dict(
        cursor.execute(  # one statement, so that nothing changes in between
            "SELECT id, charged FROM segment WHERE owner=0 UNION ALL "
            "SELECT counted(segment, size), 0 FROM going UNION ALL "
            "SELECT counted(segment, size), 0 FROM staged"
        ).fetchall()
    )
    del charged[None]
    for each in (*charged.values(), *n_blocks, *n_blocks.values()):
        number_of((each,))
    return {each: charged[each] - n_blocks[each] * block_bytes for each in charged}


def lower(cursor: Cursor, lowered: Mapping[int, int], owner: int | None = None) -> None:
    """Lower the charges of segments, each by so many bytes, and with them the total.

    With an owner, of those alone that it appends to.
    """
    changed_bytes = 0
    statement = "UPDATE segment SET charged=charged-? WHERE id=? AND owner=COALESCE(?, owner)"
    with _of_rows():
        for number, size_bytes in lowered.items():
            if cursor.execute(statement, (size_bytes, number, owner)).rowcount:
                changed_bytes += size_bytes
        if changed_bytes:
            cursor.execute("UPDATE fact SET value=value-? WHERE name='total'", (changed_bytes,))


def delete_empty(cursor: Cursor, numbers: Iterable[int]) -> list[int]:
    """Delete the rows of those closed segments that hold nothing; return which these are."""
    statement = "DELETE FROM segment WHERE id=? AND owner=0 AND charged<=0"
    return [number for number in numbers if cursor.execute(statement, (number,)).rowcount]
