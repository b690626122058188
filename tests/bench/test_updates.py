"""The benchmark of the server's updates runs, and compares with plain NumPy."""

from __future__ import annotations

import json

import pytest

from bench.claims import updates
from bench.harness import claim
from bench.harness.tables import missed


@pytest.mark.slow
def test_updates_are_timed_and_drawn(tmp_path) -> None:
    out = tmp_path / "updates.json"
    claim.run("updates", ["--quick", "--local", str(tmp_path), "--out", str(out)])
    result = json.loads(out.read_text())
    assert {point["means"] for point in result["points"]} >= {"plain", "chainer", "numpy"}
    assert all(run["update_ms"] > 0 for point in result["points"] for run in point["runs"])
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_a_gain_below_the_published_one_is_a_fault() -> None:
    def point(means: str, milliseconds: float) -> dict:
        runs = [{"update_ms": milliseconds}]
        return {"optimizer": "adam", "means": means, "n": 5_000_000, "runs": runs}

    def faults_of(points: list[dict]) -> list[str]:
        return missed({"targets": updates.targets(points), "options": {"quick": False}})

    slow, fast = ([point("plain", 15.0), point("numba", ms)] for ms in (5.0, 4.0))
    (fault,) = faults_of(slow)
    assert fault == "Adam, 5 M, Numba, one pass / plain NumPy: 3.00, wanted 3.33"
    assert faults_of(fast) == []
