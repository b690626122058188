"""What ``overlapiter trace`` and ``overlapiter plot`` make of traces."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from overlapiter import tracing
from overlapiter.cli.main import main
from overlapiter.cli.plot import steps_of
from overlapiter.cli.trace import summarize

from .commands import command, overlapiter, run

MS = 10**6
CAPTURED = {"capture_output": True, "text": True, "check": True}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two ranks: a second each, of which rank 0 waits a quarter and rank 1 a half."""
    for rank, wait_ms in ((0, 25), (1, 50)):
        with tracing.begin_trace(tmp_path / "out.json", "trainer", rank=rank) as made:
            for step in range(10):
                begin = 100 * step * MS
                made.add("wait", "trainer", begin, begin + wait_ms * MS, step)
                made.add("train", "trainer", begin + wait_ms * MS, begin + 100 * MS, step)
    return tmp_path / "out.json"


def test_a_trace_is_summed_up_by_process_and_by_what_it_did(trace: Path) -> None:
    done = overlapiter("trace", trace)

    assert done.returncode == 0, done.stderr
    assert "rank 0: trainer wait 10 250 ms 25% 25 ms 25 ms" in done.stdout
    assert "rank 0: trainer train 10 750 ms 75% 75 ms 75 ms" in done.stdout


def test_spans_that_were_left_out_count_for_the_median_too() -> None:
    head = {"name": "read", "pid": 1, "ts": 0}
    some = {"ph": "X", "dur": 1000, "args": {"recorded_1_of": 100}}
    events = [head | some for _ in range(10)] + [head | {"ph": "X", "dur": 5e6}] * 12
    (span,) = summarize(events)["spans"]
    assert (span["number"], span["seconds"]) == (1012, pytest.approx(61))
    assert (span["median_seconds"], span["p99_seconds"]) == (0.001, 5.0)


def test_traces_of_ranks_are_joined(trace: Path, tmp_path: Path) -> None:
    joined = tmp_path / "all.json"
    files = [trace, tmp_path / "out.rank1.json"]
    done = overlapiter("trace", *files, "--output", joined, "--json")

    spans = {(each["process"], each["name"]): each for each in json.loads(done.stdout)["spans"]}
    assert spans["rank 1: trainer", "wait"]["seconds"] == pytest.approx(0.5)
    assert len(json.loads(joined.read_text())) == 2 * 22
    assert json.loads(overlapiter("trace", joined, "--json").stdout)["spans"] == [*spans.values()]


def test_what_is_too_much_for_a_web_browser_is_said(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["trace", str(trace), "--output", str(trace.with_name("all.json"))]
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("overlapiter.cli.trace._OPENS_BYTES", 1000)
    assert main(words) == 0
    assert "all.json has 2." in (said := capsys.readouterr().err)
    assert "join fewer ranks" in said


@pytest.mark.parametrize("text", ["", "{}", "[\n{}\n]", "\xff", '{"ph": "X"}'])
def test_what_is_no_trace_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text, encoding="latin-1")
    done = overlapiter("trace", tmp_path / "x.json")
    assert done.returncode == 1
    assert "x.json" in done.stderr


def test_a_trace_is_not_replaced_by_the_joined_one(trace: Path) -> None:
    before = trace.read_bytes()
    done = overlapiter("trace", trace, "--output", f"{trace.parent}/./{trace.name}")
    assert done.returncode == 2
    assert "--output is one of the traces" in done.stderr
    assert trace.read_bytes() == before


def test_what_is_no_file_stays_what_it_is_and_a_link_leads_to_the_joined_trace(trace) -> None:
    fifo, link, linked = (trace.with_name(name) for name in ("fifo", "link", "linked"))
    os.mkfifo(fifo)
    link.symlink_to(linked)
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        assert overlapiter("trace", trace, "--output", fifo).returncode == 0
        text = reader.read()  # it has fewer bytes than a FIFO holds
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert overlapiter("trace", trace, "--output", link).returncode == 0
    assert link.is_symlink()
    assert linked.read_bytes() == text
    assert len(json.loads(text)) == 22


def test_what_a_plot_shows_can_be_had_as_json(trace: Path) -> None:
    steps = json.loads(overlapiter("plot", trace, "--json").stdout)

    assert len(steps) == 5
    assert sum(step["waited"] for step in steps) / 5 == pytest.approx(0.27, abs=0.02)
    assert steps[-1]["seconds"] == pytest.approx(0.83, abs=0.03)


def test_the_trainers_of_a_joined_trace_wait_what_they_do_on_average(trace, tmp_path) -> None:
    joined = tmp_path / "all.json"
    overlapiter("trace", trace, tmp_path / "out.rank1.json", "--output", joined)
    steps = json.loads(overlapiter("plot", joined, "--json").stdout)
    mean = sum(step["waited"] for step in steps) / len(steps)
    assert mean == pytest.approx((0.25 + 0.5) / 2, abs=0.03)


def test_what_the_ranks_of_a_joined_trace_get_is_added_up(tmp_path) -> None:
    begin = time.monotonic_ns()
    for rank, speed in ((0, 10), (1, 30)):
        with tracing.begin_trace(tmp_path / "out.json", "trainer", rank=rank) as made:
            for step in range(4):
                made.add("wait", "trainer", begin + step * MS, begin + (step + 900) * MS, step)
            made.counter("mini-batches ready", ready=rank + 1)
            made.counter("slow store, MB/s", given=speed)
    joined = tmp_path / "all.json"
    overlapiter("trace", tmp_path / "out.json", tmp_path / "out.rank1.json", "--output", joined)
    steps = json.loads(overlapiter("plot", joined, "--json").stdout)
    assert {(step["mb_per_second"], step["ready"]) for step in steps} == {(40.0, 1.5)}


def test_what_a_supervisor_counted_last_ends_with_it() -> None:
    waits = [{"name": "wait", "ph": "X", "pid": 1, "ts": n * 1e6, "dur": 1e5} for n in range(20)]
    counts = [
        {"name": "slow store, MB/s", "ph": "C", "pid": pid, "ts": n * 1e6, "args": {"given": 5.0}}
        for pid, span in ((2, range(10)), (3, range(10, 20)))
        for n in span
    ]
    steps = steps_of(waits + counts)
    assert [step["mb_per_second"] for step in (steps[0], steps[-1])] == [5.0, 5.0]


def test_without_matplotlib_a_plot_says_what_can_be_had(trace, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["plot", str(trace)]) == 1
    assert "or leave out --output" not in (said := capsys.readouterr().err)
    assert "--json without --output needs none" in said


@pytest.mark.skipif(not find_spec("matplotlib"), reason="needs matplotlib")
def test_a_trace_is_drawn(trace: Path, tmp_path: Path) -> None:
    words = ("--output", tmp_path / "figure.svg", "--title", "a training")
    done = run(command("plot", trace, *words))  # matplotlib keeps its fonts open

    assert done.stdout == f"{tmp_path / 'figure.svg'}\n", done.stderr
    assert "waits for data" not in done.stderr
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


@pytest.mark.skipif(not find_spec("matplotlib"), reason="needs matplotlib")
def test_a_figure_has_the_name_that_was_given(trace: Path, tmp_path: Path) -> None:
    done = run(command("plot", trace, "--output", tmp_path / "figure"))
    assert done.stdout == f"{tmp_path / 'figure'}\n", done.stderr
    assert (tmp_path / "figure").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_options_and_paths(shell: str, tmp_path: Path) -> None:
    script = overlapiter("completion", shell).stdout
    for word in ("top", "trace", "--prometheus", "--output"):
        assert word in script
    if shell == "bash":
        (tmp_path / "my.json").touch()
        for words, found in (("pl", "plot plan"), ("plot my", "my.json"), ("top --js", "--json")):
            line = f"COMP_WORDS=(overlapiter {words}); COMP_CWORD={len(words.split())}"
            ask = 'f=${f#* -F }; ${f% *} overlapiter "${COMP_WORDS[-1]}"; echo ${COMPREPLY[*]}'
            whole = f"{script}\n{line}; f=$(complete -p overlapiter); {ask}"
            done = subprocess.run(["bash"], input=whole, cwd=tmp_path, **CAPTURED)
            assert sorted(done.stdout.split()) == sorted(found.split()), done.stderr
    else:
        assert ":FILE:_files" in script
