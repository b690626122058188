"""The threads of a prefetcher: each has one read in flight, and their number may change."""

from __future__ import annotations

import os
import queue
import resource
import threading
from collections.abc import Callable

_DESCRIPTORS_PER_READ = 2  # the file; and a segment of its own, if it is large
_SPARE_DESCRIPTORS = 24  # for the dataset, messages, the index and the segments


class Threads:
    """Threads that do jobs, those put first first.

    :meth:`put` and :meth:`do_next` are safe for threads; :meth:`resize` is for one thread alone.

    Args:
        work: What each thread does: it is to call :meth:`do_next` until that returns False.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._limit = reads_within_limit()
        self._n_wanted = 0
        self._n_threads = 0

    def __len__(self) -> int:
        """Return how many threads there are to be, once those that are too many have ended."""
        return self._n_wanted

    @property
    def has_jobs(self) -> bool:
        """Whether a job waits for a thread."""
        return not self._jobs.empty()

    def put(self, job: Callable[[], None]) -> None:
        """Have a job done."""
        self._jobs.put(job)

    def resize(self, n_threads: int) -> None:
        """Start threads, or let some end after the job they are at.

        The limits of the process may allow fewer than asked for; if they allow none, the caller
        has to do the jobs.
        """
        with self._lock:
            n_before, wanted = self._n_threads, min(n_threads, self._limit)
            self._n_threads = max(n_before, wanted)
            self._n_wanted = wanted
        for number in range(n_before, wanted):
            try:
                threading.Thread(target=self._work, daemon=True).start()
            except RuntimeError:  # at the limit of threads, of which others need some
                with self._lock:
                    self._n_threads = number
                    self._limit = self._n_wanted = number - (number - n_before) // 2
                break
        for _ in range(self._n_threads - self._n_wanted):
            self._jobs.put(None)  # wakes idle threads, which then end

    def do_next(self) -> bool:
        """Do the next job, as soon as there is one; return False if the thread is to end."""
        job = self._jobs.get()
        if job is not None:
            job()
        with self._lock:
            is_surplus = self._n_threads > self._n_wanted
            self._n_threads -= is_surplus
        return not is_surplus


def reads_within_limit() -> int:
    """Return how many reads at once the limit of open files allows for; at least one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 1 << 20
    n_taken = len(os.listdir("/proc/self/fd")) + _SPARE_DESCRIPTORS
    return max(1, (limit - n_taken) // _DESCRIPTORS_PER_READ)
