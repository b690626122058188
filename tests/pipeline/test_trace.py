"""The trace of a pipeline: every process, every read in flight, and the way of each mini-batch."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from bench.claims.explained import Job, TimedFiles
from bench.slow.store import attach
from overlapiter import tracing
from tests.chainer.scripts import workers
from tests.support.engine import engine_of
from tests.support.traces import assert_valid, events_in

JOB = Job(n_files=64, n_batches=12, open_seconds=0.005, staging={"n_prefetchers": 1}, n_readers=2)


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """The trace of a training."""
    train(tmp_path)
    return tmp_path / "out.json"


def train(tmp_path: Path, *, is_killing: bool = False) -> None:
    folder = tmp_path / "source"
    dataset = TimedFiles(JOB.files(folder), 0.0)
    with (
        tracing.trace(tmp_path / "out.json"),
        JOB.store(folder) as store,
        engine_of(JOB, attach(dataset, store), folder, tmp_path / "fast") as engine,
    ):
        JOB.train(engine, 6)
        if is_killing:
            for name in ("ovl-reader", "ovl-prefetcher"):
                os.kill(workers()[name][0].pid, signal.SIGKILL)
        JOB.train(engine)


def of_process(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    pids = {e["pid"] for e in events if e["ph"] == "M" and e["args"].get("name") == name}
    return [event for event in events if event["pid"] in pids]


def test_every_process_has_its_rows_and_they_are_valid(traced: Path) -> None:
    events = events_in(traced)

    assert_valid(events)
    for name, what in {
        "trainer": {"index list", "wait", "train"},
        "supervisor": {"deliver"},
        "prefetcher 0": {"read slow store", "stage"},
        "file reader 0": {"read part", "dataset[i]"},
        "file reader 1": {"read part", "dataset[i]"},
    }.items():
        found = {event["name"] for event in of_process(events, name) if event["ph"] == "X"}
        assert what <= found, (name, found)


def test_each_read_of_the_slow_store_is_in_a_row_of_its_own(traced: Path) -> None:
    reads = [event for event in events_in(traced) if event["name"] == "read slow store"]

    assert sorted(event["args"]["file"] for event in reads) == [f"{n:05}" for n in range(64)]
    assert len({(event["pid"], event["tid"]) for event in reads}) > 4
    assert all(event["dur"] >= 5000 for event in reads)


def test_a_flow_leads_each_index_list_through_all_stages(traced: Path) -> None:
    flows = defaultdict(list)
    for event in sorted(events_in(traced), key=lambda event: event["ts"]):
        if event["ph"] in "stf":
            flows[event["id"]].append(event)

    for number in range(18):
        phases = [event["ph"] for event in flows[number]]
        assert phases[0] == "s", phases
        assert "f" in phases
        assert len({event["pid"] for event in flows[number]}) >= 3
    # The first epoch is staged: a prefetcher is on the way as well.
    assert len({event["pid"] for event in flows[0]}) >= 4


def test_a_trace_remains_valid_when_processes_are_killed_and_replaced(tmp_path: Path) -> None:
    train(tmp_path, is_killing=True)

    events = events_in(tmp_path / "out.json")
    assert_valid(events)
    assert sum(event["name"] == "wait" for event in events) == 18
