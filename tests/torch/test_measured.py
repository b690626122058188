"""Runs of ``overlapiter.torch.DataLoader`` in a benchmark."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bench.claims import pytorch
from bench.harness import claim, isolated
from bench.loaders.run import run_loader
from bench.loaders.spec import RunSpec


def test_a_run_has_the_prefetchers_and_the_reads_in_flight_that_are_asked_for(
    image_folder: Path, tmp_path: Path
) -> None:
    place = str(image_folder / "list.txt"), 64, str(image_folder), str(tmp_path / "staged")
    spec = RunSpec("overlap-torch", *place, batch_size=4, n_batches=3)
    asked = {"n_prefetchers": 3, "reads_in_flight": 6}
    found = isolated.call(run_loader, dataclasses.replace(spec, **asked))["statistics"]
    assert found["n_prefetchers"] == 3
    assert found["reads_in_flight"] in (2, 4, 6)  # of those that have begun


def test_with_more_workers_each_loader_takes_more_mini_batches_and_all_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_points(_options: Any, points: list[dict], n_examples: int) -> dict:
        for point in points:
            rates = {"images_per_second": point["n_readers"], "rate_after_first": 1.0}
            used = {"cpu": {"reader": {"seconds": 1.0}}, "n_images": 1}
            point["runs"] = [{**rates, **used, "first_batch_seconds": 1.0}]
        return {"points": points, "n_examples": n_examples}

    def call_in_turns(points: list[dict], *_arguments: object, **_common: object) -> None:
        for point in points:
            point["runs"] = [{"seconds": 1.0, "trainer_cpu_ms": 1.0}]

    monkeypatch.setattr(pytorch, "run_points", run_points)
    monkeypatch.setattr(isolated, "call_in_turns", call_in_turns)
    words = ["--workers", "8,14", "--readers", "2,8,14,64", "--batches", "100"]
    result = pytorch.measure(claim.parse("pytorch", words))
    sizes = {(p["loader"], p["n_readers"]): p["n_batches"] for p in result["points"]}
    assert [sizes["overlap-torch", n] for n in (2, 8, 14)] == [100, 400, 700]
    assert [sizes["torch", n] for n in (2, 8, 14, 64)] == [50, 100, 100, 700]
    assert sizes["ceiling", 2] == 700
    assert result["n_examples"] == 700 * 32
    compared = {target["what"]: target["median"] for target in result["targets"]}
    assert compared["times PyTorch's best, cold"] == 14 / 64
    assert {f"times PyTorch's, cold, {n} workers each" for n in (8, 14)} < compared.keys()
    assert "times PyTorch's on the local disk, 14 workers each" in compared
