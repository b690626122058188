"""Other runs of a store: which there are, what they are about to read, what none of them uses."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Sequence

from .access import Access
from .index import Cursor
from .tables import LEAST_KEY, insert, run_by_key

#: How long a row in ``wanted`` keeps others from evicting a file.
_WANTED_MS = 10_000
#: How often to look whether other runs use the store.
_LOOK_AFTER_SECONDS = 1.0
#: Files that were of use so lately may be meant for a job that has not begun.
_DAY_SECONDS = 24 * 3600
#: Of so many files at once the index is told that they are of use: some milliseconds.
_TOLD_AT_ONCE, _TOLD_PAUSE_SECONDS = 1024, 0.001
#: The source roots, those without a run first, of these the one whose last run ended first.
_ROOTS = (
    "SELECT id FROM source ORDER BY EXISTS (SELECT 1 FROM run WHERE source=source.id AND ended IS "
    "NULL), (SELECT MAX(ended) FROM run WHERE source=source.id), id"
)
#: Of those runs of a root that live, or ended after a time: when the first one began, and the least
#: and the most that they have told.
_RUNS = (
    "SELECT MIN(started), MIN(told), MAX(told) FROM run "
    "WHERE source=? AND (ended IS NULL OR ended > ?)"
)
#: What a run has told: nothing, which files it uses, or that it needs the room of all others.
_NOTHING, _USES, _NEEDS = range(3)
_ARE_STRAYS = "FROM staged WHERE (used < ? OR used > ?)"
_WITH_STRAYS = f"SELECT DISTINCT source {_ARE_STRAYS}"
_STRAYS = f"SELECT key {_ARE_STRAYS} AND source=? AND key > ? ORDER BY key LIMIT ?"
_NEVER = 1 << 62


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
        self._searched: dict[int, tuple[int, int]] = {}  # roots with runs that have none

    # --- what no run uses ---------------------------------------------------------------------

    def tell_uses(self, keys: Sequence[int], *, needs_room: bool = False) -> None:
        """Note which files are of use to this run, all of them; sorted, they take the least time.

        ``needs_room`` says whether what is of use to no run is to go even if it was a moment ago.
        """
        now = int(time.time())
        began = f"(SELECT CAST(started AS INTEGER) FROM run WHERE id={self._run})"
        old = f"used NOT BETWEEN {began} AND {now}"
        tell = functools.partial(
            run_by_key, statement=f"UPDATE staged SET used={now} WHERE {old} AND key IN"
        )
        for first in range(0, len(keys), _TOLD_AT_ONCE):
            self._access.write(functools.partial(tell, keys=keys[first : first + _TOLD_AT_ONCE]))
            time.sleep(_TOLD_PAUSE_SECONDS)  # others wait for their turn
        told = _NEEDS if needs_room else _USES, self._run
        self._access.write(lambda cursor: cursor.execute("UPDATE run SET told=? WHERE id=?", told))

    def strays(self, *, are_young_spared: bool, limit: int) -> list[int]:
        """Return keys of some files that are of no use to any run.

        They are of one root, so that segments become empty, where some files of each root would
        leave many nearly so. Spared are:

        * of a root, what its runs use that live, or ended within the last day, and what was used
          within a day before the first of these began; all of it, until each has told what it uses;
        * of one of which a living run needs the room, what its living runs use;
        * if the young are not spared, nothing of a root without a living run, and all of others.

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
        """Return the roots that have some, by a look at all that is staged, unless none may."""
        bounds = {root: self._bounds(root) for (root,) in self._access.rows(_ROOTS)}
        known = {r: b for r, b in bounds.items() if b is not None and self._searched.get(r) != b}
        if not known:
            return []
        befores, afters = zip(*known.values(), strict=True)
        found = {root for (root,) in self._access.rows(_WITH_STRAYS, max(befores), min(afters))}
        for root in known.keys() - found:
            self._note_searched(root, known[root])
        return [root for root in known if root in found]

    def _next_strays(self, limit: int) -> list[int]:
        while self._roots:
            root = self._roots[0]
            bounds = self._bounds(root)
            if bounds is not None:
                # Not from the start each time: once those there have gone, it is full of others.
                found = self._access.rows(_STRAYS, *bounds, root, self._last_stray, limit)
                if found:
                    (self._last_stray,) = found[-1]
                    return [key for (key,) in found]
                self._note_searched(root, bounds)
            del self._roots[0]
            self._last_stray = LEAST_KEY
        return []

    def _bounds(self, root: int) -> tuple[int, int] | None:
        """Return before and after which time files of a root were used that are strays now.

        What is used later than now, by a clock that was set back since, is one, too. None if it
        cannot be told.
        """
        now = int(time.time())
        ((began, least, most),) = self._access.rows(_RUNS, root, _NEVER)
        is_in_use, grace_seconds = began is not None, 0 if most == _NEEDS else _DAY_SECONDS
        if not self._are_young_spared:
            return None if is_in_use else (now + 1, now)
        if grace_seconds:
            ((began, least, _),) = self._access.rows(_RUNS, root, now - grace_seconds)
        began = int(began or now)
        if least == _NOTHING or (is_in_use and began > now):  # the clock was set back since
            return None
        return min(now, began) - grace_seconds, _NEVER if is_in_use else now

    def _note_searched(self, root: int, bounds: tuple[int, int]) -> None:
        if bounds[1] == _NEVER:  # nothing becomes a stray until other runs use the root
            self._searched[root] = bounds

    # --- what others are about to read --------------------------------------------------------

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
