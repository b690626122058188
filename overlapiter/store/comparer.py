"""The comparer: tells whether a staged file is what its source is now."""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from overlapiter.origins.bulk import BulkRead
from overlapiter.origins.origin import Origin, Original

from .extents import Extent
from .health import Health
from .index import IndexBusyError
from .mover import Mover
from .outcome import NoteAnswers, Staged
from .store import Found, Store, Wanted

#: How a staged file is compared with its source before a run first uses it.
Validation = Literal["mtime", "checksum", "never"]

_REMEMBERED = 4096


class Comparer:
    """Compares staged files with their sources, and remembers which of them were compared.

    Safe for threads, but for :meth:`remember`. For the arguments see :class:`.Stager`.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        origin: Origin,
        validate: Validation,
        health: Health,
        mover: Mover,
        note_answers: NoteAnswers,
    ) -> None:
        self._stores = stores
        self._origin = origin
        self._validate = validate
        self._health = health
        self._mover = mover
        self._note_answers = note_answers
        self._compared: collections.OrderedDict[int, Extent] = collections.OrderedDict()

    @property
    def asks(self) -> bool:
        """Whether sources are looked at."""
        return self._validate != "never"

    def remember(self, answer: Staged) -> None:
        """Take note of a copy that was compared, or has just been made."""
        if answer.is_settled and answer.extent is not None:
            self._compared[answer.extent.key] = answer.extent
            if len(self._compared) > _REMEMBERED:
                self._compared.popitem(last=False)

    def has_compared(self, found: Found, trusted: Mapping[int, Extent]) -> bool:
        """Return whether a copy can be used as it is."""
        key = found.extent.key
        if found.extent in (trusted.get(key), self._compared.get(key)):
            return True
        return not self.asks and found.is_verified

    def look(self, file: Wanted, tier: int) -> Original | Staged:
        """Return what a source file is now; the answer for it if it cannot be looked at."""
        began_ns = time.monotonic_ns()
        try:
            return self._origin.stat(file.path)
        except OSError as error:
            return self._health.blame_source(tier, error)
        finally:
            self._note_answers("stat", [(file.path, time.monotonic_ns() - began_ns, 0)])

    def take_look(self, read: BulkRead, tier: int) -> Original | Staged:
        """Return the same of a source file that was looked at in bulk; the caller notes that."""
        if read.error:
            return self._health.blame_source(tier, read.failure())
        return Original(read.size_bytes, read.mtime_ns)

    def has_to_read(self, found: Found, is_suspect: bool) -> bool:
        """Return whether :meth:`is_right` reads a copy whose source is the same."""
        return self._validate == "checksum" or not found.is_verified or is_suspect

    def is_right(self, found: Found, original: Original | None, is_suspect: bool) -> bool:
        """Return whether a copy is what its source is; None for one that nothing asks.

        Args:
            found: The copy.
            original: What the source is.
            is_suspect: Whether a file reader has found the copy damaged.
        """
        extent = found.extent
        if original is not None and original != (extent.size, extent.mtime):
            return False
        if not self.has_to_read(found, is_suspect):
            return True
        return self._mover.is_right(extent, is_suspect=is_suspect)

    def note_verified(self, extents: Sequence[Extent]) -> None:
        """Note that copies were read since the node was booted, in a transaction for each tier."""
        for tier, store in enumerate(self._stores):
            keys = [extent.key for extent in extents if extent.tier == tier]
            try:
                if keys:
                    store.note_verified(keys)
            except (OSError, IndexBusyError) as error:  # they are verified again
                self._health.blame(tier, error)
