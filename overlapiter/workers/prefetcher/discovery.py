"""Discovery: which files an example reads, where nobody declares them."""

from __future__ import annotations

import contextlib
import threading

import numpy as np

from overlapiter.openhook import OpenHook
from overlapiter.sources import Dataset


class _PathFoundError(BaseException):
    """Leaves the dataset at its first open; no Exception, so that user code lets it pass."""


class Discovery:
    """Finds the files of an example by asking the dataset for it.

    Used in a prefetcher. It costs what the dataset does before it opens its first file. A dataset
    that reads several files for one example gives its first one so; to reach the next, the
    dataset is run again with the staged copies of those before (see ``after``).

    Not thread-safe: one call at a time, from any thread; other threads may open files meanwhile.

    Args:
        dataset: The dataset.
        source: Absolute root of the files on the slow store.
        index_type: As which the dataset is asked for an example: a character of NumPy's.

    Attributes:
        elsewhere: A file that does not lie below the source, which an example opened last; empty
            if there is none.
    """

    def __init__(self, dataset: Dataset, source: str, index_type: str = "p") -> None:
        self._dataset = dataset
        self._index_type = np.dtype(index_type).type
        self._thread: int | None = None
        self._known: dict[str, str] = {}
        self._found: str | None = None
        self.elsewhere = ""
        OpenHook(source, self._on_open, elsewhere=self._on_other_open).install()

    def next_path(self, index: int, after: dict[str, str]) -> str | None:
        """Return the first file that example ``index`` opens which is not in ``after``.

        Args:
            index: Index of the example.
            after: Files already staged for this example: source path to staged path.

        Returns:
            The path as the dataset wrote it, or None if the example opens no further file. None
            too where the dataset raises: the file reader meets the same error and reports it.
        """
        self._known, self._found = after, None
        self._thread = threading.get_ident()
        with contextlib.suppress(BaseException):  # even sys.exit is for the file reader to meet
            self._dataset[self._index_type(index)]
        self._thread = None
        return self._found

    def _on_open(self, path: str) -> str | None:
        if self._thread != threading.get_ident():
            return None
        staged = self._known.get(path)
        if staged is None:
            self._found = self._found or path
            raise _PathFoundError
        return staged

    def _on_other_open(self, path: str) -> None:
        if self._thread == threading.get_ident():
            self.elsewhere = path
