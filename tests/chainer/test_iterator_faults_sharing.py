"""Several iterators and jobs on one staging directory: none waits for ever on another."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil

from tests.chainer.faults import SourceFiles
from tests.chainer.scripts import Program, kill_all, wait_until, workers
from tests.support.leases import held_back
from tests.support.staged import (
    assert_accounted,
    being_copied,
    evict,
    key_in,
    staged_paths,
    stopped_in_transaction,
)

OTHER_JOB = """
    import overlapiter
    from tests.chainer.iterator_datasets import DeclaredFiles

    if __name__ == "__main__":
        names = [f"{{i // 4}}/{{i}}.bin" for i in range(12)]
        staging = overlapiter.Staging(
            "fast", source="source", keep_free=0, n_prefetchers=1, capacity={capacity}
        )
        it = overlapiter.OverlapIterator(
            DeclaredFiles("source", names), 4, shuffle=False, n_processes=1, staging=staging,
            dataset_timeout=None,
        )
        print("ready", flush=True)
        while True:
            next(it)
"""


def is_all_but_one(directory: Path, source: SourceFiles, path: Path) -> bool:
    """Return whether all files are staged but one, which a process has claimed."""
    claimed = {key_in(source.folder, path)}
    return len(staged_paths(directory)) == 11 and being_copied(directory) == claimed


def prefetchers_of(program: Program) -> list[psutil.Process]:
    return workers(psutil.Process(program.process.pid)).get("ovl-prefetcher", [])


def test_two_iterators_of_one_program_share_a_directory(
    source: SourceFiles, tmp_path: Path
) -> None:
    fast = tmp_path / "fast"
    with source.iterate(fast, capacity=10**8) as train, source.iterate(fast) as validation:
        for _ in range(6):
            train.take(3)
            validation.take(3)
        stats = train.iterator.stats(), validation.iterator.stats()
    assert sum(one.files_staged for one in stats) == len(source.names)
    assert train.warnings == validation.warnings == []


def test_a_job_that_is_killed_while_it_copies_leaves_its_files_to_the_others(
    source: SourceFiles, tmp_path: Path
) -> None:
    fast, capacity = tmp_path / "fast", 10**8
    path = source.folder / source.names[5]
    with Program(tmp_path, OTHER_JOB.format(capacity=capacity)) as program:
        with held_back(path), source.iterate(fast, capacity=capacity) as run:
            run.take()
            program.wait_for("ready")
            wait_until(lambda: is_all_but_one(fast, source, path))
            kill_all([*prefetchers_of(program), psutil.Process(program.process.pid)])
        with source.iterate(fast, capacity=capacity) as run:
            run.take(4)
            assert run.iterator.stats().opens_source == 0
            assert run.warnings == []
    assert being_copied(fast) == set()
    assert_accounted(fast)


def test_a_job_that_is_stopped_while_it_copies_is_told_of_and_passed_by(
    source: SourceFiles, tmp_path: Path
) -> None:
    fast = tmp_path / "fast"
    path = source.folder / source.names[5]
    with Program(tmp_path, OTHER_JOB.format(capacity=None)) as program:
        with held_back(path):
            program.wait_for("ready")
            wait_until(lambda: is_all_but_one(fast, source, path))
            trainer = psutil.Process(program.process.pid)
            stopped = [trainer, *trainer.children(recursive=True)]  # its trainer would help itself
            for process in stopped:
                process.send_signal(signal.SIGSTOP)
            for process in stopped:  # it takes a moment until the last thread has stopped
                wait_until(lambda one=process: one.status() == psutil.STATUS_STOPPED)
        assert is_all_but_one(fast, source, path)
        start = time.monotonic()
        with source.iterate(fast, n_prefetchers=1) as run:
            run.take(6)
            assert time.monotonic() - start < 40
            start = time.monotonic()
            run.take(12)  # the file is not waited for again, which would take 5 s each time
            assert time.monotonic() - start < 10
            for process in stopped:
                process.send_signal(signal.SIGCONT)
            run.take_until_staged()
        assert len(run.warnings) == 1
        assert "was stopped" in run.warnings[0]
        assert str(fast) in run.warnings[0]
    assert staged_paths(fast).keys() == set(source.names)


def test_a_job_that_is_stopped_in_a_transaction_is_told_of_and_passed_by(
    source: SourceFiles, tmp_path: Path
) -> None:
    fast = tmp_path / "fast"
    with source.iterate(fast, capacity=10**8) as run:
        run.take(4)
        wait_until(lambda: len(staged_paths(fast)) == len(source.names))
        evict(fast, source.folder, source.names[::2])
        with stopped_in_transaction(fast) as pid:
            start = time.monotonic()
            run.take(9)
            assert run.iterator.stats().files_refused > 0
            with source.iterate(fast, capacity=10**8) as other:  # nor is a start held up
                other.take(6)
            assert time.monotonic() - start < 40
            os.kill(pid, signal.SIGCONT)
            run.take_until_staged()
    for warned in (run, other):
        assert len(warned.warnings) == 1
        assert "was stopped" in warned.warnings[0]
    assert staged_paths(fast).keys() == set(source.names)


def test_a_job_that_is_stopped_while_it_looks_holds_nothing_up(
    source: SourceFiles, tmp_path: Path
) -> None:
    fast = tmp_path / "fast"
    with source.iterate(fast, capacity=10**8) as run:
        run.take(4)
        with stopped_in_transaction(fast, "BEGIN"):
            evict(fast, source.folder, source.names[::2])
            run.take_until_staged()
        assert run.iterator.stats().files_staged > len(source.names)
    assert run.warnings == []
