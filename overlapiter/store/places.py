"""Places: where the bytes of files are to be written, and the promise that there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from .extents import WHOLE
from .index import Cursor, StaleError
from .segments import Segment, write_many
from .tables import delete_going
from .vacant import Borrowed


class Giver(Protocol):
    """A generation, as what it gives places for knows it."""

    def give_up(self, place: Place) -> None:
        """Take a place back at which no copy was completed."""

    def is_gone(self) -> bool:
        """Return whether it was thrown away, or removed."""


class Place(NamedTuple):
    """Where the bytes of a file are to be written; ends with publishing or giving up.

    Attributes:
        generation: The generation that gave it.
        segment: The segment; owned by this process, or borrowed.
        start: Where in it; WHOLE if the segment is for this file alone.
        size: Bytes that are charged, in whole blocks.
    """

    generation: Giver
    segment: Segment | Borrowed
    start: int
    size: int


def write_files(files: Sequence[tuple[Place, bytes | memoryview]]) -> None:
    """Write small files to their places, those that follow each other in one call.

    Raises:
        OSError: The disk failed, or is full.
    """
    stretches: list[tuple[Place, list[tuple[int, bytes | memoryview]]]] = []
    end = None
    for place, data in sorted(files, key=lambda file: (file[0].segment.number, file[0].start)):
        _, segment, start, size_bytes = place
        if start == WHOLE:  # it ends with its last byte
            size_bytes = len(data)
        if (segment.number, start) != end:
            stretches.append((place, []))
        stretches[-1][1].append((size_bytes, data))
        end = segment.number, start + size_bytes
    for place, pieces in stretches:
        write_many(place.segment.fd, pieces, max(place.start, 0))


def fill(cursor: Cursor, places: Sequence[Place], owner: int) -> None:
    """Note that places of a process hold files from now on.

    Raises:
        StaleError: Another process has taken over what this one held.
    """
    own = {place.segment.number for place in places if isinstance(place.segment, Segment)}
    for number in own:
        statement = "SELECT 1 FROM segment WHERE id=? AND owner=?"
        if not cursor.execute(statement, (number, owner)).fetchone():
            raise StaleError(f"segment {number:x} was taken over")
    vacant = [(s.number, start) for _, s, start, _ in places if isinstance(s, Borrowed)]
    if delete_going(cursor, vacant, owner) < len(vacant):
        raise StaleError("what this process has evicted was taken over")


class Promise(NamedTuple):
    """That room is kept for small files.

    Attributes:
        n_files: For how many.
        missing_bytes: What lacks for the others.
        release: To be called once for each of them: before its place is asked for, or if that is
            not needed.
    """

    n_files: int
    missing_bytes: int
    release: Callable[[], None]
