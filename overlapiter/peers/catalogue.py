"""What a server looks up: where the staged files of this job's source root lie. Reads only.

A process that forks must never use it; see :mod:`overlapiter.store.index`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from overlapiter.store.extents import key_of_bytes, source_seed
from overlapiter.store.generation import generation_of, index_path, segments_of
from overlapiter.store.index import Index, IndexDamagedError, Patience, StaleError
from overlapiter.store.segments import segment_path
from overlapiter.store.site import Site
from overlapiter.store.tables import run_by_key

_COLUMNS = "path, segment, start, size, mtime, checksum, CAST(at AS INTEGER)"


#: Where a staged file lies: the path of its segment, where its bytes begin there (WHOLE if they are
#: all of it), how many they are, mtime and checksum as in its extent, and when it was staged, in
#: seconds. One is made for each file that is asked for, so it is no class of its own.
Entry = tuple[str, int, int, int, int, int]


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
        self._root = os.path.join(real or source, "").encode("utf-8", "surrogateescape")
        self._seed = source_seed(real or source, place)
        self._source_number = self._seed - (1 << 63)
        self._open: dict[int, tuple[str, Index]] = {}  # by tier: the folder of its segments
        self._patience = [Patience() for _ in sites]

    def look(self, names: Sequence[bytes]) -> dict[bytes, Entry]:
        """Return the staged ones of some files; what cannot be looked up now is not among them."""
        keys = {key_of_bytes(self._root + name, self._seed): name for name in names}
        found: dict[bytes, Entry] = {}
        for tier in range(len(self._directories)):
            left = {key: name for key, name in keys.items() if name not in found}
            try:
                found |= self._look_in(tier, left) if left else {}
            except (OSError, IndexDamagedError, StaleError):
                self._close(tier)
        return found

    def _look_in(self, tier: int, names: dict[int, bytes]) -> dict[bytes, Entry]:
        opened = self._opened(tier)
        if opened is None:
            return {}
        folder, index = opened
        statement = f"SELECT {_COLUMNS} FROM staged WHERE source={self._source_number} AND key IN"
        rows = index.read(lambda cursor: run_by_key(cursor, statement, [*names]))
        if not {type(value) for row in rows for value in row[1:]} <= {int}:
            raise IndexDamagedError("a row has something else than numbers")
        paths = {segment: segment_path(folder, segment) for segment in {row[1] for row in rows}}
        asked = {*names.values()}
        return {
            path: (paths[segment], start, size, mtime, checksum, at)
            for path, segment, start, size, mtime, checksum, at in rows
            if path in asked  # else another file that has this key
        }

    def _opened(self, tier: int) -> tuple[str, Index] | None:
        """Return the segments and the index of the generation in use; None if there is none."""
        if tier not in self._open or not self._open[tier][1].is_current():
            self._close(tier)
            generation = generation_of(self._directories[tier])
            path = index_path(generation)
            if os.path.exists(path):
                self._open[tier] = segments_of(generation), Index(path, self._patience[tier])
        return self._open.get(tier)

    def close(self) -> None:
        """Close the indexes; a look opens those in use again."""
        for tier in [*self._open]:
            self._close(tier)

    def _close(self, tier: int) -> None:
        if tier in self._open:
            self._open.pop(tier)[1].close()
