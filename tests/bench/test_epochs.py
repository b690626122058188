"""Some epochs over a slow store: what each reads, and how that is summed up and drawn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import epoch_times, isolated, misses
from tests.bench.mounts import needs_fuse

N_FILES = 64


def request_of(image_folder: Path, tmp_path: Path, **others: object) -> dict:
    """Return a request for two epochs from a fast store that is slow to open."""
    return {
        "loader": "overlap",
        "fraction": None,
        "is_decoding": False,
        "root": str(image_folder),
        "pairs": str(image_folder / "list.txt"),
        "n_examples": N_FILES,
        "batch_size": 4,
        "n_epochs": 2,
        "n_readers": 1,
        "seed": 0,
        "local": str(tmp_path),
        "open_seconds": 0.001,
        "bytes_per_second": 1e9,
        "mount": "emulated",
        "beside_fraction": 0.0,
        **others,
    }


@pytest.mark.parametrize(
    ("loader", "fraction", "n_fewest", "n_most"),
    [
        ("overlap", None, N_FILES, N_FILES),  # each file once
        # Half of the second epoch besides, and what is read ahead into the third one; each of the
        # prefetchers reserves some of the room, which is little here.
        ("overlap", 0.5, 1.4 * N_FILES, 2 * N_FILES - 1),
        ("multiprocess", None, 2 * N_FILES, 3 * N_FILES),
    ],
)
def test_a_run_tells_what_each_epoch_read_from_the_store(
    image_folder: Path,
    tmp_path: Path,
    loader: str,
    fraction: float | None,
    n_fewest: float,
    n_most: float,
) -> None:
    request = request_of(image_folder, tmp_path, loader=loader, fraction=fraction)
    request["is_decoding"] = loader == "multiprocess"
    found = isolated.call("bench.epoch_runs", request)
    assert [len(found[name]) for name in ("epoch_seconds", "store_opens", "store_bytes")] == [2] * 3
    assert found["cpu"]["prefetcher" if loader == "overlap" else "other"]["seconds"] > 0
    assert n_fewest <= sum(found["store_opens"]) <= n_most
    mean_bytes = sum(path.stat().st_size for path in image_folder.glob("*.jpg")) / N_FILES
    assert sum(found["store_bytes"]) == pytest.approx(
        mean_bytes * sum(found["store_opens"]), rel=0.2
    )
    assert min(found["epoch_seconds"]) > 0


@pytest.mark.parametrize("mount", ["emulated", pytest.param("fuse", marks=needs_fuse)])
def test_what_would_have_to_be_missed_is_read_beside_the_later_epochs(
    image_folder: Path, tmp_path: Path, mount: str
) -> None:
    request = request_of(image_folder, tmp_path, mount=mount, beside_fraction=0.5)
    assert sum(isolated.call("bench.epoch_runs", request)["store_opens"]) == 1.5 * N_FILES


def test_epochs_are_summed_up_one_by_one_and_drawn(tmp_path: Path) -> None:
    runs = [
        {"epoch_seconds": [9.0, 1.0], "store_opens": [10, 0], "store_bytes": [2e6, 0]},
        {"epoch_seconds": [7.0, 3.0], "store_opens": [10, 2], "store_bytes": [2e6, 4e5]},
        {"epoch_seconds": [8.0, 2.0], "store_opens": [11, 1], "store_bytes": [2e6, 2e5]},
    ]
    summary = epoch_times.summarize(runs)
    assert [epoch["median"] for epoch in summary["epoch_seconds"]] == [8.0, 2.0]
    assert [epoch["max"] for epoch in summary["epoch_seconds"]] == [9.0, 3.0]
    assert summary["store_opens"] == [10, 1]
    points = [{"loader": loader, "summary": summary} for loader in epoch_times.MEANINGS]
    table = epoch_times.table(points).splitlines()
    assert [line.split() for line in table if line.startswith("capacity ")] == [
        ["capacity", "1", "8.00", "[7.00,", "9.00]", "10", "2.0"],
        ["capacity", "2", "2.00", "[1.00,", "3.00]", "1", "0.2"],
    ]

    options = {"fraction": 0.5, "examples": 10, "batch_size": 2, "readers": 2, "repeats": 3}
    machine = {"cores": 2, "processor": "any"}
    result = {"store": "a store", "options": options, "machine": machine, "points": points}
    (tmp_path / "epochs.json").write_text(json.dumps(result))
    # In a process of its own, because Matplotlib keeps its fonts open.
    command = [sys.executable, "-m", "bench.epoch_figures", str(tmp_path / "epochs.json")]
    subprocess.run(command, cwd=isolated.CHECKOUT, check=True)
    assert (tmp_path / "epochs.png").read_bytes().startswith(b"\x89PNG")


def test_later_epochs_are_compared_within_a_repeat() -> None:
    def point(loader: str, *later_seconds: float) -> dict:
        return {"loader": loader, "runs": [{"epoch_seconds": [9.0, s]} for s in later_seconds]}

    points = [point("capacity", 2.0, 4.0), point("ideal", 1.5, 3.5)]
    assert epoch_times.later_shares(points, "ideal") == [0.75, 0.875]
    assert epoch_times.later_shares(points, "unlimited") == []


def test_measured_misses_are_compared_with_the_optimum() -> None:
    shares = {"measured": [1.0, 0.6, 0.5], "belady": [1.0, 0.5, 0.5]}
    points = [{"order": "shuffled", "fraction": 0.5, "missed_by_epoch": shares}]
    assert misses.table(points, "measured").split()[-5:] == [
        "shuffled", "0.5", "55.00", "50.00", "5.00"
    ]  # fmt: skip
