"""Threads that ask a slow store, and that may never come back from it."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

from overlapiter.origins.origin import Origin, Original, OriginalFile
from overlapiter.workers.prefetcher.threads import Threads

from .console import CommandError

AnswerT = TypeVar("AnswerT")
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

#: How often to look for threads that do not come back.
_LOOK_SECONDS = 0.25
#: Parts for each thread, so that it finds the next one when it has done one.
_AHEAD = 2
#: How long the end waits for threads that are asking.
_PATIENCE_SECONDS = 5.0
_NO_THREAD = "no thread can be started; raise the limit of processes (ulimit -u)"
#: The errors of a file that is missing, may not be read or is none; others are of the store.
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM}
_MISSING |= {errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG}

#: Some files that are worked on together, by their paths.
Part = dict[str, ItemT]


def parts_of(items: Iterable[ItemT], n: int) -> Iterator[list[ItemT]]:
    """Cut items into lists of at most ``n``."""
    rest = iter(items)
    while part := list(itertools.islice(rest, n)):
        yield part


def answered(path: str, question: Callable[[], AnswerT], timeout_seconds: float) -> AnswerT:
    """Return the answer to a question about a path, which raises nothing.

    Raises:
        CommandError: There is none in time, or no thread can be started to ask.
    """
    answer: queue.SimpleQueue[AnswerT] = queue.SimpleQueue()
    try:
        threading.Thread(target=lambda: answer.put(question()), daemon=True).start()
        return answer.get(timeout=timeout_seconds)
    except queue.Empty:
        raise CommandError(
            f"{path}: no answer for {timeout_seconds:g} s; see whether it is mounted, and whether "
            f"its server runs"
        ) from None
    except RuntimeError:
        raise CommandError(_NO_THREAD) from None


class Crew(Generic[ItemT, ResultT]):
    """Works on many parts at a time. It is the origin of their files, and notes why they fail.

    A thread that waits too long for an answer about a file is given up, and another one takes its
    place; the other files of its part are worked on again, each by itself.

    Args:
        origin: Gives the files.
        work: Works on a part; it asks for files through this crew alone.
        n_threads: How many parts are worked on at the same time.
        timeout_seconds: How long an answer may take.
        give_up: Called with a part whose thread is given up.

    Attributes:
        silence: What is said of a file without an answer.
        reasons: Why files could not be read; an empty text for those that are empty.
        unread: The files of which the store, or its disk, is to blame; with an empty text as the
            reason where it does not tell the size.
    """

    def __init__(
        self,
        origin: Origin,
        work: Callable[[Part[ItemT]], ResultT],
        n_threads: int,
        timeout_seconds: float,
        give_up: Callable[[Part[ItemT]], None] = lambda _part: None,
    ) -> None:
        self._origin = origin
        self._work = work
        self._n_threads = n_threads
        self._timeout_seconds = timeout_seconds
        self._give_up = give_up
        self.silence = f"no answer for {timeout_seconds:g} s"
        self.reasons: dict[str, str] = {}
        self.unread: set[str] = set()
        self._threads = Threads()
        self._done: queue.SimpleQueue[tuple[Part[ItemT], ResultT | Exception | None]]
        self._done = queue.SimpleQueue()
        self._working: dict[int, Part[ItemT]] = {}  # by thread, as the following
        self._asking: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()  # of whether a thread is given up
        self._n_lost = 0
        self._is_stopped = False

    # --- in the threads -----------------------------------------------------------------------

    def ask(self, path: str, question: Callable[[], AnswerT]) -> AnswerT:
        """Return the answer to a question about a file. To a thread given up it does not return.

        Raises:
            InterruptedError: It was stopped.
        """
        if self._is_stopped:
            raise InterruptedError(errno.EINTR, "interrupted")
        me = threading.get_ident()
        self._asking[me] = path, time.monotonic()
        try:
            try:
                return question()
            finally:
                with self._lock:
                    is_given_up = self._asking.pop(me, None) is None
                if is_given_up:
                    threading.Event().wait()  # the files may have been worked on again
        except OSError as error:
            self.reasons[path] = error.strerror or str(error)
            if error.errno not in _MISSING:
                self.unread.add(path)
            raise

    def stat(self, path: str) -> Original:
        """Tell what a file is now."""
        return self.ask(path, lambda: self._origin.stat(path))

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[OriginalFile]:
        """Open a file, for the length of a ``with`` block."""
        with self.ask(path, lambda: self._origin.open(path)) as file:
            yield _WatchedFile(self, path, file)

    def _do(self, part: Part[ItemT]) -> None:
        me = threading.get_ident()
        self._working[me] = part
        result: ResultT | Exception | None = None
        if not self._is_stopped:  # what is worked with may be closed
            try:
                result = self._work(part)
            except Exception as error:
                result = error
        del self._working[me]
        self._done.put((part, result))

    # --- in the thread that uses it -----------------------------------------------------------

    def run(
        self, parts: Iterator[Part[ItemT]]
    ) -> Generator[tuple[Part[ItemT], ResultT | None], None, None]:
        """Give each part with what came of it, None for a file without an answer. Blocks.

        Leaving the loop early, by an exception too, stops the threads.
        """
        n_begun, look_seconds = 0, 0.0
        try:
            self.resize(self._n_threads)
            if not len(self._threads):
                raise CommandError(_NO_THREAD)
            while True:
                n_left = len(self._threads) - self._n_lost
                while n_begun < _AHEAD * n_left and (part := next(parts, None)):
                    self._threads.put(functools.partial(self._do, part))
                    n_begun += 1
                if not n_begun or not n_left:
                    return
                try:
                    part, result = self._done.get(timeout=_LOOK_SECONDS)
                except queue.Empty:
                    pass
                else:
                    n_begun -= 1
                    if isinstance(result, Exception):
                        raise result
                    yield part, result
                if time.monotonic() < look_seconds:
                    continue
                look_seconds = time.monotonic() + _LOOK_SECONDS
                for path, part in self._overdue():
                    n_begun -= 1
                    parts = itertools.chain([{p: part[p]} for p in part if p != path], parts)
                    yield {path: part[path]}, None
        finally:
            self._stop()

    def _overdue(self) -> list[tuple[str, Part[ItemT]]]:
        """Give up threads that wait too long; return the file for which each does, and its part."""
        since = time.monotonic() - self._timeout_seconds
        with self._lock:  # so that none has its answer meanwhile
            late = [thread for thread, (_, at) in list(self._asking.items()) if at < since]
            lost = [(self._asking.pop(thread)[0], self._working.pop(thread)) for thread in late]
        for _, part in lost:
            self._give_up(part)
        self._n_lost += len(lost)
        self.resize(self._n_threads)
        return lost

    def resize(self, n_threads: int) -> None:
        """Work on so many parts at the same time from now on."""
        self._n_threads = n_threads
        # If more than these are lost, the store is dead.
        self._threads.resize(n_threads + min(self._n_lost, n_threads))

    def _stop(self) -> None:
        """End the threads, in the middle of a file, too; those that hang are not waited for."""
        self._is_stopped = True
        self._threads.resize(0)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        with contextlib.suppress(queue.Empty):
            while self._working:
                self._done.get(timeout=max(0.0, deadline - time.monotonic()))


class _WatchedFile:
    """A file of the origin of a crew."""

    def __init__(self, crew: Crew[Any, Any], path: str, file: OriginalFile) -> None:
        self._crew, self._path, self._file = crew, path, file

    def stat(self) -> Original:
        found = self._crew.ask(self._path, self._file.stat)
        if not found.size_bytes:
            self._crew.reasons[self._path] = ""
            if not getattr(self._file, "tells_size", True):  # a remote file has this
                self._crew.unread.add(self._path)
        return found

    def read(self, size_bytes: int) -> bytes:
        return self._crew.ask(self._path, lambda: self._file.read(size_bytes))
