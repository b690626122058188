"""An order that is scattered over the ranks of a real job, resumed on 2, 4 and 2 of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.chainer.mpi_jobs import NEEDS_MPIEXEC, check_staged, run_job

pytestmark = NEEDS_MPIEXEC

N_IMAGES, N_FILES = 61, 240


class Jobs(NamedTuple):
    """What each rank found in jobs of which each went on from a snapshot of the one before."""

    begun: list[Any]
    on_4: list[Any]
    on_2: list[Any]
    on_3_with_peers: list[Any]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, image_folder: Path) -> Jobs:
    folder = tmp_path_factory.mktemp("scattered")
    found = []
    for deed, n_ranks, n_nodes, snapshot in (
        ("begun", 2, 2, ""),
        ("resumed", 4, 1, "begun.npz"),
        ("resumed", 2, 1, "resumed.npz"),
        ("with peers", 3, 3, "of-2.npz"),
    ):
        arguments = deed, image_folder, snapshot
        ended = run_job("rank_scatter.py", n_ranks, folder, *arguments, n_nodes=n_nodes)
        assert ended.exit_status == 0, ended.output
        assert len(ended.results) == n_ranks
        found.append(ended.results)
    check_staged(folder / "staging", image_folder)
    return Jobs(*found)


def counts(ranks: list[Any], names: list[str], epoch: int) -> Counter[int]:
    """Return how often all ranks have read each example of an epoch."""
    examples = [example for rank in ranks for name in names for example in rank[name]]
    return Counter(index for reached, index, _ in examples if reached == epoch)


def check_once(found: Counter[int], n_ranks: int) -> None:
    """Check that each example was read once, but for what fills the last row."""
    assert set(found) == set(range(N_IMAGES))
    assert found.total() == -(-N_IMAGES // n_ranks) * n_ranks


def test_each_example_is_read_once_an_epoch_over_all_ranks(jobs: Jobs) -> None:
    for epoch in (0, 1):
        check_once(counts(jobs.begun, ["taken", "went on"], epoch), 2)


@pytest.mark.parametrize("source", [0, 1], ids=["of this rank", "of rank 0"])
def test_a_snapshot_is_resumed_exactly(jobs: Jobs, source: int) -> None:
    for rank in jobs.begun:
        assert rank["resumed"][source] == rank["went on"]


def test_on_more_ranks_each_example_that_is_left_comes_once(jobs: Jobs) -> None:
    first = counts(jobs.begun, ["taken"], 0)
    assert first.total() == 18  # of which 4 ranks cannot have read the same number each
    rest = counts(jobs.on_4, ["taken", "went on"], 0)
    assert set(first + rest) == set(range(N_IMAGES))
    assert (first + rest).total() - N_IMAGES < 4
    check_once(counts(jobs.on_4, ["went on"], 1), 4)


def test_and_on_fewer_again_in_the_same_epoch(jobs: Jobs) -> None:
    found = counts(jobs.begun, ["taken"], 0) + counts(jobs.on_4, ["taken"], 0)
    assert found.total() == 18 + 24
    found += counts(jobs.on_2, ["taken", "went on"], 0)
    assert set(found) == set(range(N_IMAGES))
    assert found.total() - N_IMAGES < 2
    check_once(counts(jobs.on_2, ["went on"], 1), 2)


def test_with_peers_a_run_that_is_resumed_on_more_nodes_goes_on_as_without(jobs: Jobs) -> None:
    on_2, on_3 = [rank["peers"] for rank in jobs.begun], jobs.on_3_with_peers
    for ranks in (on_2, on_3):
        for rank in ranks:
            assert rank["taken"] + rank["went on"] == rank["alone"]
        assert sum(rank["files_peer"] for rank in ranks) > 0
    first = counts(on_2, ["taken"], 0)
    rest = counts(on_3, ["taken", "went on"], 0)
    assert set(first + rest) == set(range(N_IMAGES))
    assert (first + rest).total() - N_IMAGES < 3
    check_once(counts(on_3, ["went on"], 1), 3)


def test_nothing_is_sent_but_a_few_bytes_once(jobs: Jobs) -> None:
    for rank in jobs.begun:
        names, sizes = zip(*rank["calls"], strict=True)
        assert names == ("gather_obj", "bcast_obj")
        assert sum(sizes) < 1000


def test_the_ranks_agree_on_a_seed_or_all_are_told(jobs: Jobs) -> None:
    one, other = jobs.begun
    assert one["drawn"] == other["drawn"]
    assert one["drawn"][0] != one["drawn"][1]
    assert one["refusal"] == other["refusal"]
    assert "differs between the ranks: [0, 1]" in one["refusal"]


def test_ranks_that_share_a_directory_for_half_of_the_files_keep_those_needed_first(
    jobs: Jobs,
) -> None:
    first, _, third = (
        sum(reads) / N_FILES for reads in zip(*(rank["small"] for rank in jobs.on_4), strict=True)
    )
    # Half of it, but that what is read ahead counts in the epoch before, more or less of it.
    assert (third - first) / 2 == pytest.approx(0.5, abs=0.05)


def test_where_there_is_room_each_file_crosses_the_slow_store_once(jobs: Jobs) -> None:
    assert sum(rank["large"][-1] for rank in jobs.on_4) == N_FILES


def test_no_rank_forks(jobs: Jobs) -> None:
    assert [rank["forks"] for job in jobs for rank in job] == [[]] * 11
