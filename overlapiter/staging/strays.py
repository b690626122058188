"""Strays: staged files of source roots that no run uses. They make room for those that one does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

from overlapiter.staging import inventory
from overlapiter.staging.process_id import Life
from overlapiter.staging.records import present
from overlapiter.staging.store import Store

#: What was staged so lately may have been staged ahead of a job that is to come.
_YOUNG_SECONDS = 24 * 3600.0
#: How long it is left at a search that has found nothing more.
_PAUSE_SECONDS = 30.0
#: A run that begins is seen after so long.
_LOOK_AFTER_SECONDS = 1.0


class Strays:
    """The strays in the directory of a store. Safe for threads.

    Args:
        store: The store of this run, whose own source root is never searched.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._searches = {is_young: _Search(store, is_young=is_young) for is_young in (False, True)}

    def evict_one(self, *, is_young: bool) -> bool:
        """Remove a stray; return False if none is found. Walks the directory, so it may block.

        Args:
            is_young: Whether to remove one that was staged within the last day, or an older one.

        Raises:
            OSError: The disk failed.
        """
        with self._lock:
            while (entry := self._searches[is_young].next_entry()) is not None:
                if self._store.evict_entry(os.path.basename(entry.name), entry.folder_fd):
                    return True
        return False

    @property
    def may_find_more(self) -> bool:
        """Whether it is worth asking; not for a while after a search that has found nothing."""
        return not all(search.is_paused for search in self._searches.values())


class _Search:
    """A walk over the strays that goes on where it was left."""

    def __init__(self, store: Store, *, is_young: bool) -> None:
        self._store = store
        self._is_young = is_young
        self._walk: Iterator[inventory.Entry] = iter(())
        self._begin_at = self._look_at = 0.0
        self._used: set[str | None] = set()

    @property
    def is_paused(self) -> bool:
        """Whether all strays have been given lately."""
        return time.monotonic() < self._begin_at

    def next_entry(self) -> inventory.Entry | None:
        """Return a stray not returned before; begins anew some time after there was none."""
        if self.is_paused:
            return None
        entry = next(self._walk, None)
        if entry is None:
            self._walk = self._found()
            entry = next(self._walk, None)
        if entry is None:
            self._begin_at = time.monotonic() + _PAUSE_SECONDS
        return entry

    def _found(self) -> Iterator[inventory.Entry]:
        for sub in inventory.subdirectories(self._store.directory):
            for entry in inventory.entries(sub):
                if self._is_used(sub.source):
                    break
                is_young = time.time() - entry.found.st_ctime < _YOUNG_SECONDS
                if entry.kind is inventory.Kind.FILE and is_young == self._is_young:
                    yield entry

    def _is_used(self, source: str | None) -> bool:
        """Return whether a run uses a source root; one without its mark may be any."""
        if time.monotonic() >= self._look_at:
            self._used = {None, self._store.source, *_sources_in_use(self._store.directory)}
            self._look_at = time.monotonic() + _LOOK_AFTER_SECONDS
        return source in self._used


def _sources_in_use(directory: str) -> Iterator[str]:
    for run in present(directory):
        staging = run.facts.get("staging")
        source = staging.get("source") if isinstance(staging, dict) else None
        if run.owner.life() is not Life.ENDED and isinstance(source, str):
            yield source
