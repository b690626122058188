"""The prefetcher: stage 2 of the pipeline. Makes sure that the files of examples are staged.

Waiting for the slow store costs no CPU, so a prefetcher is one process with many threads, each of
which has one read in flight.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence

from overlapiter.sources import Copy, Dataset, declared_paths, paths_below
from overlapiter.staging.store import Outcome, Staged, Store
from overlapiter.staging.strays import Strays
from overlapiter.staging.tiers import Found, Tiers
from overlapiter.stats import Counter, Row
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError, Message
from overlapiter.workers.prefetcher.discovery import Discovery
from overlapiter.workers.prefetcher.evictor import Evictor, RoomForPart, total
from overlapiter.workers.prefetcher.staging_work import Example, PartInHand, StageTask
from overlapiter.workers.prefetcher.threads import Threads

_REMEMBERED_PATHS = 4096
#: After so long without a message a prefetcher is idle.
_IDLE_SECONDS = 0.5
#: After so many examples that open files, but none below the source, it is the wrong one.
_MANY_FRUITLESS = 64


class Prefetcher:
    """Stages the parts that come over a channel, until it closes.

    Args:
        channel: To the supervisor.
        dataset: The dataset.
        tiers: The staging stores, the fastest first.
        validated: One number for each example, shared by all prefetchers: the stamps of its
            staged files, added up, once they have been compared with their sources in this run,
            which is not done again while nobody touches them; 0 before.
        n_reads: Reads in flight at first, as far as the limits of the process allow for them.
        index_type: As which the dataset is asked for an example: a character of NumPy's.
        row: Its counters.
    """

    def __init__(
        self,
        channel: Channel,
        dataset: Dataset,
        tiers: Sequence[Store],
        validated: memoryview,
        n_reads: int,
        index_type: str,
        row: Row,
    ) -> None:
        self._channel = channel
        self._dataset = dataset
        self._source = tiers[0].source
        self._room = tiers[0].room
        self._tiers = Tiers(tiers, self._tell, os.getppid())  # the supervisor's number
        strays = [Strays(store) for store in tiers]
        self._evictor = Evictor(
            dataset, self._source, self._tiers, strays, validated, self._count_eviction
        )
        self._row = row
        self._threads = Threads(self._work)
        self._lock = threading.Lock()
        self._user_code = threading.Lock()
        self._discovery: Discovery | None = None
        self._asked: int | None = None
        self._validated = validated
        self._recent: collections.OrderedDict[str, int] = collections.OrderedDict()  # stamps
        self._in_hand: dict[object, int] = {}  # indices, in the order in which they were begun
        self._has_first = self._has_found = False
        self._n_fruitless = 0  # examples of which no file was found
        self._n_files = 1
        self._told: set[str] = set()
        self._n_reads = n_reads
        self._index_type = index_type

    def run(self) -> None:
        """Serve until the supervisor closes the channel."""
        self._resize(self._n_reads)
        try:
            while True:
                kind, work = self._next_message()
                if kind == "reads":
                    self._resize(work)
                    continue
                self._threads.put(functools.partial(self._begin, self._in_hand_of(work)))
                while not len(self._threads) and self._threads.has_jobs:
                    self._threads.do_next()
        except ChannelClosedError:
            return

    def _next_message(self) -> Message:
        """Wait for a message; what was granted in advance is given back meanwhile."""
        while not self._channel.is_readable(_IDLE_SECONDS):
            self._room.rest()  # our threads may have been granted something since we last looked
        return self._channel.receive()[0]

    def _resize(self, n_reads: int) -> None:
        self._threads.resize(n_reads)
        self._row.put(Counter.READS_IN_FLIGHT, max(1, len(self._threads)))

    def _in_hand_of(self, task: StageTask) -> PartInHand:
        room = None if task.victims is None else RoomForPart(self._evictor, task.victims)
        return PartInHand(task, room)

    def _work(self) -> None:
        try:
            while self._threads.do_next():
                pass
        except ChannelClosedError:  # the end of this process
            return
        except BaseException:  # a part would be lost: the supervisor has them all done again
            with contextlib.suppress(ChannelClosedError):
                self._channel.send(("crashed", traceback.format_exc()))
            os._exit(1)

    def _begin(self, part: PartInHand) -> None:
        """Look which files of a part are staged; what is not becomes a job for every example."""
        missing = []
        avoid = part.task.avoid
        indices = [index for index in part.task.indices if index not in avoid]
        examples = list(map(self._look_safely, indices))
        self._tiers.want(path for example in examples for path in example.absolute_paths)
        for example in examples:
            if example.missing or not example.is_declared:
                missing.append(example)
            else:
                self._finish(part, example)
        part.n_waiting = len(missing)
        for example in missing[1:]:
            self._threads.put(functools.partial(self._fetch, part, example))
        if missing:
            self._fetch(part, missing[0])
        else:
            self._answer(part)

    @contextlib.contextmanager
    def _hold(self, index: int) -> Iterator[None]:
        """Note what may take long, so that a stall can be explained: the example begun first."""
        token = object()
        with self._lock:
            self._in_hand[token] = index
            self._show_current()
        try:
            yield
        finally:
            with self._lock:
                del self._in_hand[token]
                self._show_current()

    @contextlib.contextmanager
    def _asking(self, index: int) -> Iterator[None]:
        """Be the only thread that asks the dataset for an example, which may be our death."""
        with self._user_code:
            with self._lock:
                self._asked = index
                self._show_current()
            try:
                yield
            finally:
                with self._lock:
                    self._asked = None
                    self._show_current()

    def _show_current(self) -> None:
        current = self._asked
        if current is None:
            current = next(iter(self._in_hand.values()), -1)
        self._row.put(Counter.CURRENT, current + 1)

    def _look_safely(self, index: int) -> Example:
        try:
            with self._hold(index):
                return self._look(index)
        except ChannelClosedError:
            raise
        except BaseException as error:  # user code, or a path that no file can have
            return self._give_up(Example(index), error)

    def _give_up(self, example: Example, error: BaseException) -> Example:
        """Leave an example to the file reader, which goes to the source."""
        example.is_complete = False
        self._tell(
            f"example {example.index} cannot be staged ({error!r}): it is read from the source"
        )
        return example

    def _look(self, index: int) -> Example:
        """Find the files of an example, and those of them that are staged."""
        example = Example(index)
        declared = declared_paths(self._dataset, index)
        if declared is None:
            example.is_declared = False
            return example
        paths = list(paths_below(self._source, declared))
        copies = [self._tiers.peek(absolute) for _, absolute in paths]
        stamps = [copy.stamp for copy in copies if copy is not None]
        is_trusted = len(stamps) == len(paths) and self._is_validated(index, stamps)
        for (path, absolute), copy in zip(paths, copies, strict=True):
            found = None if copy is None else self._compare(absolute, copy, is_trusted=is_trusted)
            if not self._note(example, path, absolute, found):
                example.missing.append((path, absolute))
        return example

    def _is_validated(self, index: int, stamps: Iterable[int]) -> bool:
        """Return whether these are the stamps of what has been compared in this run."""
        return self._validated[index] == total(stamps)

    def _compare(self, absolute: str, copy: Found, *, is_trusted: bool) -> Staged | None:
        stamp = copy.stamp if is_trusted else self._recent.get(absolute, 0)
        return self._tiers.compare(absolute, copy, stamp=stamp)

    def _fetch(self, part: PartInHand, example: Example) -> None:
        """Copy what is missing of an example."""
        try:
            with self._hold(example.index):
                if example.is_declared:
                    for path, absolute in example.missing:
                        self._note(example, path, absolute, self._copy(part, absolute))
                else:
                    self._discover(example, part)
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

    def _finish(self, part: PartInHand, example: Example) -> None:
        part.finish(example)
        if example.is_complete and example.is_settled:
            self._validated[example.index] = total(example.stamps)

    def _discover(self, example: Example, part: PartInHand) -> None:
        n_files = part.task.n_files
        # The first example is followed to its end, to learn how many files an example opens.
        is_first, self._has_first = not self._has_first, True
        while is_first or len(example.staged) < max(n_files, self._n_files):
            with self._asking(example.index):
                if self._discovery is None:
                    self._discovery = Discovery(self._dataset, self._source, self._index_type)
                known = {path: copy.path for path, copy in example.staged.items()}
                found = self._discovery.next_path(example.index, known)
            if found is None:
                self._note_fruitless(self._discovery.elsewhere)
                break
            self._has_found = True
            path, absolute = next(paths_below(self._source, [found]))
            answer = None
            self._tiers.want([absolute])
            copy = self._tiers.peek(absolute)
            if copy is not None:
                is_trusted = self._is_validated(example.index, [*example.stamps, copy.stamp])
                answer = self._compare(absolute, copy, is_trusted=is_trusted)
            answer = answer or self._copy(part, absolute)
            if not self._note(example, path, absolute, answer):
                break
        self._n_files = max(self._n_files, len(example.staged))

    def _note_fruitless(self, elsewhere: str) -> None:
        """Tell of a source below which nothing is opened, though files are elsewhere."""
        self._n_fruitless += bool(elsewhere)
        if not self._has_found and self._n_fruitless == _MANY_FRUITLESS:
            self._tell(
                f"none of {_MANY_FRUITLESS} examples opens a file below the source "
                f"{self._source}, so nothing is staged; they open {elsewhere}, for example. Give "
                f"a Staging.source that these paths begin with (a symbolic link to the same "
                f"directory is another name)"
            )

    def _copy(self, part: PartInHand, absolute: str) -> Staged:
        began_ns = time.monotonic_ns()
        answer = part.copy(self._tiers, absolute)
        if answer.outcome is Outcome.COPIED:
            with self._lock:
                self._row.add(Counter.READ_NS, time.monotonic_ns() - began_ns)
        return answer

    def _note(self, example: Example, path: str, absolute: str, answer: Staged | None) -> bool:
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
            elif answer.outcome is not Outcome.SOURCE_FAILED:
                row.add(Counter.FILES_REFUSED, 1)
            if answer.path is None:
                example.is_complete = False
                example.was_refused |= answer.outcome is Outcome.REFUSED
                return example.is_declared
            example.sizes[absolute] = answer.size_bytes
            example.tier = min(example.tier, answer.tier)
            example.stamps.append(answer.stamp)
            example.staged[path] = Copy(answer.path, answer.stamp)
            if example.is_declared:  # the dataset may open it by another name
                example.staged[absolute] = example.staged[path]
            if not answer.is_settled:
                example.is_settled = False
                return True
            self._recent[absolute] = answer.stamp
            if len(self._recent) > _REMEMBERED_PATHS:
                self._recent.popitem(last=False)
        return True

    def _answer(self, part: PartInHand) -> None:
        if part.room is not None:
            part.room.shrink()
        moved = {} if part.room is None else part.room.moved
        self._channel.send(("staged", part.task.part_id, part.staged, part.findings, moved))

    def _count_eviction(self) -> None:
        with self._lock:
            self._row.add(Counter.FILES_EVICTED, 1)

    def _tell(self, text: str) -> None:
        with self._lock:
            is_news = text not in self._told
            self._told.add(text)
        if is_news:
            self._channel.send(("trouble", text))
