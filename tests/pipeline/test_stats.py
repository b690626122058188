"""What the statistics of real trainings say: parts that add up, and what each field counts."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from bench.claims.explained import Job, TimedFiles
from bench.slow.store import attach
from overlapiter.board import Latencies, StatsBoard
from overlapiter.explain import Cause
from overlapiter.faults import WaitTimeoutError
from overlapiter.stats import Stats
from tests.chainer.scripts import workers
from tests.support.engine import Engine, engine_of

JOB = Job(
    n_files=60, n_batches=20, batch_size=6, decode_seconds=0.001, open_seconds=0.02, n_readers=2
)
PARTS = ("start", "index", "staging", "reading", "decoding", "slot", "assembling")


@dataclasses.dataclass(frozen=True)
class Seen:
    """A training's statistics: after the first epoch, and after the second."""

    half: Stats
    end: Stats
    took_seconds: float


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    folder = tmp_path / "source"
    dataset = TimedFiles(JOB.files(folder), JOB.decode_seconds)
    begin = time.perf_counter()
    with (
        JOB.store(folder) as store,
        engine_of(JOB, attach(dataset, store), folder, tmp_path / "fast") as engine,
    ):
        JOB.train(engine, 10)
        half = engine.stats()
        JOB.train(engine, 10)
        return Seen(half, engine.stats(), time.perf_counter() - begin)


def test_the_parts_of_waiting_add_up_to_it(seen: Seen) -> None:
    end = seen.end
    parts = [getattr(end, f"wait_{part}_seconds") for part in PARTS]

    # The supervisor may not yet have divided its last wait for file readers.
    parts.append(end.waiting_for_readers_seconds)
    assert sum(parts) == pytest.approx(end.wait_seconds, rel=0.02)
    assert min(parts) >= 0
    assert end.wait_seconds <= end.seconds <= seen.took_seconds
    # The first epoch waits for the store, the second one for nothing but decoding.
    later = end.since(seen.half)
    assert seen.half.wait_staging_seconds > 0.02
    assert later.wait_staging_seconds < 0.1 * later.seconds


def test_what_was_done_is_counted(seen: Seen) -> None:
    end = seen.end

    assert (end.batches_taken, end.examples_taken) == (20, 120)
    assert end.examples_read >= 120
    assert end.opens_by_tier[0] == sum(end.opens_by_tier) == end.opens_staged >= 120
    assert (end.opens_source, end.files_staged, end.staged_share) == (0, 60, 1.0)
    assert 60 * 5_000 < end.bytes_staged < 60 * 35_000
    assert end.bytes_read_staged > 1.9 * end.bytes_staged
    assert end.decode_seconds >= 120 * JOB.decode_seconds * 0.9
    assert end.cpu_seconds > end.decode_seconds
    assert 10e6 < end.memory_bytes < 2e9
    assert end.faults_survived == 0
    assert end.examples_per_second == pytest.approx(120 / end.seconds)


def test_latencies_are_those_of_the_store_and_of_the_disk(seen: Seen) -> None:
    end = seen.end

    assert sum(end.store_latency.counts) == 60
    assert end.store_latency.percentile(50) > 0.018
    assert 0.02 <= end.least_read_seconds <= end.store_latency.percentile(50) * 1.2
    assert sum(end.disk_latency.counts) >= 120
    assert end.disk_latency.percentile(10) < end.least_read_seconds
    assert end.read_seconds >= 60 * JOB.open_seconds


def test_between_two_snapshots_there_is_what_was_done_meanwhile(seen: Seen) -> None:
    later = seen.end.since(seen.half)

    assert (later.batches_taken, later.examples_taken) == (10, 60)
    assert later.seconds == pytest.approx(seen.end.seconds - seen.half.seconds)
    assert (later.n_readers, later.reads_in_flight) == (2, seen.end.reads_in_flight)
    assert sum(later.store_latency.counts) == later.files_staged
    assert later.wait_share == later.wait_seconds / later.seconds


def test_faults_that_were_survived_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    with engine_of(JOB, TimedFiles(JOB.files(folder), 0.0), folder, tmp_path / "fast") as engine:
        JOB.train(engine, 5)
        for name in ("ovl-reader", "ovl-prefetcher", "ovl-supervisor"):
            os.kill(workers()[name][0].pid, signal.SIGKILL)
            JOB.train(engine, 5)
        stats = engine.stats()

    assert stats.supervisors_replaced == 1
    assert stats.workers_replaced >= 1
    assert stats.faults_survived >= 2


def test_what_the_store_has_given_stays_counted_when_the_supervisor_is_replaced(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "source"
    job = dataclasses.replace(JOB, staging={"reads_in_flight": 2})
    dataset = TimedFiles(job.files(folder), 0.0)
    with (
        job.store(folder) as store,
        engine_of(job, attach(dataset, store), folder, tmp_path / "fast") as engine,
    ):
        job.train(engine, 10)  # all files, for which a store takes 0.6 s that reads two at a time
        before = engine.stats()
        os.kill(workers()["ovl-supervisor"][0].pid, signal.SIGKILL)
        job.train(engine, 10)
        later = engine.stats().since(before)

    assert later.supervisors_replaced == 1
    assert 0 <= later.store_busy_seconds < 0.2
    assert min(later.file_rate_changes, later.byte_rate_changes) >= 0


class Held:
    """Numbers; the dataset and its example 1 come when a file of that name is in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __setstate__(self, state: dict[str, str]) -> None:
        vars(self).update(state)
        self._await("dataset")

    def _await(self, name: str) -> None:
        while not os.path.exists(os.path.join(self.folder, name)):
            time.sleep(0.005)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 1:
            self._await("example")
        return index


def waits_in_vain(engine: Engine, monkeypatch: pytest.MonkeyPatch, seconds: float) -> Stats:
    """Have three calls time out, each after so long; return what is counted then."""
    with monkeypatch.context() as patch:
        patch.setattr("tests.support.engine.TIMEOUT_SECONDS", seconds)
        for _ in range(3):
            with pytest.raises(WaitTimeoutError):
                next(engine)
    return engine.stats()


def test_calls_that_time_out_are_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(Held(tmp_path), 1, n_readers=1) as engine:
        start = waits_in_vain(engine, monkeypatch, 0.1)
        (tmp_path / "dataset").touch()
        next(engine)
        first = engine.stats()
        stalled = waits_in_vain(engine, monkeypatch, 0.4)
        found = engine.pipeline.explain()

    assert start.wait_seconds == start.wait_start_seconds == start.waiting_seconds >= 0.3
    assert first.wait_seconds > first.wait_start_seconds > start.wait_start_seconds
    assert first.waiting_seconds == 0
    assert stalled.waiting_seconds >= 1.2
    assert stalled.wait_seconds == pytest.approx(first.wait_seconds + stalled.waiting_seconds)
    assert stalled.waiting_seconds > stalled.waiting_for_readers_seconds > 0.6
    assert found.cause is Cause.STALLED
    assert "mostly for file readers" in found.text


def test_statistics_of_an_iterator_that_has_ended_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "dataset").touch()
    with Engine(Held(tmp_path), 1, n_readers=1) as engine:
        next(engine)
    assert engine.stats() == engine.stats()


def test_percentiles_are_right_to_a_tenth() -> None:
    board, fd = StatsBoard.create(1, 1)
    os.close(fd)
    for milliseconds in range(1, 1001):
        board.prefetcher_row(0).add_latency(milliseconds * 10**6)
    found = Latencies(board.latencies(of_prefetchers=True))
    nothing = Latencies(board.latencies(of_prefetchers=False))

    for percent in (1, 50, 90, 99):
        assert found.percentile(percent) == pytest.approx(percent / 100, rel=0.1)
    assert nothing.percentile(50) == found.since(found).percentile(99) == 0.0


def test_a_snapshot_is_cheap_enough_for_every_iteration(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    with engine_of(JOB, TimedFiles(JOB.files(folder), 0.0), folder, tmp_path / "fast") as engine:
        JOB.train(engine, 2)
        begin = time.process_time()
        for _ in range(300):
            engine.stats()
        each = (time.process_time() - begin) / 300

    assert each < 0.000_3  # 50 microseconds on an idle core
