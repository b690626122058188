"""Ranks of a real job on several nodes, which give each other what they have staged."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.chainer.mpi_jobs import NEEDS_MPIEXEC, run_job

pytestmark = NEEDS_MPIEXEC

N_FILES, N_EPOCHS = 960, 4


def run(
    folder: Path,
    n_ranks: int,
    n_nodes: int,
    meeting: str,
    share: float,
    faults: str = "",
    open_ms: float = 5.0,
) -> tuple[list[int], list[dict[str, int]]]:
    """Return how often the slow store was read in each epoch, and what each rank reports."""
    arguments = (meeting, share, faults, open_ms)
    ended = run_job("rank_peers.py", n_ranks, folder, *arguments, n_nodes=n_nodes)
    assert ended.exit_status == 0, ended.output
    assert [rank["forks"] for rank in ended.results] == [[]] * n_ranks
    assert [rank["wrong"] for rank in ended.results] == [0] * n_ranks, "not the same mini-batches"
    totals = [sum(reads) for reads in zip(*(r["reads"] for r in ended.results), strict=True)]
    reads = [total - before for before, total in zip([0, *totals], totals, strict=False)]
    return reads, ended.results


def check_once(reads: list[int]) -> None:
    """Check that files were read once.

    On busy cores some peers do not answer within a second, and what is read ahead at that moment is
    read again. Alone the nodes would read more than half of the files again in each epoch.
    """
    assert N_FILES <= reads[0] <= 1.1 * N_FILES
    assert statistics.median(reads[1:]) <= 0.05 * N_FILES
    assert sum(reads[1:]) <= 0.2 * N_FILES


def test_nodes_that_hold_everything_together_read_each_file_once(tmp_path: Path) -> None:
    reads, ranks = run(tmp_path, 4, 4, "comm", 0.3)
    check_once(reads)
    assert not any(any(rank["not asked"]) for rank in ranks)
    assert all(rank["peer"] > N_FILES / 4 for rank in ranks)


def test_ranks_of_a_node_serve_together_and_may_meet_in_a_directory(tmp_path: Path) -> None:
    reads, _ = run(tmp_path, 4, 2, "directory", 0.6)
    check_once(reads)


def test_nodes_that_hold_a_part_read_the_rest(tmp_path: Path) -> None:
    reads, _ = run(tmp_path, 2, 2, "comm", 0.3)
    assert sum(reads[1:]) / 3 / N_FILES == pytest.approx(0.4, abs=0.05)


def test_a_server_that_is_killed_or_stopped_changes_nothing_but_where_files_come_from(
    tmp_path: Path,
) -> None:
    reads, ranks = run(tmp_path, 3, 3, "comm", 0.4, "kill,stop")
    assert N_FILES <= reads[0] <= 1.1 * N_FILES
    assert sum(reads) < 2 * N_FILES
    assert ranks[1]["replaced"] >= 2


def test_where_the_store_is_as_near_as_a_node_each_node_reads_for_itself(tmp_path: Path) -> None:
    reads, ranks = run(tmp_path, 2, 2, "comm", 0.3, open_ms=0.0)
    # On busy cores the store may not look near all the time.
    assert all(any(rank["not asked"]) for rank in ranks)
    assert sum(rank["peer"] for rank in ranks) < 3 * (1 - 0.4) * N_FILES / 2, "as if it were far"
    assert sum(reads[1:]) / 3 / N_FILES > 0.42


def refused(folder: Path, wrong: str) -> tuple[list[str], list[str]]:
    """Return the errors of two ranks, of which the second one has something wrong, and texts."""
    ended = run_job("rank_peers_refused.py", 2, folder, wrong, n_nodes=2)
    assert ended.exit_status == 0, ended.output
    return [rank["error"] for rank in ended.results], [rank["text"] for rank in ended.results]


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ("place", "StagingError", "not-mounted does not exist"),
        ("pickling", "DatasetPicklingError", "cannot pickle '_thread.lock'"),
    ],
)
def test_a_rank_that_cannot_take_part_leaves_none_waiting(
    tmp_path: Path, wrong: str, error: str, words: str
) -> None:
    errors, texts = refused(tmp_path, wrong)
    assert errors == ["OptionError", error]
    assert f"peers: rank 1 cannot take part: {error}" in texts[0]
    assert words in texts[0]


@pytest.mark.parametrize(
    ("wrong", "number", "name"), [("number", 2, "source"), ("source", 1, "other")]
)
def test_ranks_with_other_data_than_the_others_are_refused_on_all(
    tmp_path: Path, wrong: str, number: int, name: str
) -> None:
    errors, texts = refused(tmp_path, wrong)
    assert errors == ["OptionError"] * 2
    assert texts[0] == texts[1]
    own = f"rank 1 has {number} examples below {tmp_path.resolve() / name}"
    assert f"rank 0 has 1 examples below {tmp_path.resolve() / 'source'}, {own};" in texts[0]
