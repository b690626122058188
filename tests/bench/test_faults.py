"""The benchmark of what a fault costs, and what it proves."""

from __future__ import annotations

import json

import pytest

from bench.claims import faults
from bench.harness import claim
from bench.harness.tables import target_rows


@pytest.mark.slow  # the iterator has tests of its own
def test_every_kind_of_worker_is_hit_and_no_mini_batch_differs(tmp_path, capsys):
    out = tmp_path / "faults.json"
    assert claim.run("faults", ["--quick", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["wrong"] == []
    assert len(result["hits"]) == len(faults.N_WORKERS) * len(faults.SIGNALS)
    for hit in result["hits"]:
        assert 0 < hit["notice_seconds"] < 60
        assert hit["recover_seconds"] > 0
    assert "supervisor   SIGSTOP" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["finalize", "kill"])
def test_the_end_of_a_program_is_timed_until_its_last_child_is_gone(image_folder, tmp_path, ending):
    pairs = image_folder / "list.txt"
    request = {"pairs": str(pairs), "root": str(image_folder), "examples": 32}
    request |= {"staging": str(tmp_path / "staging"), "capacity": 10**6, "seed": 0}
    found = faults.end({**request, "compute_ms": 0.0}, tmp_path, ending)
    assert 0 < found["children_seconds"] < 60


def a_result() -> dict:
    hit = {"kind": "reader", "signal": "SIGKILL", "notice_seconds": 0.02, "recover_seconds": 0.05}
    run = {"children_seconds": 0.1}
    points = [{"name": "kill", "runs": [run]}]
    return {"hits": [hit], "calm_seconds": [0.01] * 3, "wrong": [], "points": points}


def test_what_a_call_takes_anyway_is_not_lost():
    assert faults.hit_rows(a_result())[1:] == [
        ["reader", "SIGKILL", "1", "0.020 / 0.020", "0.040 / 0.040"]
    ]
    result = claim.with_targets({"benchmark": "faults", **a_result()})
    assert target_rows(result)[1:] == [
        ["all children gone after kill", "0.10 s", "[0.10, 0.10]", "5.00 s", "met"]
    ]


def test_every_fault_is_named():
    assert faults.faults(a_result()) == []
    result = a_result() | {"wrong": [3]}
    result["points"][0]["runs"][0]["children_seconds"] = 61.0
    assert faults.faults(result) == [
        "wrong mini-batches at [3]",
        "kill: children that do not end",
    ]
