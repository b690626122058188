"""Stages and reads pieces of files, off the training thread, and cuts them into mini-batches."""

from __future__ import annotations

import collections
import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence

from overlapiter.options import Staging
from overlapiter.planning import staging_plan
from overlapiter.sources import normalised
from overlapiter.store.outcome import Outcome, Staged
from overlapiter.store.site import Run
from overlapiter.store.stager import Stager
from overlapiter.store.store import Wanted
from overlapiter.workers.copies import StagedCopies

from .job import Job
from .leases import Lease, Piece, order_of
from .model import Batch


def cut(arrays: Batch, position: int, size: int) -> Iterator[tuple[int, Batch]]:
    """Give the mini-batches of arrays from a position on, each with where it ends.

    A single last example joins the others: BatchNormalization has no variance for one alone.
    """
    length = len(arrays[-1])
    begin = position
    while begin < length:
        end = begin + size
        end = length if end >= length - (size > 1) else end
        yield end, tuple(array[begin:end] for array in arrays)
        begin = end


class Pieces:
    """The pieces of some files, read where they are or staged. For one thread.

    Each worker stages the files of its own leases; where several workers of a node have ranges of
    one file, the store has one of them copy it, and the others wait for that. A rank that stages
    must not fork afterwards: its index is open.
    """

    def __init__(self, job: Job, paths: Sequence[str], pieces: Sequence[Piece]) -> None:
        self._job = job
        self._paths = paths
        self._pieces = pieces
        self._stager: Stager | None = None
        self._said: set[str] = set()  # to the user

    def read(self, number: int) -> Batch:
        """Return the arrays of a piece. Blocks. Raises TrainingError if it cannot be read."""
        file, start, stop = self._pieces[number]
        path = local_path = self._paths[file]
        if self._job.settings.staging:
            with self._job.trace.span("stage", "staging", None, path=path):
                local_path = self._staged(path)
        with self._job.trace.span("read", "reading", None, path=path, start=start, stop=stop):
            return self._job.source.read(path, start, stop, local_path)

    def _staged(self, path: str) -> str:
        """Stage a file, or wait until another worker of the node has; return where to read it.

        The path lasts until the next call; without a copy it is that of the source.
        """
        path, settings = normalised(path), self._job.settings
        if self._stager is None:
            self._begin_staging()
            assert self._stager is not None
        key = self._store.key_of(path)
        answers: dict[int, Staged] = {}
        self._stager.stage([Wanted(key, path)], answers.update)
        outcome, extent, *_ = answers[key]
        if outcome is Outcome.REFUSED:
            words = f"files are read from {settings.source}; `overlapiter evict` makes some"
            self._warn(f"{settings.staging} has no room: {words}")
        self._copies.begin_part({} if extent is None else {key: extent})
        self._copies.begin_example()
        return self._copies.local_path(path) or path

    def _warn(self, text: str) -> None:
        """Say something once, however often it happens."""
        if text not in self._said:
            self._said.add(text)
            self._job.listener.say(text)

    def _begin_staging(self) -> None:
        """Open the staging directory that OverlapIterator uses, too, in the thread that reads."""
        settings = self._job.settings
        staging = Staging(settings.staging, source=settings.source)
        plan = staging_plan(staging, (), [])
        stores = plan.stores(Run.of_command("train", {}), self._warn)
        self._store = stores[0]
        self._stager = Stager(stores, plan.origin(), plan.validate, lambda job: job(), self._warn)
        self._copies = StagedCopies(plan)

    def close(self) -> None:
        """End the staging, in the thread that has read; what is staged stays for the next run."""
        if self._stager is not None:
            self._copies.close()
            with contextlib.suppress(OSError):  # nothing depends on it
                self._store.record_end("closed", {})
            self._stager.close()
            self._stager = None


class Reader:
    """A thread that reads training pieces in the order in which their leases were given.

    The order of the examples of a piece follows from the seed, the epoch and the piece. No more is
    read ahead than a worker holds leases.

    Attributes:
        leases: Those whose pieces were not returned yet.
    """

    def __init__(self, job: Job) -> None:
        self._pieces = Pieces(job, job.plan.train_paths, job.plan.train_pieces)
        self._settings, self._trace = job.settings, job.trace
        self.leases: collections.deque[Lease] = collections.deque()
        self._asked: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Batch | Exception] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reading", daemon=True)
        self._thread.start()

    def ask(self, leases: Iterable[Lease]) -> None:
        """Have the pieces of leases read."""
        for lease in leases:
            self.leases.append(lease)
            self._asked.put(lease)

    def next(self) -> Batch:
        """Return the shuffled arrays of the piece of the first lease. Blocks.

        Raises:
            TrainingError: It cannot be read.
        """
        self.leases.popleft()
        got = self._ready.get()
        if isinstance(got, Exception):
            raise got
        return got

    def _run(self) -> None:
        self._trace.name_row("reading")
        with contextlib.closing(self._pieces):
            while (lease := self._asked.get()) is not None and not self._is_closed.is_set():
                try:
                    self._ready.put(self._read(lease))
                except Exception as error:  # the training thread raises it
                    self._ready.put(error)

    def _read(self, lease: Lease) -> Batch:
        arrays = self._pieces.read(lease.piece)
        if not self._settings.shuffle:
            return arrays
        order = order_of(len(arrays[-1]), self._settings.seed, lease.epoch, lease.piece + 1)
        return tuple(array[order] for array in arrays)

    def close(self) -> None:
        """End the thread; if the source does not answer, it is not waited for."""
        self._is_closed.set()
        self._asked.put(None)
        self._thread.join(5.0)
