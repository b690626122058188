"""Other runs of a store: which there are, what they are about to read, what none of them uses."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence

from .access import Access
from .index import Cursor
from .tables import LEAST_KEY, insert, run_by_key

#: How long a row in ``wanted`` keeps others from evicting a file.
_WANTED_MS = 10_000
#: How often to look whether other runs use the store.
_LOOK_AFTER_SECONDS = 1.0
#: Source roots without a run; what of them was not staged between two times; and of one of them.
_UNUSED = "SELECT id FROM source WHERE id NOT IN (SELECT source FROM run WHERE ended IS NULL)"
_STRAYS = f"FROM staged WHERE at NOT BETWEEN ? AND ? AND source IN ({_UNUSED})"
_STRAYS_OF_ROOT = f"SELECT key {_STRAYS} AND source=? AND key > ? ORDER BY key LIMIT ?"
_LAST_RUN = "SELECT MAX(ended) FROM run WHERE run.source=source.id"
_ROOTS_OF_STRAYS = (
    f"SELECT id FROM source WHERE id IN (SELECT source {_STRAYS}) ORDER BY ({_LAST_RUN}), id"
)


class Neighbours:
    """The other runs of a store; ``run`` is the number of this one."""

    def __init__(self, access: Access, run: int) -> None:
        self._access = access
        self._run = run
        self._looked_seconds = 0.0
        self._was_alone = False
        self._n_wants = 0
        self._age_seconds = 0.0  # of the last search for strays
        self._roots: list[int] = []  # that have some still
        self._last_stray = LEAST_KEY

    def strays(self, *, older_than_seconds: float, limit: int) -> list[int]:
        """Return keys of some files of source roots that no run uses, staged so long ago.

        They are of one root, at first of that whose last run ended first: so segments become empty,
        where some files of each root would leave many nearly so. What was staged later than now,
        before the clock was set back, counts as staged long ago. A search goes on where the last
        one has ended, or begins again if there is nothing after it.
        """
        rows = self._access.rows
        if not rows(f"{_UNUSED} LIMIT 1"):
            return []  # without a look at all that is staged
        now = int(time.time())
        young = int(now - older_than_seconds) + 1, now
        if older_than_seconds != self._age_seconds:
            self._age_seconds, self._roots, self._last_stray = older_than_seconds, [], LEAST_KEY
        keys = self._next_strays(young, limit)
        if not keys:
            self._roots = [root for (root,) in rows(_ROOTS_OF_STRAYS, *young)]
            keys = self._next_strays(young, limit)
        if not keys and older_than_seconds == 0:
            with contextlib.suppress(OSError):  # the next search tries it again
                self._access.write(_forget_empty)
        return keys

    def _next_strays(self, young: tuple[int, int], limit: int) -> list[int]:
        while self._roots:
            # Not from the start each time: once those there have gone, it is full of others.
            after = self._roots[0], self._last_stray
            found = self._access.rows(_STRAYS_OF_ROOT, *young, *after, limit)
            if found:
                (self._last_stray,) = found[-1]
                return [key for (key,) in found]
            del self._roots[0]
            self._last_stray = LEAST_KEY
        return []

    def want(self, keys: Iterable[int]) -> None:
        """Keep other runs from evicting files for a moment; costs nothing if there are none."""
        if self.is_alone():
            return
        now_ms = time.monotonic_ns() // 1_000_000
        rows = [(key, self._run, now_ms + _WANTED_MS) for key in keys]
        self._n_wants += 1
        is_due = self._n_wants % 64 == 1  # the first one, too: many runs are short

        def work(cursor: Cursor) -> None:
            insert(cursor, "INSERT OR REPLACE INTO wanted", rows)
            if is_due:
                cursor.execute("DELETE FROM wanted WHERE until < ?", (now_ms,))

        self._access.write(work)

    def wanted_by_others(self, keys: Sequence[int]) -> set[int]:
        """Return those of some files that other runs are about to read."""
        now_ms = time.monotonic_ns() // 1_000_000
        rows = self._access.read(
            lambda c: run_by_key(c, "SELECT key, run, until FROM wanted WHERE key IN", keys)
        )
        return {key for key, run, until in rows if run != self._run and until >= now_ms}

    def is_alone(self) -> bool:
        """Return whether there were no other runs when that was looked at, within a second."""
        now_seconds = time.monotonic()
        if now_seconds >= self._looked_seconds + _LOOK_AFTER_SECONDS:
            self._looked_seconds = now_seconds
            statement = "SELECT 1 FROM run WHERE ended IS NULL AND id != ? LIMIT 1"
            self._was_alone = not self._access.rows(statement, self._run)
        return self._was_alone


def _forget_empty(cursor: Cursor) -> None:
    """Forget the source roots of which nothing is staged, nor may be by a process there is."""
    cursor.execute(
        "DELETE FROM source WHERE id IN (SELECT id FROM source WHERE id NOT IN (SELECT source "
        "FROM run WHERE ended IS NULL OR id IN (SELECT run FROM segment WHERE owner > 0)) "
        "EXCEPT SELECT source FROM staged)"
    )
