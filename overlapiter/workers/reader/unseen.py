"""Notices files that are read where no hook sees it: by C code that opens them itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from overlapiter.sources import Dataset, declared_paths, paths_below
from overlapiter.stats import Counter, Row

#: So many examples of which no file is opened, though each names some, are no accident.
_ENOUGH_DECLARED = 8
#: The same where the dataset does not say which files it reads: it may hold some in memory.
_ENOUGH_UNDECLARED = 64


class UnseenReads:
    """Counts examples of which no file is opened below the source, and warns once of them.

    As soon as one file is opened there, nothing is counted any more: a dataset may keep files open.

    Args:
        dataset: The dataset.
        source: Root of the files on the slow store.
        row: The counters of this worker, and of those that it replaces.
        warn: Called with the warning.
    """

    def __init__(
        self, dataset: Dataset, source: str, row: Row, warn: Callable[[str], None]
    ) -> None:
        self._dataset = dataset
        self._source = source
        self._row = row
        self._warn = warn
        self._reads_elsewhere = False
        self._has_warned = False

    def note_elsewhere(self, _path: str) -> None:
        """Note that a file was opened that lies elsewhere: of that a prefetcher warns."""
        self._reads_elsewhere = True

    def count(self, indices: Sequence[int]) -> None:
        """Count the examples that have opened no file below the source."""
        row = self._row
        if not indices or row.get(Counter.OPENS_STAGED) + row.get(Counter.OPENS_SOURCE):
            return
        kinds = [self._names_files(index) for index in indices]
        row.add(Counter.EXAMPLES_UNSEEN, sum(kind is not False for kind in kinds))
        n_unseen = row.get(Counter.EXAMPLES_UNSEEN)
        if self._has_warned:
            return
        if n_unseen >= _ENOUGH_DECLARED and True in kinds:
            self._has_warned = True
            self._warn(
                f"the dataset names files below {self._source}, but opens none of them where "
                f"overlapiter sees it, so what is staged is not used: a library in C opens them. "
                f'Name its reader, as in overlapiter.redirect("cv2", "imread"), or give it '
                f"overlapiter.local_path(path)"
            )
        elif n_unseen >= _ENOUGH_UNDECLARED and None in kinds and not self._reads_elsewhere:
            self._has_warned = True
            self._warn(
                f"no file below {self._source} was opened where overlapiter sees it, so nothing "
                f"is staged. If a library in C opens them, name its reader, as in "
                f'overlapiter.redirect("cv2", "imread"), or give it overlapiter.local_path(path); '
                f"if they lie elsewhere, give another Staging.source; if there are none, leave "
                f"staging out"
            )

    def _names_files(self, index: int) -> bool | None:
        """Return whether an example names files below the source; None where it does not say."""
        try:
            paths = declared_paths(self._dataset, index)
        except Exception:  # user code, of which a prefetcher warns
            return None
        return None if paths is None else any(True for _ in paths_below(self._source, paths))
