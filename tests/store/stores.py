"""A source of many files, stores to stage them in, and what of them lies on the disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from overlapiter.store.extents import DamagedError, Extent, ExtentReader, checksum_of
from overlapiter.store.generation import segments_folder
from overlapiter.store.opened import OpenGeneration
from overlapiter.store.places import write_files
from overlapiter.store.site import Run, Site
from overlapiter.store.store import Place, Store, Wanted, Written

BLOCK_BYTES = 4096
SOURCE = "/lustre/images"
_MTIME = 10**18
_FS_IOC_FIEMAP = 0xC020660B


class Files:
    """Source files, which are there in memory alone.

    Args:
        n_files: How many.
        most_bytes: How large they may be.
        seed: Of sizes and contents.
    """

    def __init__(self, n_files: int, most_bytes: int = 5 * BLOCK_BYTES, seed: int = 0) -> None:
        numbers = random.Random(seed)
        self.contents = {
            f"{SOURCE}/train/{seed}-{i}.jpg": numbers.randbytes(numbers.randint(1, most_bytes))
            for i in range(n_files)
        }
        self.paths = list(self.contents)
        self.blocks_bytes = sum(map(in_blocks, map(len, self.contents.values())))


def in_blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def made_store(directory: Path, run: int = 1, source: str = SOURCE, **limits: Any) -> Store:
    return Store(Site(str(directory), **limits), source, Run(run, {}))


def wanted(store: Store, paths: Iterable[str]) -> list[Wanted]:
    return [Wanted(store.key_of(path), path) for path in paths]


def one_place(store: Store, size_bytes: int) -> Place | None:
    places = store.places([size_bytes])
    return places[0] if places else None


def written(store: Store, path: str, data: bytes) -> Written | None:
    """Copy a file that was claimed; None if there is no room for it."""
    copies = written_together(store, [(path, data)])
    return copies[0] if copies else None


def written_together(store: Store, contents: Sequence[tuple[str, bytes]]) -> list[Written]:
    """Copy the first ones of files that were claimed, as far as there is room."""
    copies: list[Written] = []
    while left := contents[len(copies) :]:
        places = store.places([len(data) for _, data in left])
        if not places:
            break
        now = [*zip(places, left, strict=False)]
        write_files([(place, data) for place, (_, data) in now])
        for place, (path, data) in now:
            key = store.key_of(path)
            checksum = checksum_of(data, key, _MTIME)
            number = place.segment.number
            extent = Extent(key, 0, number, place.start, len(data), _MTIME, checksum)
            copies.append((Wanted(key, path), place, extent))
    return copies


def reserve(store: Store, n_blocks: int) -> None:
    """Have room set aside for more files than are written."""

    def extend(opened: OpenGeneration) -> None:
        segment = opened._current(0)
        missing_bytes = n_blocks * BLOCK_BYTES - opened.spare_bytes
        if missing_bytes > 0:
            opened._reserve(segment, min(missing_bytes, segment.room_bytes), BLOCK_BYTES)

    store._access.on(extend)


def stage(store: Store, files: Files, paths: Sequence[str]) -> dict[str, Extent]:
    """Stage a part as a prefetcher does; return where the files are that are staged now."""
    claim = store.claim(wanted(store, paths))
    by_key = {store.key_of(path): path for path in paths}
    mine = [by_key[key] for key in claim.mine]
    reserve(store, 3 * len(mine))
    done = written_together(store, [(path, files.contents[path]) for path in mine])
    store.publish(done, claim.mine[len(done) :])
    extents = [copy[2] for copy in done] + [found.extent for found in claim.found.values()]
    return {by_key[extent.key]: extent for extent in extents}


def staged(store: Store, files: Files) -> dict[str, Extent]:
    """Return where those files are that the index has."""
    found = store.look(wanted(store, files.paths))
    return {w.path: found[w.key].extent for w in wanted(store, files.paths) if w.key in found}


def check_accounts(store: Store, directory: Path) -> None:
    total_bytes, charged_bytes = store.total_bytes(), sum_of_charges(store)
    names = store._access.read(lambda cursor: cursor.execute("SELECT id FROM segment").fetchall())
    store.close()
    found_bytes = disk_bytes(directory)
    assert total_bytes == charged_bytes == found_bytes, (total_bytes, charged_bytes, found_bytes)
    rest = {f"{number:016x}" for (number,) in names} ^ {p.name for p in segment_paths(directory)}
    assert len(rest) <= 1, "garbage"  # the row of the store that was asked


def read(reader: ExtentReader, extent: Extent) -> bytes | None:
    """Return the bytes of an extent; None if they are not the copy."""
    try:
        if extent.is_whole:
            return Path(reader.path_of(extent)).read_bytes()
        return reader.read(extent)
    except DamagedError:
        return None


def n_right(store: Store, files: Files) -> int:
    """Count the files that can be read from the store; none of them may be wrong."""
    reader = ExtentReader([store.site.directory])
    n_found = 0
    for path, extent in staged(store, files).items():
        data = read(reader, extent)
        assert data in (None, files.contents[path])
        n_found += data is not None
    reader.close()
    return n_found


def segment_paths(directory: Path) -> list[Path]:
    folder = Path(segments_folder(str(directory)))
    return sorted(folder.iterdir()) if folder.exists() else []


def disk_bytes(directory: Path) -> int:
    """Return what the bytes of all segments take of the disk."""
    total_bytes = 0
    for path in segment_paths(directory):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:  # it went meanwhile
            total_bytes += mapped_bytes(file.fileno())
    return total_bytes


def mapped_bytes(fd: int) -> int:
    """Return what the extents of a file take, without the tree in which ext4 notes many of them."""
    most = 512
    header = struct.pack("=QQIIII", 0, (1 << 64) - 1, 0, 0, most, 0)
    answer = bytearray(header + bytes(56 * most))
    try:
        fcntl.ioctl(fd, _FS_IOC_FIEMAP, answer)
    except OSError:  # tmpfs, which notes them without a tree
        return os.fstat(fd).st_blocks * 512
    (n_extents,) = struct.unpack_from("=I", answer, 20)
    assert n_extents < most
    extents = struct.iter_unpack("=QQQQQIIII", answer[32 : 32 + 56 * n_extents])
    return sum(length_bytes for _, _, length_bytes, *_ in extents)


def sum_of_charges(store: Store) -> int:
    statement = "SELECT COALESCE(SUM(charged), 0) FROM segment"
    return int(store._access.read(lambda cursor: cursor.execute(statement).fetchone())[0])
