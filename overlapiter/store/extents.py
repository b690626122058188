"""Extents: where the bytes of a staged file lie, and the checksum by which they are recognised.

A reader is told the extent alone. It takes no lock: bytes that were evicted, overwritten or damaged
meanwhile do not have the checksum, which is seeded with the file's key, size and mtime, so that a
damaged row of the index is noticed, too.
"""

from __future__ import annotations

import collections
import errno
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import xxhash

from .generation import segments_folder
from .segments import READ_FLAGS, segment_path

#: Files up to this size share segments; a larger one has a segment of its own.
SMALL_BYTES = 1 << 20
#: The ``start`` of a file that has a segment of its own.
WHOLE = -1

_PACKED = struct.Struct("<7q")
#: Bytes of a packed extent.
EXTENT_BYTES = _PACKED.size
_MOST_OPEN = 128
#: Large files that are not read again as long as they do not change.
_MOST_VERIFIED = 1 << 17
_CHUNK_BYTES = 4 << 20


class Extent(NamedTuple):
    """The place of a staged file."""

    key: int  # of the file, see key_of
    tier: int  # of the staging directory; 0 is the fastest one
    segment: int
    start: int  # where the bytes begin in the segment; WHOLE if it is this file alone
    size: int  # in bytes
    mtime: int  # of the source when it was copied, in ns, or a number that stands for its version
    checksum: int  # of the bytes, see checksum_of

    @property
    def is_whole(self) -> bool:
        """Whether the file has a segment of its own."""
        return self.start == WHOLE


class DamagedError(Exception):
    """The bytes of an extent are not those that were copied, or are gone."""


def packed(extents: Iterable[Extent]) -> bytes:
    """Return extents as messages have them, 56 bytes each."""
    return b"".join([_PACKED.pack(*extent) for extent in extents])


def unpacked(data: bytes) -> dict[int, Extent]:
    """Return the extents of a message by the keys of their files."""
    return {values[0]: Extent(*values) for values in _PACKED.iter_unpack(data)}


def source_seed(source: str, place: str = "") -> int:
    """Return the number that stands for a source root, a path or a URL, in the keys of its files.

    The place tells roots of one name apart, such as two servers.
    """
    return xxhash.xxh3_64_intdigest(os.fsencode(f"{source}\0{place}"))


def key_of(path: str, seed: int) -> int:
    """Return the number of a file, a signed integer of 64 bits, by the seed of its source root."""
    return key_of_bytes(path.encode("utf-8", "surrogateescape"), seed)


def key_of_bytes(path: bytes, seed: int) -> int:
    """Return the number of a file, by its path as the disk has it; see :func:`key_of`."""
    return xxhash.xxh3_64_intdigest(path, seed) - (1 << 63)


def keys_of(source: str, place: str = "", real: str = "") -> Callable[[str], int]:
    """Return what gives the keys of the files of a source root, by their absolute paths.

    The paths begin with ``source``. ``real`` is the root without symbolic links, by which its files
    are known under each of its names; empty if it has none.
    """
    seed = source_seed(real or source, place)
    if real in ("", source):
        return lambda path: key_of(path, seed)
    return lambda path: key_of(real + path.removeprefix(source), seed)


def _seed(key: int, size: int, mtime: int) -> int:
    return (key ^ size * 0x9E3779B97F4A7C15 ^ mtime * 0xC2B2AE3D27D4EB4F) & 0xFFFF_FFFF_FFFF_FFFF


def checksum_of(data: bytes | memoryview, key: int, mtime: int) -> int:
    """Return the checksum of the bytes of a file: a signed integer of 64 bits.

    Source: XXH3, https://xxhash.com; it tells accidents, not forgeries.
    """
    return xxhash.xxh3_64_intdigest(data, _seed(key, len(data), mtime)) - (1 << 63)


class Checksum:
    """The checksum of a file whose bytes come in pieces."""

    def __init__(self, key: int, size: int, mtime: int) -> None:
        self._state = xxhash.xxh3_64(seed=_seed(key, size, mtime))
        self.update = self._state.update

    def value(self) -> int:
        """Return what :func:`checksum_of` gives for all the bytes."""
        return self._state.intdigest() - (1 << 63)


class ExtentReader:
    """Reads extents in the directories of all tiers, keeps segments open. For one thread."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = directories
        self._folders = [segments_folder(directory) for directory in directories]
        self._open: collections.OrderedDict[tuple[int, int], tuple[int, int]] = (
            collections.OrderedDict()
        )
        self._verified: dict[tuple[int, int], tuple[int, ...]] = {}

    def read(self, extent: Extent) -> bytes:
        """Return the bytes of a small file. Raises DamagedError unless they are those copied."""
        key, tier, segment, start, size, mtime, checksum = extent
        try:
            fd, length = self._open[tier, segment]
        except KeyError:
            fd, length = self._opened(tier, segment)
        if start + size > length:  # else a damaged size might ask for all the memory there is
            length = os.fstat(fd).st_size
            self._open[tier, segment] = fd, length
            if start < 0 or start + size > length:
                raise DamagedError(f"segment {segment:x} ends before {start + size}")
        try:
            data = os.pread(fd, size, start)
        except OSError as error:
            raise DamagedError(f"segment {segment:x}: {error}") from error
        if len(data) != size or checksum_of(data, key, mtime) != checksum:
            raise DamagedError(f"{size} bytes at {start} of segment {segment:x} are not the copy")
        return data

    def path_of(self, extent: Extent) -> str:
        """Return the path of a large file; reads it if need be. Raises DamagedError."""
        try:
            fd, path = self._open_segment(extent.tier, extent.segment)
            try:
                found = os.fstat(fd)
                stamp = _stamp_of(found)
                place = extent.tier, extent.segment
                if self._verified.get(place) != stamp:
                    if found.st_size != extent.size or not _is_right(fd, extent):
                        raise DamagedError(f"{path} is not the copy")
                    if len(self._verified) >= _MOST_VERIFIED:  # to bound the memory
                        del self._verified[next(iter(self._verified))]
                    self._verified[place] = stamp
            finally:
                os.close(fd)
        except OSError as error:
            raise DamagedError(f"segment {extent.segment:x}: {error}") from error
        return path

    def open_whole(self, extent: Extent) -> int:
        """Return a descriptor of a large file, not verified. Raises OSError if that cannot be."""
        return self._open_segment(extent.tier, extent.segment)[0]

    def is_as_verified(self, extent: Extent) -> bool:
        """Return whether a large file is as it was when its path was given, or evicted since.

        What has opened a file that is evicted goes on with its bytes.
        """
        stamp = self._verified.get((extent.tier, extent.segment))
        try:
            found = os.stat(segment_path(self._folders[extent.tier], extent.segment))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return stamp == _stamp_of(found)

    def is_right(self, extent: Extent) -> bool:
        """Return whether the bytes of a file are those that were copied; reads all of them."""
        try:
            if not extent.is_whole:
                self.read(extent)
            else:
                self._verified.pop((extent.tier, extent.segment), None)
                self.path_of(extent)
        except DamagedError:
            return False
        return True

    def close(self) -> None:
        """Close the segments; whatever is read later opens them anew."""
        self._close_open()
        self._verified.clear()

    def _opened(self, tier: int, segment: int) -> tuple[int, int]:
        if len(self._open) >= _MOST_OPEN:
            os.close(self._open.popitem(last=False)[1][0])
        try:
            fd, _ = self._open_segment(tier, segment)
            self._open[tier, segment] = fd, os.fstat(fd).st_size
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        except OSError as error:
            raise DamagedError(f"segment {segment:x}: {error}") from error
        return self._open[tier, segment]

    def _open_segment(self, tier: int, segment: int) -> tuple[int, str]:
        """Open a segment, in the generation that is in use now if need be; return its path, too."""
        path = segment_path(self._folders[tier], segment)
        try:
            return os.open(path, READ_FLAGS), path
        except FileNotFoundError:
            self._folders[tier] = segments_folder(self._directories[tier])
            path = segment_path(self._folders[tier], segment)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._close_open()
        return os.open(path, READ_FLAGS), path

    def _close_open(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1][0])


def _stamp_of(found: os.stat_result) -> tuple[int, ...]:
    """Return what of a file is another number once its content has changed.

    Not ctime: a hard link, which gives a library a path, changes it.
    """
    return found.st_ino, found.st_size, found.st_mtime_ns


def _is_right(fd: int, extent: Extent) -> bool:
    """Return whether an open file has the checksum of a large file."""
    checksum = Checksum(extent.key, extent.size, extent.mtime)
    while piece := os.read(fd, _CHUNK_BYTES):
        checksum.update(piece)
    return checksum.value() == extent.checksum
