"""Stages many files at once, in threads, and can be stopped in the middle of a file."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

from overlapiter.origins.origin import Origin, Original, OriginalFile
from overlapiter.staging.store import Outcome, Store

#: How long the end waits for reads that are under way; a stalled store is not waited for.
_PATIENCE_SECONDS = 5.0


class Fate(enum.Enum):
    """What became of a file."""

    STAGED = "staged"
    FOUND = "found"  # staged before, and still as its source
    EMPTY = "empty"  # nothing to stage
    MISSING = "missing"  # or unreadable, at the source
    NO_ROOM = "no room"
    BUSY = "busy"  # another process keeps it claimed
    FAILED = "failed"  # the staging disk


_FATES = {
    Outcome.COPIED: Fate.STAGED,
    Outcome.FOUND: Fate.FOUND,
    Outcome.REFUSED: Fate.NO_ROOM,
    Outcome.TOO_LARGE: Fate.FAILED,
    Outcome.BUSY: Fate.BUSY,
}
_TOO_LARGE = "a file is larger than all the room"
_DIRECTORY = os.strerror(errno.EISDIR)
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class Done(NamedTuple):
    """A file that is done with.

    Attributes:
        path: The source file.
        fate: What became of it.
        copied_bytes: Bytes read from the source.
        reason: What the staging disk or the source said, if it failed.
    """

    path: str
    fate: Fate
    copied_bytes: int = 0
    reason: str = ""


class Stager:
    """Stages the files of a list; one thread uses it, and starts others.

    Args:
        store: The store.
        n_reads: Files that are read at the same time.
        note: Called with what became of each file, those that end while :meth:`run` is being left
            included, by one thread at a time, of which an interruption stops none.
    """

    def __init__(self, store: Store, n_reads: int, note: Callable[[Done], None]) -> None:
        self._store = store
        self._n_reads = n_reads
        self._note = note
        self._stopped = threading.Event()
        self._done: queue.SimpleQueue[Done | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_ending = False
        self._threads: list[threading.Thread] = []

    def run(self, paths: Sequence[str]) -> Generator[Done, None, None]:
        """Give what becomes of each file, in the order in which it does. Blocks between them.

        Leaving the loop early, by an exception too, stops at once: what is half-copied is removed.
        """
        source = _Stoppable(self._store.origin, self._stopped)
        self._store.origin = source
        todo = iter(paths)
        self._start(todo, len(paths))
        n_working = len(self._threads)
        try:
            while n_working:
                done = self._done.get()
                if done is None:
                    n_working -= 1
                else:
                    yield done
        finally:
            self._stop()
            self._store.origin = source.origin

    def _start(self, todo: Iterator[str], n: int) -> None:
        for _ in range(min(self._n_reads, n)):
            thread = threading.Thread(target=self._work, args=(todo,), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the limit of processes and threads: with fewer, then
                if not self._threads:
                    raise
                return
            self._threads.append(thread)

    def stop_soon(self) -> None:
        """Begin no further file; those that are being copied are finished."""
        with self._lock:
            self._is_ending = True

    def _next(self, todo: Iterator[str]) -> str | None:
        with self._lock:
            return None if self._is_ending else next(todo, None)

    def _work(self, todo: Iterator[str]) -> None:
        try:
            while (path := self._next(todo)) is not None:
                done = self._stage(path)
                with self._lock:
                    self._note(done)
                self._done.put(done)
        finally:
            self._done.put(None)

    def _stage(self, path: str) -> Done:
        try:
            answer = self._store.stage(path)
        except OSError as error:
            if error.errno == errno.EISDIR and self._trouble(path) == _DIRECTORY:
                return Done(path, Fate.MISSING, reason=_DIRECTORY)  # at the source, too
            fate = Fate.NO_ROOM if error.errno in _NO_ROOM else Fate.FAILED
            return Done(path, fate, reason=error.strerror or str(error))
        if answer.outcome is not Outcome.SOURCE_FAILED:
            reason = _TOO_LARGE if answer.outcome is Outcome.TOO_LARGE else ""
            return Done(path, _FATES[answer.outcome], answer.copied_bytes, reason)
        try:
            original = self._store.origin.stat(path)
        except OSError as error:
            return Done(path, Fate.MISSING, reason=error.strerror or str(error))
        reason = self._trouble(path)
        if reason or original.size_bytes:
            return Done(path, Fate.MISSING, reason=reason or "it is being written")
        return Done(path, Fate.EMPTY)

    def _trouble(self, path: str) -> str:
        """Return why a source file cannot be read; nothing if it can."""
        try:
            with self._store.origin.open(path) as file:
                file.read(1)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _stop(self) -> None:
        self.stop_soon()
        self._stopped.set()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_at_rest(self) -> bool:
        """Whether no thread hangs in a read any more."""
        return not any(thread.is_alive() for thread in self._threads)


class _Stoppable:
    """An origin whose reads fail once an event is set."""

    def __init__(self, origin: Origin, stopped: threading.Event) -> None:
        self.origin = origin
        self.is_local = origin.is_local
        self._stopped = stopped

    def stat(self, path: str) -> Original:
        return self.origin.stat(path)

    def open(self, path: str) -> contextlib.AbstractContextManager[OriginalFile]:
        self._check()
        return _reading(self.origin.open(path), self._check)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise InterruptedError(errno.EINTR, "interrupted")


@contextlib.contextmanager
def _reading(
    opened: contextlib.AbstractContextManager[OriginalFile], check: Callable[[], None]
) -> Iterator[OriginalFile]:
    with opened as file:
        yield _StoppableFile(file, check)


class _StoppableFile:
    """A file whose reads call ``check`` first."""

    def __init__(self, file: OriginalFile, check: Callable[[], None]) -> None:
        self._file = file
        self._check = check

    def stat(self) -> Original:
        return self._file.stat()

    def read(self, size_bytes: int) -> bytes:
        self._check()
        return self._file.read(size_bytes)
