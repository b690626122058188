"""Reads pieces of files, off the training thread, and cuts them into mini-batches."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from overlapiter.tracing import OFF, Tracing

from .data import Source
from .leases import Lease, Piece, order_of
from .model import Batch
from .staging import StagedFiles

#: Pieces that are read and wait for the training thread, beyond the one that it uses.
_PIECES_AHEAD = 1


def cut(arrays: Batch, position: int, size: int) -> Iterator[tuple[int, Batch]]:
    """Give the mini-batches of arrays from a position on, each with where it ends."""
    length = len(arrays[-1])
    for begin in range(position, length, size):
        end = min(begin + size, length)
        yield end, tuple(array[begin:end] for array in arrays)


class Pieces:
    """The pieces of some files, staged before they are read. For one thread, which waits for them.

    Args:
        source: Opens the files.
        paths: Of the files.
        pieces: Of all of them.
        make_staged: Makes what stages the files, in the thread that reads; None to read them where
            they are.
        trace: Where spans go.
    """

    def __init__(
        self,
        source: Source,
        paths: Sequence[str],
        pieces: Sequence[Piece],
        make_staged: Callable[[], StagedFiles] | None = None,
        trace: Tracing = OFF,
    ) -> None:
        self._source = source
        self._paths = paths
        self._pieces = pieces
        self._make_staged = make_staged
        self._staged: StagedFiles | None = None
        self._trace = trace

    def read(self, number: int) -> Batch:
        """Return the arrays of a piece. Blocks. Raises TrainingError if it cannot be read."""
        file, start, stop = self._pieces[number]
        path = local_path = self._paths[file]
        if self._make_staged is not None:
            self._staged = self._staged or self._make_staged()
            with self._trace.span("stage", "staging", None, path=path):
                self._staged.stage(path)
                local_path = self._staged.local_path(path)
        with self._trace.span("read", "reading", None, path=path, start=start, stop=stop):
            return self._source.read(path, start, stop, local_path)

    def close(self) -> None:
        """End the staging, in the thread that has read."""
        if self._staged is not None:
            self._staged.close()
            self._staged = None


class Reader:
    """A thread that reads pieces in the order in which their leases were given.

    Args:
        pieces: Of the training files.
        seed: The order of the examples of a piece follows from it, the epoch and the piece.
        shuffle: Whether examples are shuffled.
    """

    def __init__(self, pieces: Pieces, seed: int, *, shuffle: bool = True) -> None:
        self._pieces = pieces
        self._seed = seed
        self._shuffle = shuffle
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
        if not self._shuffle:
            return arrays
        order = order_of(len(arrays[-1]), self._seed, lease.epoch, lease.piece + 1)
        return tuple(array[order] for array in arrays)

    def close(self) -> None:
        """End the thread; if the source does not answer, it is not waited for."""
        self._is_closed.set()
        self._leases.put(None)
        self._thread.join(5.0)
