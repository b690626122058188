"""The prefetcher: stage 2 of the pipeline. Makes sure that the files of examples are staged.

Waiting for the slow store costs no CPU, so a prefetcher is one process with many threads, each of
which has one read in flight.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from overlapiter.sources import Dataset, Discovery, declared_paths, paths_below
from overlapiter.staging.store import Outcome, Staged, Store
from overlapiter.stats import Counter, Row

from .channel import Channel, ChannelClosedError

#: After the staging disk failed, how long examples pass unstaged before it is tried again.
SICK_SECONDS = 5.0
_REMEMBERED_PATHS = 4096
#: Say nothing about the disk; the source may have a file where it had a directory.
_ABOUT_THE_PATH = {errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
#: In the shared bytes: all files of the example have been compared, however many there are.
_ALL = 255


class StageTask(NamedTuple):
    """A part of a mini-batch whose files are to be staged.

    Attributes:
        part_id: For the answer.
        indices: Indices of the examples.
        n_files: Most files that an example is known to open; for datasets that declare none.
    """

    part_id: int
    indices: list[int]
    n_files: int


class Prefetcher:
    """Stages the parts that come over a channel, until it closes.

    Args:
        channel: To the supervisor.
        dataset: The dataset.
        store: The staging store.
        validated: One byte for each example, shared by all prefetchers: how many of its files
            have been compared with their sources in this run, which is not done again.
        n_threads: Reads in flight.
        row: Its counters.
    """

    def __init__(
        self,
        channel: Channel,
        dataset: Dataset,
        store: Store,
        validated: memoryview,
        n_threads: int,
        row: Row,
    ) -> None:
        self._channel = channel
        self._dataset = dataset
        self._store = store
        self._row = row
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._user_code = threading.Lock()
        self._discovery: Discovery | None = None
        self._validated = validated
        self._recent: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._has_first = False
        self._n_files = 1
        self._told: set[str] = set()
        self._sick_until = 0.0
        self._n_threads = n_threads

    def run(self) -> None:
        """Serve until the supervisor closes the channel."""
        for _ in range(self._n_threads):
            threading.Thread(target=self._work, daemon=True).start()
        try:
            while True:
                message, _ = self._channel.receive()
                self._jobs.put(functools.partial(self._begin, _Part(message[1])))
        except ChannelClosedError:
            return

    def _work(self) -> None:
        with contextlib.suppress(ChannelClosedError):  # the end of this process
            while True:
                self._jobs.get()()

    def _begin(self, part: _Part) -> None:
        """Look which files of a part are staged; what is not becomes a job for every example."""
        missing = []
        for example in map(self._look_safely, part.task.indices):
            if example.missing or not example.is_declared:
                missing.append(example)
            else:
                self._finish(part, example)
        part.n_waiting = len(missing)
        for example in missing[1:]:
            self._jobs.put(functools.partial(self._fetch, part, example))
        if missing:
            self._fetch(part, missing[0])
        else:
            self._answer(part)

    def _look_safely(self, index: int) -> _Example:
        try:
            return self._look(index)
        except ChannelClosedError:
            raise
        except BaseException as error:  # user code, or a path that no file can have
            return self._give_up(_Example(index, 0), error)

    def _give_up(self, example: _Example, error: BaseException) -> _Example:
        """Leave an example to the file reader, which goes to the source."""
        example.is_complete = False
        self._tell(
            f"example {example.index} cannot be staged ({error!r}): it is read from the source"
        )
        return example

    def _look(self, index: int) -> _Example:
        """Find the files of an example, and those of them that are staged."""
        example = _Example(index, self._validated[index])
        declared = declared_paths(self._dataset, index)
        if declared is None:
            example.is_declared = False
            return example
        for path, absolute in paths_below(self._store.source, declared):
            found = self._find(absolute, example.n_compared == _ALL)
            if not self._note(example, path, absolute, found):
                example.missing.append((path, absolute))
        return example

    def _find(self, absolute: str, is_trusted: bool) -> Staged | None:
        try:
            return self._store.find(absolute, is_trusted=is_trusted or absolute in self._recent)
        except OSError as error:
            return self._fall_sick(error)

    def _fetch(self, part: _Part, example: _Example) -> None:
        """Copy what is missing of an example."""
        try:
            if example.is_declared:
                for path, absolute in example.missing:
                    self._note(example, path, absolute, self._copy(absolute))
            else:
                self._discover(example, part.task.n_files)
        except ChannelClosedError:
            raise
        except BaseException as error:  # user code, or a path that no file can have
            self._give_up(example, error)
        with self._lock:
            self._finish(part, example)
            part.n_waiting -= 1
            is_complete = part.n_waiting == 0
        if is_complete:
            self._answer(part)

    def _finish(self, part: _Part, example: _Example) -> None:
        part.staged.update(example.staged)
        if example.is_complete:
            n_staged = min(len(example.staged), _ALL - 1)
            self._validated[example.index] = _ALL if example.is_declared else n_staged

    def _discover(self, example: _Example, n_files: int) -> None:
        # The first example is followed to its end, to learn how many files an example opens.
        is_first, self._has_first = not self._has_first, True
        while is_first or len(example.staged) < max(n_files, self._n_files):
            with self._user_code:
                if self._discovery is None:
                    self._discovery = Discovery(self._dataset, self._store.source)
                found = self._discovery.next_path(example.index, example.staged)
            if found is None:
                break
            path, absolute = next(paths_below(self._store.source, [found]))
            is_trusted = len(example.staged) < example.n_compared
            answer = self._find(absolute, is_trusted) or self._copy(absolute)
            if not self._note(example, path, absolute, answer):
                break
        self._n_files = max(self._n_files, len(example.staged))

    def _copy(self, absolute: str) -> Staged:
        if time.monotonic() < self._sick_until:
            return Staged(Outcome.REFUSED, None)
        try:
            answer = self._store.fetch(absolute)
        except OSError as error:
            return self._fall_sick(error)
        if answer.outcome is Outcome.REFUSED:
            self._tell(
                "the staging directory is full: further files are read from the source; "
                "raise Staging.capacity, lower keep_free, or free space on the disk"
            )
        return answer

    def _fall_sick(self, error: OSError) -> Staged:
        """Leave the staging disk alone for a while, if it is the disk that failed."""
        if error.errno in _ABOUT_THE_PATH:
            return Staged(Outcome.REFUSED, None)
        self._sick_until = time.monotonic() + SICK_SECONDS
        self._tell(
            f"staging failed ({error}): files are read from the source, and staging is tried "
            f"again every {SICK_SECONDS:.0f} s; see whether that disk is full or broken"
        )
        return Staged(Outcome.REFUSED, None)

    def _note(self, example: _Example, path: str, absolute: str, answer: Staged | None) -> bool:
        """Count an answer of the store; return whether it settles what becomes of the file."""
        if answer is None:
            return False
        row = self._row
        with self._lock:
            if answer.outcome is Outcome.COPIED:
                row.add(Counter.FILES_STAGED, 1)
                row.add(Counter.BYTES_STAGED, answer.copied_bytes)
            elif answer.outcome is Outcome.FOUND:
                row.add(Counter.FILES_FOUND_STAGED, 1)
            elif answer.outcome is Outcome.REFUSED:
                row.add(Counter.FILES_REFUSED, 1)
            if answer.path is None:
                example.is_complete = False
                return example.is_declared
            example.staged[path] = answer.path
            if example.is_declared:  # the dataset may open it by another name
                example.staged[absolute] = answer.path
            self._recent[absolute] = None
            if len(self._recent) > _REMEMBERED_PATHS:
                self._recent.popitem(last=False)
        return True

    def _answer(self, part: _Part) -> None:
        self._channel.send(("staged", part.task.part_id, part.staged))

    def _tell(self, text: str) -> None:
        with self._lock:
            is_news = text not in self._told
            self._told.add(text)
        if is_news:
            self._channel.send(("trouble", text))


class _Example:
    """An example on its way to the staging directory.

    Attributes:
        index: Its index.
        n_compared: How many of its files, in the order in which it opens them, have been compared
            with their sources in this run.
        is_declared: Whether its files are known without asking the dataset for it.
        is_complete: Whether all its files are staged.
        staged: Source path to staged path of those that are.
        missing: Source path and absolute path of those to copy.
    """

    __slots__ = ("index", "is_complete", "is_declared", "missing", "n_compared", "staged")

    def __init__(self, index: int, n_compared: int) -> None:
        self.index = index
        self.n_compared = n_compared
        self.is_declared = True
        self.is_complete = True
        self.staged: dict[str, str] = {}
        self.missing: list[tuple[str, str]] = []


class _Part:
    """A part, with the number of its examples that wait for the slow store."""

    def __init__(self, task: StageTask) -> None:
        self.task = task
        self.staged: dict[str, str] = {}
        self.n_waiting = 0
