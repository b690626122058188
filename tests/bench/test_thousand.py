"""The 1,000-mini-batch benchmark, on few and small images."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from bench.claims import thousand
from bench.harness import claim, isolated
from bench.loaders.files import read_pairs
from bench.loaders.floor import run_floor
from bench.loaders.report import ratio, verified
from bench.loaders.run import run_loader
from bench.loaders.spec import RunSpec

OPEN_SECONDS = 0.002


@pytest.fixture
def spec(image_folder, tmp_path) -> RunSpec:
    staging = tmp_path / "staging"
    staging.mkdir()
    return RunSpec(
        loader="slow",
        pairs=str(image_folder / "list.txt"),
        n_examples=64,
        root=str(image_folder),
        staging=str(staging),
        batch_size=4,
        n_batches=12,
        open_seconds=OPEN_SECONDS,
    )


def test_the_floor_has_a_pace_on_a_machine_with_more_cores_than_mini_batches(spec, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    found = run_floor(dataclasses.replace(spec, loader="floor"))
    assert found["rate_after_first"] > 0
    assert found["cpu"]["loop"]["n_processes"] == spec.n_batches // 2


@pytest.fixture
def arguments(image_folder, tmp_path) -> list[str]:
    words = ["--pairs", str(image_folder / "list.txt"), "--root", str(image_folder)]
    words += ["--staging", str(tmp_path / "local"), "--out", str(tmp_path / "result.json")]
    words += ["--batch-size", "4", "--batches", "12", "--repeats", "1", "--open-ms", "2"]
    return words


@pytest.mark.parametrize("loader", ["slow", "fast", "copy", "floor", "overlap"])
def test_a_run_reports_what_it_took(spec, loader):
    result = isolated.call(run_loader, dataclasses.replace(spec, loader=loader))
    assert 0 < result["first_batch_seconds"] <= result["wall_seconds"]
    assert len(result["fingerprints"]) == 12
    if loader in ("slow", "copy", "overlap"):
        assert result["store_opens"] == 48  # every file crosses the slow store once
    if loader == "overlap":  # where the time of its readers went, as the figure of a sweep shows
        parts = [thousand.seconds_of(result, part) for part in thousand.PARTS]
        # Where the machine is busy, one of the two readers may not have begun by the end.
        assert sum(parts) > 0.35 * result["wall_seconds"]
        assert min(parts) >= 0


def test_a_wrong_mini_batch_is_found_in_a_run_longer_than_the_floor():
    points = [
        {"loader": "overlap", "runs": [{"fingerprints": [1, 2, 3]}, {"fingerprints": [1, 2, 4]}]},
        {"loader": "slow", "runs": [{"fingerprints": [1, 5]}]},
        {"loader": "floor", "runs": [{"fingerprints": [1, 2]}]},
    ]
    assert verified(points)["verified"] == {
        "batches": 7,
        "different": {"overlap, run 1": [2], "slow, run 0": [1]},
    }


def test_the_result_is_a_table_and_a_file_without_paths(arguments, tmp_path, capsys):
    assert claim.run("thousand", [*arguments, "--loaders", "slow,floor"]) == 0
    printed = capsys.readouterr().out
    assert "emulated store: 2 ms per open, 100 MB/s" in printed
    assert "FAULT" not in printed
    text = (tmp_path / "result.json").read_text()
    assert str(tmp_path) not in text
    assert {"commit", "changed", "date", "machine"} <= set(json.loads(text))
    assert "python -m bench thousand --pairs list.txt" in json.loads(text)["command"]
    assert [point["loader"] for point in json.loads(text)["points"]] == ["slow", "floor"]
    assert list((tmp_path / "local").iterdir()) == []


@pytest.mark.slow
def test_a_sweep_of_all_loaders_can_be_drawn(arguments, tmp_path):
    words = [*arguments, "--sweep", "--prefetchers", "1,2", "--readers", "1,2"]
    assert claim.run("thousand", words) == 0
    assert [path.name for path in tmp_path.glob("*.png")] == ["result.png"]
    marks = thousand.marks(json.loads((tmp_path / "result.json").read_text()))
    assert [title.split(";")[0] for title in dict.fromkeys(title for title, *_ in marks)] == [
        "Seconds of a reader by prefetchers", "Seconds of a reader by file readers",
        "Images per second by file readers"
    ]  # fmt: skip


@pytest.mark.slow
def test_a_slow_store_of_the_user_is_not_emulated(image_folder, tmp_path):
    words = ["--pairs", str(image_folder / "list.txt"), "--source", str(image_folder)]
    words += ["--staging", str(tmp_path / "local"), "--out", str(tmp_path / "result.json")]
    words += ["--batch-size", "4", "--batches", "6", "--repeats", "1"]
    assert claim.run("thousand", words) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["store"] == "slow store given by the user"
    assert all(run["store_opens"] is None for p in result["points"] for run in p["runs"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--readers", "2,4"], "need --sweep"),
        (["--sweep", "--loaders", "overlap-torch,floor"], "--sweep varies overlap"),
        (["--loaders", "faster"], "unknown"),
        (["--root", "."], "need --pairs"),
        (["--pairs", "pairs.txt"], "need --pairs"),
        (["--pairs", "pairs.txt", "--root", ".", "--source", "."], "--source is the place"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words, complaint, capsys):
    with pytest.raises(SystemExit):
        claim.parse("thousand", words)
    assert complaint in capsys.readouterr().err


def test_the_sweep_varies_one_number_at_a_time():
    options = claim.parse("thousand", ["--sweep", "--loaders", "overlap,slow"])
    points = [tuple(point.values())[:3] for point in thousand.points_of(options)]
    assert points[:6] == [("overlap", n, 2) for n in (1, 2, 4, 8, 12, 16)]
    assert points[6:11] == [("overlap", 12, n) for n in (1, 4, 8, 12, 16)]
    assert points[11:] == [("slow", 0, n) for n in (1, 2, 4, 8, 12, 16)]


def test_each_loader_of_ours_has_as_many_prefetchers_as_are_asked_for():
    loaders = ("overlap", "overlap-staged", "overlap-torch", "overlap-torch-staged")
    words = ["--prefetchers", "3", "--loaders", ",".join(loaders)]
    points = thousand.points_of(claim.parse("thousand", words))
    assert [(p["loader"], p["n_prefetchers"]) for p in points] == [(name, 3) for name in loaders]


def test_pairs_may_have_spaces_in_their_paths(tmp_path):
    (tmp_path / "pairs.txt").write_text("a b.jpg 3\nc.jpg 4\nd.jpg 5\n")
    assert read_pairs(str(tmp_path / "pairs.txt"), 2) == [("a b.jpg", 3), ("c.jpg", 4)]


def test_ratios_compare_runs_of_the_same_repeat_and_number_of_readers():
    def point(loader: str, n_readers: int, *rates: float) -> dict:
        runs = [{"images_per_second": rate} for rate in rates]
        return {"loader": loader, "n_readers": n_readers, "runs": runs}

    ours = point("overlap", 2, 10, 40, 60)
    points = [ours, point("slow", 4, 1, 1, 1), point("slow", 2, 10, 20, 20)]
    assert ratio(ours, points, "slow") == 2
