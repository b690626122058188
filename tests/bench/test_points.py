"""Runs of several loaders: what each finds, and that one that fails takes no result of others."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

pytest.importorskip("chainer")
from bench.harness import isolated
from bench.loaders import report, sources
from bench.loaders.sources import MountOptions, run_once, run_points
from bench.loaders.spec import RunSpec
from bench.photographs import make_photographs
from overlapiter.cli.probe import file_system_of


def measured(image_folder: Path, tmp_path: Path, most_seconds: float) -> dict:
    options = MountOptions(pairs=image_folder / "list.txt", root=image_folder, repeats=2)
    options.most_seconds, options.scratch = most_seconds, tmp_path
    points = [{"loader": "unknown", "name": "broken"}, {"loader": "floor"}]
    usual = {"n_batches": 2, "batch_size": 4}
    return run_points(options, points, 8, **usual)


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


def is_cached(path: Path) -> bool:
    """Return whether the page cache has the beginning of a file."""
    with path.open("rb", buffering=0) as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False


def test_files_of_a_store_of_the_users_are_read_from_there_and_not_from_the_page_cache(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if file_system_of(str(image_folder)).kind not in ("ext4", "xfs"):
        pytest.skip("this file system keeps its files in memory, or does not say whether it does")
    file = image_folder / "00000.jpg"
    monkeypatch.setattr(isolated, "call", lambda *_, **__: {"is_cached": is_cached(file)})
    place = str(image_folder / "list.txt"), 8, str(image_folder), str(tmp_path / "staged")
    emulated = RunSpec("slow", *place, batch_size=8, n_batches=1)
    os.sync()  # what is not on the disk yet cannot be dropped
    assert run_once(emulated)["is_cached"]
    given = dataclasses.replace(emulated, mount="given", local_root=str(tmp_path))
    assert not run_once(given)["is_cached"]


def test_made_photographs_are_called_so_and_are_no_more_than_those_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "PHOTOGRAPHS", tmp_path / "made")
    make_photographs(tmp_path / "made", 6)
    options = MountOptions(mb_per_s=0)
    options.scratch = tmp_path
    spec, facts = sources.prepare(options, 4)
    longer = dataclasses.replace(spec, n_examples=100, order="own")
    assert longer.paths() == [f"0000/000000{number}.jpg" for number in range(4)]
    assert facts["data"].startswith("4 different JPEG files of ")
    assert facts["store"] == "emulated store: 10 ms per open, any number of MB/s"
