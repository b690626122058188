"""The benchmark of workers that are killed, and what it proves."""

from __future__ import annotations

import copy
import itertools
import json
import signal
from pathlib import Path
from statistics import median

import pytest

from bench.claims.faults import endings as fault_endings
from bench.claims.faults.data import make_files
from bench.claims.faults.killer import Hit, Ledger
from bench.claims.faults.soak import note_recovery
from bench.claims.faults.tables import faults as faults_of
from bench.claims.faults.tables import notices, show
from bench.harness import claim
from bench.harness.family import Process


def soak(tmp_path: Path, *arguments: str) -> dict:
    """Run the command, which is to find nothing wrong, and return its result."""
    out = tmp_path / "faults.json"
    status = claim.run("faults", [*arguments, "--out", str(out)])
    result = json.loads(out.read_text())
    assert (status, faults_of(result)) == (0, [])
    return result


def hits_of(result: dict) -> list[dict]:
    return [hit for point in result["points"] for hit in point["run"]["hits"]]


# --- with processes ---------------------------------------------------------------------------


@pytest.mark.slow  # the iterator has tests of its own
def test_a_few_kills_change_no_mini_batch_and_leave_nothing(tmp_path, capsys):
    result = soak(tmp_path, "--quick")

    run = result["points"][0]["run"]
    assert len(run["hits"]) == 6
    assert min(hit["notice_seconds"] for hit in run["hits"]) > 0
    assert len(run["next_seconds"]) > 60
    assert run["n_removed"] > 0
    assert "6 signals survived" in capsys.readouterr().out
    assert (tmp_path / "faults.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_kills_change_no_mini_batch_and_leave_nothing(tmp_path):
    result = soak(tmp_path, "--kills", "200", "--seed", "1", "--repeats", "0")

    hits = hits_of(result)
    assert len(hits) >= 200
    assert {hit["kind"] for hit in hits} == {"reader", "prefetcher", "supervisor"}
    assert {hit["signal"] for hit in hits} == {"SIGKILL", "SIGSEGV", "SIGSTOP"}
    assert median(notices(hits)) < 0.2
    # On a machine with much else to do some take longer, but none so long as until the supervisor
    # looks at all its workers: a death is told, not found.
    assert max(notices(hits)) < 1.0


QUICK_ENDINGS = {
    ("finalize", "stuck readers"), ("interrupt", "stuck prefetchers"), ("kill", "loading")
}  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "workers"),
    [
        pytest.param(*both, marks=[] if both in QUICK_ENDINGS else pytest.mark.slow)
        for both in itertools.product(fault_endings.LIMIT_SECONDS, fault_endings.WORKERS)
    ],
)
def test_all_children_are_gone_in_time(tmp_path, ending, workers):
    make_files(tmp_path / "source")
    request = {"source": str(tmp_path / "source"), "ending": ending, "workers": workers}

    # Again, should the machine have been busy with something else.
    answers = [fault_endings.measure(request)]
    while answers[-1]["children_seconds"] >= fault_endings.LIMIT_SECONDS[ending]:
        assert len(answers) < 3, answers
        answers.append(fault_endings.measure(request))
    answer = answers[-1]

    assert answer["children_seconds"] > 0
    assert answer["trainer_seconds"] > 0
    assert answer["n_children"] == answer["n_partial_files_after_next_start"] == 0
    assert answer["shared_memory"] == []


# --- without ----------------------------------------------------------------------------------


def process(pid: int, state: str = "S") -> Process:
    return Process(pid, 0, 1, "ovl-reader", state)


def test_a_new_process_belongs_to_the_earliest_victim_that_is_gone():
    ledger = Ledger()
    ledger.see(dict.fromkeys(map(process, (1, 2, 3)), "reader"), 0.0)
    for pid, number in ((1, signal.SIGSTOP), (2, signal.SIGKILL), (3, signal.SIGKILL)):
        name = signal.Signals(number).name
        ledger.hits.append(Hit("reader", name, 1, 1.0 + pid / 10, None, process(pid)))

    stopped = process(1, "T")
    ledger.see({stopped: "reader", process(2, "Z"): "reader", process(4): "prefetcher"}, 2.0)
    assert [hit.replaced_at for hit in ledger.hits] == [None, None, None]
    ledger.see({stopped: "reader", process(5): "reader"}, 3.0)
    ledger.see({stopped: "reader", process(5): "reader", process(6): "reader"}, 4.0)
    ledger.see(dict.fromkeys(map(process, (5, 6, 7)), "reader"), 5.0)

    assert [hit.replaced_at for hit in ledger.hits] == [5.0, 3.0, 4.0]
    assert ledger.pending() == []


def test_a_process_that_was_seen_before_the_signal_replaces_nobody():
    ledger = Ledger()
    ledger.see({process(1): "reader", process(2): "reader"}, 0.0)
    ledger.hits.append(Hit("reader", "SIGKILL", 1, 1.0, None, process(1)))
    ledger.see({process(2): "reader"}, 2.0)
    assert len(ledger.pending()) == 1


def hit_at(start: float, end: float, kind: str = "reader", name: str = "SIGKILL") -> dict:
    return {"kind": kind, "signal": name, "hit_at": start, "replaced_at": end}


def test_recovery_is_the_longest_call_of_next_around_a_hit():
    taken_at = [float(second) for second in range(20)]
    next_seconds = [0.1] * 20
    next_seconds[3], next_seconds[6], next_seconds[12] = 0.7, 0.5, 0.9
    hits = [hit_at(3.8, 4.2), hit_at(3.6, 3.65), hit_at(8.0, 8.3), hit_at(9.0, 9.95)]

    note_recovery(hits, taken_at, next_seconds)

    assert [hit["recover_seconds"] for hit in hits] == [0.5, 0.7, 0.1, 0.9]
    assert hits[0]["notice_seconds"] == pytest.approx(0.4)


def test_what_happens_beside_a_stop_or_without_a_supervisor_is_told_apart():
    taken_at = [float(second) for second in range(40)]
    hits = [
        hit_at(5.0, 5.5),
        hit_at(5.2, 7.0, name="SIGSTOP"),
        hit_at(20.0, 20.5),
        hit_at(20.1, 20.2, kind="supervisor"),
        hit_at(23.5, 24.0),  # its trainer still recovers
        hit_at(33.0, 34.0),
    ]
    note_recovery(hits, taken_at, [0.1] * 40)
    assert [hit["beside"] for hit in hits] == ["stop", "", "supervisor", "", "", ""]
    assert [hit["had_supervisor"] for hit in hits] == [True, True, False, True, True, True]
    assert notices(hits) == [0.5, 0.5, 1.0]


def a_result() -> dict:
    hits = [hit_at(float(at), at + 0.1) for at in (70, 80)]
    note_recovery(hits, [float(second) for second in range(100)], [0.1] * 100)
    for hit in hits:
        hit["volley"] = 1
    use = {"n_descriptors": 9, "n_threads": 1, "rss_bytes": 1, "shared_bytes": 0}
    nothing = {"processes": [], "threads": [], "partial_files": []}
    ended = {"n_children": 0, "n_partial_files": 0, "n_partial_files_after_next_start": 0}
    ended |= {"children_seconds": 0.1, "trainer_seconds": 0.1, "shared_memory": []}
    run = {
        "hits": hits,
        "next_seconds": [0.1] * 100,
        "changed": [],
        "warnings": [],
        "n_removed": 0,
        "finalize_seconds": 0.1,
        "ended_seconds": 0.1,
        "leftovers": nothing,
        "usage": {"before": {"trainer": use}, "after": {"trainer": dict(use)}},
    }
    point = {"configuration": "unstaged", "run": run, "wrong": []}
    ending = {"ending": "kill", "workers": "idle", "limit_seconds": 5.0, "runs": [ended]}
    return {
        "machine": {"cores": 2, "processor": "any", "python": "3"},
        "options": {"seed": 0, "calm_batches": 60, "compute_ms": 5},
        "points": [point],
        "endings": [ending],
    }


def test_nothing_wrong_is_said_so_and_no_limit_is_missed():
    text = show(a_result())
    assert faults_of(a_result()) == []
    assert "Nothing wrong" in text
    assert "MISSED" not in text


def test_every_fault_is_found_and_shown():
    good = a_result()
    for change, expected in {
        lambda r: r["points"][0].update(wrong=[3]): "wrong mini-batches or states at [3]",
        lambda r: r["points"][0]["run"].update(changed=[4]): "changed while they were kept: [4]",
        lambda r: r["points"][0]["run"]["leftovers"].update(threads=["x"]): "1 threads: ['x']",
        lambda r: r["points"][0]["run"]["usage"]["after"]["trainer"].update(n_descriptors=10): (
            "n_descriptors of the trainer grew from 9 to 10"
        ),
        lambda r: r["endings"][0]["runs"][0].update(n_children=1): "n_children=1",
        lambda r: r["points"].append({"configuration": "staged", "failure": "hung"}): "hung",
    }.items():
        result = copy.deepcopy(good)
        change(result)
        assert len(faults_of(result)) == 1
        assert expected in faults_of(result)[0]


def test_a_limit_that_is_missed_is_marked():
    result = a_result()
    result["points"][0]["run"]["hits"][0]["notice_seconds"] = 0.3
    result["points"][0]["run"]["ended_seconds"] = 2.5
    result["endings"][0]["runs"][0]["children_seconds"] = None
    text = show(result)
    assert "0.2 MISSED 1 of 2" in text
    assert "limit 2 s MISSED 1 of 1" in text
    assert "5 MISSED 1 of 1" in text
