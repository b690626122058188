"""The other nodes of a job as the store knows them: which may hold a file, and who fetches it."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from typing import NamedTuple, Protocol

from overlapiter.origins.origin import OriginalFile

#: Of a name that another node is asked for: a request has room for as many as it may have.
_MOST_NAME_BYTES = 4095


class Holders(NamedTuple):
    """Which nodes may hold a file."""

    nodes: tuple[int, ...]  # the best first; this node may be among them
    is_coming: bool = False  # whether the first one may be about to stage it


class FetchedFile(OriginalFile, Protocol):
    """A file that another node sends."""

    checksum: int  # as that node has it
    is_fresh: bool  # whether the job has compared it with its source


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


def name_of(path: str, source: str) -> bytes | None:
    """Return the name of a file below its source root, the same everywhere; None if too odd."""
    name = path.removeprefix(os.path.join(source, "")).encode("utf-8", "surrogateescape")
    return None if len(name) > _MOST_NAME_BYTES or b"\0" in name else name


def fetch_at_once(peers: Fetches, name: bytes, holders: Holders, take: Take) -> bool:
    """Fetch a file and wait for it; return False, ``take`` not called, if no node sends it."""
    outcome: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def take_or_end(source: FetchedFile | None) -> bool:
        is_right = source is not None and take(source)
        if is_right or source is None:
            outcome.put(is_right)
        return is_right

    peers.fetch(name, holders, take_or_end)
    return outcome.get()
