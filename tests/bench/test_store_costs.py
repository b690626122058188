"""The benchmarks of evicting, of larger files and of starting over what is staged, on few files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import plan
from bench.claims import staging, startup_staged
from bench.harness import claim, isolated


@pytest.mark.parametrize("state", staging.STATES)
def test_evicting_everything_through_the_store_leaves_nothing_staged(state, tmp_path):
    request = {"local": str(tmp_path), "n_files": 100, "name": state}
    found = isolated.call(staging.drive, request)
    assert min(found["stage_us"], found["evict_us"]) > 0
    piece_bytes = 16 << 20  # what is reserved ahead of the files
    assert found["charged_bytes"] <= piece_bytes


def test_evicting_in_the_pipeline_is_what_staging_does_not_explain():
    whole = {"files_staged": 100, "files_evicted": 0}
    part = {"files_staged": 200, "files_evicted": 50}
    runs = [
        {"cpu": {"prefetcher": {"seconds": seconds}}, "statistics": counts}
        for seconds, counts in ((1e-2, whole), (2.1e-2, part))
    ]
    assert staging.evicting_us(*runs) == pytest.approx(20)


@pytest.mark.slow  # four runs, of which the pipeline has tests of its own
def test_what_evicting_costs_is_a_table_and_a_file(tmp_path, capsys):
    words = ["--quick", "--local", str(tmp_path), "--out", str(tmp_path / "result.json")]
    assert plan.run(plan.named("evicting"), words) == 0
    printed = capsys.readouterr().out
    for what in ("in the pipeline", "store, dirty", "store, written"):
        assert f"evicting, {what}" in printed
    points = json.loads((tmp_path / "result.json").read_text())["points"]
    assert [point["name"] for point in points] == ["whole", "part", *staging.STATES]


def test_staging_larger_files_is_compared_with_copying_them(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--quick", "--local", ".", "--out", "result.json", "--json"]
    assert plan.run(plan.named("large-files"), words) == 0
    result, printed = json.loads((tmp_path / "result.json").read_text()), capsys.readouterr()
    assert json.loads(printed.out) == result
    points = result["points"]
    assert [point["n_examples"] for point in points] == [36, 36, 4, 4, 2, 2]
    for point, other in zip(points[::2], points[1::2], strict=True):
        staged, copied = point["runs"][0], other["runs"][0]
        assert staged["bytes"] >= copied["bytes"] == point["n_examples"] * point["file_bytes"]
        assert min(staged["seconds"], copied["seconds"]) > 0
    assert "bytes for CPU, 0.11 MB, of cp" in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.slow
def test_a_start_over_staged_files_is_measured_in_every_state_they_may_be_in(tmp_path, capsys):
    words = ["--quick", "--local", str(tmp_path), "--out", str(tmp_path / "result.json")]
    assert claim.run("startup-staged", words) == 0
    points = json.loads((tmp_path / "result.json").read_text())["points"]
    assert [point["name"] for point in points] == list(startup_staged.STATES)
    for point in points:
        (run,) = point["runs"]
        assert 0 < run["constructor_seconds"] < run["first_batch_seconds"] < run["wall_seconds"]
    assert "first mini-batch, killed, more than empty" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
