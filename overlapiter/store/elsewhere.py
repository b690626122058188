"""What the store knows of the other nodes of a job: which may hold a file, and who fetches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from overlapiter.origins.origin import OriginalFile


class Holders(NamedTuple):
    """Which nodes may hold a file.

    Attributes:
        nodes: Their numbers, the best first; this node may be among them.
        is_coming: Whether the first one may be about to stage it.
    """

    nodes: tuple[int, ...]
    is_coming: bool = False


class FetchedFile(OriginalFile, Protocol):
    """A file that another node sends.

    Attributes:
        checksum: As that node has it.
        is_fresh: Whether the job has compared it with its source.
    """

    checksum: int
    is_fresh: bool


#: Takes the file that a node sends, or None if no node does; returns whether it was right.
Take = Callable[[FetchedFile | None], bool]


class Fetches(Protocol):
    """Fetches files from other nodes."""

    def fetch(self, name: bytes, holders: Holders, take: Take) -> None:
        """Fetch a file; returns at once. ``take`` is called by another thread.

        Args:
            name: Its path below the source root.
            holders: Which nodes may hold it.
            take: Called with the file, for each holder that sends it until it was right; in the
                end with None if none was.
        """
