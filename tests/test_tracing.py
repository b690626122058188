"""Traces: whole lines of several processes, within a bound, valid though one of them was killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from overlapiter import tracing
from overlapiter.cli.main import main
from overlapiter.cli.trace import read_trace
from overlapiter.errors import OptionError
from tests.support.traces import assert_valid, events_in


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.json"


def names(path: Path, phase: str = "X") -> list[str]:
    return [event["name"] for event in events_in(path) if event["ph"] == phase]


def test_a_span_has_its_name_its_time_and_what_it_is_about(path: Path) -> None:
    begun = time.time()
    with (
        tracing.begin_trace(path, "worker") as trace,
        trace.span("compute", "training", 7, loss=0.5, of="x"),
    ):
        pass

    (span,) = [event for event in events_in(path) if event["ph"] == "X"]
    assert (span["name"], span["cat"], span["args"]) == (
        "compute", "training", {"loss": 0.5, "of": "x"},
    )  # fmt: skip
    assert begun - 1 < span["ts"] / 1e6 < time.time() + 1
    assert span["pid"] == os.getpid()
    assert_valid(events_in(path))


def test_all_that_can_be_recorded_is_valid(path: Path) -> None:
    with tracing.begin_trace(path, "worker") as trace:
        now_ns = time.monotonic_ns()
        trace.add("begin", "x", now_ns - 2000, now_ns, flows=[1], phase="s")
        with trace.span("outer", "x"), trace.span("inner", "x"):
            trace.instant("now", "x")
        trace.counter("queue", waiting=3, ready=0.5)
        trace.name_row("receiver")
        trace.add("take", "x", now_ns, now_ns, flows=[1], phase="f")

    assert_valid(events_in(path))
    assert Counter(event["ph"] for event in events_in(path)) == Counter("XXXXsfiCMMM")


def test_a_span_may_say_anything_of_itself(path: Path) -> None:
    with tracing.begin_trace(path) as trace:
        with trace.span("update", "mine", phase="warm-up", flows=3, row=1):
            pass
        trace.instant("loss", "mine", value=Fraction(1, 2))  # type: ignore[arg-type]  # no JSON

    assert [event["args"] for event in events_in(path) if event["cat"] == "mine"] == [
        {"phase": "warm-up", "flows": 3, "row": 1},
        {"value": "1/2"},
    ]


def test_what_overlaps_gets_rows_of_its_own_which_are_used_again(path: Path) -> None:
    with tracing.begin_trace(path, "worker") as trace:
        for begin_ns, end_ns in ((20, 30), (10, 40), (30, 50)):
            trace.add("read", "x", begin_ns * 1000, end_ns * 1000, row="I/O slot")
        trace.add("stage", "x", 0, 50_000, row="task", flows=[3, 4])

    events = events_in(path)
    named = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert [*named] == ["I/O slot 1", "I/O slot 2", "task 1"]
    spans = [(e["tid"], e["dur"]) for e in events if e["ph"] == "X"]
    one, two, task = named.values()
    assert spans == [(one, 10), (two, 30), (one, 20), (task, 50)]
    assert [e["tid"] for e in events if e["ph"] == "t"] == [task, task]
    assert_valid(events)


def test_several_processes_and_threads_write_whole_lines_to_one_file(path: Path) -> None:
    trace = tracing.begin_trace(path, "first")
    pids = []
    for number in range(3):
        pids.append(os.fork())
        if not pids[-1]:
            own = tracing.open_trace(trace.file, f"child {number}", number)
            for step in range(3000):
                with own.span("work", "x", step, text="z" * (step % 50)):
                    pass
            own.close()
            os._exit(0)
    threads = [
        threading.Thread(target=lambda: [trace.instant("tick", "x") for _ in range(2000)])
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    trace.close()

    assert_valid(events_in(path))
    assert Counter(names(path)) == {"work": 9000}
    assert len(names(path, "i")) == 4000


def test_a_file_is_valid_when_the_processes_that_write_it_are_killed(path: Path) -> None:
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        trace = tracing.begin_trace(path, "worker")
        for step in range(10**9):
            with trace.span("work", "x", step):
                pass
            if step == 2000:
                os.write(theirs, b".")
    os.read(ours, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(ours)
    os.close(theirs)

    assert_valid(events_in(path))
    assert len(names(path)) > 1000


def test_a_long_trace_stays_within_its_bound_and_keeps_whole_steps(path: Path) -> None:
    bound = 400_000
    with tracing.begin_trace(path, "worker", max_bytes=bound) as trace:
        for step in range(30_000):
            trace.add("receive", "mpi", 10 * step, 10 * step + 1, step)
            trace.add("compute", "training", 10 * step + 1, 10 * step + 9, step)
            trace.instant("done", "x")

    assert bound / 2 < path.stat().st_size < bound + 1000
    assert_valid(events_in(path))
    events = events_in(path)
    found = Counter(event["name"] for event in events)
    assert abs(found["receive"] - found["compute"]) <= 1
    (note,) = [event for event in events if event["name"] == "events were left out"]
    n_kept = found["receive"] + found["compute"] + found["done"]
    assert note["args"]["left_out"] == 90_000 - n_kept
    # The first quarter has every step, and the end of the time is there as well.
    begins = [event["ts"] for event in events if event["name"] == "compute"]
    assert max(begins) - min(begins) > 0.5 * 0.3 * 30_000 / 1e3
    assert any(event["args"].get("recorded_1_of", 1) > 1 for event in events if "args" in event)


def test_a_job_of_16_ranks_joins_to_what_web_browsers_open() -> None:
    assert 16 * tracing.MAX_BYTES <= 256 << 20


def test_traces_of_ranks_have_files_of_their_own_and_are_joined_on_one_clock(path: Path) -> None:
    begun = time.time_ns()
    for rank in (0, 1):
        with (
            tracing.begin_trace(path, "trainer", rank=rank) as trace,
            trace.span("send" if rank == 0 else "receive", "mpi"),
        ):
            pass
    ended = time.time_ns()
    files = [str(path), str(path.with_name("out.rank1.json"))]
    assert main(["trace", *files, "--output", str(path.with_name("all.json"))]) == 0

    events = json.loads(path.with_name("all.json").read_text())
    assert events == [event for file in files for event in read_trace(file)]
    assert_valid(events)
    send, receive = (event for event in events if event["ph"] == "X")
    assert send["pid"] != receive["pid"]
    assert begun / 1e3 - 1e3 <= send["ts"] <= receive["ts"] <= ended / 1e3 + 1e3  # of the node
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        "rank 0: trainer", "rank 1: trainer",
    ]  # fmt: skip


def test_without_a_trace_nothing_is_recorded_and_nothing_fails() -> None:
    trace = tracing.open_trace(None, "worker", 0)
    with trace.span("x", "y", 1, a=2):
        trace.add("x", "y", 0, 1, row="z", flows=(1,))
    trace.close()
    assert not trace.is_on


def test_a_trace_that_is_removed_or_full_does_not_stop_the_program(path: Path) -> None:
    trace = tracing.begin_trace(path, "worker")
    path.unlink()
    child = tracing.open_trace(trace.file, "child", 1)
    assert not child.is_on
    trace.instant("x", "y")
    trace.close()
    full = tracing.Trace(trace.file, os.open("/dev/full", os.O_WRONLY), "worker")
    full.instant("x", "y")
    full.flush()
    assert not full.is_on
    full.close()


def test_a_place_where_no_file_can_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="name a file in a directory that exists"):
        tracing.chosen_trace(tmp_path / "none" / "out.json")


def test_iterators_take_the_trace_of_the_block_around_them(path: Path) -> None:
    assert tracing.chosen_trace(None) == (tracing.OFF, False)
    with tracing.trace(path) as outer:
        with tracing.trace(path.with_name("inner.json")) as inner:
            assert tracing.chosen_trace(None) == (inner, False)
        assert tracing.chosen_trace(None) == (outer, False)
    assert not outer.is_on


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"OMPI_COMM_WORLD_RANK": "2", "RANK": "7"}, id="mpiexec"),
        pytest.param({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}, id="torchrun"),
        pytest.param(
            {"SLURM_PROCID": "1", "RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4"},
            id="torchrun that srun has started once for each node",
        ),
    ],
)
def test_a_rank_is_known_by_its_launcher(
    path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with tracing.trace(path) as trace:
        assert trace.file.rank == 2
    assert not path.exists()
    events = events_in(path.with_name("out.rank2.json"))
    assert events[0]["args"]["name"] == "rank 2: trainer"


@pytest.mark.slow
def test_perfettos_own_trace_processor_opens_it(path: Path) -> None:
    """It is fetched when it is first used, which needs the internet."""
    processor = pytest.importorskip("perfetto.trace_processor")
    with tracing.begin_trace(path, "worker") as trace:
        for step in range(100):
            now_ns = time.monotonic_ns()
            phase = "s" if step % 2 == 0 else "f"
            trace.add("inner", "x", now_ns, now_ns + 10_000, step, flows=[step // 2], phase=phase)
            trace.add("outer", "x", now_ns, now_ns + 20_000, step)
            time.sleep(20e-6)
    try:
        opened = processor.TraceProcessor(trace=str(path))
    except Exception as error:
        pytest.skip(f"Perfetto's trace processor cannot be had: {error}")
    with opened:
        (spans,) = opened.query("select count(*) as n from slice")
        (flows,) = opened.query("select count(*) as n from flow")
        failed = opened.query("select name, value from stats where severity='error' and value > 0")
        assert (spans.n, flows.n) == (200, 50)
        assert not [*failed]
