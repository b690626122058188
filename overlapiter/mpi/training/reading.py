"""Reads pieces of files, off the training thread, and cuts them into mini-batches."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence

from .job import Job
from .leases import Lease, Piece, order_of
from .model import Batch
from .staging import StagedFiles

#: Pieces that are read and wait for the training thread, beyond the one that it uses.
_PIECES_AHEAD = 1


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
    """The pieces of some files, staged before they are read. For one thread, which waits for them.

    Args:
        job: The run.
        paths: Of the files.
        pieces: Of all of them.
    """

    def __init__(self, job: Job, paths: Sequence[str], pieces: Sequence[Piece]) -> None:
        self._job = job
        self._paths = paths
        self._pieces = pieces
        self._staged: StagedFiles | None = None

    def read(self, number: int) -> Batch:
        """Return the arrays of a piece. Blocks. Raises TrainingError if it cannot be read."""
        file, start, stop = self._pieces[number]
        path = local_path = self._paths[file]
        job, settings = self._job, self._job.settings
        if settings.staging:
            if self._staged is None:  # in this thread, which is to use it
                self._staged = StagedFiles(settings.staging, settings.source, job.say)
            with job.trace.span("stage", "staging", None, path=path):
                local_path = self._staged.staged(path)
        with job.trace.span("read", "reading", None, path=path, start=start, stop=stop):
            return job.source.read(path, start, stop, local_path)

    def close(self) -> None:
        """End the staging, in the thread that has read."""
        if self._staged is not None:
            self._staged.close()
            self._staged = None


class Reader:
    """A thread that reads training pieces in the order in which their leases were given.

    Args:
        job: The run; the order of the examples of a piece follows from its seed, the epoch and the
            piece.
    """

    def __init__(self, job: Job) -> None:
        self._pieces = Pieces(job, job.plan.train_paths, job.plan.train_pieces)
        self._settings, self._trace = job.settings, job.trace
        self._leases: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        self._ready: queue.Queue[Batch | Exception] = queue.Queue(_PIECES_AHEAD)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reading", daemon=True)
        self._thread.start()

    def ask(self, lease: Lease) -> None:
        """Have the piece of a lease read."""
        self._leases.put(lease)

    def next(self) -> Batch:
        """Return the shuffled arrays of the piece that was asked for first. Blocks.

        Raises:
            TrainingError: It cannot be read.
        """
        got = self._ready.get()
        if isinstance(got, Exception):
            raise got
        return got

    def _run(self) -> None:
        self._trace.name_row("reading")
        try:
            while (lease := self._leases.get()) is not None and not self._is_closed.is_set():
                try:
                    self._put(self._read(lease))
                except Exception as error:  # the training thread raises it
                    self._put(error)
        finally:
            self._pieces.close()

    def _put(self, got: Batch | Exception) -> None:
        while not self._is_closed.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(got, timeout=0.1)
                return

    def _read(self, lease: Lease) -> Batch:
        arrays = self._pieces.read(lease.piece)
        if not self._settings.shuffle:
            return arrays
        order = order_of(len(arrays[-1]), self._settings.seed, lease.epoch, lease.piece + 1)
        return tuple(array[order] for array in arrays)

    def close(self) -> None:
        """End the thread; if the source does not answer, it is not waited for."""
        self._is_closed.set()
        self._leases.put(None)
        self._thread.join(5.0)
