"""Threads that ask a slow store, and that may never come back from it."""

from __future__ import annotations

import errno
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

#: How often to look for threads that do not come back.
_LOOK_SECONDS = 0.25
#: How long the end waits for threads that are asking.
_PATIENCE_SECONDS = 5.0

#: Some files that are worked on together, by their paths.
Part = dict[str, ItemT]


def parts_of(items: Iterable[ItemT], n: int) -> Iterator[list[ItemT]]:
    """Cut items into lists of at most ``n``."""
    rest = iter(items)
    while part := list(itertools.islice(rest, n)):
        yield part


class Crew(Generic[ItemT, ResultT]):
    """Works on many parts at a time.

    A thread that waits too long for an answer about a file is given up, and another one takes its
    place; the other files of its part are worked on again, each by itself.

    Args:
        work: Works on a part. It calls :meth:`ask` before it asks about a file, then :meth:`told`.
        n_threads: How many parts are worked on at the same time.
        timeout_seconds: How long an answer may take.
        give_up: Called with a part whose thread is given up.
    """

    def __init__(
        self,
        work: Callable[[Part[ItemT]], ResultT],
        n_threads: int,
        timeout_seconds: float,
        give_up: Callable[[Part[ItemT]], None] = lambda _part: None,
    ) -> None:
        self._work = work
        self._n_threads = n_threads
        self._timeout_seconds = timeout_seconds
        self._give_up = give_up
        self._lock = threading.Lock()
        self._parts: Iterator[Part[ItemT]] = iter(())
        self._again: deque[Part[ItemT]] = deque()
        self._done: queue.SimpleQueue[tuple[Part[ItemT], ResultT] | Exception | None]
        self._done = queue.SimpleQueue()
        self._threads: dict[int, threading.Thread] = {}  # by ident, as the following
        self._working: dict[int, Part[ItemT]] = {}
        self._asking: dict[int, tuple[str, float]] = {}
        self._lost: set[int] = set()
        self._is_ending = self._is_stopped = False

    # --- in the threads -----------------------------------------------------------------------

    def ask(self, path: str) -> None:
        """Note that a slow store is asked about a file. Raises InterruptedError once stopped."""
        if self._is_stopped:
            raise InterruptedError(errno.EINTR, "interrupted")
        self._asking[threading.get_ident()] = path, time.monotonic()

    def told(self) -> None:
        """Note that it has answered. To a thread that was given up this does not return."""
        if self._asking.pop(threading.get_ident(), None) is None:
            threading.Event().wait()  # its files may have been worked on again

    def _run(self) -> None:
        me = threading.get_ident()
        try:
            while (part := self._next()) is not None:
                self._working[me] = part
                self._done.put((part, self._work(part)))
        except Exception as error:
            self._done.put(error)
        finally:
            self._done.put(None)

    def _next(self) -> Part[ItemT] | None:
        with self._lock:
            if self._is_ending:
                return None
            return self._again.popleft() if self._again else next(self._parts, None)

    # --- in the thread that uses it -----------------------------------------------------------

    def run(
        self, parts: Iterator[Part[ItemT]]
    ) -> Generator[tuple[Part[ItemT], ResultT | None], None, None]:
        """Give each part with what came of it, None for a file without an answer. Blocks.

        Leaving the loop early, by an exception too, stops the threads.
        """
        self._parts = parts
        look_seconds = 0.0
        try:
            n_working = sum(self._start() for _ in range(self._n_threads))
            while n_working:
                done = None
                try:
                    done = self._done.get(timeout=_LOOK_SECONDS)
                    n_working -= done is None
                except queue.Empty:
                    pass
                if isinstance(done, Exception):
                    raise done
                if done is not None:
                    yield done
                if time.monotonic() >= look_seconds:
                    look_seconds = time.monotonic() + _LOOK_SECONDS
                    for part in self._overdue():
                        n_working -= not self._replace()
                        yield part, None
        finally:
            self.stop()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the limit of processes and threads: with fewer, then
            if not self._threads:
                raise
            return False
        self._threads[thread.ident or 0] = thread
        return True

    def _replace(self) -> bool:
        """Start a thread for one that is lost, unless so many are that the store is dead."""
        return len(self._lost) <= self._n_threads and self._start()

    def _overdue(self) -> Iterator[Part[ItemT]]:
        """Give up threads that wait too long; give the files for which they do."""
        since = time.monotonic() - self._timeout_seconds
        for thread, (path, asked_seconds) in list(self._asking.items()):
            if asked_seconds < since and self._asking.pop(thread, None) is not None:
                self._lost.add(thread)
                part = self._working[thread]
                self._give_up(part)
                self._again.extend({other: part[other]} for other in part if other != path)
                yield {path: part[path]}

    def stop_soon(self) -> None:
        """Begin no further part."""
        self._is_ending = True

    def stop(self) -> None:
        """End the threads, in the middle of a file, too; those that hang are not waited for."""
        self._is_ending = self._is_stopped = True
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for ident, thread in self._threads.items():
            if ident not in self._lost:
                thread.join(max(0.0, deadline - time.monotonic()))
