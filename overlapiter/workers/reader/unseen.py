"""Notices files that are read where no hook sees it: by C code that opens them itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from overlapiter.board import N_TIERS, Counter, Row
from overlapiter.sources import Dataset, declared_paths, paths_below

#: So many examples that open no file, though the dataset names some, are no accident.
_ENOUGH = 16
#: Opens of staged copies.
_OF_COPIES = range(Counter.OPENS_TIER_0, Counter.OPENS_TIER_0 + N_TIERS)


class UnseenReads:
    """Counts examples that open no file below the source, and warns once of them.

    As soon as one file is opened there, nothing is counted any more: a dataset may keep files open.
    """

    def __init__(
        self,
        dataset: Dataset,
        source: str,
        row: Row,
        warn: Callable[[str], None],
        *,
        names_source: bool,
    ) -> None:
        self._dataset = dataset
        self._source = source
        self._names_source = names_source  # whether the dataset has paths below it
        self._row = row
        self._warn = warn
        self._reads_elsewhere = self._has_warned = False

    def note_elsewhere(self, _path: str) -> None:
        """Note that a file was opened that lies elsewhere: of that a prefetcher warns."""
        self._reads_elsewhere = True

    def count(self, indices: Sequence[int]) -> None:
        """Count examples that were read and have opened no file below the source.

        A part is judged by its own opens: a library that is imported may read a file of its own.
        """
        row, reads_elsewhere = self._row, self._reads_elsewhere
        self._reads_elsewhere = False
        if not indices or row.get(Counter.OPENS_SOURCE) or any(map(row.get, _OF_COPIES)):
            return
        declares = [self._declares(index) for index in indices]
        is_open = self._names_source and not reads_elsewhere
        row.add(Counter.EXAMPLES_UNSEEN, declares.count(True) + is_open * declares.count(None))
        if row.get(Counter.EXAMPLES_UNSEEN) >= _ENOUGH and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"the dataset names files below {self._source}, but opens none of them where "
                f"overlapiter sees it, so no staged copy is read. If a library in C opens them, "
                f'name its reader, as in overlapiter.redirect("cv2", "imread"), or give it '
                f"overlapiter.local_path(path); if the dataset has opened or read them before, as "
                f"in __init__ or __setstate__, have it open them when an example is read first, or "
                f"leave staging out"
            )

    def _declares(self, index: int) -> bool | None:
        """Return whether an example has files below the source; None where it does not say."""
        try:
            paths = declared_paths(self._dataset, index)
        except Exception:  # user code, of which a prefetcher warns
            return None
        return None if paths is None else any(True for _ in paths_below(self._source, paths))
