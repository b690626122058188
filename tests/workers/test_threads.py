"""The threads of a prefetcher: as many as wanted, never more, and less where a limit says so."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import threading
from collections.abc import Callable, Iterator

import pytest

from overlapiter.workers.prefetcher.threads import Threads, reads_within_limit


class Crew:
    """Threads that wait inside their jobs until they are let go."""

    def __init__(self) -> None:
        self.threads = Threads(self._work)
        self.at_work = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.n_busy = self.most_busy = 0

    def _work(self, do_jobs: Callable[[], None]) -> None:
        do_jobs()
        self.ended.release()

    def job(self) -> None:
        with self._lock:
            self.n_busy += 1
            self.most_busy = max(self.n_busy, self.most_busy)
        self.at_work.release()
        assert self.let_go.acquire(timeout=60)
        with self._lock:
            self.n_busy -= 1

    def put(self, n_jobs: int) -> None:
        for _ in range(n_jobs):
            self.threads.put(self.job)

    def begin(self, n_threads: int, n_jobs: int) -> None:
        """Have so many threads, each busy, and so many jobs in all."""
        self.threads.resize(n_threads)
        self.put(n_jobs)
        self.await_busy(n_threads)

    def await_busy(self, n_threads: int) -> None:
        for _ in range(n_threads):
            assert self.at_work.acquire(timeout=60)
        assert not self.at_work.acquire(timeout=0.05)

    def await_ended(self, n_threads: int) -> None:
        for _ in range(n_threads):
            assert self.ended.acquire(timeout=60)


@pytest.fixture
def crew() -> Iterator[Crew]:
    before = threading.enumerate()
    made = Crew()
    yield made
    made.let_go.release(1000)
    made.threads.resize(0)
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(timeout=60)


def test_as_many_jobs_are_done_at_once_as_there_are_threads(crew):
    crew.begin(3, 5)
    crew.let_go.release(5)
    crew.await_busy(2)


def test_more_threads_take_up_what_waits(crew):
    crew.begin(2, 6)
    crew.threads.resize(5)
    crew.await_busy(3)


def test_fewer_threads_finish_what_they_are_at_and_leave_the_rest_to_others(crew):
    crew.begin(4, 4)
    crew.threads.resize(1)
    crew.put(3)
    crew.let_go.release(4)
    crew.await_ended(3)
    crew.await_busy(1)
    crew.most_busy = 0
    crew.let_go.release(1)
    crew.await_busy(1)
    assert crew.most_busy == 1


def test_threads_are_started_when_there_is_a_job_for_them(crew):
    before = threading.active_count()
    crew.threads.resize(40)
    assert threading.active_count() - before == 1
    crew.put(3)
    crew.await_busy(3)
    assert threading.active_count() - before == 3


def test_idle_threads_end_when_they_are_too_many(crew):
    crew.begin(4, 4)
    crew.let_go.release(4)
    crew.threads.resize(1)
    crew.await_ended(3)
    crew.put(2)
    crew.await_busy(1)


def test_threads_that_were_to_end_may_stay(crew):
    crew.begin(3, 6)
    crew.threads.resize(1)
    crew.threads.resize(3)
    crew.let_go.release(3)
    crew.await_busy(3)


def test_when_no_more_can_be_started_half_of_them_are_left_to_others(crew, monkeypatch):
    start = threading.Thread.start

    def fail_after(n_threads: int) -> None:
        left = iter(range(n_threads))

        def start_or_fail(thread: threading.Thread) -> None:
            if next(left, None) is None:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_or_fail)

    fail_after(6)
    crew.threads.resize(100)
    crew.put(6)
    crew.await_busy(6)
    crew.put(1)
    crew.let_go.release(6)
    crew.await_ended(3)
    assert len(crew.threads) == 3
    fail_after(100)
    crew.threads.resize(100)
    assert len(crew.threads) == 3  # it is not tried again
    crew.await_busy(1)


def test_without_any_thread_the_caller_does_the_jobs(monkeypatch):
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    threads = Threads()
    threads.resize(8)
    done = []
    threads.put(lambda: done.append(1))
    assert len(threads) == 0
    threads.do_waiting()
    assert done == [1]


@contextlib.contextmanager
def descriptors_limited_to(n_more: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what it would close later must not count
    n_open = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_open + n_more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("n_more", "n_reads"), [(24 + 2 * 9, 9), (24, 1), (0, 1)])
def test_each_read_needs_two_descriptors(n_more, n_reads):
    with descriptors_limited_to(n_more):
        assert reads_within_limit() == n_reads


def test_the_first_answer_of_a_source_tells_how_many_threads_are_of_use(crew):
    crew.threads.resize(8)
    crew.threads.note_answers([10_000])
    crew.put(3)
    crew.await_busy(1)


def test_jobs_that_never_end_hold_up_no_others_of_a_source_that_answers_at_once(crew):
    crew.threads.resize(8)
    for _ in range(500):
        crew.threads.note_answers([10_000])
    crew.put(3)  # these never end
    done = threading.Semaphore(0)
    for _ in range(2000):
        crew.threads.put(done.release)
    n_looks = n_done = 0
    while n_done < 2000:
        if done.acquire(timeout=0.1):
            n_done += 1
            crew.threads.note_answers([10_000])
        else:
            n_looks += 1
            crew.threads.look()
    # Each of them is noticed within two looks, unless no core is left for the other threads.
    assert n_looks < 200
