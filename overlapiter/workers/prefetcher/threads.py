"""The threads of a prefetcher: each has one read in flight, and their number may change."""

from __future__ import annotations

import collections
import os
import resource
import threading
from collections.abc import Callable

_DESCRIPTORS_PER_READ = 2  # the file; and a segment of its own, if it is large
_SPARE_DESCRIPTORS = 24  # for the dataset, messages, the index and the segments


class Threads:
    """Threads that do jobs, the oldest first; one is started when a job waits for it.

    :meth:`put` is safe for threads; the others are for one thread alone.

    Args:
        run: Called in each thread with what does the jobs, until the thread is to end.
    """

    def __init__(
        self, run: Callable[[Callable[[], None]], None] = lambda do_jobs: do_jobs()
    ) -> None:
        self._run = run
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._changed = threading.Condition()
        self._limit = reads_within_limit()
        self._n_wanted = self._n_threads = self._n_busy = 0
        self._has_ended = False

    def __len__(self) -> int:
        """Return how many threads there may be, once those that are too many have ended."""
        return self._n_wanted

    def put(self, job: Callable[[], None]) -> None:
        """Have a job done."""
        with self._changed:
            if not self._has_ended:
                self._jobs.append(job)
                self._start_for_jobs()
                self._changed.notify()

    def resize(self, n_threads: int) -> None:
        """Have so many threads at most; those that are too many end after the job they are at.

        The limits of the process may allow fewer than asked for; if they allow none, the caller has
        to do the jobs.
        """
        with self._changed:
            self._n_wanted = min(n_threads, self._limit)
            self._start_for_jobs(at_least=1)
            self._changed.notify_all()

    def _start_for_jobs(self, at_least: int = 0) -> None:
        """Start threads for jobs for which none is free."""
        n_needed = max(at_least, self._n_busy + len(self._jobs))
        while self._n_threads < min(n_needed, self._n_wanted):
            try:
                threading.Thread(target=self._run, args=[self._do_jobs], daemon=True).start()
            except RuntimeError:  # at the limit of threads, of which others need some
                self._limit = self._n_wanted = self._n_threads - self._n_threads // 2
                self._changed.notify_all()
                return
            self._n_threads += 1

    def _do_jobs(self) -> None:
        while (job := self._next_job()) is not None:
            job()
            del job  # nothing of it is kept while the thread waits for the next one
            with self._changed:
                self._n_busy -= 1

    def _next_job(self) -> Callable[[], None] | None:
        """Wait for the next job, and return it; None if the thread is to end."""
        with self._changed:
            while not self._jobs and self._n_threads <= self._n_wanted:
                self._changed.wait()
            if self._n_threads > self._n_wanted:
                self._n_threads -= 1
                return None
            self._n_busy += 1
            return self._jobs.popleft()

    def end(self) -> None:
        """Begin no further job; those that threads are at go on."""
        with self._changed:
            self._has_ended = True
            self._jobs.clear()

    def do_waiting(self) -> None:
        """Do the jobs that wait if there is no thread for them."""
        while not self._n_wanted and self._jobs:
            self._jobs.popleft()()


def reads_within_limit() -> int:
    """Return how many reads at once the limit of open files allows for; at least one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 1 << 20
    n_taken = len(os.listdir("/proc/self/fd")) + _SPARE_DESCRIPTORS
    return max(1, (limit - n_taken) // _DESCRIPTORS_PER_READ)
