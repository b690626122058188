"""What commands do with the count of bytes in use, and with what the dead left behind."""

from __future__ import annotations

import os
from collections.abc import Callable

from overlapiter.staging.checksums import SUMS_FOLDER, Checksums
from overlapiter.staging.claim import Claims
from overlapiter.staging.folders import Folder, key_of
from overlapiter.staging.inventory import PARTIAL_FOLDER, Subdirectory
from overlapiter.staging.room import Room
from overlapiter.staging.usage import USAGE_FILE


def _room(directory: str) -> Room:
    return Room(directory, None, 0)


def free(directory: str, remove: Callable[[], int | None]) -> None:
    """Call what removes files and returns how many bytes they took, and count these as free."""
    _room(directory).free(remove)


def sweep(directory: str, sub: Subdirectory) -> int:
    """Remove what the dead left half-copied; return how many files."""
    partial = Folder(directory, os.path.basename(sub.path), PARTIAL_FOLDER)
    try:
        return Claims(partial).sweep(_room(directory).free)
    finally:
        partial.close()


def count_of(directory: str) -> tuple[int | None, int]:
    """Return the bytes in use as counted, None if nobody counts, and as they are.

    Raises:
        BusyError: Another process keeps the count to itself.
    """
    if not os.path.exists(os.path.join(directory, USAGE_FILE)):
        return None, 0
    return _room(directory).counts()


def recount(directory: str) -> bool:
    """Count the bytes in use anew; return whether the count is right now. Raises as above."""
    _room(directory).recount()
    counted_bytes, used_bytes = count_of(directory)
    return counted_bytes == used_bytes


def forgetting(directory: str, sub: Subdirectory) -> Callable[[str], None]:
    """Return what forgets the checksum of a removed file, given its path below the source."""
    source, name = sub.source, os.path.basename(sub.path)
    if source is None or not os.path.isdir(os.path.join(sub.path, SUMS_FOLDER)):
        return lambda _: None
    checksums = Checksums(Folder(directory, name))
    return lambda path: checksums.forget(key_of(os.path.join(source, path)))
