"""The staged copies that a dataset's ``open`` gets in a worker, in place of the source files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import IO, Any, TypeVar

from overlapiter.sources import normalised
from overlapiter.stagedfile import open_bytes, open_instead
from overlapiter.store.extents import DamagedError, Extent, ExtentReader, keys_of
from overlapiter.store.localfiles import LocalFiles
from overlapiter.urls import is_url
from overlapiter.workers.plan import StagingPlan

Given = TypeVar("Given")


class StagedCopies:
    """Gives the staged copies of the files that are in its table; an open hook's handler.

    A copy whose bytes are not those that were staged, or are gone, is not given: the source is
    read instead. Safe for threads: those of a dataset open files at the same time.
    """

    def __init__(self, plan: StagingPlan) -> None:
        directories = [site.directory for site in plan.sites]
        self._key_of = keys_of(plan.source, plan.place, plan.real_source)
        #: Gives the path, or URL, by which a file is known; the hook has made a URL plain already.
        self._plain: Callable[[str], str] = str if is_url(plan.source) else normalised
        self._reader = ExtentReader(directories)
        # A link has to lie on the disk of what it leads to.
        self._files = [LocalFiles(directory, self._reader) for directory in directories]
        self._lock = threading.RLock()  # of the reader and the files
        self._table: dict[int, Extent] = {}
        #: The copies of the current part that were opened: of each its tier, the bytes of it that
        #: were read, and how many nanoseconds that took.
        self.reads: list[tuple[int, int, int]] = []
        #: Whether one of them could not be read for the current example, or was of no use.
        self.has_missed = False
        self._is_trusted = True
        self._large: list[Extent] = []  # those of which the current example got the path
        self.opened: list[str] = []  # the paths opened for the current example, in order
        self.opens_source = 0  # opens of the current part that went to the slow store

    def begin_part(self, table: dict[int, Extent]) -> None:
        """Begin a part, of which these copies may be read, by the keys of their files."""
        self._table, self.opens_source = table, 0
        self.reads.clear()

    def begin_example(self) -> None:
        """Forget what the previous example opened, and the files that were made for it."""
        self.opened = []
        self._large = []
        self.has_missed, self._is_trusted = False, True
        with self._lock:
            for files in self._files:
                files.forget()

    def open(
        self, path: str, mode: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> IO[Any] | None:
        """Return the staged copy, opened; None where the source has to be read."""

        def opened(extent: Extent) -> tuple[IO[Any], int]:
            if extent.is_whole:
                segment = self._reader.path_of(extent)
                return open_instead(segment, path, mode, *args, **kwargs), 0
            data = self._reader.read(extent)
            return open_bytes(data, path, mode, *args, **kwargs), extent.size

        return self.give(path, opened)

    def local_path(self, path: str) -> str | None:
        """Return the path of the staged copy, until the next example; None without one."""

        def path_of(extent: Extent) -> tuple[str, int]:
            files = self._files[extent.tier if extent.is_whole else -1]
            return files.path_of(extent, path), extent.size

        return self.give(path, path_of)

    def give(self, path: str, made_of: Callable[[Extent], tuple[Given, int]]) -> Given | None:
        """Return what ``made_of`` makes of the staged copy; None where the source has to be read.

        ``made_of`` returns, too, how many bytes of the copy it has read.
        """
        self.opened.append(path)
        extent = self._table.get(self._key_of(self._plain(path))) if self._is_trusted else None
        if extent is not None:
            try:
                with self._lock:
                    began_ns = time.monotonic_ns()
                    given, n_bytes = made_of(extent)
                    took_ns = time.monotonic_ns() - began_ns
            except (DamagedError, OSError):
                self.has_missed = True
                self._table.pop(extent.key, None)
            else:
                if extent.is_whole:
                    self._large.append(extent)
                self.reads.append((extent.tier, n_bytes, took_ns))
                return given
        self.opens_source += 1
        return None

    def close(self) -> None:
        """Close and remove what is open of the store, and what was made of it."""
        with self._lock:
            for files in self._files:
                files.close()
            self._reader.close()

    def have_changed(self) -> bool:
        """Return whether a large copy has changed since the current example opened it.

        It is verified before it is read, a small one after that.
        """
        return not all(map(self._reader.is_as_verified, self._large))

    def distrust(self) -> None:
        """Send the further opens of this example to the source."""
        self._is_trusted = False
