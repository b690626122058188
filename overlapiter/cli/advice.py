"""From measurements to settings, with the reasons. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from overlapiter.options import MAX_READS_IN_FLIGHT
from overlapiter.words import count_words, duration_words, size_words

from .console import Names, first_few
from .probe import DiskSpeed, FileSystem, Node
from .sourcespeed import Level

_KEEP_FREE = 0.05
#: With less there is no room.
_LEAST_ROOM_BYTES = 1e6
_ENOUGH_DESCRIPTORS = 2 * MAX_READS_IN_FLIGHT + 64


class Advice(NamedTuple):
    """A recommended value of an option, None to leave it out, and the reason."""

    name: str
    value: int | str | None
    reason: str


def most_held(levels: Sequence[Level]) -> Level:
    """Return what the reads in flight brought at which they were kept the longest."""
    return max(levels, key=lambda level: level.seconds)


def reads_advice(
    levels: Sequence[Level], disk: DiskSpeed | None, node: Node, n_ranks: int
) -> Advice:
    """Recommend ``reads_in_flight``: to leave it out, since the number tunes itself as here."""
    best = most_held(levels)
    file_seconds = best.cpu_seconds / best.n_files + (disk.small_cpu_seconds if disk else 0.0)
    n_busy = file_seconds * best.files_per_second
    busy = f"{max(n_busy, 0.01):.0%} of a core" if n_busy < 0.95 else f"{n_busy:.1f} cores"
    reason = (
        f"leave it out: it tunes itself while the job runs, here mostly to {best.n_reads}, which "
        f"brought {best.files_per_second:,.0f} files/s ({size_words(best.bytes_per_second)}/s)"
    )
    if len(levels) == 1:
        reason += "; there were too few files to try another number"
    if n_ranks > 1:
        reason += f"; the {n_ranks} ranks share it"
    reason += f"; copying so many keeps {busy} busy ({file_seconds * 1e3:.2f} ms a file)"
    if n_busy > node.n_cores:
        reason += f": the limit will be the {count_words(node.n_cores, 'core')}, not the store"
    return Advice("reads_in_flight", None, reason)


def processes_advice(node: Node, n_ranks: int) -> Advice:
    """Recommend ``n_processes``."""
    n_cores = max(1, node.n_cores // n_ranks)
    whose = f"for each of {n_ranks} ranks" if n_ranks > 1 else "for this process"
    reason = f"{count_words(n_cores, 'core')} {whose}, one of which is the trainer's"
    return Advice("n_processes", max(1, n_cores - 1), reason)


def capacity_advice(
    place: FileSystem | None, staged_bytes: int, dataset_bytes: float | None
) -> Advice:
    """Recommend ``capacity``, where a disk is named and, perhaps, the size of the data is known."""
    if place is None:
        return Advice("capacity", None, "name the staging directory with --to to find out")
    room_bytes = place.free_bytes + staged_bytes - _KEEP_FREE * place.size_bytes
    room_bytes *= 0.5 if place.is_ram else 1.0
    reason = f"{size_words(place.free_bytes)} of {size_words(place.size_bytes)} are free"
    if staged_bytes:
        reason += f", {size_words(staged_bytes)} more are staged files"
    reason += ", and 5% of the disk stays free"
    if place.is_ram:
        reason += "; half of it, for it is memory, which training needs"
    if room_bytes < _LEAST_ROOM_BYTES:
        return Advice("capacity", None, f"{reason}: no room; free some, or name another disk")
    if dataset_bytes is not None:
        share = room_bytes / max(dataset_bytes, 1.0)
        fits = "fits" if share >= 1 else f"fits to {share:.0%}, the rest comes and goes"
        reason += f"; the data set of about {size_words(dataset_bytes)} {fits}"
    reason += "; it is for the directory as a whole, whatever number of ranks and jobs share it"
    return Advice("capacity", _rounded(room_bytes), reason)


def _rounded(size_bytes: float) -> str:
    """Write a size as an option takes it, rounded down to two digits."""
    units = (("TB", 1e12), ("GB", 1e9), ("MB", _LEAST_ROOM_BYTES))
    unit, factor = next(each for each in units if size_bytes >= each[1])
    number = size_bytes / factor
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    return f"{math.floor(number / step) * step:.10g}{unit}"


def warnings(
    levels: Sequence[Level], disk: DiskSpeed | None, place: FileSystem | None, node: Node
) -> list[str]:
    """Return what is in the way."""
    best = most_held(levels)
    found = []
    if node.load > 2 * node.n_cores:
        found.append(
            f"this node is busy ({node.load:.0f} processes for "
            f"{count_words(node.n_cores, 'core')}), so the store may be faster than it seems: "
            f"measure again when the node is yours"
        )
    if place is not None and place.is_shared:
        found.append(
            f"the staging directory is on {place.kind}, which other nodes share: choose a disk of "
            f"the node itself, or /dev/shm"
        )
    if disk is not None and not disk.has_holes:
        found.append(
            "the staging disk gives back no holes, so each file takes a segment of its own, which "
            "is slower: choose ext4, XFS or /dev/shm"
        )
    if disk is not None and disk.write_bytes_per_second < best.bytes_per_second:
        found.append(
            f"the staging disk writes {size_words(disk.write_bytes_per_second)}/s, less than the "
            f"store gives ({size_words(best.bytes_per_second)}/s): staging will be its speed"
        )
    latency_seconds = min(level.latency_seconds for level in levels)
    if disk is not None and disk.small_read_seconds > latency_seconds:
        found.append(
            f"a small file takes {duration_words(disk.small_read_seconds)} from the staging disk, "
            f"and less from the store: staging may not pay here"
        )
    if 0 < node.n_descriptors < _ENOUGH_DESCRIPTORS:
        found.append(
            f"a process may open {node.n_descriptors} files, which keeps the reads in flight low: "
            f"ulimit -n {_ENOUGH_DESCRIPTORS}"
        )
    return found


def notes_on(failed: Mapping[str, str], kind: str, done: str) -> list[str]:
    """Return why files or folders, by their paths, could not be read, or what is to be ``done``.

    There is a note for each of the first reasons.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for path, reason in failed.items():
        found[reason].append(path)
    return first_few(
        [
            f"{count_words(len(paths), kind)} could not be {done} ({reason}): {Names(paths)}"
            for reason, paths in found.items()
        ]
    )
