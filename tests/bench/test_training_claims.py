"""The benchmarks of algorithms and of the search say what falls short."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.claims import algorithms, grid
from bench.harness.claim import with_targets
from bench.harness.tables import missed, rows_in
from overlapiter.errors import TrainingError


def test_an_algorithm_that_has_not_learned_is_a_fault() -> None:
    points = [
        {"name": name, "runs": [{"val_accuracy": [0.5, end], "seconds": [1.0, 2.0]}]}
        for name, end in (("Downpour", 0.95), ("GEM, every 4", 0.85))
    ]
    options = {"epochs": 2, "quick": False}
    result = with_targets({"benchmark": "algorithms", "points": points, "options": options})
    assert missed(result) == ["accuracy at the end, GEM, every 4: 0.85, wanted 0.90"]
    assert rows_in(result, algorithms.TABLES["algorithms"])[1][2:] == [
        "0.500",
        "0.950",
        "2.0",
    ]


def test_a_search_that_finds_less_than_the_grid_is_a_fault() -> None:
    def run(best: float) -> dict:
        return {
            "grid": {"n": 40, "best": 0.97, "all": [0.1, 0.97]},
            "search": {"n": 20, "best": best, "all": [0.5, best]},
        }

    points = [{"name": "digits", "runs": [run(0.98), run(0.96), run(0.96)]}]
    result = with_targets({"benchmark": "grid", "points": points})
    (target,) = result["targets"]
    assert (target["is_met"], target["max"]) == (False, 0.98 / 0.97)
    assert grid.rows(result)[2][:3] == ["search", "20", "0.9800, 0.9600, 0.9600"]


def test_a_trial_of_the_grid_may_diverge_and_a_full_disk_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failing(cause: Exception | None) -> Callable[..., None]:
        def fail(*_words: object, **_settings: object) -> None:
            raise TrainingError("the loss is nan") from cause

        return fail

    request = {"folder": tmp_path, "trials": 2, "seed": 0}
    monkeypatch.setattr("overlapiter.mpi.train", failing(OSError("no space left")))
    with pytest.raises(TrainingError):
        grid.compare(request)
    assert not (tmp_path / "grid.json").exists()

    monkeypatch.setattr("overlapiter.mpi.train", failing(None))
    monkeypatch.setattr("overlapiter.mpi.search", failing(None))
    with pytest.raises(TrainingError):
        grid.compare(request)
    assert set(json.loads((tmp_path / "grid.json").read_text())) == {0.0}
