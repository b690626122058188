"""The store driven directly, without a pipeline: only in a process that does not fork later."""

import secrets

from overlapiter.store.extents import Extent, checksum_of
from overlapiter.store.places import write_files
from overlapiter.store.site import Run, Site
from overlapiter.store.store import Store, Wanted, Written

_MTIME = 10**18


def store_in(directory: str, source: str = "/nowhere") -> Store:
    """Return the store of a staging directory, for the files of a source root."""
    return Store(Site(directory), source, Run(secrets.randbits(62), {"command": "bench"}))


def wanted_of(store: Store, names: list[str]) -> list[Wanted]:
    """Return the files that have these paths below the source root."""
    paths = [f"{store.source}/{name}" for name in names]
    return [Wanted(store.key_of(path), path) for path in paths]


def stage_bytes(store: Store, names: list[str], data: bytes) -> list[int]:
    """Stage files that all contain the same, by paths below the source root; return their keys.

    If ``data`` is empty, a block is charged and nothing is written.
    """
    wanted = wanted_of(store, names)
    mine = set(store.claim(wanted).mine)
    files = [file for file in wanted if file.key in mine]
    copies: list[Written] = []
    while left := files[len(copies) :]:
        places = store.places([max(len(data), 1)] * len(left))
        if not places:
            raise OSError(f"there is no room in {store.site.directory}: use another --local")
        if data:
            write_files([(place, data) for place in places])
        for place, file in zip(places, left, strict=False):
            checksum = checksum_of(data, file.key, _MTIME)
            numbers = (place.segment.number, place.start, len(data), _MTIME, checksum)
            copies.append((file, place, Extent(file.key, store.tier, *numbers)))
    store.publish(copies, ())
    return [file.key for file in wanted]
