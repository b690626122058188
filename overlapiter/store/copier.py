"""The copier: writes what was read of source files to the tiers.

A file of up to 256 KiB is read at once and kept in memory until the other files of its part are
read too: all of them take few writes, one where they lie side by side, and one transaction. A
longer one is copied in pieces.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from typing import NamedTuple

from overlapiter.origins.origin import Original, OriginalFile

from .elsewhere import FetchedFile
from .extents import Checksum, Extent, checksum_of
from .outcome import MakeRoom, Outcome, Staged
from .places import write_files
from .segments import write
from .slowstore import CHUNK_BYTES, Read, SlowStore, read_whole
from .store import Place, Wanted
from .tiers import Copy, Tiers

#: For so many files room is made for one more: of more places more fit.
_FILES_PER_SLACK = 8

#: Of several reasons why a file is not staged the first one counts, for it may pass.
_REASONS = (Outcome.REFUSED, Outcome.FAILED, Outcome.BUSY, Outcome.TOO_LARGE)


class Content(NamedTuple):
    """The bytes of a small file, on their way to a segment."""

    wanted: Wanted
    data: bytes | memoryview
    mtime: int  # as in its extent
    checksum: int
    outcome: Outcome  # what is to be answered once it is published
    read_ns: int = 0  # how long reading the source took; 0 if it was read from another tier


class Room(NamedTuple):
    """Where files may be written."""

    tiers: range  # those that may be asked for room, the fastest first
    make_room: MakeRoom | None = None  # asked while one has none; None if nothing can be evicted
    home: int | None = None  # the tier that has the claims, the fastest one; None without claims


class Copier:
    """Copies files. Safe for threads."""

    def __init__(self, tiers: Tiers, slow_store: SlowStore) -> None:
        self._tiers = tiers
        self._slow_store = slow_store

    # --- reading ------------------------------------------------------------------------------

    def take(self, read: Read, file: Wanted, home: int) -> Content | Staged:
        """Take what became of a small file."""
        data, mtime = read.data, read.original.mtime_ns
        if data is not None:
            checksum = checksum_of(data, file.key, mtime)
            return Content(file, data, mtime, checksum, Outcome.COPIED, read.took_ns)
        if read.error:
            return self._tiers.blame_source(home, read.error)
        return Staged(Outcome.SOURCE_FAILED)

    def copy(self, read: Read, file: Wanted, room: Room) -> Copy | Staged:
        """Copy a large file that was opened."""
        with self._slow_store.opened(file, read) as source:
            got = self.copy_long(file, source, read.original, room)
        if isinstance(got, Copy):
            got = got._replace(answer=got.answer._replace(read_ns=source.took_ns))
        return got

    def receive(
        self, file: Wanted, source: FetchedFile, room: Room
    ) -> Content | Copy | Staged | None:
        """Take a file that another node sends; None if it is not what that node has staged.

        Raises:
            OSError: The rest of a small file does not come.
        """
        original, checksum = source.stat(), source.checksum
        if original.size_bytes > CHUNK_BYTES:
            got = self.copy_long(file, source, original, room, checksum, Outcome.FETCHED)
            is_wrong = isinstance(got, Staged) and got.outcome is Outcome.SOURCE_FAILED
            return None if is_wrong else got
        data = read_whole(source, original.size_bytes)
        if checksum_of(data, file.key, original.mtime_ns) != checksum:
            return None
        return Content(file, data, original.mtime_ns, checksum, Outcome.FETCHED)

    def n_to_read(self, n_files: int, room: Room) -> int:
        """Return how many of some files to read: one, where tiers are full and nothing may go."""
        full = [self._tiers.full[tier] for tier in room.tiers]
        if room.make_room is not None or any(breaker.is_closed for breaker in full):
            return n_files
        now_seconds = time.monotonic()
        return int(any(breaker.is_passable(now_seconds) for breaker in full))

    # --- writing ------------------------------------------------------------------------------

    def write(
        self, contents: Sequence[Content], room: Room
    ) -> tuple[list[Copy], dict[int, Staged]]:
        """Write files, each to the fastest tier that has room for it.

        Returns:
            The copies, and for the keys of the other files why there is none: the caller gives up
            the claims on them.
        """
        copies: list[Copy] = []
        reasons: dict[int, Staged] = {}
        left = contents
        for tier in room.tiers:
            written, refused = self._write_to(tier, left, room)
            copies += written
            left = [content for content, _ in refused]
            for (file, *_), answer in refused:
                reasons[file.key] = _first_of(reasons.get(file.key), answer)
        keys = [content.wanted.key for content in left]
        return copies, {key: self._final(reasons[key], room) for key in keys}

    def _write_to(
        self, tier: int, contents: Sequence[Content], room: Room
    ) -> tuple[list[Copy], list[tuple[Content, Staged]]]:
        """Write files to a tier; return the copies, and why it does not take others."""
        copies: list[Copy] = []
        refused: list[tuple[Content, Staged]] = []
        while contents:
            places = self._places(tier, [len(each.data) for each in contents], room)
            if isinstance(places, _Reason):
                # Of a file that is too large for the tier the others may still fit.
                n_concerned = 1 if places.is_of_file else len(contents)
                refused += [(content, places.answer) for content in contents[:n_concerned]]
                contents = contents[n_concerned:]
                continue
            written = [*zip(places, contents, strict=False)]
            try:
                write_files([(place, content.data) for place, content in written])
            except OSError as error:
                for place in places:
                    self._tiers.give_up(tier, place)
                answer = self._tiers.blame(tier, error)
                return copies, refused + [(content, answer) for content in contents]
            copies += [_copy_of(content, tier, place) for place, content in written]
            contents = contents[len(places) :]
        return copies, refused

    def _places(self, tier: int, sizes: Sequence[int], room: Room) -> list[Place] | _Reason:
        """Return places in a tier for the first ones of some files; or why there is none."""
        store, tiers = self._tiers.stores[tier], self._tiers
        # Where the claims lie, one request has passed for the whole part.
        if tier != room.home and not tiers.sick[tier].is_passable(time.monotonic()):
            return _Reason(Staged(Outcome.FAILED))
        try:
            while not (places := store.places(sizes)):
                if not store.can_ever_hold(sizes[0]):
                    return _Reason(Staged(Outcome.TOO_LARGE), is_of_file=True)
                n_bytes = sum(sizes) + sum(sizes[: len(sizes) // _FILES_PER_SLACK])
                if room.make_room is None or not room.make_room(tier, n_bytes):
                    tiers.full[tier].failed(time.monotonic())
                    return _Reason(Staged(Outcome.REFUSED))
        except OSError as error:
            return _Reason(tiers.blame(tier, error), is_of_file=error.errno == errno.EFBIG)
        tiers.full[tier].succeeded()
        return places

    # --- in pieces ----------------------------------------------------------------------------

    def copy_long(
        self,
        file: Wanted,
        source: OriginalFile,
        original: Original,
        room: Room,
        expected: int | None = None,
        outcome: Outcome = Outcome.COPIED,
    ) -> Copy | Staged:
        """Copy a file in pieces, to the fastest tier that has room.

        ``source`` is the file, opened, and ``original`` what it is now; ``expected`` its checksum,
        if that is known; ``outcome`` what is to be answered.
        """
        reason = None
        for tier in room.tiers:
            places = self._places(tier, [original.size_bytes], room)
            if isinstance(places, _Reason):
                reason = _first_of(reason, places.answer)
                continue
            (place,) = places
            try:
                checksum = _fill(file.key, place, source, original, expected)
            except OSError as error:
                self._tiers.give_up(tier, place)
                return self._tiers.blame(tier, error)
            if checksum is None:
                self._tiers.give_up(tier, place)
                return Staged(Outcome.SOURCE_FAILED)
            number = place.segment.number
            extent = Extent(file.key, tier, number, place.start, *original, checksum)
            return Copy(file, place, extent, Staged.at(extent, outcome))
        assert reason is not None  # there is always a tier
        return self._final(reason, room)

    def _final(self, reason: Staged, room: Room) -> Staged:
        """Return why no tier takes a file; tell the user what helps, unless it was to be moved."""
        if reason.outcome is Outcome.TOO_LARGE and room.home is not None:
            self._tiers.say_too_large(room.tiers)
        return reason


class _Reason(NamedTuple):
    """Why there is no place in a tier."""

    answer: Staged
    is_of_file: bool = False  # it concerns the first file alone


def _copy_of(content: Content, tier: int, place: Place) -> Copy:
    """Return the copy of a file that was written to a place."""
    file, data, mtime, checksum, outcome, read_ns = content
    number = place.segment.number
    extent = Extent(file.key, tier, number, place.start, len(data), mtime, checksum)
    return Copy(file, place, extent, Staged.at(extent, outcome, read_ns))


def _fill(
    key: int, place: Place, source: OriginalFile, original: Original, expected: int | None
) -> int | None:
    """Copy a large file; return its checksum, or None if the source fails or changes.

    If a checksum is expected, that alone says whether it has. An OSError is the staging disk's.
    """
    size_bytes, mtime_ns = original
    checksum = Checksum(key, size_bytes, mtime_ns)
    start, position = max(place.start, 0), 0
    while position < size_bytes:
        try:
            piece = source.read(min(CHUNK_BYTES, size_bytes - position))
        except OSError:
            return None
        if not piece:
            return None
        checksum.update(piece)
        write(place.segment.fd, piece, start + position)
        position += len(piece)
    try:
        if expected is None and source.stat() != original:
            return None  # it is being written: not ours to keep
    except OSError:
        return None
    return checksum.value() if expected in (None, checksum.value()) else None


def _first_of(reason: Staged | None, other: Staged) -> Staged:
    """Return which of two reasons counts."""
    return min(reason or other, other, key=lambda each: _REASONS.index(each.outcome))
