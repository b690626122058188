"""The communicator, and what each rank knows of its node: one job on two nodes of two ranks."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.slow.store import SlowStore, attach
from overlapiter.errors import BindingWarning
from overlapiter.mpi import communicator
from overlapiter.node import Host, Node, set_node, this_node
from tests.chainer.iterator_datasets import numbered_images
from tests.chainer.mpi_jobs import NEEDS_MPIEXEC, check_staged, plays_host_names, run_job

pytestmark = NEEDS_MPIEXEC

N_IMAGES = 64


class Ranks:
    """The first of some ranks on one machine, as a communicator that gathers their hosts."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def allgather(self, sendobj: Host) -> list[Host]:
        return [sendobj] * self.size


@pytest.fixture
def n_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Twice the cores that this process may use are said to be on this machine."""
    n_usable = len(os.sched_getaffinity(0))
    monkeypatch.setattr(communicator, "count_cores", lambda: 2 * n_usable)
    yield 2 * n_usable
    set_node(None)


def test_ranks_that_are_bound_to_half_of_the_cores_warn(n_cores: int) -> None:
    with pytest.warns(BindingWarning, match=f"to {n_cores // 2} of its {n_cores} cores") as warned:
        communicator.find_node(Ranks(3), 3)

    assert warned[0].filename == __file__
    assert this_node().local_size == 3


@pytest.mark.usefixtures("n_cores")
def test_some_of_the_ranks_know_neither_the_node_nor_how_the_others_are_bound() -> None:
    set_node(Node("gpu1", 1, 4, cores=5))

    communicator.find_node(Ranks(2), 4)

    assert this_node() == Node("gpu1", 1, 4, cores=5)


@pytest.mark.usefixtures("n_cores")
def test_some_of_the_ranks_know_more_than_a_process_alone() -> None:
    communicator.find_node(Ranks(2), 4)

    assert this_node().local_size == 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the job runs."""
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def store(image_folder: Path) -> Iterator[SlowStore]:
    """The store of the images, which counts every open of every process."""
    store = SlowStore(image_folder, open_seconds=0.002, bytes_per_second=math.inf)
    yield store
    store.close()


@pytest.fixture(scope="module")
def ranks(folder: Path, image_folder: Path, store: SlowStore) -> list[Any]:
    """What each rank of the job found."""
    program = Path(__file__).with_name("rank_nodes.py")
    images = attach(numbered_images(image_folder, N_IMAGES), store)
    (folder / "images.pickle").write_bytes(pickle.dumps(images))
    ended = run_job(program, 4, folder, image_folder, "images.pickle", n_nodes=2)
    assert ended.exit_status == 0, ended.output
    assert len(ended.results) == 4
    return ended.results


def test_each_rank_knows_who_shares_its_node(ranks: list[Any]) -> None:
    n_cores = max(1, len(os.sched_getaffinity(0)) // 4)  # all four share this machine
    assert [rank["node"] for rank in ranks] == [
        {
            "name": f"node-{rank // 2}",
            "local_rank": rank % 2,
            "local_size": 2,
            "cores": n_cores,
        }
        for rank in range(4)
    ]


def test_the_launcher_knows_the_ranks_of_the_machine(ranks: list[Any]) -> None:
    for rank, found in enumerate(ranks):
        node = found["node by the launcher"]
        assert (node["local_rank"], node["local_size"]) == (rank, 4)
        assert node["cores"] == found["node"]["cores"]


def test_a_communicator_of_some_ranks_does_not_overrule_what_all_said(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["node with another communicator"] == rank["node"]


def test_communicators_are_those_of_chainermn(ranks: list[Any]) -> None:
    for number, rank in enumerate(ranks):
        assert rank["communicators"] == [
            ["NaiveCommunicator", number, 4],
            ["NaiveCommunicator", number % 3, 3 if number < 3 else 1],
            ["NaiveCommunicator", number, 4],
        ]


@pytest.mark.skipif(not plays_host_names(), reason="needs root, to give each node a host name")
def test_chainermn_finds_the_same_nodes_by_their_host_names(ranks: list[Any]) -> None:
    assert [rank["ChainerMN's node"] for rank in ranks] == [[r % 2, 2, r // 2, 2] for r in range(4)]


def test_a_file_crosses_the_slow_store_once_for_each_node_though_ranks_read_in_other_orders(
    ranks: list[Any], folder: Path, image_folder: Path, store: SlowStore
) -> None:
    found = [rank["shared"] for rank in ranks]

    assert [sorted(rank["order"]) for rank in found] == [list(range(N_IMAGES))] * 4
    assert len({tuple(rank["order"]) for rank in found}) == 4
    for node in range(2):
        assert sum(rank["files staged"] for rank in found[2 * node : 2 * node + 2]) == N_IMAGES
        assert check_staged(folder / f"staging-node-{node}", image_folder) == N_IMAGES
    assert [rank["opens of the source"] for rank in found] == [0] * 4
    assert store.opens_by_path() == {f"{i:05}.jpg": 2 for i in range(N_IMAGES)}


def test_defaults_are_a_ranks_part(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["defaults"]["n_processes"] == rank["node"]["cores"]
        assert rank["defaults"]["reads in flight"] <= 256 // 2


def test_the_forkserver_starts_first_without_chainer_and_mpi_here(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["modules"]["started"] == rank["modules"]["before"]
        assert "mpi4py.MPI" not in rank["modules"]["before"]


def test_no_rank_forks_or_starts_another_child(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["forks"] == []
        assert not rank["has new children"]


def test_the_forkserver_is_told_nothing_by_the_launcher(ranks: list[Any]) -> None:
    for rank in ranks:
        assert (rank["forkservers"], rank["told by the launcher"]) == (1, [])
