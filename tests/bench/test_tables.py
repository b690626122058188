"""The tables of the documents are those of the results."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from bench import plan
from bench.__main__ import main
from bench.harness import claim
from bench.harness.options import NotPossibleError
from bench.loaders.report import chief_rows


@pytest.mark.parametrize("path", plan.documents(), ids=lambda path: path.name)
def test_each_table_is_that_of_its_json_file(path):
    assert plan.renewed(path.read_text()) == path.read_text(), "run python -m bench tables"


@pytest.mark.parametrize("path", sorted(claim.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_each_result_is_of_an_experiment_and_says_what_was_measured_when(path):
    result = json.loads(path.read_text())
    assert path.stem in {experiment.name for experiment in plan.EXPERIMENTS}
    assert not {"commit", "date", "command", "machine"} - set(result)
    assert not result.get("changed"), "measured on files that no commit has"
    assert claim.text_of(claim.with_targets(result)), "all tables that it has a row of"


@pytest.mark.parametrize("each", plan.EXPERIMENTS, ids=lambda each: each.name)
def test_each_result_is_that_of_the_command_that_is_planned(each):
    words = json.loads((claim.RESULTS / f"{each.name}.json").read_text())["command"].split()
    planned = f"python -m bench {each.claim} {each.arguments}".split()
    # A name may be that of a claim, too, which then has its own defaults.
    is_named = words[3:] == [each.name] and plan.named(each.name) == each
    assert is_named or words[: len(planned)] == planned


def test_a_table_stands_between_two_comments(tmp_path, monkeypatch):
    targets = [
        {"what": "speed", "unit": "", "wanted": 0.9, "median": 0.95, "min": 0.91, "max": 1.0}
    ]
    targets[0]["is_met"] = True
    (tmp_path / "a.json").write_text(json.dumps({"benchmark": "pipeline", "targets": targets}))
    monkeypatch.setattr(claim, "RESULTS", tmp_path)
    text = "Before.\n<!-- table: a.json targets -->\nold\n<!-- end of table -->\nAfter.\n"
    lines = plan.renewed(text).splitlines()
    assert lines[4] == "| speed | 0.95 | [0.91, 1.00] | 0.90 | met |"
    assert (lines[0], lines[-1]) == ("Before.", "After.")
    assert plan.renewed(plan.renewed(text)) == plan.renewed(text)


def test_of_several_numbers_of_workers_the_first_and_the_fastest_are_shown():
    points = [
        {"loader": "torch", "n_readers": n, "runs": [{"images_per_second": rate}]}
        for n, rate in ((2, 100), (8, 500), (16, 700), (32, 600))
    ]
    special = {"n_readers": 64, "runs": [{"images_per_second": 900}], "note": ", a special case"}
    points.append({**points[0], **special})
    for point in points:
        point["runs"][0]["first_batch_seconds"] = 0.5
    assert [row[-1] for row in chief_rows({"points": points})] == ["readers", "2", "16"]


def test_a_document_says_where_a_result_was_measured():
    machine = {"cores": 2, "processor": "AMD EPYC"}
    place = claim.place_of({"machine": machine, "store": "FUSE mount: 10 ms per open"})
    assert place == "Measured on 2 cores, AMD EPYC; FUSE mount: 10 ms per open."


@pytest.mark.parametrize("experiment", plan.EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_experiment_has_a_claim_that_takes_its_arguments(experiment, tmp_path):
    words = [*shlex.split(experiment.arguments), "--out", str(tmp_path / "result.json")]
    options = claim.parse(experiment.claim, [w for w in words if w not in ("--mount", "fuse")])
    assert options.repeats >= 1


def test_an_unknown_benchmark_is_refused_with_those_that_there_are():
    with pytest.raises(SystemExit, match="thousand-sweep"):
        plan.named("thousands")


def test_the_list_names_every_experiment_and_how_long_it_takes(capsys):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    names = [(line.split()[0], float(line.split()[1])) for line in lines]
    assert names == [(each.name, each.minutes) for each in plan.EXPERIMENTS]


@pytest.mark.parametrize("left_out", [None, "gpu"])
def test_all_experiments_run_in_order_and_one_that_fails_stops_no_other(
    monkeypatch, tmp_path, capsys, left_out
):
    asked = []

    def run(name, arguments, _planned):
        if left_out and arguments[1].endswith(f"{left_out}.json"):
            raise NotPossibleError("there is no GPU")
        asked.append(arguments)
        if name == "faults":
            raise OSError("no disk")
        return 0

    monkeypatch.setattr(claim, "run", run)
    assert main(["--all", "--into", str(tmp_path), "--repeats", "1"]) == 1
    paths = [
        str(tmp_path / f"{each.name}.json") for each in plan.EXPERIMENTS if each.name != left_out
    ]
    assert [words[1] for words in asked] == paths
    assert all(words[-2:] == ["--repeats", "1"] for words in asked)
    told = capsys.readouterr().err
    assert "failed: faults" in told
    assert ("not possible here: gpu: there is no GPU" in told) == (left_out == "gpu")


def test_what_is_not_installed_and_no_fuse_are_named_and_no_failure_of_all_experiments(
    monkeypatch, tmp_path, capsys
):
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/dev/fuse" and exists(path))
    monkeypatch.setattr("bench.harness.options.is_installed", lambda _module: False)
    some = [each for each in plan.EXPERIMENTS if each.name in ("pipeline-fuse", "in-memory")]
    monkeypatch.setattr(plan, "EXPERIMENTS", some)
    assert main(["--all", "--into", str(tmp_path)]) == 0
    *_, count, fuse, chainer = capsys.readouterr().err.splitlines()
    assert count == "0 experiments done; failed: -"
    assert fuse.startswith("not possible here: pipeline-fuse: there is no /dev/fuse")
    assert chainer.startswith("not possible here: in-memory: chainer is not installed; run it by")


def test_a_run_of_ones_own_goes_to_a_folder_that_git_ignores():
    options = claim.parse("in-memory", [])
    assert options.out.parent == claim.OWN_RESULTS
    ignored = (claim.CHECKOUT / ".gitignore").read_text().splitlines()
    assert f"/{claim.OWN_RESULTS.relative_to(claim.CHECKOUT)}/" in ignored


def test_every_figure_beside_the_results_is_drawn_from_its_json_file(tmp_path):
    paths = [tmp_path / path.name for path in sorted(claim.RESULTS.glob("*.json"))]
    for path in paths:
        path.write_bytes((claim.RESULTS / path.name).read_bytes())
    drawn = [Path(figure) for figure in claim.draw(paths)]
    assert {figure.name for figure in drawn} >= {path.name for path in claim.RESULTS.glob("*.png")}
    assert all(figure.read_bytes().startswith(b"\x89PNG") for figure in drawn)
