"""What the index of a staging directory says, for commands that look at it.

Nothing is written but by :meth:`Inventory.recount`: no segment is owned and no run is noted. Nor
does a transaction outlive a call: a listing is copied into memory and handed out from there, so
that a command whose output is not read holds up no checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import segments
from .extents import Extent
from .generation import generation_of, index_path, segments_of
from .index import Cursor, Index
from .limits import block_bytes_of
from .tables import in_blocks, lower, surpluses, total_bytes

#: What JSON gives for an object.
Facts = dict[str, Any]

_PAGE_ROWS = 1024
#: In which order files are listed. The files of roots that no run uses are the first to evict.
_ORDERS = {
    "path": "(SELECT root FROM source WHERE id = staged.source), path",
    "place": "segment, start",
    "age": "source IN (SELECT source FROM run WHERE ended IS NULL), used, key",
}
#: The condition that a file is of a chosen root, and matches one of its two patterns.
_IS_CHOSEN = (
    "EXISTS (SELECT * FROM temp.chosen WHERE id = staged.source AND (CAST(path AS TEXT) GLOB name "
    "OR CAST(path AS TEXT) GLOB folder))"
)


class Source(NamedTuple):
    """A source root of which files are, or were, staged; ``number`` is how rows name it."""

    number: int
    root: str
    place: str

    @property
    def seed(self) -> int:
        """What :func:`~overlapiter.store.extents.key_of` takes."""
        return self.number + (1 << 63)


class StagedFile(NamedTuple):
    """A staged file: its source root, its path below that, its copy, and when it was made."""

    source: Source
    name: str
    extent: Extent
    staged_seconds: int

    @property
    def path(self) -> str:
        """The path of the source file."""
        return os.path.join(self.source.root, self.name)


class Accounts(NamedTuple):
    """What the segments are charged for, and what lies on the disk."""

    total_bytes: int  # what the capacity is compared with
    charged_bytes: int  # the sum of what all segments are charged for
    disk_bytes: int  # what they take
    n_miscounted: int  # closed segments that are charged for other bytes than those of their files
    n_left: int  # segments that processes which were killed have left open, or without a row

    @property
    def is_right(self) -> bool:
        """Whether the counts agree."""
        return self.total_bytes == self.charged_bytes and not self.n_miscounted


class Listing:
    """Staged files that were chosen, in order. Valid until the inventory lists others.

    There are ``n_files``, which take ``size_bytes``, each whole blocks of the disk.
    """

    def __init__(self, inventory: Inventory, sources: Mapping[int, Source]) -> None:
        self._inventory = inventory
        self._sources = sources
        blocks = in_blocks("size", inventory.block_bytes)
        statement = f"SELECT COUNT(*), COALESCE(SUM({blocks}), 0) FROM temp.listing"
        ((self.n_files, self.size_bytes),) = inventory.select(statement)

    def __iter__(self) -> Iterator[StagedFile]:
        """Give the files."""
        last = 0
        statement = f"SELECT rowid, * FROM temp.listing WHERE rowid > ? LIMIT {_PAGE_ROWS}"
        while rows := self._inventory.select(statement, last):
            for _, source, path, key, *place, at in rows:
                extent = Extent(key, 0, *place)
                yield StagedFile(self._sources[source], os.fsdecode(path), extent, at)
            last = rows[-1][0]


class Inventory:
    """Looks into the index of the generation in use of a staging directory. To be closed.

    Attributes:
        folder: The folder of the segments.
        block_bytes: Files take multiples of it.
        is_read_only: Whether nothing can be written there.
        is_copy: Whether this looks into a copy, since the disk is full or nothing can be written.

    Raises:
        FileNotFoundError: Nothing was ever staged there.
        OSError, IndexDamagedError: As :class:`.Index`.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        generation = generation_of(directory)
        self.folder, path = segments_of(generation), index_path(generation)
        os.stat(path)  # else it would be made
        disk = os.statvfs(directory)
        self.block_bytes = block_bytes_of(disk)
        self.is_read_only = not all(os.access(p, os.W_OK) for p in (path, os.path.dirname(path)))
        self.is_copy = False
        with contextlib.ExitStack() as stack:
            try:
                self._index = Index(path)
            except OSError:
                self.is_copy = self.is_read_only or not disk.f_bavail
                if not self.is_copy:
                    raise
                self._index = Index(_copy_of(path, stack))
            stack.callback(self._index.close)
            self.close = stack.pop_all().close
        self.check = self._index.check
        self.select = self._index.rows

    def sources(self) -> list[Source]:
        """Return the source roots of which files are, or were, staged."""
        rows = self.select("SELECT * FROM source ORDER BY root, place")
        return [Source(number, os.fsdecode(root), place) for number, root, place in rows]

    def holdings(self) -> list[Facts]:
        """Return how much is staged of each source root, those without any file left out."""
        statement = (
            "SELECT root, place, COUNT(*), SUM(size) FROM staged "
            "JOIN source ON source.id=staged.source GROUP BY staged.source ORDER BY root, place"
        )
        names = ("source", "place", "n_files", "size_bytes")
        rows = [(os.fsdecode(root), *others) for root, *others in self.select(statement)]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def files(
        self,
        sources: Sequence[Source],
        *,
        pattern: str = "*",
        staged_before: float = 1e12,
        keys: Sequence[int] | None = None,
        order: str = "path",
    ) -> Listing:
        """List the staged files of some roots, of these the ones that meet all conditions.

        Args:
            sources: The roots.
            pattern: Of names or paths, with ``*``, ``?`` and ``[]``; a folder stands for all in it.
            staged_before: Seconds since the epoch.
            keys: Of files.
            order: ``"path"``, ``"place"`` on the disk, or ``"age"``, the first to evict first.
        """
        where = f"at <= ? AND {_IS_CHOSEN}"
        if keys is not None:
            where += " AND key IN (SELECT key FROM temp.asked)"
        chosen = []
        for source in sources:
            root = os.path.join(source.root, "")
            is_root = os.path.join(pattern, "") == root
            below = "*" if is_root else pattern.removeprefix(root).rstrip("/")
            chosen.append((source.number, os.fsencode(below), os.fsencode(f"{below}/*")))

        def work(cursor: Cursor) -> None:
            cursor.execute("DROP TABLE IF EXISTS temp.listing")
            cursor.execute("DROP TABLE IF EXISTS temp.chosen")
            cursor.execute("CREATE TEMP TABLE chosen (id INTEGER PRIMARY KEY, name, folder)")
            insert = "INSERT INTO temp.chosen VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT))"
            cursor.executemany(insert, chosen)
            cursor.execute("CREATE TEMP TABLE IF NOT EXISTS asked (key INTEGER PRIMARY KEY)")
            cursor.execute("DELETE FROM temp.asked")
            cursor.executemany("INSERT OR IGNORE INTO temp.asked VALUES (?)", zip(keys or ()))
            cursor.execute(
                f"CREATE TEMP TABLE listing AS SELECT source, path, key, segment, start, size, "
                f"mtime, checksum, at FROM staged WHERE {where} ORDER BY {_ORDERS[order]}",
                [staged_before],
            )

        self._index.read(work)
        return Listing(self, {source.number: source for source in sources})

    # --- runs and segments --------------------------------------------------------------------

    def runs(self, n_ended: int) -> list[Facts]:
        """Return the runs that have not ended, and the last ones that have, the latest first.

        Each has what it said of itself, and besides ``started_seconds``, ``ended_seconds`` (None
        unless it has), ``end`` (how it ended; ``"running"``, or ``"killed"`` if none of its
        processes lives) and ``counters``.
        """
        rows = self.select(
            "SELECT * FROM run WHERE ended IS NULL UNION ALL SELECT * FROM "
            "(SELECT * FROM run WHERE ended IS NOT NULL ORDER BY ended DESC LIMIT ?)",
            n_ended,
        )
        owners = self.select("SELECT DISTINCT run, owner FROM segment WHERE owner > 0")
        living = {run for run, owner in owners if segments.is_owned(self.folder, owner)}
        return [
            {
                **_parsed(facts),
                "started_seconds": started,
                "ended_seconds": ended,
                "end": end or ("running" if run in living else "killed"),
                "counters": _parsed(counters),
            }
            for run, _, facts, started, _, ended, end, counters in rows
        ]

    def total_bytes(self) -> int:
        """Return what the capacity is compared with."""
        return self._index.read(total_bytes)

    def accounts(self) -> Accounts:
        """Compare what is charged with what is there."""
        n_left = len(self._left() & self._left())  # segments come and go meanwhile
        disk_bytes = 0
        for number in segments.listed(self.folder):
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                disk_bytes += os.stat(segments.segment_path(self.folder, number)).st_blocks * 512
        ((total, charged),) = self.select(
            "SELECT (SELECT value FROM fact WHERE name='total'), COALESCE(SUM(charged), 0) "
            "FROM segment"
        )
        surplus = self._index.read(lambda cursor: surpluses(cursor, self.block_bytes))
        n_miscounted = sum(map(bool, surplus.values()))
        return Accounts(total, charged, disk_bytes, n_miscounted, n_left)

    def _left(self) -> set[int]:
        """Return the segments of processes that were killed."""
        owners = dict.fromkeys(segments.listed(self.folder), -1)  # first: a row comes after it
        owners.update(self.select("SELECT id, owner FROM segment"))
        return {
            number
            for number, owner in owners.items()
            if owner and not segments.is_owned(self.folder, owner if owner > 0 else number)
        }

    def recount(self) -> None:
        """Charge closed segments for the files that they hold.

        The total is right afterwards: who opens a store to change it counts it anew.
        """
        self._index.write(lambda cursor: lower(cursor, surpluses(cursor, self.block_bytes)))


def _copy_of(path: str, stack: contextlib.ExitStack) -> str:
    """Copy an index that lacks the room for what its processes share, until the stack unwinds."""
    ram = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="overlapiter.", dir=ram))
    copy = os.path.join(folder, os.path.basename(path))
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(path + suffix, copy + suffix)
    return copy


def _parsed(text: str | None) -> Facts:
    """Return an object of JSON; an empty one if it is none."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
