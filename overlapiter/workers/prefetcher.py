"""The prefetcher: stage 2 of the pipeline. Makes sure that the files of examples are staged.

Waiting for the slow store costs no CPU, so a prefetcher is one process with many threads, each of
which has one read in flight.
"""

from __future__ import annotations

import collections
import queue
import threading
import time
from typing import NamedTuple

from overlapiter.sources import Dataset, Discovery, declared_paths, paths_below
from overlapiter.staging.store import Outcome, Staged, Store
from overlapiter.stats import Counter, Row

from .channel import Channel, ChannelClosedError

#: After the staging disk failed, how long examples pass unstaged before it is tried again.
SICK_SECONDS = 5.0
_REMEMBERED_PATHS = 4096


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
        validated: One byte for each example, shared by all prefetchers; set once its files have
            been compared with their sources in this run, which is not done again.
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
        self._jobs: queue.SimpleQueue[tuple[_Part, int]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._user_code = threading.Lock()
        self._discovery: Discovery | None = None
        self._validated = validated
        self._recent: collections.OrderedDict[str, None] = collections.OrderedDict()
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
                task: StageTask = message[1]
                part = _Part(task, [{} for _ in task.indices])
                for number in range(len(task.indices)):
                    self._jobs.put((part, number))
        except ChannelClosedError:
            return

    def _work(self) -> None:
        while True:
            part, number = self._jobs.get()
            part.staged[number] = self._stage_example(part.task.indices[number], part.task.n_files)
            with self._lock:
                part.n_waiting -= 1
                is_complete = part.n_waiting == 0
            if is_complete:
                staged = {path: copy for paths in part.staged for path, copy in paths.items()}
                try:
                    self._channel.send(("staged", part.task.part_id, staged))
                except ChannelClosedError:
                    return

    def _stage_example(self, index: int, n_files: int) -> dict[str, str]:
        """Stage the files of one example; return source path to staged path."""
        staged: dict[str, str] = {}
        is_trusted = bool(self._validated[index])
        try:
            declared = declared_paths(self._dataset, index)
        except Exception:  # user code: the file reader will report it
            return staged
        if declared is None:
            self._discover(index, n_files, is_trusted, staged)
        else:
            for path, absolute in paths_below(self._store.source, declared):
                self._stage_file(path, absolute, is_trusted, staged)
        self._validated[index] = 1
        return staged

    def _discover(self, index: int, n_files: int, is_trusted: bool, staged: dict[str, str]) -> None:
        while len(staged) < max(n_files, 1):
            with self._user_code:
                if self._discovery is None:
                    self._discovery = Discovery(self._dataset, self._store.source)
                found = self._discovery.next_path(index, staged)
            if found is None:
                return
            path, absolute = next(paths_below(self._store.source, [found]))
            if not self._stage_file(path, absolute, is_trusted, staged):
                return

    def _stage_file(
        self, path: str, absolute: str, is_trusted: bool, staged: dict[str, str]
    ) -> bool:
        if time.monotonic() < self._sick_until:
            self._count(Counter.FILES_REFUSED)
            return False
        try:
            answer = self._store.stage(absolute, is_trusted=is_trusted or absolute in self._recent)
        except OSError as error:
            self._sick_until = time.monotonic() + SICK_SECONDS
            self._count(Counter.FILES_REFUSED)
            self._tell(
                f"staging failed ({error}): files are read from the source, and staging is tried "
                f"again every {SICK_SECONDS:.0f} s; see whether that disk is full or broken"
            )
            return False
        self._note(answer)
        if answer.path is None:
            return False
        staged[path] = answer.path
        with self._lock:
            self._recent[absolute] = None
            if len(self._recent) > _REMEMBERED_PATHS:
                self._recent.popitem(last=False)
        return True

    def _note(self, answer: Staged) -> None:
        if answer.outcome is Outcome.COPIED:
            with self._lock:
                self._row.add(Counter.FILES_STAGED, 1)
                self._row.add(Counter.BYTES_STAGED, answer.copied_bytes)
        elif answer.outcome is Outcome.FOUND:
            self._count(Counter.FILES_FOUND_STAGED)
        elif answer.outcome is Outcome.REFUSED:
            self._count(Counter.FILES_REFUSED)
            self._tell(
                "the staging directory is full: further files are read from the source; "
                "raise Staging.capacity, lower keep_free, or free space on the disk"
            )

    def _tell(self, text: str) -> None:
        with self._lock:
            is_news = text not in self._told
            self._told.add(text)
        if is_news:
            self._channel.send(("trouble", text))

    def _count(self, counter: Counter) -> None:
        with self._lock:
            self._row.add(counter, 1)


class _Part:
    """A part with some of its examples still waiting for the slow store."""

    def __init__(self, task: StageTask, staged: list[dict[str, str]]) -> None:
        self.task = task
        self.staged = staged
        self.n_waiting = len(staged)
