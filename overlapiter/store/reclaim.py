"""Giving blocks back: of evicted files, and of what dead processes have left half-done.

Every step can be done twice, by whichever process, and lowers a charge once: the row that says that
a step is due goes in the transaction that lowers the charge.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterable, Mapping, Sequence

from . import segments
from .extents import WHOLE, Extent
from .index import Cursor, IndexDamagedError
from .opened import OpenGeneration
from .tables import (
    Evicted,
    delete_empty,
    delete_going,
    in_blocks,
    lower,
    move_to_going,
    number_of,
    places_of_extents,
    places_of_rows,
    staged_extents,
)

#: The segments of dead processes are mended together up to so many bytes: a row for each file.
_BATCH_BYTES = 8 << 30
#: In the place of a start: the number is what a segment is charged for.
_CHARGED = -2
#: What the disk says of places that cannot be.
_IMPOSSIBLE = (errno.EINVAL, errno.EFBIG)


def evict(
    opened: OpenGeneration,
    keys: Sequence[int],
    tier: int,
    expected: Mapping[int, Extent] | None = None,
    *,
    keep_room: bool = False,
) -> dict[int, int]:
    """Evict files; return the bytes that they took, for each that was staged.

    Args:
        opened: The generation.
        keys: The files.
        tier: Its number, for the extents.
        expected: Only copies that are here still.
        keep_room: Whether to keep the room of small files for this process, before others take it:
            they stay vacant places, unless less is to be on the disk.

    Raises OSError if the disk failed; what is not given back yet, the next eviction gives back.
    """
    owner, block_bytes = opened.owner.number, opened.block_bytes

    def chosen(cursor: Cursor) -> dict[int, Extent]:
        found = staged_extents(cursor, keys, tier)
        if expected is not None:
            found = {key: extent for key, extent in found.items() if expected[key] == extent}
        return found

    def mark(cursor: Cursor) -> tuple[list[int], list[Evicted], bool]:
        found = chosen(cursor)
        going = move_to_going(cursor, found.values(), owner, block_bytes)
        return [*found], going, keep_room and opened.limits.spare_bytes(cursor) >= 0

    try:
        marked, going, stays_vacant = opened.write(mark)
    except OSError as error:
        if not segments.is_full(error):
            raise
        # The log of the index cannot grow. The blocks go first: a process that reads them
        # meanwhile notices by the checksum, and so does one that reads what another process, which
        # has evicted the same, has staged there meanwhile.
        _give_back(opened, places_of_extents(opened.index.read(chosen).values(), block_bytes))
        marked, going, _ = opened.write(mark)
        stays_vacant = False
    rest = going
    if stays_vacant:
        rest = opened.vacant.keep(going, opened.owner.most_bytes)
    elif keep_room:  # there is to be less on the disk
        rest = going + opened.vacant.take_all()
    if rest:
        finish(opened, rest)
    return {key: size_bytes for key, (_, _, size_bytes) in zip(marked, going, strict=True)}


def finish(opened: OpenGeneration, places: Iterable[Evicted] = ()) -> None:
    """Give back what rows in ``going`` name, and what could not be given back before."""
    with opened.lock:
        due = [*opened.unfinished, *places]
        opened.unfinished = []
    if not due:
        return
    try:
        _give_back(opened, due)
        owner = opened.owner.number
        for number in opened.write(lambda cursor: _forget(cursor, due, owner)):
            segments.remove(opened.folder, number)
    except BaseException:
        with opened.lock:
            opened.unfinished += due
        raise


def finish_vacant(opened: OpenGeneration) -> None:
    """Give back what is vacant."""
    finish(opened, opened.vacant.take_all())


def finish_later(opened: OpenGeneration, places: Iterable[Evicted] = ()) -> None:
    """Do what may be done later as well, after what was asked for has been done."""
    with opened.lock:
        opened.unfinished += places
    with contextlib.suppress(OSError):
        opened.retire()
        finish(opened)


def _give_back(opened: OpenGeneration, places: Iterable[Evicted]) -> None:
    holes: dict[int, list[tuple[int, int]]] = {}
    for number, start, size_bytes in places:
        if start == WHOLE:
            segments.remove(opened.folder, number)
        else:
            holes.setdefault(number, []).append((start, size_bytes))
    for number, there in holes.items():
        _punch(opened, number, there)


def _punch(
    opened: OpenGeneration, number: int, places: list[tuple[int, int]], end: int | None = None
) -> None:
    try:
        segments.punch(opened.folder, number, places, end)
    except OSError as error:
        if error.errno in _IMPOSSIBLE:
            raise IndexDamagedError(f"places in segment {number:x}: {places}") from error
        raise


def _forget(cursor: Cursor, places: Iterable[Evicted], owner: int) -> list[int]:
    """Delete this process's rows of ``going``, lower the charges; return the empty segments."""
    select = "SELECT segment, start FROM going WHERE owner=?"
    mine = set(cursor.execute(select, (owner,)))  # few: what is vacant, or being given back
    gone = [place for place in places if place[:2] in mine]
    delete_going(cursor, [place[:2] for place in gone], owner)
    lowered: dict[int, int] = {}
    for number, _, size_bytes in gone:
        lowered[number] = lowered.get(number, 0) + size_bytes
    lower(cursor, lowered)
    return delete_empty(cursor, lowered)


# --- the dead -------------------------------------------------------------------------------------


def take_over(opened: OpenGeneration) -> int:
    """Mend what processes that have ended left half-done; return the bytes that this gave back."""
    owners = (
        "SELECT owner FROM segment WHERE owner > 0 UNION SELECT owner FROM copying "
        "UNION SELECT owner FROM going"
    )
    dead = [
        n
        for n in map(number_of, opened.index.rows(owners))
        if not segments.is_owned(opened.folder, n)
    ]
    if not dead:
        return 0
    adopted, charged = opened.write(lambda cursor: _adopt(cursor, dead, opened.owner.number))
    finish(opened, adopted)
    freed_bytes = 0
    while charged:
        batch, batch_bytes = [], 0
        while charged and batch_bytes <= _BATCH_BYTES:
            number, charged_bytes = charged.popitem()
            batch.append(number)
            batch_bytes += charged_bytes
        freed_bytes += _mend(opened, batch)
    opened.write(end_killed_runs)
    return freed_bytes


def _adopt(cursor: Cursor, dead: Sequence[int], owner: int) -> tuple[list[Evicted], dict[int, int]]:
    """End the claims of the dead; return evictions, now ours, and the charges."""
    adopted: list[Evicted] = []
    charged: dict[int, int] = {}
    for number in dead:
        mine = (number,)
        cursor.execute("DELETE FROM copying WHERE owner=?", mine)
        going = "SELECT segment, start, size FROM going WHERE owner=?"
        adopted += places_of_rows(cursor.execute(going, mine).fetchall())
        cursor.execute("UPDATE going SET owner=? WHERE owner=?", (owner, number))
        own = "SELECT id, charged FROM segment WHERE owner=? AND owner > 0"
        charged.update(cursor.execute(own, mine))
    return adopted, charged


def _mend(opened: OpenGeneration, numbers: Sequence[int]) -> int:
    """Give back what no row names in segments of dead processes, and charge them for the rest.

    A dead process changes nothing any more, and what is evicted meanwhile lowers the charge as much
    as the sum of the rows: so their difference, which is returned, stays the same.
    """
    among = f"({','.join(map(str, numbers))})"
    place = f"segment, start, {in_blocks('size', opened.block_bytes)}"
    select = (
        f"SELECT {place} FROM staged WHERE segment IN {among} UNION ALL "
        f"SELECT {place} FROM going WHERE segment IN {among} UNION ALL "
        f"SELECT id, {_CHARGED}, charged FROM segment WHERE id IN {among}"
    )  # one statement, so that nothing changes in between
    places: dict[int, list[tuple[int, int]]] = {number: [] for number in numbers}
    for number, start, size_bytes in opened.index.rows(select):
        places[number].append((start, size_bytes))
    surplus = {}
    for number, there in places.items():
        try:
            gaps, end, surplus[number] = _unused(there)
        except TypeError as error:
            raise IndexDamagedError(f"no numbers: {error}") from error
        _punch(opened, number, gaps, end)
    freed_bytes, empty = opened.write(lambda cursor: _close_dead(cursor, surplus))
    for number in empty:
        segments.remove(opened.folder, number)
    return freed_bytes


def _unused(places: Iterable[tuple[int, int]]) -> tuple[list[tuple[int, int]], int, int]:
    """Return the gaps between places, the end of the last one, and what is charged beyond them."""
    gaps, end, surplus_bytes = [], 0, 0
    for start, size_bytes in sorted(places):
        if start == _CHARGED:
            surplus_bytes += size_bytes
            continue
        surplus_bytes -= size_bytes
        if start > end:
            gaps.append((end, start - end))
        end = max(end, start + size_bytes)
    return gaps, end, surplus_bytes


def _close_dead(cursor: Cursor, surplus: Mapping[int, int]) -> tuple[int, list[int]]:
    """Charge segments for less, unless another process has done so; return the bytes, the empty."""
    statement = "UPDATE segment SET owner=0, pledged=0 WHERE id=? AND owner > 0"
    lowered = {n: size for n, size in surplus.items() if cursor.execute(statement, (n,)).rowcount}
    lower(cursor, lowered)
    return sum(lowered.values()), delete_empty(cursor, lowered)


def end_killed_runs(cursor: Cursor) -> None:
    """Note that runs without a living process have ended."""
    cursor.execute(
        "UPDATE run SET ended=?, ending='killed' WHERE ended IS NULL AND id NOT IN "
        "(SELECT run FROM segment WHERE owner > 0)",
        (time.time(),),
    )


def sweep(opened: OpenGeneration) -> None:
    """Mend what dead processes have left, and remove the files of the folder that no row names."""
    take_over(opened)
    listed = segments.listed(opened.folder)  # first: a row comes after its file
    for number in listed.difference(n for (n,) in opened.index.rows("SELECT id FROM segment")):
        segments.remove_garbage(opened.folder, number)
    opened.write(end_killed_runs)
