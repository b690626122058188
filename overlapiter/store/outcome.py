"""What became of a request to stage a file, and who is told."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import NamedTuple

from .extents import Extent

#: Called with a tier and a size in bytes: frees some room there, if it can; says whether it did.
MakeRoom = Callable[[int, int], bool]

#: Of an answer of the source: the path, how long it took in ns, and the bytes that came; without a
#: path where other processes were waited for.
Answer = tuple[str, int, int]

#: Called with what the source was asked for, and with the answers that came together.
NoteAnswers = Callable[[str, list[Answer]], None]

#: A source that changed so lately may still be written, in pieces that no look at it can tell.
_SETTLING_NS = 2 * 10**9


class Outcome(enum.Enum):
    """What became of a request to stage a file."""

    COPIED = "copied"
    FETCHED = "fetched"  # from another node of the job
    FOUND = "found"  # staged before, and still valid
    REFUSED = "refused"  # no room
    TOO_LARGE = "too large"  # for all the room there is
    FAILED = "failed"  # the staging disk, or the size of the file is not told
    BUSY = "busy"  # another process keeps its claim, or the index, for too long
    SOURCE_FAILED = "source failed"  # missing or unreadable: the file reader will report it


class Staged(NamedTuple):
    """The answer for one file."""

    outcome: Outcome
    extent: Extent | None = None  # where the copy is; None unless it may be read
    #: Whether the copy need not be compared again; not while the source is so new that it may still
    #: be written.
    is_settled: bool = True
    read_ns: int = 0  # how long reading the source took, if it was read

    @classmethod
    def at(cls, extent: Extent, outcome: Outcome = Outcome.FOUND, read_ns: int = 0) -> Staged:
        """Return the answer for a copy that was found, or made, at this moment."""
        # A source that changed lately, or will as its date has it, may still be written.
        is_settled = abs(time.time_ns() - extent.mtime) > _SETTLING_NS
        return cls(outcome, extent, is_settled, read_ns)


#: Called with the answer for each key.
Done = Callable[[dict[int, Staged]], None]
