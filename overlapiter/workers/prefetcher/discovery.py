"""Discovery: which files an example reads, where the dataset does not declare them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable

from overlapiter.openhook import OpenHook
from overlapiter.sources import Dataset, index_maker
from overlapiter.store.extents import Extent
from overlapiter.workers.copies import Given, StagedCopies
from overlapiter.workers.plan import StagingPlan
from overlapiter.workers.start.processes import end_own_fork


class _PathFoundError(BaseException):
    """Leaves the dataset at its first open; no Exception, so that user code lets it pass."""


class Discovery(StagedCopies):
    """Finds the files of an example by asking the dataset for it.

    It is the handler of the open hook that leaves the dataset at the first file that is not staged.

    It costs what the dataset does before it opens its first file. A dataset that reads several
    files for one example gives its first one so; to reach the next, the dataset is run again with
    the staged copies of those before.

    Not thread-safe: one call at a time, from any thread; other threads may open files meanwhile.
    """

    def __init__(self, dataset: Dataset, plan: StagingPlan, index_type: str = "p") -> None:
        super().__init__(plan)
        self._dataset = dataset
        self._index_type = index_maker(index_type)
        self._thread: int | None = None
        self._pid = os.getpid()
        self._found: str | None = None
        #: A file that does not lie below the source, which an example opened last; empty if there
        #: is none.
        self.elsewhere = ""
        OpenHook(plan.source, self, elsewhere=self._on_other_open).install()

    def next_path(self, index: int, after: dict[int, Extent]) -> str | None:
        """Return the first file that an example opens, of those not ``after``, as it is written.

        None if there is no further one, and where the dataset raises: the file reader meets the
        same error and reports it.
        """
        self.begin_part(dict(after))
        self.begin_example()
        self._found = None
        self._thread = threading.get_ident()
        with contextlib.suppress(BaseException):  # even sys.exit is for the file reader to meet
            try:
                self._dataset[self._index_type(index)]
            finally:
                if os.getpid() != self._pid:
                    end_own_fork(sys.exc_info()[1])
        self._thread = None
        self.begin_example()  # what this one opened is not needed any more
        return self._found

    def give(self, path: str, made_of: Callable[[Extent], tuple[Given, int]]) -> Given | None:
        """Return what is made of a staged copy; leave the dataset if there is none."""
        if self._thread != threading.get_ident() or os.getpid() != self._pid:
            return None
        given = super().give(path, made_of)
        if given is None:
            self._found = self._found or path
            raise _PathFoundError
        return given

    def _on_other_open(self, path: str) -> None:
        if self._thread == threading.get_ident():
            self.elsewhere = path
