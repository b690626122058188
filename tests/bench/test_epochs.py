"""Some epochs over a slow store: what each reads, and how that is summed up and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import plan
from bench.claims import epochs
from bench.harness import claim, isolated
from bench.loaders.run import run_loader
from bench.loaders.sources import capacity_of
from bench.loaders.spec import RunSpec
from tests.bench.mounts import needs_fuse

N_FILES = 64


def epochs_of(image_folder: Path, tmp_path: Path, **others: object) -> dict:
    """Return two epochs from a fast store that is slow to open."""
    pairs, root = str(image_folder / "list.txt"), str(image_folder)
    usual = {"n_examples": N_FILES, "batch_size": 4, "n_epochs": 2, "n_readers": 1, "order": "own"}
    usual |= {"open_seconds": 0.001, "bytes_per_second": 1e9, "loader": "overlap"}
    spec = RunSpec(**{**usual, **others}, pairs=pairs, root=root, staging=str(tmp_path / "s"))
    return isolated.call(run_loader, spec)


@pytest.mark.parametrize(
    ("loader", "fraction", "n_fewest", "n_most"),
    [
        # Half of the second epoch besides, and what is read ahead into the third one; each of the
        # prefetchers reserves some of the room, which is little here.
        ("overlap", 0.5, 1.4 * N_FILES, 2 * N_FILES - 1),
        ("slow", None, 2 * N_FILES, 3 * N_FILES),
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
    spec = RunSpec("overlap", str(image_folder / "list.txt"), N_FILES, str(image_folder), "")
    capacity = fraction and capacity_of(spec, fraction)
    others = {"loader": loader, "capacity": capacity, "is_decoding": loader == "slow"}
    found = epochs_of(image_folder, tmp_path, **others)
    assert found["cpu"]["prefetcher" if loader == "overlap" else "reader"]["seconds"] > 0
    names = ("seconds", "opens", "bytes")
    seconds, opens, sizes = ([epoch[name] for epoch in found["epochs"]] for name in names)
    assert len(seconds) == 2
    assert min(seconds) > 0
    assert n_fewest <= sum(opens) <= n_most
    mean_bytes = sum(path.stat().st_size for path in image_folder.glob("*.jpg")) / N_FILES
    assert sum(sizes) == pytest.approx(mean_bytes * sum(opens), rel=0.2)


@pytest.mark.parametrize("mount", ["emulated", pytest.param("fuse", marks=needs_fuse)])
def test_what_would_have_to_be_missed_is_read_beside_the_later_epochs(
    image_folder: Path, tmp_path: Path, mount: str
) -> None:
    others = {"mount": mount, "is_decoding": False, "beside_fraction": 0.5}
    found = epochs_of(image_folder, tmp_path, **others)
    assert [epoch["opens"] for epoch in found["epochs"]] == [N_FILES, 0.5 * N_FILES]


def test_of_a_store_of_the_users_the_reads_are_not_counted(
    image_folder: Path, tmp_path: Path
) -> None:
    given = {"mount": "given", "local_root": str(tmp_path / "nothing is here yet")}
    place = str(image_folder / "list.txt"), N_FILES, str(image_folder), ""
    given["capacity"] = capacity_of(RunSpec("overlap", *place, **given), 1.0)
    found = epochs_of(image_folder, tmp_path, is_decoding=False, **given)
    points = [{"name": "capacity", "runs": [found]}]
    rows = epochs.TABLES["epochs"]({"points": points})[1:]
    assert [row[4:] for row in rows] == [["-", "-"]] * 2


@pytest.mark.parametrize("name", ["misses-measured", "misses-node", "peers", "model-times"])
def test_what_needs_a_store_of_its_own_refuses_that_of_the_user(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        plan.run(plan.named(name), ["--source", "images", "--pairs", "pairs.txt"])
    assert "this benchmark would ignore --source: leave it out" in capsys.readouterr().err


def epoch(seconds: float, opens: int, n_bytes: float) -> dict:
    return {"seconds": seconds, "opens": opens, "bytes": n_bytes}


def test_epochs_are_summed_up_one_by_one_and_drawn(tmp_path: Path) -> None:
    runs = [
        {"epochs": [epoch(9.0, 10, 2e6), epoch(1.0, 0, 0)]},
        {"epochs": [epoch(7.0, 10, 2e6), epoch(3.0, 2, 4e5)]},
        {"epochs": [epoch(8.0, 11, 2e6), epoch(2.0, 1, 2e5)]},
    ]
    points = [{"name": name, "runs": runs} for name in epochs.MEANINGS]
    assert epochs.TABLES["epochs"]({"points": points})[1:3] == [
        ["capacity", "1", "8.00", "[7.00, 9.00]", "10", "2.0"],
        ["capacity", "2", "2.00", "[1.00, 3.00]", "1", "0.2"],
    ]

    options = {"fraction": 0.5, "examples": 10, "repeats": 3}
    result = {"benchmark": "epochs", "store": "a store", "options": options, "points": points}
    result["machine"] = {"cores": 2, "processor": "any"}
    result["command"] = "python -m bench epochs"
    (tmp_path / "epochs.json").write_text(json.dumps(result))
    assert claim.draw([tmp_path / "epochs.json"]) == [str(tmp_path / "epochs.png")]
    assert (tmp_path / "epochs.png").read_bytes().startswith(b"\x89PNG")


def test_later_epochs_are_compared_within_a_repeat() -> None:
    def point(name: str, *later_seconds: float) -> dict:
        runs = [{"epochs": [epoch(9.0, 1, 1), epoch(s, 1, 1)]} for s in later_seconds]
        return {"name": name, "runs": runs}

    points = [point("capacity", 2.0, 4.0), point("ideal", 1.5, 3.5)]
    result = claim.with_targets({"benchmark": "epochs", "points": points})
    (target,) = result["targets"]  # there is no other limit
    assert target["what"].startswith("ideal / capacity")
    assert target["values"] == [0.75, 0.875]


def test_measured_misses_are_compared_with_the_optimum() -> None:
    shares = {"measured": [1.0, 0.6, 0.5], "belady": [1.0, 0.5, 0.5]}
    points = [{"order": "shuffled", "fraction": 0.5, "missed_by_epoch": shares}]
    assert epochs.TABLES["misses"]({"points": points}) == [
        ["part", "50 %"], ["**OverlapIterator**", "55.0"], ["optimum (Belady)", "50.0"]
    ]  # fmt: skip
