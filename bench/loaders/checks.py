"""Checks that every loader delivered the same examples, at next to no cost while it is timed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

Example = tuple[np.ndarray, np.ndarray]


def fingerprint(batch: Sequence[Example]) -> int:
    """Return a checksum of the labels and of a few values of every example.

    It costs some 0.1 ms per mini-batch, the same for each loader, and is taken between two calls
    of ``next()``.
    """
    return checksum([(values.reshape(-1)[::4001], label) for values, label in batch])


def checksum(batch: Sequence[Example]) -> int:
    """Return a CRC-32 of all bytes of a mini-batch."""
    value = 0
    for values, label in batch:
        value = zlib.crc32(np.ascontiguousarray(values), value)
        value = zlib.crc32(int(label).to_bytes(8, "little", signed=True), value)
    return value


def verified(points: list[dict]) -> dict[str, object]:
    """Compare the mini-batches of every run with those of the floor, or of the runs before it.

    The fingerprints are removed from the points: they have served, and are most of the file.

    Returns:
        ``verified``: how many ``batches`` were compared, and at which positions the runs are
        ``different``; and ``examples``, the same in words if all are alike.
    """
    expected: list[int] = []
    compared, different = 0, {}
    for point in sorted(points, key=lambda point: point.get("loader") != "floor"):
        for number, run in enumerate(point["runs"]):
            found = run.pop("fingerprints")
            pairs = list(zip(expected, found, strict=False))
            compared += len(pairs)
            if wrong := [at for at, (one, other) in enumerate(pairs) if one != other]:
                different[f"{point['loader']}, run {number}"] = wrong
            expected += found[len(expected) :]
    is_alike = compared and not different
    words = f"{compared} mini-batches compared, all of them alike" if is_alike else ""
    return {"verified": {"batches": compared, "different": different}, "examples": words}
