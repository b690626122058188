"""Ranks of a real job on several nodes, which give each other what they have staged."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.chainer.mpi_jobs import NEEDS_MPIEXEC, run_job

pytestmark = NEEDS_MPIEXEC

N_FILES, N_EPOCHS = 480, 4


Found = tuple[list[int], list[dict[str, Any]]]


def run(
    folder: Path,
    n_ranks: int,
    n_nodes: int,
    meeting: str,
    share: float,
    faults: str = "",
    open_ms: str = "5",
    kind: str = "declared",
) -> list[Found]:
    """Return how often the slow store was read in each epoch, and what each rank reports.

    So for each number of milliseconds in ``open_ms``: a store that takes so long to open a file.
    """
    arguments = (meeting, share, faults, open_ms, kind)
    ended = run_job("rank_peers.py", n_ranks, folder, *arguments, n_nodes=n_nodes)
    assert ended.exit_status == 0, ended.output
    assert [rank["forks"] for rank in ended.results] == [[]] * n_ranks
    found = []
    for ranks in zip(*(rank["runs"] for rank in ended.results), strict=True):
        assert [rank["wrong"] for rank in ranks] == [0] * n_ranks, "not the same mini-batches"
        totals = [sum(reads) for reads in zip(*(rank["reads"] for rank in ranks), strict=True)]
        reads = [total - before for before, total in zip([0, *totals], totals, strict=False)]
        found.append((reads, [*ranks]))
    return found


def check_once(reads: list[int]) -> None:
    """Check that files were read once.

    On busy cores some peers do not answer within a second, and what is read ahead at that moment is
    read again. Alone the nodes would read more than half of the files again in each epoch.
    """
    assert N_FILES <= reads[0] <= 1.2 * N_FILES
    assert statistics.median(reads[1:]) <= 0.1 * N_FILES
    assert sum(reads[1:]) <= 0.4 * N_FILES


def test_nodes_that_hold_everything_together_read_each_file_once(tmp_path: Path) -> None:
    [(reads, ranks)] = run(tmp_path, 4, 4, "comm", 0.3)
    check_once(reads)
    assert not any(any(rank["not asked"]) for rank in ranks)
    assert all(rank["peer"] > N_FILES / 4 for rank in ranks)


@pytest.mark.parametrize("kind", ["declared", "found"])
def test_what_an_earlier_job_left_makes_room_before_what_nodes_keep_for_each_other(
    tmp_path: Path, kind: str
) -> None:
    found = run(tmp_path, 4, 4, "comm", 0.3, open_ms="5,5,5", kind=kind)
    (_, second, third) = (sum(reads) for reads, _ in found)
    assert second + third <= 0.05 * N_FILES


def test_ranks_of_a_node_serve_together_and_may_meet_in_a_directory(tmp_path: Path) -> None:
    [(reads, _)] = run(tmp_path, 4, 2, "directory", 0.6)
    check_once(reads)


def test_nodes_that_hold_a_part_read_the_rest_and_all_where_the_store_is_as_near_as_a_node(
    tmp_path: Path,
) -> None:
    (far, _), (near, ranks) = run(tmp_path, 2, 2, "comm", 0.3, open_ms="5,0")
    assert sum(far[1:]) / 3 / N_FILES == pytest.approx(0.4, abs=0.05)
    # On busy cores the store may not look near all the time.
    assert all(any(rank["not asked"]) for rank in ranks)
    assert sum(rank["peer"] for rank in ranks) < 3 * (1 - 0.4) * N_FILES / 2, "as if it were far"
    assert sum(near[1:]) / 3 / N_FILES > 0.42


def test_a_server_that_is_killed_or_stopped_changes_nothing_but_where_files_come_from(
    tmp_path: Path,
) -> None:
    [(reads, ranks)] = run(tmp_path, 3, 3, "comm", 0.4, "kill,stop")
    assert N_FILES <= reads[0] <= 1.2 * N_FILES
    assert sum(reads) < 2.2 * N_FILES
    assert ranks[1]["replaced"] >= 2


def test_a_rank_that_cannot_take_part_or_has_other_data_leaves_none_waiting(tmp_path: Path) -> None:
    ended = run_job("rank_peers_refused.py", 2, tmp_path, n_nodes=2)
    assert ended.exit_status == 0, ended.output
    first, second = ended.results

    for wrong, error, words in (
        ("place", "StagingError", "not-mounted does not exist"),
        ("pickling", "DatasetPicklingError", "cannot pickle '_thread.lock'"),
    ):
        assert [first[wrong][0], second[wrong][0]] == ["OptionError", error]
        assert f"peers: rank 1 cannot take part: {error}" in first[wrong][1]
        assert words in first[wrong][1]

    source, other = (tmp_path.resolve() / name for name in ("source", "other"))
    for wrong, own in (
        ("number", f"rank 1 has 2 examples below {source}"),
        ("source", f"rank 1 has 1 examples below {other}"),
    ):
        assert first[wrong] == second[wrong]
        assert first[wrong][0] == "OptionError"
        assert f"rank 0 has 1 examples below {source}, {own};" in first[wrong][1]

    assert first["server"] == second["server"]
    servers = [
        f"1 examples below s3://bucket/train [('endpoint_url', 'http://{host}:9000')]"
        for host in ("one", "other")
    ]
    assert f"rank 0 has {servers[0]}, rank 1 has {servers[1]};" in first["server"][1]
    assert "hidden" not in first["server"][1]
