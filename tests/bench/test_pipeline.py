"""The benchmark of the pipeline, small: it measures every line and compares with what is wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.claims import pipeline
from bench.harness import claim
from bench.harness.claim import with_targets
from bench.harness.tables import target_rows
from tests.bench.mounts import needs_fuse

FEW = "cold;staged;loops;ceiling"


@pytest.fixture
def arguments(image_folder: Path, tmp_path: Path) -> list[str]:
    words = ["--pairs", str(image_folder / "list.txt"), "--root", str(image_folder), "--quick"]
    words += ["--staging", str(tmp_path / "local"), "--out", str(tmp_path / "result.json")]
    return [*words, "--open-ms", "2"]


def points_by_name(tmp_path: Path) -> dict[str, dict]:
    found = json.loads((tmp_path / "result.json").read_text())["points"]
    return {point["name"]: point["runs"][0] for point in found}


def check(found: dict[str, dict], lines: str) -> None:
    """Check what a run of some of FEW has to have found, whatever the slow store is."""
    opens = {"cold": 48, "staged": 0, "loops": None, "ceiling": 48}
    assert {name: run["store_opens"] for name, run in found.items()} == {
        name: opens[name] for name in lines.split(";")
    }
    for name in {"cold", "staged"} & found.keys():
        used = found[name]["cpu"]
        assert {"prefetcher", "supervisor", "reader", "forkserver", "trainer"} <= set(used)
        assert min(kind["seconds"] for kind in used.values()) > 0
        assert 1 <= used["reader"]["n_processes"] <= 2  # one forked just now has no name yet
    for name, kind in {("loops", "loop"), ("ceiling", "bare reader")}:
        if name in found:
            assert found[name]["cpu"][kind]["seconds"] > 0


def test_each_line_says_what_every_kind_of_process_used(arguments, tmp_path, capsys):
    assert claim.run("pipeline", [*arguments, "--lines", FEW]) == 0
    check(points_by_name(tmp_path), FEW)
    printed = capsys.readouterr().out
    assert "emulated store: 2 ms per open, 100 MB/s" in printed
    assert "FAULT" not in printed
    assert "cold / ceiling, after the first" in printed
    assert str(tmp_path) not in (tmp_path / "result.json").read_text()
    assert list((tmp_path / "local").iterdir()) == []


@needs_fuse
def test_a_mount_is_measured_as_the_emulation_is(arguments, tmp_path, capsys):
    lines = "cold;ceiling"  # the others read nothing from it
    assert claim.run("pipeline", [*arguments, "--lines", lines, "--mount", "fuse"]) == 0
    found = points_by_name(tmp_path)
    check(found, lines)
    for name in ("cold", "ceiling"):
        assert found[name]["cpu"]["mount"]["seconds"] > 0
    assert "FUSE mount: 2 ms per open" in capsys.readouterr().out


@pytest.mark.slow
def test_every_other_line_can_be_measured(arguments, tmp_path):
    others = [name for name in pipeline.LINES if name not in FEW.split(";")]
    assert claim.run("pipeline", [*arguments, "--lines", ";".join(others)]) == 0
    found = points_by_name(tmp_path)
    assert set(found) == set(others)
    assert found["copy first"]["store_opens"] == 48
    # More than by default; those that were forked just before the run ended have no name yet.
    assert 2 < found["cold, 16 readers"]["cpu"]["reader"]["n_processes"] <= 16
    assert found["cold, 12 prefetchers"]["statistics"]["n_prefetchers"] == 12
    assert found["from local"]["statistics"]["files_staged"] == 48
    assert "prefetcher" not in found["local"]["cpu"]


def test_a_line_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        claim.parse("pipeline", ["--lines", "cold;warm"])
    assert "unknown: ['warm']" in capsys.readouterr().err


def test_a_single_mini_batch_which_has_no_rate_is_refused(capsys):
    with pytest.raises(SystemExit):
        claim.parse("pipeline", ["--batches", "1"])
    assert "give at least 2" in capsys.readouterr().err


def run_of(rate: float, n_images: int, **used: float) -> dict:
    """Return what a run would have measured: its rate, and the CPU seconds of some kinds."""
    return {
        "images_per_second": rate,
        "rate_after_first": 2 * rate,
        "n_images": n_images,
        "first_batch_seconds": 0.5,
        "cpu": {kind: {"seconds": seconds} for kind, seconds in used.items()},
        "statistics": {"files_staged": n_images},
    }


def targets_of(points: list[dict]) -> dict[str, dict]:
    """Return the targets of the claim by what they say."""
    result = with_targets({"benchmark": "pipeline", "points": points})
    return {target["what"]: target for target in result["targets"]}


def test_runs_of_the_same_repeat_are_compared_and_the_median_counts():
    # The machine was half as fast in the second repeat.
    cold = [run_of(rate, 100, prefetcher=0.01, reader=0.061) for rate in (90.0, 45.0, 80.0)]
    ceiling = [run_of(rate, 100) for rate in (100.0, 50.0, 100.0)]
    loops = [run_of(100.0, 100, loop=0.06)] * 3
    points = [
        {"name": name, "n_batches": 10, "runs": runs}
        for name, runs in (("cold", cold), ("ceiling", ceiling), ("loops", loops))
    ]
    found = targets_of(points)
    share = found["cold / ceiling, after the first"]
    assert (share["median"], share["min"], share["is_met"]) == (0.9, 0.8, True)
    assert found["prefetchers, a staged file, slow store"]["median"] == pytest.approx(100)
    assert found["reader beyond dataset[i], cold"]["median"] == pytest.approx(10)
    assert not found["first mini-batch, 2 readers"]["is_met"]
    assert "staged / loops, after the first" not in found
    rows = {row[0]: row[1:] for row in target_rows({"targets": list(found.values())})}
    shown = rows["prefetchers, a staged file, slow store"]
    assert shown == ["100 µs", "[100, 100]", "140 µs", "met"]


def test_the_cpu_of_all_processes_is_compared_for_the_same_number_of_images():
    cold = run_of(50.0, 100, reader=0.1, prefetcher=0.06)
    ceiling = run_of(50.0, 50, loop=0.03, mount=0.01)
    points = [
        {"name": "cold", "n_batches": 10, "runs": [cold]},
        {"name": "ceiling", "n_batches": 5, "runs": [ceiling]},
    ]
    found = targets_of(points)
    assert found["cold / ceiling, by CPU of all"]["median"] == pytest.approx(0.5)
    assert found["cold / ceiling, by CPU of all"]["is_met"] is None
