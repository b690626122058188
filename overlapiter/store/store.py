"""The store: staged files of one source root in one tier, shared by every process of the node.

The protocol, by which nothing leaks whichever process is killed when:

1. *Claim*: rows in ``copying`` say which process copies a file.
2. *Copy*: read the source, append to the own segment, which is charged for a reservation before; no
   transaction is open meanwhile.
3. *Publish*: a row in ``staged``; the claim ends.
4. *Evict*: the row moves to ``going``. Either another file of as many blocks is written to that
   place, and the row is deleted when it is published; or the blocks are given back, and then the
   row is deleted and the charge is lowered in one transaction.
5. *Take over* from an owner that has ended: finish what was going, give back what no row names
   while it is still charged, then charge what is left.

So the total of all charges, kept in the same transactions, is never below what lies on the disk.
A whole part of a mini-batch takes one transaction for each step. Nothing is forced to the disk:
what was staged before the last boot counts once its checksum has been verified.

A process that forks must never use a store, not even before the fork; see :mod:`.index`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from . import reclaim, segments
from .access import Access
from .extents import Extent, keys_of, source_seed
from .generation import clear, generation_of
from .index import Cursor, IndexDamagedError, StaleError
from .localfiles import remove_left
from .neighbours import Neighbours
from .opened import OpenGeneration
from .places import Place as Place
from .places import fill
from .site import Run, Site
from .tables import (
    Evicted,
    extent_of,
    insert,
    move_to_going,
    number_of,
    run_by_key,
    staged_extents,
    total_bytes,
)

ResultT = TypeVar("ResultT")

#: Runs that have ended and are remembered.
_MOST_RUNS = 500


class Wanted(NamedTuple):
    """A file to stage: its number (see :func:`.extents.key_of`) and its absolute path."""

    key: int
    path: str


class Found(NamedTuple):
    """A staged file as the index has it.

    It is verified if it was staged since the node was booted; else its bytes may never have reached
    the disk.
    """

    extent: Extent
    is_verified: bool


class Claim(NamedTuple):
    """Which files this process is to copy, which are staged, and the owners of the others."""

    mine: list[int]
    found: dict[int, Found]
    others: dict[int, int]


#: A complete copy: the file, where it was written, and its extent.
Written = tuple[Wanted, Place, Extent]


class Store:
    """Staged files of one source root in one tier. Safe for threads, and for many processes.

    What the index or the disk cannot do raises OSError; if another process keeps the index locked
    for two seconds, every method raises :class:`.IndexBusyError`, at once for a second. A damaged
    index is thrown away with its generation, and the next one is empty.

    Args:
        site: Where it lies.
        source: The source root: an absolute path, or a URL.
        run: Who uses it.
        tier: Its number in the extents.
        place: What tells source roots of one name apart, such as two servers.
        real: The source root without symbolic links; empty if it has none.
        warn: Called with what the user should know.
        note_gone: Called with the path of a generation that was open, once this process notices
            that a user has removed it, or that any process has thrown it away.

    Attributes:
        key_of: Gives the key of a file below the source root, by its absolute path.
        neighbours: The other runs that use it.
    """

    def __init__(
        self,
        site: Site,
        source: str,
        run: Run,
        *,
        tier: int = 0,
        place: str = "",
        real: str = "",
        warn: Callable[[str], None] = lambda _text: None,
        note_gone: Callable[[str], None] = lambda _generation: None,
    ) -> None:
        self.site = site
        self.tier = tier
        self.source = source
        self.key_of = keys_of(source, place, real)
        self._real = real or source
        self._source_number = source_seed(self._real, place) - (1 << 63)
        self._root_bytes = os.path.join(source, "").encode("utf-8", "surrogateescape")
        self._place = place
        self._run = run
        self._access = Access(site, run.number, self._introduce, warn, note_gone)
        self._on = self._access.on
        self.neighbours = Neighbours(self._access, run.number)

    def _introduce(self, cursor: Cursor) -> None:
        """Note the source root and the run."""
        source = self._source_number, os.fsencode(self._real), self._place
        cursor.execute("INSERT OR IGNORE INTO source VALUES (?, ?, ?)", source)
        facts = json.dumps(self._run.facts, default=str)
        cursor.execute(
            "DELETE FROM run WHERE id IN (SELECT id FROM run WHERE ended IS NOT NULL "
            "ORDER BY ended DESC LIMIT -1 OFFSET ?)",
            (_MOST_RUNS,),
        )
        # A run whose prefetchers were all replaced may have been taken for one that has ended. But
        # what a thread completes after the end of the run does not begin it again.
        cursor.execute(
            "INSERT INTO run(id, source, facts, started) VALUES (?, ?, ?, ?) "
            "ON CONFLICT(id) DO UPDATE SET ended=NULL, ending=NULL WHERE ending!='closed'",
            (self._run.number, self._source_number, facts, time.time()),
        )

    # --- looking ------------------------------------------------------------------------------

    def look(self, wanted: Sequence[Wanted]) -> dict[int, Found]:
        """Return what is staged of some files, valid or not, by their keys."""
        paths = self._stored_paths(wanted)

        def look(opened: OpenGeneration) -> dict[int, Found]:
            return opened.index.read(lambda cursor: self._select(cursor, paths, opened.boots))

        return self._on(look)

    def _stored_paths(self, wanted: Iterable[Wanted]) -> dict[int, bytes]:
        root = self._root_bytes
        return {
            key: path.encode("utf-8", "surrogateescape").removeprefix(root) for key, path in wanted
        }

    def _select(self, cursor: Cursor, paths: Mapping[int, bytes], boots: int) -> dict[int, Found]:
        """Return what is staged of some files; one of another path may have the same key."""
        found = {}
        columns = "key, segment, start, size, mtime, checksum, boot, path"
        for row in run_by_key(cursor, f"SELECT {columns} FROM staged WHERE key IN", [*paths]):
            extent = extent_of(row[:6], self.tier)
            if row[7] == paths[extent.key]:
                found[extent.key] = Found(extent, row[6] == boots)
        return found

    def files(self, keys: Sequence[int]) -> list[tuple[Wanted, Extent]]:
        """Return what is staged of some files, known by their keys alone."""
        columns = "key, segment, start, size, mtime, checksum, path"
        select = f"SELECT {columns} FROM staged WHERE key IN"

        def files(cursor: Cursor) -> list[tuple[Wanted, Extent]]:
            found = []
            for *numbers, name in run_by_key(cursor, select, keys):
                extent = extent_of(numbers, self.tier)
                if type(name) is not bytes:
                    raise IndexDamagedError(f"no path: {name!r}")
                path = (self._root_bytes + name).decode("utf-8", "surrogateescape")
                found.append((Wanted(extent.key, path), extent))
            return found

        return self._access.read(files)

    def note_verified(self, keys: Iterable[int]) -> None:
        """Note that the bytes of files staged before the last boot are those that were copied."""
        verified = list(keys)

        def note(opened: OpenGeneration) -> None:
            statement = f"UPDATE staged SET boot={opened.boots} WHERE key IN"
            opened.write(lambda cursor: run_by_key(cursor, statement, verified))

        self._on(note)

    # --- claiming -----------------------------------------------------------------------------

    def claim(self, wanted: Sequence[Wanted]) -> Claim:
        """Claim the files that no process has staged or is copying.

        Each file in ``mine`` is to be published or given up.
        """
        paths = self._stored_paths(wanted)

        def claim(opened: OpenGeneration) -> Claim:
            owner = opened.owner.number

            def work(cursor: Cursor) -> Claim:
                found = self._select(cursor, paths, opened.boots)
                others = self._select_copying(cursor, [key for key in paths if key not in found])
                mine = [key for key in paths if key not in found and key not in others]
                insert(cursor, "INSERT INTO copying", [(key, owner) for key in mine])
                return Claim(mine, found, others)

            return opened.write(work)

        return self._on(claim)

    def _select_copying(self, cursor: Cursor, keys: Sequence[int]) -> dict[int, int]:
        rows = run_by_key(cursor, "SELECT key, owner FROM copying WHERE key IN", keys)
        return {key: number_of((owner,)) for key, owner in rows}

    def being_copied(self, keys: Sequence[int]) -> dict[int, int]:
        """Return those of some files that are being copied, each with its owner."""
        return self._access.read(lambda cursor: self._select_copying(cursor, keys))

    def progress(self, owner: int) -> list[tuple[int, int]] | None:
        """Return what changes whenever the process that copies a file writes; None if it ended."""

        def progress(opened: OpenGeneration) -> list[tuple[int, int]] | None:
            if not segments.is_owned(opened.folder, owner):
                return None
            sizes_and_times = []
            # SQLite takes the index of open segments only where the statement says that it may.
            own = "SELECT id FROM segment WHERE owner=? AND owner > 0"
            for (number,) in opened.index.rows(own, owner):
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(segments.segment_path(opened.folder, number))
                    sizes_and_times.append((found.st_size, found.st_mtime_ns))
            return sizes_and_times

        return self._on(progress)

    # --- writing ------------------------------------------------------------------------------

    def places(self, sizes_bytes: Sequence[int]) -> list[Place]:
        """Return where to write the first ones of claimed files, as far as there is room now.

        One that is too large to share a segment ends them.
        """

        def places(opened: OpenGeneration) -> list[Place]:
            with opened.lock:  # no other thread is to take the room of the rest
                places = opened.places(sizes_bytes)
                left = sizes_bytes[len(places) :]
                if left and opened.has_vacant_for(left[0]):  # in places of other sizes
                    try:
                        reclaim.finish_vacant(opened)
                        places += opened.places(left)
                    except (OSError, IndexDamagedError, StaleError):
                        if not places:
                            raise
                        # Else they would be lost: the next call meets what is the matter.
            return places

        return self._on(places)

    def publish(
        self,
        copies: Sequence[Written],
        failed: Sequence[int],
        *,
        is_moved: bool = False,
    ) -> bool:
        """Make complete copies known, and give up the claims on other files.

        If it raises, the copies are given up, and so are the claims.

        Args:
            copies: No file twice.
            failed: Keys of files that were claimed and not copied.
            is_moved: Whether they come from another tier. Since when they are staged is not kept
                then: other nodes compare them with their sources.

        Returns:
            Whether they are known; not if their generation was thrown away meanwhile.
        """
        ended = [*(wanted.key for wanted, _, _ in copies), *failed]
        paths = self._stored_paths(wanted for wanted, _, _ in copies)
        is_published = False
        try:
            is_published = self._on(
                lambda opened: self._publish(opened, copies, paths, ended, is_moved=is_moved)
            )
        finally:
            if not is_published:
                for _, place, _ in copies:
                    with contextlib.suppress(OSError):  # charged until it is closed
                        self.give_up(place)
        return is_published

    def _publish(
        self,
        opened: OpenGeneration,
        copies: Sequence[Written],
        paths: Mapping[int, bytes],
        ended: Sequence[int],
        *,
        is_moved: bool,
    ) -> bool:
        """Publish copies; return False if their generation was thrown away meanwhile."""
        places = [place for _, place, _ in copies]
        is_here = all(map(opened.is_here, places))
        now = int(time.time())
        rows = [
            (
                extent.key, self._source_number, paths[extent.key], extent.segment,
                extent.start, extent.size, extent.mtime, extent.checksum, opened.boots,
                0 if is_moved else now, now,
            )
            for _, _, extent in copies
        ]  # fmt: skip
        whole = [(extent.segment,) for _, _, extent in copies if extent.is_whole]

        def work(cursor: Cursor) -> list[Evicted]:
            if not is_here:
                return []
            fill(cursor, places, opened.owner.number)
            into = "INSERT OR IGNORE INTO staged"
            going: list[Evicted] = []
            if insert(cursor, into, rows) < len(rows):  # some were staged, or have such a key
                here = staged_extents(cursor, [*paths], self.tier)
                replaced = [old for _, _, e in copies if (old := here.get(e.key)) not in (e, None)]
                owner, block_bytes = opened.owner.number, opened.block_bytes
                going = move_to_going(cursor, replaced, owner, block_bytes)
                insert(cursor, into, rows)
            cursor.executemany("UPDATE segment SET owner=0, pledged=0 WHERE id=?", whole)
            return going

        going = opened.write(work, ended)
        if is_here:
            opened.settle(places, is_published=True)
            # The copies are known: what is wrong elsewhere, the next call meets and raises.
            with contextlib.suppress(IndexDamagedError, StaleError):
                reclaim.finish_later(opened, going)
        return is_here

    def give_up(self, place: Place) -> None:
        """Give a place back at which no copy was completed."""
        place.give_up(place)

    # --- evicting -----------------------------------------------------------------------------

    def evict(self, keys: Sequence[int], *, keep_room: bool = False) -> dict[int, int]:
        """Evict files, as :func:`.reclaim.evict` does."""
        return self._on(lambda opened: reclaim.evict(opened, keys, self.tier, keep_room=keep_room))

    def drop(self, extents: Iterable[Extent]) -> None:
        """Evict copies that are damaged, unless others have taken their places meanwhile."""
        expected = {extent.key: extent for extent in extents}
        if expected:
            self._on(lambda opened: reclaim.evict(opened, [*expected], self.tier, expected))

    def excess_bytes(self) -> int:
        """Return by how much the capacity is exceeded, which was larger before."""
        if self.site.capacity_bytes is None:
            return 0
        most_bytes = self.site.capacity_bytes
        excess_bytes = self.total_bytes() - most_bytes
        if excess_bytes > 0:
            self._on(reclaim.finish_vacant)
            excess_bytes = self.total_bytes() - most_bytes
        return max(0, excess_bytes)

    def total_bytes(self) -> int:
        """Return the bytes that all segments are charged for."""
        return self._access.read(total_bytes)

    def can_ever_hold(self, size_bytes: int) -> bool:
        """Return whether a file would fit if nothing else were there."""
        return self._on(lambda opened: opened.limits.can_ever_hold(size_bytes))

    # --- the dead -----------------------------------------------------------------------------

    def take_over(self) -> int:
        """Mend what processes that have ended left half-done; return the bytes given back."""
        return self._on(reclaim.take_over)

    def sweep(self) -> None:
        """Mend what dead processes have left, and remove what neither a row nor a process has."""
        self._on(reclaim.sweep)
        clear(self.site.directory)
        remove_left(generation_of(self.site.directory))

    # --- the end ------------------------------------------------------------------------------

    def record_end(self, ending: str, counters: Mapping[str, float]) -> None:
        """Note how the run has ended, and what it has done."""
        row = time.time(), ending, json.dumps(dict(counters)), self._run.number
        statement = "UPDATE run SET ended=?, ending=?, counters=? WHERE id=?"
        self._access.write(lambda cursor: cursor.execute(statement, row))

    def rest(self) -> None:
        """Give back what is reserved, evicted or claimed in vain, until more is staged."""

        def rest(opened: OpenGeneration) -> None:
            opened.rest()
            reclaim.finish_vacant(opened)

        if self._access.is_open:
            self._on(rest)

    def close(self, *, is_last: bool = False) -> None:
        """Give back what is reserved, and close everything.

        What is done later opens it anew, or fails if this close is the last. What cannot be given
        back, other processes take over.
        """
        self._access.close(is_last=is_last)
