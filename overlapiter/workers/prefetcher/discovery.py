"""Discovery: which files an example reads, where the dataset does not declare them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Set
from typing import TypeAlias

from overlapiter.openhook import OpenHook
from overlapiter.sources import Dataset, index_maker
from overlapiter.store.extents import Extent
from overlapiter.workers.copies import Given, StagedCopies
from overlapiter.workers.plan import StagingPlan
from overlapiter.workers.start.processes import end_own_fork

#: So many examples that open files, but none below the source, mean that the source is wrong; of a
#: small dataset a share of it, at least two.
_MANY_FRUITLESS, _FRUITLESS_SHARE = 64, 1 / 4
#: Stages a file that a dataset opens; returns whether the dataset goes on, or is to be left.
Stage: TypeAlias = Callable[[str], bool]


class _PathFoundError(BaseException):
    """Leaves the dataset at its first open; no Exception, so that user code lets it pass."""


class Discovery(StagedCopies):
    """Finds the files of an example by asking the dataset for it.

    It is the handler of the open hook that leaves the dataset at the first file that is not staged.

    It costs what the dataset does before it opens its first file. A dataset that reads several
    files for one example gives its first one so; to reach the next, the dataset is run again with
    the staged copies of those before, or waits for each of them inside its ``open``.

    Not thread-safe: one call at a time, from any thread; other threads may open files meanwhile.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: StagingPlan,
        index_type: str = "p",
        *,
        n_examples: int = 0,
        names_source: bool = False,
    ) -> None:
        super().__init__(plan)
        self._dataset = dataset
        self._index_type = index_maker(index_type)
        self._thread: int | None = None
        self._pid = os.getpid()
        self._found: str | None = None
        self._stage: Stage | None = None
        self._absent: Set[int] = frozenset()
        self._failure: BaseException | None = None
        self._source = plan.source
        self._names_source = names_source  # whether the dataset has paths below it
        self._has_found = False  # any file of any example
        self._n_fruitless = 0  # times that none was found, though files elsewhere were opened
        self._n_telling = max(2, min(_MANY_FRUITLESS, int(n_examples * _FRUITLESS_SHARE)))
        self._elsewhere = ""  # the one that was opened last
        self._opened_beside = ""  # a file below the source that a thread of the dataset's opened
        OpenHook(plan.source, self, elsewhere=self._on_other_open).install()

    def next_path(
        self,
        index: int,
        after: dict[int, Extent],
        stage: Stage | None = None,
        absent: Set[int] = frozenset(),
    ) -> str | None:
        """Return the first file that an example opens, of those not ``after`` and not ``absent``.

        Args:
            index: The example.
            after: The staged copies of files that it has opened before, by their keys.
            stage: Called while the dataset waits in its ``open``; adds to ``after`` or ``absent``.
                None to leave it at each file. What it raises is raised here.
            absent: The keys of files that it has looked for in vain: it goes on without them.

        Returns:
            Its absolute path, or URL. None if there is no further one, and where the dataset
            raises: the file reader meets the same error and reports it.
        """
        self.begin_part(after)
        self._absent = absent
        self.begin_example()
        self._found = self._failure = None
        self._stage = stage
        if self._names_source:  # what a library reads when it is imported is no file of the data
            self._elsewhere = ""
        self._thread = threading.get_ident()
        # What is left half made may fail in its __del__, which Python would print.
        printing, sys.unraisablehook = sys.unraisablehook, lambda _: None
        with contextlib.suppress(BaseException):  # even sys.exit is for the file reader to meet
            try:
                self._dataset[self._index_type(index)]
            finally:
                if os.getpid() != self._pid:
                    end_own_fork(sys.exc_info()[1])
        sys.unraisablehook = printing
        self._thread = None
        self.begin_example()  # what this one opened is not needed any more
        self._has_found |= self._found is not None
        self._n_fruitless += self._found is None and bool(self._elsewhere)
        if self._failure is not None:
            raise self._failure
        return self._found

    def give(self, path: str, made_of: Callable[[Extent], tuple[Given, int]]) -> Given | None:
        """Return what is made of a staged copy; leave the dataset if there is none."""
        if self._thread != threading.get_ident() or os.getpid() != self._pid:
            self._opened_beside = path
            return None
        given = super().give(path, made_of)
        if given is None and self._has_staged(path):
            given = super().give(path, made_of)
        if given is None and self._key_of(self._plain(path)) not in self._absent:
            # The dataset may leave the directory from which a relative path leads there.
            self._found = self._found or self._plain(path)
            raise _PathFoundError
        return given

    def _has_staged(self, path: str) -> bool:
        """Have a file staged, if that may be done here; return whether the dataset goes on."""
        if self._stage is None or self._found is not None:
            return False
        self._thread = None  # staging opens the file, too
        try:
            return self._stage(path)
        except BaseException as error:  # not for the dataset to meet
            self._failure = error
            return False
        finally:
            self._thread = threading.get_ident()

    def complaint(self) -> str:
        """Say why files that examples open are not found; mostly empty."""
        if self._opened_beside:
            return (
                f"the dataset opens files in threads of its own ({self._opened_beside}, for "
                f"example), where it cannot be seen which example they belong to, so they are not "
                f"staged: give it a method source_paths(i) that returns the files of an example"
            )
        if self._has_found or self._n_fruitless != self._n_telling:
            return ""
        return (
            f"none of {self._n_telling} examples opens a file below the source {self._source}, so "
            f"nothing is staged; they open {self._elsewhere}, for example. Give a Staging.source "
            f"that these paths begin with (a symbolic link to the same directory is another name)"
        )

    def _on_other_open(self, path: str) -> None:
        if self._thread == threading.get_ident():
            self._elsewhere = path
