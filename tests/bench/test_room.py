"""A benchmark on a disk that is so full that a run would stage nothing."""

from __future__ import annotations

import json

import pytest

from bench.harness import claim
from tests.store.disks import mounted_tmpfs

DISK_BYTES = 16 << 20


@pytest.mark.parametrize("name", ["pipeline", "startup-staged", "staging"])
def test_it_ends_before_it_measures_on_a_disk_that_is_too_full(name, image_folder, tmp_path):
    words = ["--quick", "--out", str(tmp_path / "result.json")]
    if name == "pipeline":
        words += ["--pairs", str(image_folder / "list.txt"), "--root", str(image_folder)]
    with mounted_tmpfs(tmp_path / "disk", DISK_BYTES) as disk:
        (disk / "others").write_bytes(bytes(DISK_BYTES * 96 // 100))
        with pytest.raises(SystemExit) as ended:
            claim.run(name, [*words, "--local", str(disk)])
        assert [path.name for path in disk.iterdir()] == ["others"]
    text = str(ended.value)
    assert f"the disk of {disk}/{name}-" in text
    assert "too full" in text
    assert " kB are free and " in text
    assert "5% of the disk" in text
    assert text.endswith("free some, or give another folder by --local")
    assert not (tmp_path / "result.json").exists()


def test_it_measures_where_a_run_can_stage(image_folder, tmp_path):
    words = ["--pairs", str(image_folder / "list.txt"), "--root", str(image_folder), "--quick"]
    words += ["--out", str(tmp_path / "result.json"), "--lines", "cold"]
    with mounted_tmpfs(tmp_path / "disk", DISK_BYTES) as disk:
        assert claim.run("pipeline", [*words, "--local", str(disk)]) == 0


@pytest.mark.mpi
@pytest.mark.slow
def test_what_ranks_have_staged_makes_room_for_the_runs_that_follow(tmp_path):
    words = [
        "--parts",
        "epochs",
        "--kinds",
        "peers,alone",
        "--quick",
        "--local",
        str(tmp_path / "disk"),
    ]
    out = tmp_path / "result.json"
    with mounted_tmpfs(tmp_path / "disk", 34 << 20):
        assert claim.run("peers", [*words, "--out", str(out)]) == 0
    for point in json.loads(out.read_text())["points"]:
        for run in point["runs"]:
            # The first epoch may miss some that it reads ahead for the second one.
            assert run["reads"][0] < 1.5 * point["examples"], point
