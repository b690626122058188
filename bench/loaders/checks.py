"""Checks that every loader delivered the same examples, at next to no cost while it is timed."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

Example = tuple[np.ndarray, np.ndarray]


def fingerprint(batch: Sequence[Example]) -> int:
    """Return a checksum of the labels and of a few values of every example.

    It costs some 0.1 ms per mini-batch, the same for each loader, and is taken between two calls
    of ``next()``.
    """
    return checksum((values.reshape(-1)[::4001], label) for values, label in batch)


def checksum(batch: Sequence[Example]) -> int:
    """Return a CRC-32 of all bytes of a mini-batch."""
    value = 0
    for values, label in batch:
        value = zlib.crc32(np.ascontiguousarray(values), value)
        value = zlib.crc32(int(label).to_bytes(8, "little", signed=True), value)
    return value


def differences(reference: dict, other: dict) -> list[int]:
    """Return the positions of the mini-batches that two runs delivered with different content.

    Of two runs of different length, the mini-batches that both delivered are compared.
    """
    both = zip(reference["fingerprints"], other["fingerprints"], strict=False)
    different = {position for position, (one, two) in enumerate(both) if one != two}
    one, two = reference["checksums"], other["checksums"]
    return sorted(different | {int(key) for key in one.keys() & two.keys() if one[key] != two[key]})


def verify(points: list[dict]) -> dict[str, object]:
    """Compare every run with the reference: the floor where there is one, else the longest run.

    The checksums are removed from the points: they have served, and would be most of the file.
    """
    ordered = sorted(points, key=lambda point: (point["loader"] != "floor", -point["n_batches"]))
    references: list[dict] = []
    compared, different = 0, {}
    for point in ordered:
        for number, run in enumerate(point["runs"]):
            length = len(run["fingerprints"])
            wrong = {at for reference in references for at in differences(reference, run)}
            compared += sum(min(len(each["fingerprints"]), length) for each in references)
            if wrong:
                different[f"{point['loader']}, run {number}"] = sorted(wrong)
            if not references or length > len(references[-1]["fingerprints"]):
                references.append({**run})
    forget_checksums(points)
    return {"batches": compared, "different": different}


def forget_checksums(points: list[dict]) -> None:
    """Remove from all runs what only served to compare them."""
    for point in points:
        for run in point["runs"]:
            del run["fingerprints"], run["checksums"]
