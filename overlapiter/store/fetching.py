"""Files that a stager has claimed, and that other nodes of the job send.

The claim stays that of this process: whatever comes is published as a copy of the source would be,
and what no node has, or sends wrong, is copied from the source.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Protocol

from overlapiter.origins.origin import Original

from .copier import Content, Copier, Copy
from .elsewhere import FetchedFile, Fetches
from .outcome import Staged
from .part import Part
from .store import Wanted

#: Of a name that another node is asked for.
_MOST_NAME_BYTES = 60_000


class Claimant(Protocol):
    """Who has claimed the files."""

    @property
    def submit(self) -> Callable[[Callable[[], None]], None]:
        """Has a job done by another thread."""

    def copy(self, part: Part, file: Wanted) -> None:
        """Copy a claimed file from the source."""

    def end_copy(self, part: Part, file: Wanted, got: Content | Copy | Staged) -> None:
        """Take note of what has become of a claimed file."""

    def look_at_source(self, file: Wanted) -> Original | None:
        """Return what a source file is now; None if it cannot be looked at."""


class Fetching:
    """Fetches claimed files from other nodes. Safe for threads.

    Args:
        peers: The other nodes.
        source: The root of the source.
        copier: Takes what they send.
        claimant: Who has claimed the files.
        compares: Whether copies are compared with their sources at all.
    """

    def __init__(
        self, peers: Fetches, source: str, copier: Copier, claimant: Claimant, *, compares: bool
    ) -> None:
        self._peers = peers
        self._root = os.path.join(source, "")
        self._copier = copier
        self._claimant = claimant
        self._compares = compares

    def ask(self, part: Part, file: Wanted) -> bool:
        """Have a claimed file fetched from another node; return False if none may hold it."""
        holders = part.holders.get(file.key)
        if holders is None:
            return False
        name = os.fsencode(file.path.removeprefix(self._root))
        if len(name) > _MOST_NAME_BYTES or b"\0" in name:
            return False
        if part.partly is not None:
            self._peers.fetch(name, holders, functools.partial(self._receive, part, file))
            return True
        is_settled = threading.Event()  # the caller waits, and no job may: see Stager.stage
        is_fetched: list[bool] = []

        def take(source: FetchedFile | None) -> bool:
            is_right = source is not None and self._receive(part, file, source)
            if is_right:
                is_fetched.append(True)
            if is_right or source is None:
                is_settled.set()
            return is_right

        self._peers.fetch(name, holders, take)
        is_settled.wait()
        return bool(is_fetched)

    def _receive(self, part: Part, file: Wanted, source: FetchedFile | None) -> bool:
        """Take a file from another node; from the source, if no node has it."""
        if source is None:
            self._claimant.submit(functools.partial(self._claimant.copy, part, file))
            return True
        known = part.trusted.get(file.key)
        is_unknown = known is None and not source.is_fresh and self._compares
        given = (*source.stat(), source.checksum)
        if known is not None and given != (known.size, known.mtime, known.checksum):
            return False
        got = self._copier.receive(file, source, part.home, part.make_room)
        if got is None:
            return False
        if not is_unknown:
            self._claimant.end_copy(part, file, got)
        elif part.partly is None:
            self._compare(part, file, got)
        else:  # other files come behind this one
            self._claimant.submit(functools.partial(self._compare, part, file, got))
        return True

    def _compare(self, part: Part, file: Wanted, got: Content | Copy | Staged) -> None:
        """Use a file that this job has not compared with its source yet only if it is the same."""
        # Where it is no copy, there was no room for it.
        if isinstance(got, Staged) or self._claimant.look_at_source(file) == got.original:
            self._claimant.end_copy(part, file, got)
            return
        if isinstance(got, Copy):
            self._copier.discard(got)
        self._claimant.copy(part, file)
