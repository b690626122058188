"""ChainerMN's iterators and scattered datasets, on several ranks, with and without staging."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.chainer.mpi_jobs import NEEDS_MPIEXEC, check_staged, run_job

pytestmark = NEEDS_MPIEXEC

N_RANKS, N_IMAGES, N_SCATTERED = 3, 20, 22

MULTI_NODE = ("multi_node_ragged_batches", "multi_node_once")
SYNCHRONIZED = ("synchronized_whole_batches", "synchronized_once_ragged_batches")
OTHERS = (
    "multi_node_loaded_with_another_order",
    "synchronized_saved_and_loaded",
    "scattered_unequally",
    "scattered_by_index",
)
#: Those for which staging would change nothing.
MULTI_NODE_UNSTAGED = (
    "multi_node_whole_batches",
    "multi_node_other_master",
    "multi_node_ascending",
    "multi_node_scalars",
    "multi_node_pairs",
)
SYNCHRONIZED_UNSTAGED = ("synchronized_ragged_batches", "synchronized_once_whole_batches")
OTHERS_UNSTAGED = (
    "multi_node_texts",
    "multi_node_saved_and_loaded_into_a_plain_one",
    "scattered_equally",
    "empty_dataset",
)


def of_both_kinds(names: tuple[str, ...], unstaged: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return each kind of iterator with each check that it takes part in."""
    return [*itertools.product(("overlap", "staged"), names), *(("overlap", n) for n in unstaged)]


class Findings:
    """What the ranks found.

    Attributes:
        ranks: What each rank reported.
        folder: Where the job ran.
    """

    def __init__(self, ranks: list[Any], folder: Path) -> None:
        self.ranks = ranks
        self.folder = folder

    def of(self, kind: str, check: str) -> list[Any]:
        """Return what each rank found in one check with one kind of iterator."""
        return [rank[kind][check] for rank in self.ranks]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, image_folder: Path) -> Findings:
    """One job that has done every check."""
    folder = tmp_path_factory.mktemp("iterators")
    ended = run_job("rank_iterators.py", N_RANKS, folder, image_folder)
    assert ended.exit_status == 0, ended.output
    assert len(ended.results) == N_RANKS
    return Findings(ended.results, folder)


BOTH = pytest.mark.parametrize("kind", ["overlap", "staged"])


@pytest.mark.parametrize(
    ("kind", "check"),
    of_both_kinds(
        MULTI_NODE + SYNCHRONIZED + OTHERS,
        MULTI_NODE_UNSTAGED + SYNCHRONIZED_UNSTAGED + OTHERS_UNSTAGED,
    ),
)
def test_each_rank_finds_what_it_finds_with_the_serial_iterator(
    job: Findings, kind: str, check: str
) -> None:
    assert job.of(kind, check) == job.of("serial", check)


# --- multi-node iterator ----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "check"), of_both_kinds(MULTI_NODE, MULTI_NODE_UNSTAGED))
def test_all_ranks_get_the_mini_batches_and_the_position_of_the_master(
    job: Findings, kind: str, check: str
) -> None:
    trails = []
    for steps in job.of(kind, check):
        lived = itertools.takewhile(lambda step: step[0] != "end", steps)
        trails.append([(content, position) for content, _types, position in lived])

    assert len(trails[0]) > 2
    assert all(trail == trails[0] for trail in trails)


@BOTH
def test_all_ranks_stop_together_and_stay_stopped(job: Findings, kind: str) -> None:
    for steps in job.of(kind, "multi_node_once"):
        assert [step[0] == "end" for step in steps] == [False] * 3 + [True] * 3


def test_all_ranks_refuse_examples_that_chainermn_cannot_send(job: Findings) -> None:
    for message in job.of("overlap", "multi_node_texts"):
        assert message.startswith("Multi node iterator supports")


def test_a_plain_iterator_goes_on_where_a_multi_node_one_was_saved(job: Findings) -> None:
    check = "multi_node_saved_and_loaded_into_a_plain_one"
    for before, after, examples, _ in job.of("overlap", check):
        assert before == [0, 4, False, pytest.approx(2 / 3)]
        assert after == [1, 0, True, pytest.approx(1)]
        assert examples == [0, 1, 2, 3, 4, 5]


@BOTH
def test_an_order_that_is_loaded_is_the_order_of_all_ranks(job: Findings, kind: str) -> None:
    trails = []
    for order, *steps in job.of(kind, "multi_node_loaded_with_another_order"):
        assert sorted(order) == list(range(N_IMAGES))
        trails.append((order, [(content, position) for content, _types, position in steps]))

    assert all(trail == trails[0] for trail in trails)


def test_only_the_master_has_workers_and_they_end_with_its_iterator(job: Findings) -> None:
    n_before, n_workers = zip(*job.of("overlap", "multi_node_workers"), strict=True)

    assert set(n_before) == {0}
    assert n_workers[0] >= 2
    assert set(n_workers[1:]) == {0}


# --- synchronized iterator --------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "check"), of_both_kinds(SYNCHRONIZED, SYNCHRONIZED_UNSTAGED))
def test_synchronized_iterators_agree_in_every_epoch(job: Findings, kind: str, check: str) -> None:
    ranks = job.of(kind, check)

    for epochs in zip(*ranks, strict=True):
        assert all(epoch == epochs[0] for epoch in epochs)
    assert len(ranks[0]) == 3
    assert len({str(epoch) for epoch in ranks[0]}) == 3  # and each has an order of its own


def test_synchronized_iterators_count_epochs(job: Findings) -> None:
    for check in ("synchronized_whole_batches", "synchronized_ragged_batches"):
        for epochs in job.of("overlap", check):
            assert [epoch for epoch, _ in epochs] == [0, 1, 2]


def test_synchronized_iterators_without_repetition_see_everything_in_every_epoch(
    job: Findings,
) -> None:
    for check in ("synchronized_once_whole_batches", "synchronized_once_ragged_batches"):
        for epochs in job.of("overlap", check):
            for batches in epochs:
                assert sorted(itertools.chain(*batches)) == list(range(N_IMAGES))


def test_synchronized_iterators_agree_after_a_reset_amid_an_epoch(job: Findings) -> None:
    ranks = job.of("overlap", "synchronized_reset_amid_an_epoch")

    assert [len(batches) for batches in ranks[0]] == [2, 5, 8]
    assert all(rank == ranks[0] for rank in ranks)


@BOTH
def test_a_synchronized_iterator_goes_on_where_another_was_saved(job: Findings, kind: str) -> None:
    ranks = job.of(kind, "synchronized_saved_and_loaded")

    for expected, loaded in ranks:
        assert loaded == expected
    assert all(rank == ranks[0] for rank in ranks)


def test_the_workers_of_a_synchronized_iterator_end_with_it(job: Findings) -> None:
    assert all(n_workers >= 2 for n_workers in job.of("overlap", "synchronized_workers"))


# --- datasets ---------------------------------------------------------------------------------


def examples_of(epoch: list[Any]) -> list[int]:
    """Return the examples of an epoch, which is a list of them or of mini-batches."""
    return list(itertools.chain(*epoch)) if isinstance(epoch[0], list) else epoch


@BOTH
def test_in_every_epoch_unequal_parts_are_disjoint_and_cover_everything(
    job: Findings, kind: str
) -> None:
    ranks = job.of(kind, "scattered_unequally")

    for epochs in zip(*ranks, strict=True):
        taken = [example for epoch in epochs for example in examples_of(epoch)]
        assert sorted(taken) == list(range(N_SCATTERED))
    assert len(ranks[0]) == 5


def test_in_every_epoch_equal_parts_cover_everything(job: Findings) -> None:
    ranks = job.of("overlap", "scattered_equally")

    for epochs in zip(*ranks, strict=True):
        parts = [examples_of(epoch) for epoch in epochs]
        assert {len(part) for part in parts} == {-(-N_SCATTERED // len(ranks))}
        assert set(itertools.chain(*parts)) == set(range(N_SCATTERED))


@BOTH
def test_parts_by_scattered_index_are_disjoint_and_cover_everything(
    job: Findings, kind: str
) -> None:
    ranks = job.of(kind, "scattered_by_index")

    taken = [example for batches in ranks for example in examples_of(batches)]
    assert sorted(taken) == list(range(N_SCATTERED))


def test_an_empty_dataset_has_examples_without_content(job: Findings) -> None:
    for steps in job.of("overlap", "empty_dataset"):
        assert all(is_empty for is_empty, *_ in steps)
        assert steps[-1][1] > 1  # epochs


# --- the job ----------------------------------------------------------------------------------


def test_no_rank_forks(job: Findings) -> None:
    assert [rank["forks"] for rank in job.ranks] == [[]] * len(job.ranks)


def test_ranks_that_share_a_staging_directory_copy_each_file_once(
    job: Findings, image_folder: Path
) -> None:
    n_taken, n_staged, n_opens_source = zip(
        *(rank["shared_staging"] for rank in job.ranks), strict=True
    )

    assert set(n_taken) == {64}
    assert sum(n_staged) == 64
    assert sum(n_opens_source) == 0
    assert check_staged(job.folder / "shared", image_folder) == 64


def test_every_staged_file_is_whole(job: Findings, image_folder: Path) -> None:
    assert check_staged(job.folder / "staging", image_folder) == N_SCATTERED


@pytest.mark.parametrize("n_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_workers_may_start_before_mpi_and_after_it(
    tmp_path: Path, image_folder: Path, n_ranks: int
) -> None:
    ended = run_job("rank_start.py", n_ranks, tmp_path, image_folder)

    assert ended.exit_status == 0, ended.output
    first, second, third = [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]
    for result in ended.results:
        assert result["taken"][0] == first
        assert result["taken"][1:4] == [second, third, first]
        assert result["taken"][4:] == [first, second, third]
        assert not result["has new children"]
        assert result["forks"] == []
    assert check_staged(tmp_path / "staging", image_folder) == 12
