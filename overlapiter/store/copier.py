"""The copier: reads source files, and writes what was read to the tiers.

A file of up to 256 KiB is read at once and kept in memory until the other files of its part are
read too: all of them take few writes, one where they lie side by side, and one transaction. A
longer one is copied in pieces.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from overlapiter.origins.bulk import BulkRead
from overlapiter.origins.origin import LocalFile, Origin, Original, OriginalFile

from .elsewhere import FetchedFile
from .extents import WHOLE, Checksum, Extent, checksum_of
from .health import Health
from .index import IndexBusyError
from .outcome import MakeRoom, NoteAnswers, Outcome, Staged
from .places import write_files
from .segments import write
from .store import Place, Store, Wanted

ResultT = TypeVar("ResultT")

#: What is read at once; smaller files are written together.
CHUNK_BYTES = 256 << 10

#: For so many files that are to be read room is made for one more: some are larger than the mean.
_FILES_PER_SLACK = 8

#: Of several reasons why a file is not staged the first one counts, for it may pass.
_REASONS = (Outcome.REFUSED, Outcome.FAILED, Outcome.BUSY, Outcome.TOO_LARGE)


#: Ends that room is kept for a file.
Release = Callable[[], None]


def _release_nothing() -> None:
    """Do nothing: no room is kept."""


class Content(NamedTuple):
    """The bytes of a small file, on their way to a segment; ``mtime`` as in its extent.

    Attributes:
        outcome: What is to be answered once it is published.
        read_ns: How long reading the source took; 0 if it was read from another tier.
        release: Ends that room is kept for it.
    """

    wanted: Wanted
    data: bytes | memoryview
    mtime: int
    checksum: int
    outcome: Outcome
    read_ns: int = 0
    release: Release = _release_nothing


class Opened(NamedTuple):
    """A source file that was opened, and how long that took."""

    file: LocalFile
    took_ns: int


class _TimedFile:
    """A source file; ``took_ns`` is how long its answers took, without what is done between."""

    def __init__(self, file: OriginalFile, took_ns: int) -> None:
        self._file = file
        self.took_ns = took_ns

    def stat(self) -> Original:
        """Tell what the file is now."""
        return self._timed(self._file.stat)

    def read(self, size_bytes: int) -> bytes:
        """Return up to so many bytes more."""
        return self._timed(self._file.read, size_bytes)

    def _timed(self, call: Callable[..., ResultT], *arguments: object) -> ResultT:
        began_ns = time.monotonic_ns()
        try:
            return call(*arguments)
        finally:
            self.took_ns += time.monotonic_ns() - began_ns


class Copy(NamedTuple):
    """A copy that is complete and not published; the answer is for when it is."""

    wanted: Wanted
    place: Place
    extent: Extent
    answer: Staged


class Copier:
    """Copies files. Safe for threads. The arguments are those of the stager.

    What several methods take:

    * ``tiers``: those that may be asked for room, the fastest first;
    * ``make_room``: asked while a tier has no room; None if nothing can be evicted;
    * ``home``: the tier that has the claims, the fastest to stage in; None if there are none.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        origin: Origin,
        health: Health,
        note_answers: NoteAnswers,
    ) -> None:
        self._stores = stores
        self._origin = origin
        self._health = health
        self._note_answers = note_answers
        self._mean_bytes = 0.0  # of what files take of the segments that they share
        #: Held while room is made for files that are to be read: else others would take it.
        self._making_room = threading.Lock()

    def expected_bytes(self, n_files: int) -> int:
        """Return what files may take of the segment that they share."""
        return int(self._mean_bytes * n_files)

    # --- reading ------------------------------------------------------------------------------

    def fetch(
        self,
        file: Wanted,
        home: int,
        make_room: MakeRoom | None,
        release: Release | None,
        opened: Opened | None = None,
    ) -> Content | Copy | Staged:
        """Read a small source file, copy a large one, or say why that cannot be.

        If it is ``opened`` already, it is large. Without ``release`` no room is kept for it yet.
        """
        release = release or next(iter(self.promise(1, home, make_room)), None)
        if release is None:
            return Staged(Outcome.REFUSED)
        got: Copy | Staged = Staged(Outcome.SOURCE_FAILED)
        data, read_bytes = b"", 0
        began_ns, source = time.monotonic_ns(), None
        try:
            with opened.file if opened else self._origin.open(file.path) as given:
                took_ns = opened.took_ns if opened else time.monotonic_ns() - began_ns
                source = _TimedFile(given, took_ns)
                original = source.stat()
                if original.size_bytes > CHUNK_BYTES:
                    release()  # what it takes is known now
                    release = _release_nothing
                    tiers = range(home, len(self._stores))
                    got = self.copy_long(file, source, original, tiers, make_room, home)
                    read_bytes = got.extent.size if isinstance(got, Copy) else 0
                elif original.size_bytes:  # else it is empty, or does not tell: read it there
                    data = _read(source, original.size_bytes)
                    if source.stat() == original:  # else it is being written: not ours to keep
                        read_bytes = original.size_bytes
        except (OSError, ValueError) as error:  # no file can have a path with a null in it
            if not read_bytes:  # else all has come, and closing alone failed
                got = self._health.blame_source(home, error)
        read_ns = source.took_ns if source else time.monotonic_ns() - began_ns
        self._note_answers("read slow store", [(file.path, read_ns, read_bytes)])
        if isinstance(got, Copy):
            return got._replace(answer=got.answer._replace(read_ns=read_ns))
        if data and read_bytes:
            return _content_of(file, data, original.mtime_ns, read_ns, release)
        release()
        return got

    def receive(
        self, file: Wanted, source: FetchedFile, home: int, make_room: MakeRoom | None
    ) -> Content | Copy | Staged | None:
        """Take a file that another node sends; None if it is not what that node has staged.

        Raises:
            OSError: The rest of a small file does not come.
        """
        original = source.stat()
        if original.size_bytes > CHUNK_BYTES:
            tiers, expected = range(home, len(self._stores)), (source.checksum, Outcome.FETCHED)
            got = self.copy_long(file, source, original, tiers, make_room, home, expected)
            is_wrong = isinstance(got, Staged) and got.outcome is Outcome.SOURCE_FAILED
            return None if is_wrong else got
        data = _read(source, original.size_bytes)
        mtime_ns = original.mtime_ns
        if checksum_of(data, file.key, mtime_ns) != source.checksum:
            return None
        return Content(file, data, mtime_ns, source.checksum, Outcome.FETCHED)

    def take(self, read: BulkRead, file: Wanted, home: int, release: Release) -> Content | Staged:
        """Take a small file that was read in bulk; the caller notes the answer."""
        if read.data is not None:
            read_ns = read.ended_ns - read.began_ns
            return _content_of(file, read.data, read.mtime_ns, read_ns, release)
        release()
        if read.error:
            return self._health.blame_source(home, read.failure())
        return Staged(Outcome.SOURCE_FAILED)

    def promise(self, n_files: int, home: int, make_room: MakeRoom | None) -> list[Release]:
        """Keep room for ordinary files, not to read them in vain.

        Returns:
            What ends that, for as many of them as there is room for.
        """
        if make_room is None:
            now_seconds, full = time.monotonic(), self._health.full[home:]
            if not any(breaker.is_closed for breaker in full):  # after a pause, one is tried
                n_files = int(any(breaker.is_passable(now_seconds) for breaker in full))
            return [_release_nothing] * n_files
        size_bytes = int(self._mean_bytes)
        if not size_bytes:
            return [_release_nothing] * n_files
        promised: list[Release] = []
        try:
            with self._making_room:
                for tier in range(home, len(self._stores)):
                    self._promise(n_files, tier, size_bytes, make_room, promised)
        except (OSError, IndexBusyError):  # taking a place meets the same, and says it
            promised += [_release_nothing] * (n_files - len(promised))
        return promised

    def _promise(
        self,
        n_files: int,
        tier: int,
        size_bytes: int,
        make_room: MakeRoom,
        promised: list[Release],
    ) -> None:
        """Promise room in a tier until it is enough for all files, or no others may go."""
        store, again = self._stores[tier], False
        while n_left := n_files - len(promised):
            promise = store.promise(size_bytes, n_left, again=again)
            promised += [promise.release] * promise.n_files
            if promise.n_files == n_left or not store.can_ever_hold(size_bytes):
                return
            slack_bytes = n_left // _FILES_PER_SLACK * size_bytes
            has_made_room = make_room(tier, promise.missing_bytes + slack_bytes)
            if again and not has_made_room:
                return
            again = True  # others may have made room, too

    # --- writing ------------------------------------------------------------------------------

    def write(
        self,
        contents: Sequence[Content],
        tiers: range,
        make_room: MakeRoom | None,
        home: int | None = None,
    ) -> tuple[list[Copy], dict[int, Staged]]:
        """Write files, each to the fastest tier that has room for it.

        Returns:
            The copies, and for the keys of the other files why there is none: the caller gives up
            the claims on them.
        """
        for content in contents:
            content.release()
        copies: list[Copy] = []
        reasons: dict[int, Staged] = {}
        left = contents
        for tier in tiers:
            written, refused = self._write_to(tier, left, make_room, home)
            copies += written
            left = [content for content, _ in refused]
            for (file, *_), answer in refused:
                reasons[file.key] = _first_of(reasons.get(file.key), answer)
        keys = [content.wanted.key for content in left]
        return copies, {key: self._final(reasons[key], tiers, home) for key in keys}

    def _write_to(
        self, tier: int, contents: Sequence[Content], make_room: MakeRoom | None, home: int | None
    ) -> tuple[list[Copy], list[tuple[Content, Staged]]]:
        """Write files to a tier; return the copies, and why it does not take others."""
        copies: list[Copy] = []
        refused: list[tuple[Content, Staged]] = []
        while contents:
            places = self._places(tier, [len(each.data) for each in contents], make_room, home)
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
                    self.give_up(tier, place)
                answer = self._health.blame(tier, error)
                return copies, refused + [(content, answer) for content in contents]
            for place, content in written:
                copies.append(_copy_of(content, tier, place))
                self._learn_size(place)
            contents = contents[len(places) :]
        return copies, refused

    def _places(
        self, tier: int, sizes: Sequence[int], make_room: MakeRoom | None, home: int | None
    ) -> list[Place] | _Reason:
        """Return places in a tier for the first ones of some files; or why there is none."""
        store, health = self._stores[tier], self._health
        # Where the claims lie, one request has passed for the whole part.
        if tier != home and not health.sick[tier].is_passable(time.monotonic()):
            return _Reason(Staged(Outcome.FAILED))
        try:
            while not (places := store.places(sizes)):
                if not store.can_ever_hold(sizes[0]):
                    return _Reason(Staged(Outcome.TOO_LARGE), is_of_file=True)
                if make_room is None or not make_room(tier, sum(sizes)):
                    health.full[tier].failed(time.monotonic())
                    return _Reason(Staged(Outcome.REFUSED))
        except (OSError, IndexBusyError) as error:
            is_of_file = isinstance(error, OSError) and error.errno == errno.EFBIG
            return _Reason(health.blame(tier, error), is_of_file=is_of_file)
        health.full[tier].succeeded()
        return places

    def _learn_size(self, place: Place) -> None:
        if place.start != WHOLE:
            share = 0.1 if self._mean_bytes else 1.0
            self._mean_bytes += (place.size - self._mean_bytes) * share

    def give_up(self, tier: int, place: Place) -> None:
        """Give up a place whose copy is not to be published."""
        try:
            self._stores[tier].give_up(place)
        except (OSError, IndexBusyError) as error:
            self._health.blame(tier, error)

    # --- in pieces ----------------------------------------------------------------------------

    def copy_long(
        self,
        file: Wanted,
        source: OriginalFile,
        original: Original,
        tiers: range,
        make_room: MakeRoom | None,
        home: int | None,
        expected: tuple[int | None, Outcome] = (None, Outcome.COPIED),
    ) -> Copy | Staged:
        """Copy a file in pieces, to the fastest tier that has room.

        ``source`` is the file, opened, and ``original`` what it is now; ``expected`` its checksum,
        if that is known, and what is to be answered.
        """
        reason = None
        for tier in tiers:
            places = self._places(tier, [original.size_bytes], make_room, home)
            if isinstance(places, _Reason):
                reason = _first_of(reason, places.answer)
                continue
            (place,) = places
            try:
                checksum = _fill(file.key, place, source, original, expected[0])
            except OSError as error:
                self.give_up(tier, place)
                return self._health.blame(tier, error)
            if checksum is None:
                self.give_up(tier, place)
                return Staged(Outcome.SOURCE_FAILED)
            self._learn_size(place)
            number = place.segment.number
            extent = Extent(file.key, tier, number, place.start, *original, checksum)
            return Copy(file, place, extent, Staged.at(extent, expected[1]))
        assert reason is not None  # there is always a tier
        return self._final(reason, tiers, home)

    def _final(self, reason: Staged, tiers: range, home: int | None) -> Staged:
        """Return why no tier takes a file; tell the user what helps, unless it was to be moved."""
        if reason.outcome is Outcome.TOO_LARGE and home is not None:
            self._health.say_too_large(tiers)
        return reason


class _Reason(NamedTuple):
    """Why there is no place in a tier."""

    answer: Staged
    is_of_file: bool = False  # it concerns the first file alone


def _content_of(
    file: Wanted, data: bytes | memoryview, mtime_ns: int, read_ns: int, release: Release
) -> Content:
    """Return a small file that the source gave."""
    checksum = checksum_of(data, file.key, mtime_ns)
    return Content(file, data, mtime_ns, checksum, Outcome.COPIED, read_ns, release)


def _copy_of(content: Content, tier: int, place: Place) -> Copy:
    """Return the copy of a file that was written to a place."""
    file, data, mtime, checksum, outcome, read_ns, _ = content
    number = place.segment.number
    extent = Extent(file.key, tier, number, place.start, len(data), mtime, checksum)
    return Copy(file, place, extent, Staged.at(extent, outcome, read_ns))


def _read(source: OriginalFile, size_bytes: int) -> bytes:
    """Return the bytes of a small source file. Raises OSError if it ends before."""
    data = source.read(size_bytes)
    while len(data) < size_bytes:
        piece = source.read(size_bytes - len(data))
        if not piece:
            raise OSError("the file is shorter than it was")
        data += piece
    return data


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
