"""Workers that can do no more though they have not ended, or that end in an unusual way."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from overlapiter import OverlapIterator, Skip, Staging
from overlapiter.errors import ExampleError, WorkerDiedError
from tests.chainer.conftest import Maker
from tests.chainer.faults import SourceFiles
from tests.chainer.iterator_datasets import DeclaredCulprit, Pixels, Slow, indices_of
from tests.chainer.scripts import (
    PROMPT_SECONDS,
    Program,
    are_gone,
    run_script,
    wait_for_workers,
    wait_until,
    workers,
)


class StopsItself(Pixels):
    """One example stops the process that reads it, until the test continues it."""

    def get_example(self, i: int) -> Any:
        if i == 5:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().get_example(i)


class LeavesAChild(Pixels):
    """One example leaves a process behind that holds whatever its reader has open, then dies."""

    def __init__(self, n: int, note: Path) -> None:
        super().__init__(n)
        self.note = note

    def get_example(self, i: int) -> Any:
        if i == 5 and not self.note.exists():
            pid = os.fork()
            if not pid:
                time.sleep(60)
            self.note.write_text(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get_example(i)


class Interrupts(Pixels):
    """One example raises what no ``except Exception`` catches."""

    def get_example(self, i: int) -> Any:
        if i == 5:
            raise KeyboardInterrupt(f"at {i}")
        return super().get_example(i)


def in_order(n: int, size: int, start: int = 0) -> list[list[int]]:
    return [[(start + 4 * k + j) % size for j in range(4)] for k in range(n)]


def supervisor_of(iterator: OverlapIterator) -> psutil.Process:
    child = iterator._pipeline._service._child
    assert child.is_forked(PROMPT_SECONDS)
    return psutil.Process(child.pid)


def test_workers_that_are_stopped_are_replaced_and_an_example_that_stops_them_is_named(
    source: SourceFiles, tmp_path: Path
) -> None:
    # It is given up beside the rest. Prefetchers that look for its files would be stopped as well.
    options: dict[str, Any] = {"shuffle": False, "dataset_timeout": None}
    bad = OverlapIterator(StopsItself(16), 4, bad_examples=Skip(1), n_processes=1, **options)
    staging = Staging(tmp_path / "fast", source=source.folder, n_prefetchers=1, keep_free=0)
    with bad, OverlapIterator(Slow(40), 4, staging=staging, n_processes=2, **options) as iterator:
        assert [indices_of(next(iterator)) for _ in range(3)] == in_order(3, 40)
        n_taken = 3
        for names in (["ovl-reader", "ovl-prefetcher"], ["ovl-supervisor"]):
            supervisor = supervisor_of(iterator)
            wait_for_workers({"ovl-reader": 2, "ovl-prefetcher": 1}, supervisor)
            found = {**workers(supervisor), "ovl-supervisor": [supervisor]}
            victims = [found[name][0] for name in names]
            for victim in victims:
                victim.suspend()
            # More than can be on their way at that moment, so that the stopped ones are needed.
            taken = [indices_of(next(iterator)) for _ in range(57)]
            assert taken == in_order(57, 40, start=4 * n_taken % 40)
            n_taken += 57
            assert are_gone(victims)
        wait_for_workers({"ovl-reader": 2, "ovl-prefetcher": 1}, supervisor_of(iterator))

        with pytest.warns(match="example 5 could not be read"):
            taken = [indices_of(next(bad)) for _ in range(3)]
        assert taken == [[0, 1, 2, 3], [4, 6, 7], [8, 9, 10, 11]]
        assert "signal 9" in bad.skipped[0].reason


def test_a_supervisor_that_is_stopped_does_not_keep_the_trainer_from_sending() -> None:
    size = 10_000
    with OverlapIterator(Pixels(size, (1,)), size // 2, shuffle=False, n_processes=1) as iterator:
        assert len(next(iterator)) == size // 2
        (supervisor,) = workers()["ovl-supervisor"]
        supervisor.suspend()
        for _ in range(100):
            iterator.reset()  # sends messages until there is no room for more
        assert indices_of(next(iterator))[-1] == size // 2 - 1


def test_finalize_ends_workers_that_are_stopped() -> None:
    for name in ("ovl-reader", "ovl-supervisor"):
        iterator = OverlapIterator(Slow(20), 4, n_processes=2)
        next(iterator)
        everyone = wait_for_workers({"ovl-supervisor": 1, "ovl-reader": 2})
        workers()[name][0].suspend()
        start = time.monotonic()
        iterator.finalize()
        assert time.monotonic() - start < PROMPT_SECONDS
        assert are_gone(everyone)


def test_a_job_that_is_suspended_as_a_whole_goes_on_with_the_same_workers() -> None:
    with OverlapIterator(Slow(40), 4, shuffle=False, n_processes=2) as iterator:
        taken = [indices_of(next(iterator)) for _ in range(3)]
        wait_for_workers({"ovl-supervisor": 1, "ovl-reader": 2})
        found = workers()
        everyone = [p for name in ("ovl-supervisor", "ovl-reader") for p in found[name]]
        for process in everyone:
            process.suspend()
        wait_until(lambda: all(p.status() == psutil.STATUS_STOPPED for p in everyone))
        for process in reversed(everyone):  # the supervisor last: it finds all running
            process.resume()
        taken += [indices_of(next(iterator)) for _ in range(27)]
        assert taken == in_order(30, 40)
        assert iterator.stats().workers_replaced == 0
        assert workers() == found


def test_a_job_that_is_suspended_with_its_trainer_has_not_waited_meanwhile(tmp_path: Path) -> None:
    body = """
    import os, time, warnings
    import overlapiter
    from tests.chainer.iterator_datasets import Pixels

    class Waits(Pixels):
        def get_example(self, i):
            while i == 4 and not os.path.exists("go"):
                time.sleep(0.05)
            return super().get_example(i)

    if __name__ == "__main__":
        options = {"shuffle": False, "n_processes": 1, "dataset_timeout": 4.0}
        with overlapiter.OverlapIterator(Waits(8), 4, **options) as it:
            next(it)
            warnings.simplefilter("error", it.TimeoutWarning)
            print("waits", flush=True)
            assert len(next(it)) == 4
    """
    with Program(tmp_path, body) as program:
        program.wait_for("waits")
        trainer = psutil.Process(program.process.pid)
        wait_until(lambda: trainer.status() == psutil.STATUS_SLEEPING)
        everyone = [trainer, *trainer.children(recursive=True)]
        for process in everyone:
            process.suspend()
        time.sleep(4.5)  # longer than it is to wait
        (tmp_path / "go").touch()
        for process in everyone:
            process.resume()
        assert program.wait() == 0, program.errors()


def test_a_dead_reader_is_missed_though_a_process_of_the_dataset_keeps_its_channel(
    tmp_path: Path,
) -> None:
    note = tmp_path / "pid"
    with OverlapIterator(LeavesAChild(16, note), 4, shuffle=False, n_processes=2) as iterator:
        assert [indices_of(next(iterator)) for _ in range(8)] == in_order(8, 16)
        assert iterator.stats().workers_replaced == 1
    os.kill(int(note.read_text()), signal.SIGKILL)


def test_what_no_handler_catches_is_told_with_its_traceback(make_ours: Maker) -> None:
    iterator = make_ours(Interrupts(16), 4, shuffle=False)
    next(iterator)
    with pytest.raises(ExampleError, match="example 5: KeyboardInterrupt: at 5") as caught:
        next(iterator)
    assert 'raise KeyboardInterrupt(f"at {i}")' in str(caught.value)
    assert indices_of(next(iterator)) == [8, 9, 10, 11]


def test_no_worker_prints_a_traceback_of_its_own(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import overlapiter

        class Bad(list):
            def __getitem__(self, i):
                if i == 5:
                    raise self.error("bad")
                return super().__getitem__(i)

        if __name__ == "__main__":
            data = Bad(range(16))
            for data.error in (KeyboardInterrupt, SystemExit, RuntimeError, Exception):
                with overlapiter.OverlapIterator(data, 4, shuffle=False, n_processes=2) as iterator:
                    print(next(iterator))
                    try:
                        next(iterator)
                    except BaseException as caught:
                        print(type(caught).__name__)
                    print(next(iterator))
        """,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    names = ["ExampleError", "ExampleError", "RuntimeError", "Exception"]
    assert done.stdout.splitlines() == [
        line for name in names for line in ("[0, 1, 2, 3]", name, "[8, 9, 10, 11]")
    ]


def test_the_paths_of_an_example_that_kills_its_readers_are_named(make_ours: Maker) -> None:
    folder = str(make_ours.staging.source)
    iterator = make_ours(DeclaredCulprit(8, 2, "exits_hard", folder), 4, shuffle=False)
    with pytest.raises(WorkerDiedError, match=rf"example 2 \({folder}/2\)") as caught:
        next(iterator)
    assert caught.value.paths == (f"{folder}/2",)


def test_the_end_of_the_forkserver_is_survived(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os, signal
        from multiprocessing import forkserver
        import overlapiter
        from overlapiter.workers.start.processes import is_running

        def kill(pid):
            os.kill(pid, signal.SIGKILL)
            while is_running(pid):
                pass

        if __name__ == "__main__":
            first = overlapiter.OverlapIterator(list(range(40)), 4, shuffle=False, n_processes=2)
            print(next(first))
            kill(forkserver._forkserver._forkserver_pid)
            print([next(first)[0] for _ in range(4)])
            second = overlapiter.OverlapIterator(list(range(8)), 4, shuffle=False, n_processes=2)
            print([next(second)[0] for _ in range(4)])
            supervisor = first._pipeline._service._child
            assert supervisor.is_forked(10)
            kill(supervisor.pid)
            print([next(first)[0] for _ in range(4)])
            first.finalize()
            second.finalize()
        """,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[0, 1, 2, 3]", "[4, 8, 12, 16]", "[0, 4, 0, 4]", "[20, 24, 28, 32]"
    ]  # fmt: skip


def test_a_thread_that_reads_ahead_ends_with_the_program_in_silence(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import atexit, threading
        threads = []
        atexit.register(lambda: threads[0].join(20))  # registered first, so it comes last
        import overlapiter

        def read_ahead(iterator, has_begun):
            while True:
                next(iterator)
                has_begun.set()

        iterator = overlapiter.OverlapIterator(list(range(8)), 4, n_processes=1)
        has_begun = threading.Event()
        thread = threading.Thread(target=read_ahead, args=(iterator, has_begun), daemon=True)
        threads.append(thread)
        thread.start()
        has_begun.wait()
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
