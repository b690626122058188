"""Runs of several loaders: one that fails or hangs takes no result of the others with it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("chainer")
from bench.loaders import report
from bench.loaders.sources import MountOptions, run_points


def measured(image_folder: Path, tmp_path: Path, most_seconds: float) -> dict:
    options = MountOptions(pairs=image_folder / "list.txt", root=image_folder, repeats=2)
    options.most_seconds = most_seconds
    points = [{"loader": "unknown", "name": "broken"}, {"loader": "floor"}]
    usual = {"n_batches": 2, "batch_size": 4}
    return run_points(options, tmp_path, points, 8, **usual)


def test_a_loader_that_fails_is_named_and_the_others_are_measured(
    image_folder: Path, tmp_path: Path
) -> None:
    result = measured(image_folder, tmp_path, 60.0)
    assert [point["loader"] for point in result["points"]] == ["floor"]
    assert len(result["points"][0]["runs"]) == 2
    assert [text.split(":")[0] for text in report.faults(result)] == ["NO RESULT of broken"]


def test_a_run_that_takes_too_long_is_ended_and_named(image_folder: Path, tmp_path: Path) -> None:
    result = measured(image_folder, tmp_path, 0.01)
    assert result["points"] == []
    assert "took more than 0.01 s" in result["failed"]["floor"]
