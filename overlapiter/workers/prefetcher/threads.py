"""The threads of a prefetcher: each has one read in flight, and their number may change.

Threads that all have something to do pass the interpreter's lock to each other at every system
call, which costs more than reading a small file from a page cache. So only as many are awake as the
source keeps waiting: a file takes less than 0.25 ms of the interpreter's time, so ``latency / 0.25
ms`` reads in flight (Little's law) keep it busy.
"""

from __future__ import annotations

import collections
import os
import queue
import resource
import threading
from collections.abc import Callable, Iterable

_DESCRIPTORS_PER_READ = 2  # the file; and a segment of its own, if it is large
_SPARE_DESCRIPTORS = 24  # for the dataset, messages, the index and the segments

#: No more threads are awake than answers of the source take multiples of this.
_STEP_NS = 250_000
#: What is assumed of a source of which nothing is known, or that does not answer.
_SLOW_NS = 500_000_000
#: The latest answer counts for this share of the mean; the first ones count alike.
_SHARE = 1 / 16
#: It counts for at most so many times the mean; so if an eighth of them are long, these tell.
_MOST_OF_MEAN = 8


class Threads:
    """Threads that do jobs, the oldest first.

    :meth:`put` and :meth:`note_answers` are safe for threads; the others are for one thread alone.
    """

    def __init__(
        self, run: Callable[[Callable[[], None]], None] = lambda do_jobs: do_jobs()
    ) -> None:
        self._run = run  # called in each thread with what does the jobs until the thread is to end
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._wakings: queue.SimpleQueue[None] = queue.SimpleQueue()  # one wakes one thread
        self._lock = threading.Lock()
        self._limit = reads_within_limit()
        self._n_wanted = 0
        self._has_ended = False
        self._n_threads = 0
        self._n_awake = 0
        self._n_begun = self._n_begun_before = self._n_looks = 0
        self._since: dict[int, int] = {}  # of each thread at work: at which look its job began
        self._held: set[int] = set()  # threads whose jobs have lasted for more than a look
        self._forget()

    def __len__(self) -> int:
        """Return how many threads there may be, once those that are too many have ended."""
        return self._n_wanted

    def put(self, job: Callable[[], None]) -> None:
        """Have a job done."""
        with self._lock:
            if not self._has_ended:
                self._jobs.append(job)
                self._wake_for_job()

    def note_answers(self, took_ns: Iterable[int]) -> None:
        """Take note of how long the source has taken for each of some answers.

        Few long ones among many short ones count little: on a busy node they waited for a core.
        """
        mean_ns = self._mean_ns
        for ns in took_ns:
            self._n_answers += 1
            share = max(_SHARE, 1 / self._n_answers)
            mean_ns += (min(ns, _MOST_OF_MEAN * mean_ns) - mean_ns) * share
        self._learn(mean_ns)

    def _forget(self) -> None:
        self._n_answers = 0
        self._learn(_SLOW_NS)

    def _learn(self, mean_ns: float) -> None:
        self._mean_ns, self._n_useful = mean_ns, int(mean_ns / _STEP_NS) or 1

    def look(self) -> None:
        """Look whether all threads that are awake wait for an answer that does not come."""
        with self._lock:
            self._held = {thread for thread, since in self._since.items() if since < self._n_looks}
            self._n_looks += 1
            if self._jobs and self._n_begun == self._n_begun_before:
                self._forget()
            for _ in range(len(self._jobs)):
                self._wake_for_job()
            self._n_begun_before = self._n_begun

    def _wake_for_job(self) -> None:
        n_coming = self._n_awake - len(self._since)  # awake, and on their way to a job
        if len(self._jobs) <= n_coming or self._n_awake >= self._most_awake():
            return
        if self._n_awake < self._n_threads or self._start():
            self._wake()

    def _most_awake(self) -> int:
        """Return how many threads are to be awake; one whose answer does not come counts apart."""
        return self._n_useful + len(self._held)

    def _wake(self) -> None:
        self._n_awake += 1
        self._wakings.put(None)

    def _start(self) -> bool:
        """Start a thread, which sleeps; return False if there are as many as there may be."""
        if self._n_threads >= self._n_wanted:
            return False
        try:
            threading.Thread(target=self._begin, daemon=True).start()
        except RuntimeError:  # at the limit of threads, of which others need some
            self._limit = self._n_wanted = self._n_threads - self._n_threads // 2
            self._end_surplus()
            return False
        self._n_threads += 1
        return True

    def _end_surplus(self) -> None:
        """Have threads end that are too many, now if they sleep, or after the job they are at."""
        n_asleep = self._n_threads - self._n_awake
        for _ in range(min(n_asleep, self._n_threads - self._n_wanted)):
            self._wake()

    def resize(self, n_threads: int) -> None:
        """Have so many threads at most; those that are too many end after the job they are at.

        Each is started when there is a job for it, but for the first one. The limits of the process
        may allow fewer than asked for; if they allow none, the caller has to do the jobs.
        """
        with self._lock:
            self._n_wanted = min(n_threads, self._limit)
            if not self._n_threads:
                self._start()
            self._end_surplus()
            for _ in range(len(self._jobs)):
                self._wake_for_job()

    def _begin(self) -> None:
        self._wakings.get()
        self._run(self._do_jobs)

    def _do_jobs(self) -> None:
        while (job := self._next_job()) is not None:
            job()
            del job  # nothing of it is kept while the thread waits for the next one

    def _next_job(self) -> Callable[[], None] | None:
        """Wait for the next job, and return it; None if the thread is to end."""
        me = threading.get_ident()
        while True:
            with self._lock:
                self._since.pop(me, None)
                self._held.discard(me)
                if self._n_threads > self._n_wanted:
                    self._n_threads -= 1
                    self._n_awake -= 1
                    self._wake_for_job()
                    return None
                if self._jobs and self._n_awake <= self._most_awake():
                    self._n_begun += 1
                    self._since[me] = self._n_looks
                    job = self._jobs.popleft()
                    self._wake_for_job()
                    return job
                self._n_awake -= 1
            self._wakings.get()

    def end(self) -> None:
        """Begin no further job; those that threads are at go on."""
        with self._lock:
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
