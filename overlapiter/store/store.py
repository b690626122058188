"""The store: staged files of one source root in one tier, shared by every process of the node.

The protocol, by which nothing leaks whoever is killed when:

1. *Claim*: rows in ``copying`` say which process copies a file; the segment that it owns is charged
   for a reservation before anything is written.
2. *Copy*: read the source, append to the own segment; no transaction is open meanwhile.
3. *Publish*: a row in ``staged``; the claim ends.
4. *Evict*: the row moves to ``going``; the blocks are given back; then the row is deleted and the
   charge is lowered in one transaction.
5. *Take over* from an owner that has ended: own its segment, finish what was going, give back what
   no row names while it is still charged, then charge what is left.

So the total of all charges, kept in the same transactions, is never below what lies on the disk.
A whole part of a mini-batch takes one transaction for each step.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from . import segments
from .extents import SMALL_BYTES, WHOLE, Extent, key_of, source_seed
from .generation import can_punch, discard, generation_of, index_path, make_generation
from .index import Cursor, Index, IndexBusyError, IndexDamagedError
from .localfiles import remove_left
from .segments import Segment, aligned
from .site import Run, Site

ResultT = TypeVar("ResultT")

#: A reservation is extended by at most so much at a time, and by this share of the capacity: what
#: a process has reserved and not used is lost to the others.
_PIECE_BYTES = 16 << 20
_PIECE_SHARE = 2048
_LEAST_BLOCK_BYTES = 4096
#: How long a row in ``wanted`` keeps others from evicting a file.
_WANTED_MS = 10_000
#: How often to look whether other runs use the store.
_LOOK_AFTER_SECONDS = 1.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_MOST_PARAMETERS = 256


class Wanted(NamedTuple):
    """A file to stage.

    Attributes:
        key: Its number, see :func:`~overlapiter.store.extents.key_of`.
        path: Its absolute path.
    """

    key: int
    path: str


class Found(NamedTuple):
    """A staged file as the index has it.

    Attributes:
        extent: Where it lies.
        is_verified: Whether it was staged since the node was booted; else its bytes may never have
            reached the disk.
    """

    extent: Extent
    is_verified: bool


class Claim(NamedTuple):
    """What :meth:`Store.claim` has found out.

    Attributes:
        mine: Keys of the files to copy.
        found: Files that are staged.
        others: Keys of the files that other processes are copying, each with its owner.
    """

    mine: list[int]
    found: dict[int, Found]
    others: dict[int, int]


class Place(NamedTuple):
    """Where the bytes of a file are to be written; ends with publishing or giving up.

    Attributes:
        segment: The segment; owned by this process.
        start: Where in it; WHOLE if the segment is for this file alone.
        size: Bytes that are charged, in whole blocks.
    """

    segment: Segment
    start: int
    size: int


class Store:
    """Staged files of one source root in one tier. Safe for threads, and for many processes.

    What the index or the disk cannot do raises OSError; if another process keeps the index locked
    for two seconds, every method raises :class:`IndexBusyError`, at once for a second. A damaged
    index is thrown away with its generation, and the next one is empty.

    Args:
        site: Where it lies.
        source: The source root: an absolute path, or a URL.
        run: Who uses it.
        tier: Its number in the extents.
        place: What tells source roots of one name apart, such as two servers.
        warn: Called with what the user should know.
    """

    def __init__(
        self,
        site: Site,
        source: str,
        run: Run,
        *,
        tier: int = 0,
        place: str = "",
        warn: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.site = site
        self.tier = tier
        self.source = source
        self.seed = source_seed(source, place)
        self._source_number = self.seed - (1 << 63)
        self._root_bytes = os.fsencode(os.path.join(source, ""))
        self._place = place
        self._run = run
        self._warn = warn
        self._lock = threading.RLock()  # of the own segment, and of opening
        self._index: Index | None = None
        self._generation = self._folder = ""
        self._segment: Segment | None = None  # appended to
        self._owner: Segment | None = None  # by which the claims of this process are known
        self._full: list[Segment] = []  # closed when nothing of them is pending
        self._pledged: set[int] = set()  # segments whose reservation is allocated by now
        self._block_bytes = _LEAST_BLOCK_BYTES
        self._boots = 0
        self._can_punch = True
        self._looked_seconds = 0.0
        self._was_alone = False
        self._n_wants = 0

    # --- opening ------------------------------------------------------------------------------

    def _opened(self) -> Index:
        """Return the index of the generation in use, which may have been thrown away meanwhile."""
        index = self._index
        if index is not None and index.is_current():
            return index
        with self._lock:
            index = self._index
            if index is None or not index.is_current():
                self._leave()
                index = self._index = self._open()
            return index

    def _open(self) -> Index:
        self._generation = make_generation(self.site.directory)
        self._folder = os.path.join(self._generation, "segments")
        disk = os.statvfs(self._folder)
        self._block_bytes = max(_LEAST_BLOCK_BYTES, disk.f_frsize)
        self._can_punch = can_punch(self._generation)
        index = Index(index_path(self._generation))
        try:
            self._owner = self._segment = Segment(self._folder, self._block_bytes)
            is_new_boot = index.write(self._enter)
            if is_new_boot:
                index.check()
        except BaseException:
            if self._owner is not None:
                self._owner.remove()
            self._owner = self._segment = None
            index.close()
            raise
        return index

    def _enter(self, cursor: Cursor) -> bool:
        """Note the boot, the source root, the run and the segment; return if the boot is new."""
        assert self._owner is not None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        facts = dict(cursor.execute("SELECT name, value FROM fact"))
        is_new_boot = bool(facts["boots"]) and facts["boot"] != boot
        if facts["boot"] != boot:
            facts["boots"] += 1
            cursor.execute("UPDATE fact SET value=? WHERE name='boot'", (boot,))
            cursor.execute("UPDATE fact SET value=? WHERE name='boots'", (facts["boots"],))
            cursor.execute("DELETE FROM wanted")
        self._boots = facts["boots"]
        cursor.execute(
            "INSERT OR IGNORE INTO source VALUES (?, ?, ?)",
            (self._source_number, self.source, self._place),
        )
        # A run whose prefetchers were all replaced may have been taken for one that has ended.
        cursor.execute(
            "INSERT INTO run(id, source, facts, started) VALUES (?, ?, ?, ?) "
            "ON CONFLICT(id) DO UPDATE SET ended=NULL, ending=NULL",
            (
                self._run.number,
                self._source_number,
                json.dumps(self._run.facts, default=str),
                time.time(),
            ),
        )
        _insert_segment(cursor, self._owner.number, 0, self._run.number)
        return is_new_boot

    def _leave(self) -> None:
        """Let go of a generation that is not in use any more."""
        if self._index is not None:
            self._index.close()
        for segment in self._own_segments():
            segment.close()
        self._index = self._segment = self._owner = None
        self._full.clear()
        self._pledged.clear()

    def _own_segments(self) -> list[Segment]:
        own = [*self._full, *filter(None, (self._segment, self._owner))]
        return list({segment.number: segment for segment in own}.values())

    def _read(self, work: Callable[[Cursor], ResultT]) -> ResultT:
        return self._mending(lambda index: index.read(work))

    def _write(self, work: Callable[[Cursor], ResultT]) -> ResultT:
        return self._mending(lambda index: index.write(work))

    def _mending(self, action: Callable[[Index], ResultT]) -> ResultT:
        """Return what ``action`` does on the index, on a new one if this one is damaged."""
        for is_last in (False, True):
            try:
                return action(self._opened())
            except IndexDamagedError as error:
                if is_last:
                    raise OSError(errno.EIO, f"the index cannot be made: {error}") from error
                self._throw_away(error)
        raise AssertionError

    def _throw_away(self, error: IndexDamagedError) -> None:
        with self._lock:
            generation = self._generation or generation_of(self.site.directory)
            index = self._index
            if index is None or index.is_current():  # else another thread or process has done it
                self._warn(
                    f"the index of {self.site.directory} is damaged ({error}): what was staged "
                    f"there is thrown away and staged again"
                )
                discard(generation)
            self._leave()

    # --- looking ------------------------------------------------------------------------------

    def key_of(self, path: str) -> int:
        """Return the key of a file below the source root, given by its absolute path."""
        return key_of(path, self.seed)

    def look(self, wanted: Sequence[Wanted]) -> dict[int, Found]:
        """Return what is staged of some files, valid or not, by their keys."""
        return self._read(lambda cursor: self._select(cursor, wanted))

    def _select(self, cursor: Cursor, wanted: Sequence[Wanted]) -> dict[int, Found]:
        found = {}
        columns = "key, segment, start, size, mtime, checksum, boot, path"
        rows = _select_by_key(cursor, f"SELECT {columns} FROM staged", [w.key for w in wanted])
        if rows:
            paths = {key: self._stored_path(path) for key, path in wanted}
            for key, segment, start, size, mtime, checksum, boot, path in rows:
                if paths[key] == path:  # else two paths have the same key: the later is not staged
                    extent = Extent(key, self.tier, segment, start, size, mtime, checksum)
                    found[key] = Found(extent, boot == self._boots)
        return found

    def _stored_path(self, path: str) -> bytes:
        return os.fsencode(path).removeprefix(self._root_bytes)

    def note_verified(self, keys: Iterable[int]) -> None:
        """Note that the bytes of files staged before the last boot are those that were copied."""
        rows = [(self._boots, key) for key in keys]
        statement = "UPDATE staged SET boot=? WHERE key=?"
        self._write(lambda cursor: cursor.executemany(statement, rows))

    # --- claiming -----------------------------------------------------------------------------

    def claim(
        self, wanted: Sequence[Wanted], outdated: Iterable[Extent] = (), expected_bytes: int = 0
    ) -> Claim:
        """Claim the files that no process has staged or is copying.

        Each file in ``mine`` is to be published or given up.

        Args:
            wanted: The files.
            outdated: Copies that are not valid any more; they are evicted.
            expected_bytes: What the files may take; reserved at once if there is room.
        """
        expected = {extent.key: extent for extent in outdated}
        going = self._mark(list(expected), expected)
        claim = self._mending(lambda index: self._claim(index, wanted, expected_bytes))
        self._finish(going)
        return claim

    def _claim(self, index: Index, wanted: Sequence[Wanted], expected_bytes: int) -> Claim:
        with self._lock:
            owner, segment = self._owned()
            wanted_bytes = charged_bytes = 0
            if expected_bytes and self._can_punch:
                left_bytes = segment.reserved - segment.end
                wanted_bytes = aligned(expected_bytes, self._block_bytes) - left_bytes

            def work(cursor: Cursor) -> Claim:
                nonlocal charged_bytes
                found = self._select(cursor, wanted)
                keys = [each.key for each in wanted if each.key not in found]
                others = dict(_select_by_key(cursor, "SELECT key, owner FROM copying", keys))
                mine = [key for key in keys if key not in others]
                rows = [(key, owner.number) for key in mine]
                cursor.executemany("INSERT INTO copying VALUES (?, ?)", rows)
                if wanted_bytes > 0 and mine:
                    charged_bytes = self._charge(cursor, segment.number, wanted_bytes)
                return Claim(mine, found, others)

            claim = index.write(work)
            if charged_bytes:
                self._extend(segment, charged_bytes)
        return claim

    def being_copied(self, keys: Sequence[int]) -> dict[int, int]:
        """Return those of some files that are being copied, each with its owner."""
        select = "SELECT key, owner FROM copying"
        rows = self._read(lambda cursor: _select_by_key(cursor, select, keys))
        return {key: owner for key, owner in rows}

    def is_copied(self, owner: int) -> bool:
        """Return whether the process that copies a file lives; see :attr:`Claim.others`."""
        return segments.is_owned(self._folder, owner)

    def progress(self, owner: int) -> tuple[int, int]:
        """Return what changes whenever the process that copies a file has written."""
        try:
            found = os.stat(f"{self._folder}/{owner:016x}")
        except FileNotFoundError:
            return 0, 0
        return found.st_size, found.st_mtime_ns

    # --- writing ------------------------------------------------------------------------------

    def place(self, size_bytes: int) -> Place | None:
        """Return where to write a claimed file; None if there is no room for it now.

        Raises:
            OSError: The disk failed.
        """
        if size_bytes > SMALL_BYTES or not self._can_punch:
            return self._place_whole(size_bytes)
        with self._lock:
            segment = self._segment
            if segment is None or segment.is_full:
                _, segment = self._owned()
            start = segment.place(size_bytes)
            if start is None:
                if not self._reserve(segment, aligned(size_bytes, self._block_bytes)):
                    return None
                start = segment.place(size_bytes)
            assert start is not None
            return Place(segment, start, aligned(size_bytes, self._block_bytes))

    def _owned(self) -> tuple[Segment, Segment]:
        """Return the segment by which this process is known, and the one that it appends to."""
        if self._segment is None:
            self._opened()
        assert self._owner is not None
        assert self._segment is not None
        if self._segment.is_full:
            self._full.append(self._segment)
            self._segment = self._new_segment(0)
            assert self._segment is not None
            self._retire()
        return self._owner, self._segment

    def _new_segment(self, charged_bytes: int) -> Segment | None:
        """Make a segment that is charged for so many bytes; None if there is no room for them."""
        segment = Segment(self._folder, self._block_bytes)
        number, run = segment.number, self._run.number

        def work(cursor: Cursor) -> bool:
            _insert_segment(cursor, number, 0, run)
            if not charged_bytes:
                return True
            return bool(self._charge(cursor, number, charged_bytes, least_bytes=charged_bytes))

        try:
            if self._write(work):
                return segment
            self._write(lambda cursor: _delete_segments(cursor, [number]))
        except BaseException:
            segment.remove()
            raise
        segment.remove()
        return None

    def _reserve(self, segment: Segment, needed_bytes: int) -> bool:
        """Extend the reservation of a segment by what is needed at least."""
        charged_bytes = self._write(
            lambda cursor: self._charge(
                cursor, segment.number, self._piece_bytes(needed_bytes), least_bytes=needed_bytes
            )
        )
        return bool(charged_bytes) and self._extend(segment, charged_bytes) >= needed_bytes

    def _piece_bytes(self, needed_bytes: int) -> int:
        most_bytes = _PIECE_BYTES
        if self.site.capacity_bytes is not None:
            most_bytes = min(most_bytes, self.site.capacity_bytes // _PIECE_SHARE)
        return max(needed_bytes, aligned(most_bytes, self._block_bytes))

    def _charge(
        self, cursor: Cursor, number: int, size_bytes: int, *, least_bytes: int | None = None
    ) -> int:
        """Charge a segment for more bytes, or for fewer if there is no room for all of them.

        Args:
            cursor: Of a transaction that writes.
            number: The segment.
            size_bytes: So many, in whole blocks.
            least_bytes: Fewer are of no use; None if none are needed.

        Returns:
            The bytes that it is charged for now in addition; 0 if there is no room.
        """
        (total,) = cursor.execute("SELECT value FROM fact WHERE name='total'").fetchone()
        spare_bytes = size_bytes
        if self.site.capacity_bytes is not None:
            spare_bytes = self.site.capacity_bytes - total
        spare_bytes = min(spare_bytes, self._spare_on_disk(cursor, size_bytes))
        granted_bytes = min(size_bytes, spare_bytes // self._block_bytes * self._block_bytes)
        if granted_bytes < (least_bytes or 1):
            return 0
        cursor.execute(
            "UPDATE segment SET charged=charged+?, pledged=pledged+? WHERE id=?",
            (granted_bytes, granted_bytes, number),
        )
        cursor.execute("UPDATE fact SET value=value+? WHERE name='total'", (granted_bytes,))
        return granted_bytes

    def _spare_on_disk(self, cursor: Cursor, size_bytes: int) -> int:
        """Return what the disk can give beside what is to be left free, and what was pledged.

        A reservation is pledged from the transaction that charges it until the disk has set the
        blocks aside: in between the disk does not know of it.
        """
        if not self.site.keep_free_bytes and not self.site.keep_free_inodes:
            return size_bytes
        disk = os.statvfs(self._folder)
        if disk.f_files and disk.f_favail <= self.site.keep_free_inodes:
            return 0
        (pledged,) = cursor.execute("SELECT COALESCE(SUM(pledged), 0) FROM segment").fetchone()
        if pledged and self._pledged:  # of these our own are set aside by now
            (own,) = cursor.execute(
                f"SELECT COALESCE(SUM(pledged), 0) FROM segment WHERE id IN "
                f"({','.join('?' * len(self._pledged))})",
                tuple(self._pledged),
            ).fetchone()
            pledged -= own
        return int(disk.f_bavail * disk.f_frsize - self.site.keep_free_bytes - pledged)

    def _extend(self, segment: Segment, size_bytes: int) -> int:
        """Have the disk set aside what was charged; return how many bytes it has."""
        try:
            segment.extend(size_bytes)
        except OSError as error:
            self._write(lambda cursor: _lower(cursor, {segment.number: size_bytes}))
            if error.errno not in _NO_ROOM:
                raise
            return 0
        self._pledged.add(segment.number)
        return size_bytes

    def _place_whole(self, size_bytes: int) -> Place | None:
        charged_bytes = aligned(size_bytes, self._block_bytes)
        with self._lock:
            self._opened()
            segment = self._new_segment(charged_bytes)
            if segment is None:
                return None
            if not self._extend(segment, charged_bytes):
                self._drop(segment)
                return None
        return Place(segment, WHOLE, charged_bytes)

    def _drop(self, segment: Segment) -> None:
        """Remove a segment that holds nothing."""
        segment.remove()
        self._pledged.discard(segment.number)
        self._write(lambda cursor: _delete_segments(cursor, [segment.number]))

    def publish(
        self, copies: Sequence[tuple[Wanted, Place, Extent]], failed: Sequence[int]
    ) -> None:
        """Make complete copies known, and give up the claims on other files.

        Args:
            copies: For each copy the file, the place where it was written, and its extent.
            failed: Keys of files that were claimed and not copied.
        """
        self._opened()
        copies = [copy for copy in copies if copy[1].segment.folder == self._folder]
        at = int(time.time())
        owner = self._owner.number if self._owner else 0
        rows = [
            (
                extent.key, self._source_number, self._stored_path(wanted.path), extent.segment,
                extent.start, extent.size, extent.mtime, extent.checksum, self._boots, at,
            )
            for wanted, _, extent in copies
        ]  # fmt: skip
        ended = [(key, owner) for key in (*(extent.key for _, _, extent in copies), *failed)]
        whole = [(extent.segment,) for _, _, extent in copies if extent.is_whole]
        pledged = [(number,) for number in self._pledged]

        def work(cursor: Cursor) -> None:
            cursor.executemany(f"INSERT OR REPLACE INTO staged VALUES ({'?,' * 9}?)", rows)
            cursor.executemany("DELETE FROM copying WHERE key=? AND owner=?", ended)
            cursor.executemany("UPDATE segment SET is_open=0 WHERE id=?", whole)
            cursor.executemany("UPDATE segment SET pledged=0 WHERE id=?", pledged)

        self._write(work)
        with self._lock:
            self._pledged.difference_update(number for (number,) in pledged)
            for _, place, _ in copies:
                self._settle(place)
            self._retire()

    def _settle(self, place: Place) -> None:
        """Take note that nothing is written at a place any more."""
        if place.start == WHOLE:
            place.segment.close()
        else:
            place.segment.n_pending -= 1

    def give_up(self, place: Place) -> None:
        """Give a place back at which no copy was completed."""
        with self._lock:
            if place.start == WHOLE:
                self._drop(place.segment)
                return
            segments.punch(self._folder, place.segment.number, [(place.start, place.size)])
            self._write(lambda cursor: _lower(cursor, {place.segment.number: place.size}))
            self._settle(place)

    def _retire(self) -> None:
        """Close the segments that are full, and of which nothing is pending."""
        for segment in [each for each in self._full if not each.n_pending]:
            self._full.remove(segment)
            if segment is not self._owner:
                self._close_segment(segment)

    def _close_segment(self, segment: Segment) -> None:
        surplus_bytes = segment.cut()

        def work(cursor: Cursor) -> list[int]:
            _lower(cursor, {segment.number: surplus_bytes})
            cursor.execute("UPDATE segment SET is_open=0, pledged=0 WHERE id=?", (segment.number,))
            return _delete_empty(cursor, [segment.number])

        for number in self._write(work):
            segments.remove(self._folder, number)
        self._pledged.discard(segment.number)
        segment.close()

    # --- evicting -----------------------------------------------------------------------------

    def evict(self, keys: Sequence[int]) -> dict[int, int]:
        """Evict files; return the bytes that the disk has back, for each key that was staged."""
        going = self._mark(keys)
        self._finish(going)
        return {key: aligned(extent.size, self._block_bytes) for key, extent in going.items()}

    def drop(self, extents: Iterable[Extent]) -> None:
        """Evict copies that are damaged, unless others have taken their places meanwhile."""
        expected = {extent.key: extent for extent in extents}
        self._finish(self._mark(list(expected), expected))

    def _mark(
        self, keys: Sequence[int], expected: Mapping[int, Extent] | None = None
    ) -> dict[int, Extent]:
        """Move rows from ``staged`` to ``going``, owned by this process; return their extents."""
        if not keys:
            return {}
        self._opened()
        assert self._owner is not None
        owner = self._owner.number

        def work(cursor: Cursor) -> dict[int, Extent]:
            found = _extents(cursor, keys, self.tier)
            if expected is not None:
                found = {key: e for key, e in found.items() if e == expected[key]}
            _move_to_going(cursor, list(found.values()), owner)
            return found

        try:
            return self._write(work)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
        # The log of the index cannot grow. The blocks go first: whoever reads them meanwhile
        # notices by the checksum.
        found = self._read(lambda cursor: _extents(cursor, keys, self.tier))
        self._give_back(found.values())
        return self._write(work)

    def _finish(self, going: Mapping[int, Extent]) -> None:
        """Give the blocks of evicted files back, then lower the charges."""
        if not going:
            return
        self._give_back(going.values())
        self._forget([(e.segment, e.start, e.size) for e in going.values()])

    def _give_back(self, extents: Iterable[Extent]) -> None:
        places: dict[int, list[tuple[int, int]]] = {}
        for extent in extents:
            if extent.is_whole:
                segments.remove(self._folder, extent.segment)
            else:
                size_bytes = aligned(extent.size, self._block_bytes)
                places.setdefault(extent.segment, []).append((extent.start, size_bytes))
        for number, holes in places.items():
            segments.punch(self._folder, number, holes)

    def _forget(self, gone: Sequence[tuple[int, int, int]]) -> None:
        """Delete rows of ``going`` whose blocks have been given back, and lower the charges.

        Args:
            gone: Segment, start and size of each.
        """
        lowered: dict[int, int] = {}
        for segment, _, size in gone:
            lowered[segment] = lowered.get(segment, 0) + aligned(size, self._block_bytes)

        def work(cursor: Cursor) -> list[int]:
            cursor.executemany(
                "DELETE FROM going WHERE segment=? AND start=?", [row[:2] for row in gone]
            )
            _lower(cursor, lowered)
            return _delete_empty(cursor, list(lowered))

        for number in self._write(work):
            segments.remove(self._folder, number)

    def strays(self, *, older_than_seconds: float, limit: int) -> list[int]:
        """Return keys of files of source roots that no run uses, in no order.

        Args:
            older_than_seconds: Only what was staged so long ago.
            limit: At most so many.
        """
        before = int(time.time() - older_than_seconds)
        statement = (
            "SELECT key FROM staged WHERE at <= ? AND source NOT IN "
            "(SELECT source FROM run WHERE ended IS NULL) LIMIT ?"
        )
        rows = self._read(lambda cursor: cursor.execute(statement, (before, limit)).fetchall())
        return [key for (key,) in rows]

    def excess_bytes(self) -> int:
        """Return by how much the capacity is exceeded, which was larger before."""
        if self.site.capacity_bytes is None:
            return 0
        return max(0, self.total_bytes() - self.site.capacity_bytes)

    def total_bytes(self) -> int:
        """Return the bytes that all segments are charged for."""
        statement = "SELECT value FROM fact WHERE name='total'"
        return int(self._read(lambda cursor: cursor.execute(statement).fetchone())[0])

    def can_ever_hold(self, size_bytes: int) -> bool:
        """Return whether a file would fit if nothing else were there."""
        disk = os.statvfs(self._folder or self.site.directory)
        most_bytes = disk.f_blocks * disk.f_frsize - self.site.keep_free_bytes
        if self.site.capacity_bytes is not None:
            most_bytes = min(most_bytes, self.site.capacity_bytes)
        return aligned(size_bytes, self._block_bytes) <= most_bytes

    # --- other runs ---------------------------------------------------------------------------

    def want(self, keys: Iterable[int]) -> None:
        """Keep other runs from evicting files for a moment; costs nothing if there are none."""
        if self._is_alone():
            return
        now_ms = time.monotonic_ns() // 1_000_000
        rows = [(key, self._run.number, now_ms + _WANTED_MS) for key in keys]
        self._n_wants += 1

        def work(cursor: Cursor) -> None:
            cursor.executemany("INSERT OR REPLACE INTO wanted VALUES (?, ?, ?)", rows)
            if self._n_wants % 64 == 0:
                cursor.execute("DELETE FROM wanted WHERE until < ?", (now_ms,))

        self._write(work)

    def wanted_by_others(self, keys: Sequence[int]) -> set[int]:
        """Return those of some files that other runs are about to read."""
        now_ms = time.monotonic_ns() // 1_000_000
        rows = self._read(
            lambda cursor: _select_by_key(cursor, "SELECT key, run, until FROM wanted", keys)
        )
        return {key for key, run, until in rows if run != self._run.number and until >= now_ms}

    def _is_alone(self) -> bool:
        now_seconds = time.monotonic()
        if now_seconds >= self._looked_seconds + _LOOK_AFTER_SECONDS:
            self._looked_seconds = now_seconds
            statement = "SELECT COUNT(*) FROM run WHERE ended IS NULL AND id != ?"
            number = self._run.number
            (n_others,) = self._read(lambda cursor: cursor.execute(statement, (number,)).fetchone())
            self._was_alone = not n_others
        return self._was_alone

    # --- the dead -----------------------------------------------------------------------------

    def take_over(self) -> int:
        """Mend what processes that have ended left half-done; return the bytes given back."""
        self._opened()
        own = {segment.number for segment in self._own_segments()}
        statement = "SELECT id FROM segment WHERE is_open=1"
        rows = self._read(lambda cursor: cursor.execute(statement).fetchall())
        dead: dict[int, int] = {}
        try:
            for (number,) in rows:
                if number not in own:
                    try:
                        fd = segments.seize(self._folder, number)
                    except FileNotFoundError:
                        fd = -1  # its rows are all that is left
                    if fd is not None:
                        dead[number] = fd
            return self._bury(dead) if dead else 0
        finally:
            for fd in dead.values():
                if fd >= 0:
                    os.close(fd)

    def _bury(self, dead: Mapping[int, int]) -> int:
        """Finish the evictions of dead owners, give back what no row names, charge what is left.

        Args:
            dead: Their segments, which this process has seized, and the descriptors.
        """
        numbers = [(number,) for number in dead]
        assert self._owner is not None
        owner = self._owner.number

        def adopt(cursor: Cursor) -> list[tuple[int, int, int]]:
            cursor.executemany("DELETE FROM copying WHERE owner=?", numbers)
            gone = [
                row
                for number in numbers
                for row in cursor.execute(
                    "SELECT segment, start, size FROM going WHERE owner=?", number
                )
            ]
            cursor.executemany(f"UPDATE going SET owner={owner} WHERE owner=?", numbers)
            return gone

        gone = self._write(adopt)
        self._give_back(Extent(0, 0, segment, start, size, 0, 0) for segment, start, size in gone)
        self._forget(gone)
        for number, fd in dead.items():
            if fd >= 0:
                self._give_back_gaps(number, fd)
        freed_bytes, empty = self._write(lambda cursor: self._charge_rest(cursor, list(dead)))
        for number in empty:
            segments.remove(self._folder, number)
        return freed_bytes

    def _give_back_gaps(self, number: int, fd: int) -> None:
        """Give back what no row names in the segment of a dead owner."""
        statement = "SELECT start, size FROM {} WHERE segment=?"
        places = self._read(
            lambda cursor: [
                row
                for table in ("staged", "going")
                for row in cursor.execute(statement.format(table), (number,))
            ]
        )
        if any(start == WHOLE for start, _ in places):
            return
        end, holes = 0, []
        for start, size in sorted(places):
            if start > end:
                holes.append((end, start - end))
            end = start + aligned(size, self._block_bytes)
        segments.punch(self._folder, number, holes)
        segments.cut(fd, end)

    def _charge_rest(self, cursor: Cursor, dead: list[int]) -> tuple[int, list[int]]:
        """Charge the segments of dead owners for what their rows name; return what that saves."""
        marks = ",".join("?" * len(dead))
        block = self._block_bytes
        rest = dict.fromkeys(dead, 0)
        for table in ("staged", "going"):
            for number, charged in cursor.execute(
                f"SELECT segment, SUM((size + {block - 1}) / {block} * {block}) FROM {table} "
                f"WHERE segment IN ({marks}) GROUP BY segment",
                dead,
            ):
                rest[number] += charged
        before = dict(
            cursor.execute(f"SELECT id, charged FROM segment WHERE id IN ({marks})", dead)
        )
        _lower(cursor, {number: before[number] - rest[number] for number in before})
        cursor.executemany(
            "UPDATE segment SET is_open=0, pledged=0 WHERE id=?", [(number,) for number in dead]
        )
        empty = _delete_empty(cursor, dead)
        cursor.execute(
            "UPDATE run SET ended=?, ending='killed' WHERE ended IS NULL AND id != ? "
            "AND id NOT IN (SELECT run FROM segment WHERE is_open=1)",
            (time.time(), self._run.number),
        )
        return sum(before.values()) - sum(rest[number] for number in before), empty

    def sweep(self) -> None:
        """Mend what dead processes have left, and remove the segments that no row names."""
        self.take_over()
        remove_left(self._generation)
        listed = segments.listed(self._folder)  # first: a row comes after its file
        rows = self._read(lambda cursor: cursor.execute("SELECT id FROM segment").fetchall())
        for number in listed.difference(number for (number,) in rows):
            if not segments.is_owned(self._folder, number):
                segments.remove(self._folder, number)

    # --- the end ------------------------------------------------------------------------------

    def record_end(self, ending: str, counters: Mapping[str, float]) -> None:
        """Note how the run has ended, and what it has done."""
        row = time.time(), ending, json.dumps(dict(counters)), self._run.number
        statement = "UPDATE run SET ended=?, ending=?, counters=? WHERE id=?"
        self._write(lambda cursor: cursor.execute(statement, row))

    def close(self) -> None:
        """Give back what is reserved, and close everything; what is done later opens it anew."""
        with self._lock:
            index = self._index
            if index is None:
                return
            try:
                if index.is_current():
                    owner = self._owner
                    for segment in self._own_segments():
                        if not segment.n_pending:
                            self._close_segment(segment)
                    if owner is not None:
                        index.write(
                            lambda cursor: cursor.execute(
                                "DELETE FROM copying WHERE owner=?", (owner.number,)
                            )
                        )
            except (OSError, IndexBusyError, IndexDamagedError):
                pass  # as if it had been killed: another process takes over
            finally:
                self._leave()


# --- statements -----------------------------------------------------------------------------------


def _select_by_key(cursor: Cursor, select: str, keys: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the rows of some keys; the number of different statements stays small."""
    rows: list[tuple[int, ...]] = []
    for first in range(0, len(keys), _MOST_PARAMETERS):
        piece = list(keys[first : first + _MOST_PARAMETERS])
        n_marks = 1 << (len(piece) - 1).bit_length()
        piece += piece[-1:] * (n_marks - len(piece))
        marks = ",".join("?" * n_marks)
        rows += cursor.execute(f"{select} WHERE key IN ({marks})", piece).fetchall()
    return rows


def _extents(cursor: Cursor, keys: Sequence[int], tier: int) -> dict[int, Extent]:
    select = "SELECT key, segment, start, size, mtime, checksum FROM staged"
    return {
        key: Extent(key, tier, *others) for key, *others in _select_by_key(cursor, select, keys)
    }


def _move_to_going(cursor: Cursor, extents: list[Extent], owner: int) -> None:
    rows = [(e.segment, e.start, e.size, owner) for e in extents]
    cursor.executemany("INSERT OR REPLACE INTO going VALUES (?, ?, ?, ?)", rows)
    cursor.executemany("DELETE FROM staged WHERE key=?", [(e.key,) for e in extents])


def _insert_segment(cursor: Cursor, number: int, charged_bytes: int, run: int) -> None:
    cursor.execute("INSERT INTO segment VALUES (?, ?, 0, ?, 1)", (number, charged_bytes, run))


def _lower(cursor: Cursor, lowered: Mapping[int, int]) -> None:
    """Lower the charges of segments, and with them the total."""
    cursor.executemany(
        "UPDATE segment SET charged=charged-? WHERE id=?",
        [(size_bytes, number) for number, size_bytes in lowered.items()],
    )
    cursor.execute("UPDATE fact SET value=value-? WHERE name='total'", (sum(lowered.values()),))


def _delete_segments(cursor: Cursor, numbers: list[int]) -> None:
    """Delete the rows of segments, whatever they are charged for."""
    for number in numbers:
        row = cursor.execute("SELECT charged FROM segment WHERE id=?", (number,)).fetchone()
        if row is not None:
            _lower(cursor, {number: row[0]})
            cursor.execute("DELETE FROM segment WHERE id=?", (number,))


def _delete_empty(cursor: Cursor, numbers: list[int]) -> list[int]:
    """Delete the rows of those segments that hold nothing and are not appended to; return them."""
    empty = [
        number
        for number in numbers
        if cursor.execute(
            "SELECT 1 FROM segment WHERE id=? AND is_open=0 AND charged<=0", (number,)
        ).fetchone()
    ]
    cursor.executemany("DELETE FROM segment WHERE id=?", [(number,) for number in empty])
    return empty
