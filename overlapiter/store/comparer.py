"""The comparer: tells whether a staged file is what its source is now."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Literal

from overlapiter.origins.origin import Original

from .extents import Extent
from .mover import Mover
from .outcome import Staged
from .store import Found

#: How a staged file is compared with its source before a run first uses it.
Validation = Literal["mtime", "checksum", "never"]

_REMEMBERED = 4096


class Comparer:
    """Compares staged files with their sources, and remembers which of them were compared.

    Safe for threads, but for :meth:`remember`. For the arguments see :class:`.Stager`.
    """

    def __init__(self, validate: Validation, mover: Mover) -> None:
        self._validate = validate
        self._mover = mover
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

    def has_to_read(self, found: Found, is_suspect: bool) -> bool:
        """Return whether :meth:`is_right` reads a copy whose source is the same."""
        return self._validate == "checksum" or not found.is_verified or is_suspect

    def is_right(self, found: Found, original: Original | None, is_suspect: bool) -> bool:
        """Return whether a copy is what its source is; ``original`` is None if nothing asks it.

        ``is_suspect`` says whether a file reader has found the copy damaged.
        """
        extent = found.extent
        if original is not None and original != (extent.size, extent.mtime):
            return False
        if not self.has_to_read(found, is_suspect):
            return True
        return self._mover.is_right(extent, is_suspect=is_suspect)
