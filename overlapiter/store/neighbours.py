"""Other runs of a store: which there are, what they are about to read, what none of them uses."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence

from .access import Access
from .index import Cursor
from .tables import LEAST_KEY, insert, run_by_key

#: Files that were staged, or compared, so lately may be meant for a job that has not begun.
DAY_SECONDS = 24 * 3600
#: How long a row in ``wanted`` keeps others from evicting a file.
_WANTED_MS = 10_000
#: How often to look whether other runs use the store.
_LOOK_AFTER_SECONDS = 1.0
#: Of each source root, those that no run uses first, of these the one whose last run ended first.
_ROOTS = (
    "SELECT id FROM source ORDER BY EXISTS (SELECT 1 FROM run WHERE source=source.id AND ended IS "
    "NULL), (SELECT MAX(ended) FROM run WHERE source=source.id), id"
)
#: When the first of the runs of a root began; whether they all have looked at all their examples.
_RUNS = "SELECT MIN(started), MIN(has_seen_all) FROM run WHERE source=? AND ended IS NULL"
_ARE_STRAYS = "FROM staged WHERE (at < ? OR at > ?)"
_WITH_STRAYS = f"SELECT DISTINCT source {_ARE_STRAYS}"
_STRAYS = f"SELECT key {_ARE_STRAYS} AND source=? AND key > ? ORDER BY key LIMIT ?"
_EVER = 1 << 62


class Neighbours:
    """The other runs of a store; ``run`` is the number of this one."""

    def __init__(self, access: Access, run: int) -> None:
        self._access = access
        self._run = run
        self._looked_seconds = 0.0
        self._was_alone = False
        self._n_wants = 0
        self._are_young_spared = True  # in the last search for strays
        self._roots: list[int] = []  # that may have some still
        self._last_stray = LEAST_KEY
        self._searched: dict[int, tuple[int, int]] = {}  # roots in use, whose strays are known

    def strays(self, *, are_young_spared: bool, limit: int) -> list[int]:
        """Return keys of some files that no run uses.

        They are of one root, so that segments become empty, where some files of each root would
        leave many nearly so. At first come roots without a run, the one whose last run ended first
        before the others: what was not staged, or compared, within the last day, or all of it. Then
        roots in use: what none of its runs has compared, once each has looked at all its examples,
        nor any other within a day before the first of them began. What was staged later than now,
        before the clock was set back, counts as staged long ago.

        A search goes on where the last one has ended, or begins again if there is nothing after it.
        """
        if are_young_spared != self._are_young_spared:
            self._are_young_spared, self._roots, self._last_stray = are_young_spared, [], LEAST_KEY
        keys = self._next_strays(limit)
        if not keys:
            self._roots = self._roots_with_strays()
            keys = self._next_strays(limit)
        if not keys and not are_young_spared:
            with contextlib.suppress(OSError):  # the next search tries it again
                self._access.write(_forget_empty)
        return keys

    def _roots_with_strays(self) -> list[int]:
        """Return the roots that may have some; looks at all that is staged, unless none may."""
        ordered = [root for (root,) in self._access.rows(_ROOTS)]
        unused = {root: bounds for root in ordered if (bounds := self._unused(root)) is not None}
        roots = [root for root in unused if self._searched.get(root) != unused[root]]
        if not roots:
            return []
        self._searched |= {root: unused[root] for root in roots if unused[root][1] == _EVER}
        before, after = (max(unused[r][0] for r in roots), min(unused[r][1] for r in roots))
        found = {root for (root,) in self._access.rows(_WITH_STRAYS, before, after)}
        return [root for root in roots if root in found]

    def _next_strays(self, limit: int) -> list[int]:
        while self._roots:
            root = self._roots[0]
            bounds = self._unused(root)
            if bounds is not None:
                # Not from the start each time: once those there have gone, it is full of others.
                found = self._access.rows(_STRAYS, *bounds, root, self._last_stray, limit)
                if found:
                    (self._last_stray,) = found[-1]
                    return [key for (key,) in found]
            del self._roots[0]
            self._last_stray = LEAST_KEY
        return []

    def _unused(self, root: int) -> tuple[int, int] | None:
        """Return before and after when files of a root are unused if staged, or compared, then."""
        now = int(time.time())
        ((started, have_seen_all),) = self._access.rows(_RUNS, root)
        if started is None:
            return (now - DAY_SECONDS if self._are_young_spared else now) + 1, now
        if self._are_young_spared and have_seen_all and started < now + 1:
            return int(started) - DAY_SECONDS, _EVER
        return None

    def note_all_seen(self) -> None:
        """Note that this run has looked at all its examples: nothing else is of use to it."""
        statement = "UPDATE run SET has_seen_all=1 WHERE id=?"
        self._access.write(lambda cursor: cursor.execute(statement, (self._run,)))

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
