"""What a server looks up: where the staged files of this job's source root lie. Reads only.

A process that forks must never use it; see :mod:`overlapiter.store.index`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from overlapiter.store.extents import Extent, keys_of, source_seed
from overlapiter.store.generation import generation_of, index_path, segment_path, segments_of
from overlapiter.store.index import Cursor, Index, IndexBusyError, IndexDamagedError, StaleError
from overlapiter.store.site import Site
from overlapiter.store.tables import extent_of, run_by_key

#: That it cannot be looked up now; the node that asked reads the source instead.
_FAILURES = (OSError, IndexBusyError, IndexDamagedError, StaleError)
Row = tuple[Any, ...]
_COLUMNS = "key, segment, start, size, mtime, checksum, at, path"


class Entry(NamedTuple):
    """A staged file.

    Attributes:
        extent: Where it lies.
        path: The path of its segment.
        at: When it was staged, in seconds.
    """

    extent: Extent
    path: str
    at: int


class Catalogue:
    """Finds staged files by their paths below the source root.

    Args:
        sites: The tiers, the fastest first.
        source: The source root.
        real: The same without symbolic links; empty for a URL.
        place: What tells source roots of one name apart.
    """

    def __init__(self, sites: Sequence[Site], source: str, real: str, place: str) -> None:
        self._directories = [site.directory for site in sites]
        self._root = os.path.join(source, "")
        self._key_of = keys_of(source, place, real)
        self._source_number = source_seed(real or source, place) - (1 << 63)
        self._open: list[tuple[str, Index] | None] = [None] * len(sites)

    def look(self, names: Sequence[bytes]) -> tuple[dict[bytes, Entry], set[bytes]]:
        """Return the staged ones of some files, and those that are being copied."""
        keys = {}
        for name in names:
            path = self._root + name.decode("utf-8", "surrogateescape")
            keys[self._key_of(path)] = name
        found: dict[bytes, Entry] = {}
        coming: set[bytes] = set()
        for tier in range(len(self._directories)):
            left = [key for key, name in keys.items() if name not in found]
            if left:
                try:
                    self._look_in(tier, left, keys, found, coming)
                except _FAILURES:
                    self._close(tier)
        return found, coming

    def _look_in(
        self,
        tier: int,
        left: Sequence[int],
        names: dict[int, bytes],
        found: dict[bytes, Entry],
        coming: set[bytes],
    ) -> None:
        opened = self._opened(tier)
        if opened is None:
            return
        generation, index = opened

        def select(cursor: Cursor) -> tuple[list[Row], list[Row]]:
            statement = (
                f"SELECT {_COLUMNS} FROM staged WHERE source={self._source_number} AND key IN"
            )
            rows = run_by_key(cursor, statement, left)
            if len(rows) == len(left):
                return rows, []
            return rows, run_by_key(cursor, "SELECT key FROM copying WHERE key IN", left)

        rows, copying = index.read(select)
        folder = segments_of(generation)
        for row in rows:
            if row[7] == names[row[0]]:  # else another file that has this key
                extent = extent_of(row[:6], tier)
                path = segment_path(folder, extent.segment)
                found[names[row[0]]] = Entry(extent, path, int(row[6]))
        coming.update(names[key] for (key,) in copying if names[key] not in found)

    def _opened(self, tier: int) -> tuple[str, Index] | None:
        """Return the generation in use and its index; None if there is none."""
        opened = self._open[tier]
        if opened is not None and opened[1].is_current():
            return opened
        self._close(tier)
        generation = generation_of(self._directories[tier])
        path = index_path(generation)
        if os.path.exists(path):
            self._open[tier] = generation, Index(path)
        return self._open[tier]

    def _close(self, tier: int) -> None:
        opened, self._open[tier] = self._open[tier], None
        if opened is not None:
            opened[1].close()
