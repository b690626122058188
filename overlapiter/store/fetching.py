"""Claimed files that come from other nodes of the job, where one of these may hold them."""

from __future__ import annotations

import functools
import os
import queue
from collections.abc import Callable
from typing import NamedTuple

from overlapiter.origins.origin import Original

from .comparer import Comparer
from .copier import Content, Copier, Copy
from .elsewhere import FetchedFile, Fetches, Holders, Take
from .outcome import Staged
from .part import Part
from .store import Wanted

#: Of a name that another node is asked for.
_MOST_NAME_BYTES = 60_000


class Steps(NamedTuple):
    """What the stager does for a file that it has claimed.

    Attributes:
        submit: Has a job done by another thread.
        look: Looks at the source of a file; a tier is blamed if that cannot be.
        copy: Copies the source of a file.
        end: Takes what has become of a file.
    """

    submit: Callable[[Callable[[], None]], None]
    look: Callable[[Wanted, int], Original | Staged]
    copy: Callable[[Part, Wanted], None]
    end: Callable[[Part, Wanted, Content | Copy | Staged], None]


class Fetching:
    """Fetches claimed files from other nodes. Safe for threads.

    Args:
        peers: Asks the nodes; None if there are none.
        source: The source root, below which files have the same names everywhere.
        copier: Takes what they send.
        comparer: Knows whether copies are compared with their sources.
        steps: What is done with the files besides.
    """

    def __init__(
        self, peers: Fetches | None, source: str, copier: Copier, comparer: Comparer, steps: Steps
    ) -> None:
        self._peers = peers
        self._root = os.path.join(source, "")
        self._copier = copier
        self._comparer = comparer
        self._steps = steps

    def begin(self, part: Part, file: Wanted) -> bool:
        """Have a claimed file fetched; return False if it is to be copied from the source."""
        holders = part.holders.get(file.key)
        if self._peers is None or holders is None:
            return False
        name = file.path.removeprefix(self._root).encode("utf-8", "surrogateescape")
        if len(name) > _MOST_NAME_BYTES or b"\0" in name:
            return False
        take = functools.partial(self._take, part, file)
        if part.partly is None:  # the caller waits, and no job may: see Stager.stage
            return _fetch_at_once(self._peers, name, holders, take)
        self._peers.fetch(name, holders, take)
        return True

    def _take(self, part: Part, file: Wanted, sent: FetchedFile | None) -> bool:
        """Take a file from another node; copy it from the source if no node has it."""
        if sent is None:
            self._steps.submit(functools.partial(self._steps.copy, part, file))
            return True
        known, original = part.trusted.get(file.key), sent.stat()
        given = (*original, sent.checksum)
        if known is not None and given != (known.size, known.mtime, known.checksum):
            return False
        got = self._copier.receive(file, sent, part.home, part.make_room)
        if got is None:
            return False
        is_compared = known is not None or sent.is_fresh or not self._comparer.asks
        if is_compared or isinstance(got, Staged):  # there was no room for it
            self._steps.end(part, file, got)
        elif part.partly is None:
            self._compare(part, file, got, original)
        else:  # other files come behind this one
            self._steps.submit(functools.partial(self._compare, part, file, got, original))
        return True

    def _compare(self, part: Part, file: Wanted, got: Content | Copy, original: Original) -> None:
        """Use a file that this job has not compared with its source yet only if it is the same."""
        if self._steps.look(file, part.home) == original:
            self._steps.end(part, file, got)
            return
        if isinstance(got, Copy):
            self._copier.give_up(got.extent.tier, got.place)
        self._steps.copy(part, file)


def _fetch_at_once(peers: Fetches, name: bytes, holders: Holders, take: Take) -> bool:
    """Fetch a file and wait for it; return False, ``take`` not called, if no node sends it."""
    outcome: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def take_or_end(source: FetchedFile | None) -> bool:
        is_right = source is not None and take(source)
        if is_right or source is None:
            outcome.put(is_right)
        return is_right

    peers.fetch(name, holders, take_or_end)
    return outcome.get()
