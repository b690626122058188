"""What commands do with the count of bytes in use, and with what the dead left behind."""

from __future__ import annotations

import os
from collections.abc import Callable

from overlapiter.staging.inventory import Subdirectory
from overlapiter.staging.room import Room
from overlapiter.staging.store import Store
from overlapiter.staging.usage import USAGE_FILE


def _room(directory: str) -> Room:
    return Room(directory, None, 0)


def free(directory: str, remove: Callable[[], int]) -> None:
    """Call what removes files and returns how many bytes they took, and count these as free."""
    _room(directory).free(remove)


def sweep(directory: str, sub: Subdirectory) -> int:
    """Remove what the dead left half-copied; return how many files."""
    return Store(directory, sub.source or "", _room(directory)).sweep()


def count_of(directory: str) -> tuple[int | None, int]:
    """Return the bytes in use as counted, None if nobody counts, and as they are."""
    if not os.path.exists(os.path.join(directory, USAGE_FILE)):
        return None, 0
    return _room(directory).counts()


def recount(directory: str) -> None:
    """Count the bytes in use anew."""
    _room(directory).recount()
