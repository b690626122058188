"""Data-parallel training from a slow store, on few and small images."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.claims import data_parallel as training
from bench.harness import claim, isolated
from bench.harness.isolated import CHECKOUT, launch, take_turns
from bench.slow.store import OpenRecord
from tests.chainer.mpi_jobs import NEEDS_MPIEXEC

N_IMAGES = 48


def measured(folder: Path, image_folder: Path, *arguments: str, launcher: str = "") -> dict:
    """Run the benchmark and return what it wrote."""
    out = folder / "result.json"
    words = [*shlex.split(launcher), sys.executable, "-W", "ignore", "-m", "bench", "data-parallel"]
    words += ["--pairs", str(image_folder / "list.txt"), "--examples", str(N_IMAGES)]
    words += ["--batch-size", "4", "--repeats", "1", "--local", str(folder), "--out", str(out)]
    subprocess.run([*words, *arguments], cwd=CHECKOUT, check=True, stdin=subprocess.DEVNULL)
    # Nothing is left of what was staged.
    assert {path.suffix for path in folder.iterdir()} == {".json", ".png"}
    return json.loads(out.read_text())


def epochs_of(point: dict) -> list[list[dict]]:
    """Return the epochs of each rank in the first run of a point."""
    return [rank["epochs"] for rank in point["runs"][0]["ranks"]]


@pytest.fixture(scope="module")
def result(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Two ranks of one node, with our loader and with the stock one on the slow store."""
    words = ["--root", str(image_folder), "--open-ms", "1", "--ranks", "2"]
    folder = tmp_path_factory.mktemp("training")
    return measured(folder, image_folder, *words, "--loaders", "overlap,slow")


@pytest.mark.mpi
@NEEDS_MPIEXEC[1]
def test_ranks_of_a_node_read_each_file_once_and_train_on_the_same(result: dict) -> None:
    overlap, slow = result["points"]
    (ours,), (stock,) = overlap["runs"][0]["reads"], slow["runs"][0]["reads"]
    assert ours["opens"] == ours["files"] == N_IMAGES
    assert ours["most_opens"] == 1
    assert stock["opens"] >= 2 * N_IMAGES
    for one, other in zip(epochs_of(overlap), epochs_of(slow), strict=True):
        for epoch, stock_epoch in zip(one, other, strict=True):
            assert epoch["n_images"] == stock_epoch["n_images"] == N_IMAGES // 2
            assert epoch["loss"] == pytest.approx(stock_epoch["loss"], rel=1e-4)
            assert epoch["opens_source"] == 0 < epoch["opens_staged"]
            assert 0 < epoch["wait_seconds"] < epoch["end"] - epoch["start"]
    for summary in [*training.summarize(overlap["runs"]), *training.summarize(slow["runs"])]:
        assert 0 < summary["wait_share"] < 1


@pytest.mark.mpi
@NEEDS_MPIEXEC[1]
def test_the_table_and_the_figure_have_every_epoch(result: dict, tmp_path: Path) -> None:
    cells = training.training_rows(result)[-1]
    assert "slow store" in cells[0]
    assert [cell.endswith("%)") for cell in cells[1:]] == [True, True]

    paths = [tmp_path / "training.json", tmp_path / "more.json"]
    for path in paths:
        path.write_text(json.dumps(result))
    command = [sys.executable, "-m", "bench", "figures", "--together", *map(str, paths)]
    subprocess.run(command, cwd=CHECKOUT, check=True)
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.mpi
@NEEDS_MPIEXEC[1]
@pytest.mark.parametrize(("order", "n_files"), [("shards", N_IMAGES // 2), ("global", None)])
def test_each_node_stages_for_itself(
    tmp_path: Path, image_folder: Path, order: str, n_files: int | None
) -> None:
    words = ["--root", str(image_folder), "--open-ms", "1", "--ranks", "2", "--nodes", "2"]
    found = measured(tmp_path, image_folder, *words, "--loaders", "overlap", "--order", order)
    nodes = found["points"][0]["runs"][0]["reads"]
    assert [node["node"] for node in nodes] == ["node-0", "node-1"]
    for node in nodes:
        assert node["most_opens"] == 1
        if n_files is not None:
            assert node["files"] == n_files


@pytest.mark.slow
@pytest.mark.mpi
@NEEDS_MPIEXEC[1]
def test_in_a_job_of_the_users_all_ranks_do_all_runs(tmp_path: Path, image_folder: Path) -> None:
    launcher = "mpiexec --allow-run-as-root --oversubscribe -n 2"
    words = ["--in-job", "--source", str(image_folder), "--loaders", "overlap,local,synthetic"]
    found = measured(tmp_path, image_folder, *words, launcher=launcher)
    sizes = [(point["n_nodes"], point["n_ranks"], point["loader"]) for point in found["points"]]
    assert sizes == [(1, 2, "overlap"), (1, 2, "local"), (1, 2, "synthetic")]
    epochs = [epoch for rank in epochs_of(found["points"][0]) for epoch in rank]
    assert sum(epoch["files_staged"] for epoch in epochs) == N_IMAGES
    assert [row[0] for row in training.cost_rows(found)[1:]] == ["1 x 2"]


def test_a_node_is_a_group_of_ranks_with_a_name() -> None:
    program = ["python", "a.py"]
    assert launch(program, 4, options=["-q"])[-5:] == ["-q", "-n", "4", *program]
    assert launch(program, 2, 2)[-13:] == [
        "-n", "2", "env", "OVERLAPITER_NODE=node-0", "python", "a.py",
        ":", "-n", "2", "env", "OVERLAPITER_NODE=node-1", "python", "a.py"
    ]  # fmt: skip


def test_runs_go_there_and_back() -> None:
    points = [{"loader": loader} for loader in ("overlap", "slow")]
    taken = []
    take_turns(points, 3, lambda point: taken.append(point["loader"]))
    assert taken == ["overlap", "slow", "slow", "overlap", "overlap", "slow"]
    assert [len(point["runs"]) for point in points] == [3, 3]


EPOCH = {
    "start": 0.0, "end": 10.0, "seconds": 10.0, "wait_seconds": 4.0, "n_images": 16,
    "trainer_cpu_seconds": 1.0, "workers_cpu_seconds": 2.0,
}  # fmt: skip


def rank_of(number: int, node: str, pids: list[int], seconds: float = 10.0) -> dict:
    """Return what a rank of two epochs reports."""
    first = {**EPOCH, "end": seconds, "seconds": seconds, "pids": pids}
    second = {**first, "start": seconds, "end": 2 * seconds, "wait_seconds": 1.0}
    return {"rank": number, "node": node, "start_seconds": 1.0, "epochs": [first, second]}


def test_what_is_read_counts_for_the_node() -> None:
    ranks = [rank_of(0, "a", [10, 11]), rank_of(1, "b", [20])]
    records = [
        OpenRecord(1.0, 100, 11, "x"),
        OpenRecord(12.0, 100, 10, "x"),
        OpenRecord(13.0, 50, 11, "y"),
        OpenRecord(25.0, 70, 20, "z"),
    ]
    assert training.reads_by_node(ranks, records) == [
        {"node": "a", "opens": 3, "files": 2, "most_opens": 2},
        {"node": "b", "opens": 1, "files": 1, "most_opens": 1},
    ]
    with pytest.raises(ValueError, match="of no rank"):
        training.reads_by_node(ranks, [OpenRecord(1.0, 100, 99, "x")])


def test_runs_are_summed_up_over_ranks_and_repeats() -> None:
    def run(seconds: float) -> dict:
        ranks = [rank_of(0, "a", [1], seconds), rank_of(1, "a", [2], seconds)]
        ranks[1]["epochs"][0]["wait_seconds"] = 2.0
        records = [OpenRecord(1.0, 100, 1, "x")]
        reads = training.reads_by_node(ranks, records)
        return {"ranks": ranks, "reads": reads}

    first, second = training.summarize([run(10.0), run(8.0), run(20.0)])
    assert first["seconds"] == {"median": 10.0, "min": 8.0, "max": 20.0}
    assert first["wait_share"] == pytest.approx(0.3)
    assert second["wait_share"] == pytest.approx(0.1)

    size = {"n_nodes": 1, "n_ranks": 2}
    points = [
        {"loader": "overlap", **size, "runs": [run(11.0), run(22.0)]},
        {"loader": "synthetic", **size, "runs": [run(10.0), run(20.0)]},
    ]
    head, row = training.cost_rows({"points": points})
    assert row[0] == "1 x 2"
    found = dict(zip(head, row, strict=True))
    assert found["all epochs"] == found["after the first epoch"] == "+10.00% ± 0.00%"
    assert found["CPU time"] == "+0.00% ± 0.00%"


@pytest.mark.parametrize(
    ("longer", "word"),
    [((10.03, 10.032), "met"), ((10.29, 10.3), "missed"), ((10.0, 10.15), "within noise")],
)
def test_what_loading_adds_is_told_from_noise(longer: tuple[float, float], word: str) -> None:
    def runs(*seconds: float) -> list[dict]:
        return [{"ranks": [rank_of(0, "a", [1], each)]} for each in seconds]

    size = {"n_nodes": 1, "n_ranks": 4}
    points = [
        {"loader": "overlap", **size, "runs": runs(*longer)},
        {"loader": "synthetic", **size, "runs": runs(10.0, 10.0)},
    ]
    (row,) = training.cost_rows({"points": points})[1:]
    # Both epochs without the second until the first mini-batch was there.
    assert row[1].startswith(f"{sum((2 * each - 1) / 19 - 1 for each in longer) / 2:+.2%} ± ")
    assert row[-1] == word


@pytest.mark.parametrize(("model", "n_threads"), [("data", None), ("waits", 1)])
def test_a_rank_that_waits_has_no_threads_that_spin_meanwhile(
    monkeypatch, image_folder, model, n_threads
):
    asked = []

    def run_ranks(*_arguments: object, n_threads: int | None) -> tuple[list, list]:
        asked.append(n_threads)
        return [], []

    monkeypatch.setattr(training, "run_ranks", run_ranks)
    monkeypatch.setattr(isolated, "take_turns", lambda points, _n, run: [*map(run, points)])
    words = ["--pairs", str(image_folder / "list.txt"), "--root", str(image_folder)]
    words += ["--examples", "8", "--batch-size", "4", "--ranks", "2", "--loaders", "overlap"]
    training.measure(claim.parse("data-parallel", [*words, "--model", model]))
    assert asked == [n_threads]
