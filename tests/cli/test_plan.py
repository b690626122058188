"""`overlapiter plan`: what it forecasts from a profile of doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .commands import command, overlapiter, run

#: 10,000 files of 100 kB; the store gives a node 50 MB/s, the disk 10 times as much.
LEVEL = {"n_reads": 64, "seconds": 4.0, "n_files": 2000, "n_bytes": 200_000_000}
LEVEL |= {"files_per_second": 500.0, "bytes_per_second": 5e7, "cpu_seconds": 0.2}
DISK = {"read_bytes_per_second": 5e8, "small_bytes": 100_000, "small_read_seconds": 1e-4}
DISK |= {"small_cpu_seconds": 1e-4}
PROFILE = {
    "levels": [LEVEL],
    "mean_bytes": 100_000.0,
    "disk": DISK,
    "node": {"n_cores": 4},
    "dataset_bytes": 1e9,
    "recommended": {"capacity": "300MB"},
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(PROFILE))
    return path


def planned(profile: Path, *words: object) -> dict[str, Any]:
    done = overlapiter("plan", profile, "--epochs", 10, "--json", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_nodes_that_hold_all_together_read_the_store_once(profile) -> None:
    found = planned(profile, "--nodes", 4, "--store-limit", "100MB")
    epochs = found["epochs"]
    assert found["job"]["n_examples"] == 10_000
    assert epochs["first"]["seconds"] == pytest.approx(10, rel=0.01)  # 1 GB at 100 MB/s
    assert epochs["first"]["missed_share"] == 1.0
    assert epochs["second"]["missed_share"] == 0.0
    # At its share of the disks, or of the network.
    assert epochs["second"]["seconds"] < 1.0
    parts = [epochs["second"][f"{name}_bytes"] for name in ("ram", "disk", "peer")]
    assert sum(parts) == pytest.approx(1e9, rel=0.01)
    assert found["run_store_bytes"] == pytest.approx(1e9, rel=0.01)
    assert found["others_run_seconds"]["the store alone"] == pytest.approx(100, rel=0.01)


def test_the_store_gives_what_it_gave_for_the_longest_time(profile) -> None:
    lucky = {**LEVEL, "n_reads": 91, "seconds": 0.1, "bytes_per_second": 9e7}
    profile.write_text(json.dumps({**PROFILE, "levels": [LEVEL, lucky]}))
    assert planned(profile)["job"]["store_rate"] == 5e7


def test_of_what_does_not_fit_the_rest_is_read_again_and_more_room_mends_it(profile) -> None:
    found = planned(profile, "--nodes", 4, "--capacity", "15%", "--store-limit", "100MB")
    assert found["epochs"]["later"]["missed_share"] == pytest.approx(0.4, abs=0.01)
    assert found["epochs"]["later"]["seconds"] == pytest.approx(4, rel=0.05)
    changes = found["changes"]
    assert changes["as it is"]["run_seconds"] == found["run_seconds"]
    assert changes["twice the disk"]["missed_share"] == pytest.approx(0, abs=0.01)
    assert changes["disks that hold all together"]["missed_share"] == pytest.approx(0, abs=0.01)
    assert changes["half the nodes"]["missed_share"] == pytest.approx(0.7, abs=0.01)
    alone = found["others_run_seconds"]["each node for itself"]
    assert found["run_seconds"] < alone < found["others_run_seconds"]["the store alone"]


def test_half_of_an_odd_number_of_nodes_is_not_told(profile) -> None:
    changes = planned(profile, "--nodes", 3)["changes"]
    assert "half the nodes" not in changes
    assert "twice the nodes" in changes


def test_copies_are_read_also_where_the_store_is_as_fast(profile) -> None:
    slow_disk = {**DISK, "small_read_seconds": 0.1, "read_bytes_per_second": 1e6}
    profile.write_text(json.dumps({**PROFILE, "disk": slow_disk}))
    found = planned(profile, "--nodes", 4, "--capacity", "15%")
    assert found["epochs"]["later"]["missed_share"] == pytest.approx(0.4, abs=0.01)
    found = planned(profile, "--nodes", 2, "--capacity", "100%")
    assert found["others_run_seconds"]["each node for itself"] > 0.8 * found["run_seconds"]


def test_where_training_is_the_limit_peers_bring_nothing(profile) -> None:
    found = planned(profile, "--nodes", 4, "--train-rate", 20)
    assert found["run_seconds"] == pytest.approx(10 * 10_000 / 80, rel=0.02)
    assert found["others_run_seconds"]["the store alone"] == pytest.approx(1250, rel=0.02)


def test_the_report_and_the_figure(profile, tmp_path) -> None:
    words = ("--nodes", 2, "--ranks-per-node", 2, "--ram", "100MB", "--to", tmp_path / "plan.png")
    done = run(command("plan", profile, *words))  # matplotlib keeps its fonts open
    assert done.returncode == 0, done.stderr
    assert "4 ranks on 2 nodes, 90 epochs; the nodes together have room for 80%" in done.stdout
    for words in ("own RAM", "peers", "later ones", "twice the nodes", "the store alone"):
        assert words in done.stdout
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_small_job_is_told_in_words_that_fit_it(profile) -> None:
    done = overlapiter("plan", profile, "--epochs", 1, "--capacity", "3TB")
    assert "1 rank on 1 node, 1 epoch; the node has room for all of the data set" in done.stdout
    of_epochs, of_changes = done.stdout.split("\n\n")[1:]
    assert len(of_epochs.splitlines()) == 2  # no epoch that the job does not have
    assert "100.0%" in of_changes.splitlines()[1]


def test_what_doctor_saves_is_a_profile(source, listing, tmp_path) -> None:
    words = ("--source", source, "--to", tmp_path / "fast", "--seconds", 1)
    done = overlapiter("doctor", listing, *words, "--save", tmp_path / "node.json")
    assert done.returncode == 0, done.stderr
    assert "Recommended" in done.stdout
    found = planned(tmp_path / "node.json", "--capacity", "50%", "--nodes", 2)
    assert found["epochs"]["first"]["store_bytes"] == pytest.approx(found["job"]["dataset_bytes"])
    assert found["epochs"]["later"]["missed_share"] == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("no JSON", [], "is no profile"),
        ('{"levels": []}', [], "make one: overlapiter doctor"),
        (json.dumps({**PROFILE, "dataset_bytes": None}), [], "give --dataset"),
        (json.dumps({"levels": [LEVEL]}), [], "is no profile ('node')"),
        (json.dumps({**PROFILE, "levels": [{"n_bytes": 1}]}), [], "is no profile ('seconds')"),
        (json.dumps({**PROFILE, "mean_bytes": 0.0}), [], "read are empty"),
        (json.dumps({**PROFILE, "dataset_bytes": float("nan")}), [], "is no profile"),
        (json.dumps({**PROFILE, "dataset_bytes": -5}), [], "is not above 0"),
        (json.dumps({**PROFILE, "mean_bytes": float("nan")}), [], "is not above 0"),
        (
            json.dumps({**PROFILE, "levels": [{**LEVEL, "bytes_per_second": 0.0}]}),
            [],
            "is not above 0",
        ),
        (json.dumps(PROFILE), ["--nodes", "0"], "--nodes: 0 is too small"),
        (json.dumps(PROFILE), ["--dataset", "0"], "the size of the data set is not known"),
        (json.dumps(PROFILE), ["--store-limit", "0"], "--store-limit: give more than 0 bytes/s"),
        (json.dumps(PROFILE), ["--network", "50%"], "--network: give more than 0 bytes/s"),
        (json.dumps(PROFILE), ["--capacity", "much"], "'much' is no size"),
    ],
)
def test_what_cannot_be_used_is_explained(tmp_path, content, words, message) -> None:
    (tmp_path / "node.json").write_text(content)
    done = overlapiter("plan", tmp_path / "node.json", *words)
    assert done.returncode == 2
    assert message in done.stderr
