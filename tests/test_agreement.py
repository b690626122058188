"""How the ranks agree on their order, before they read: by a few bytes, once."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overlapiter
from overlapiter.errors import OptionError


class FakeComm:
    """A communicator of mpi4py's kind, of which this process is one rank; notes what is sent."""

    def __init__(self, rank: int, others: list[dict[str, Any]]) -> None:
        self.rank, self.size = rank, len(others) + 1
        self.others = others
        self.sent: list[Any] = []

    def allgather(self, message: Any) -> list[Any]:
        self.sent.append(message)
        found = [*self.others]
        found.insert(self.rank, message)
        return found


class FakeChainerComm(FakeComm):
    """One of ChainerMN's kind; its ``allgather`` is for arrays."""

    def gather_obj(self, message: Any) -> list[Any]:
        return FakeComm.allgather(self, message)

    def bcast_obj(self, message: Any) -> Any:
        return message

    def allgather(self, _: Any) -> Any:
        raise AssertionError


def proposal(node: str, seed: int | None, drawn_seed: int = 0, **options: Any) -> dict[str, Any]:
    fields = {"node": f"{node} ", "seed": seed, "drawn_seed": drawn_seed}
    return {**fields, "shuffle": True, "remainder": "fill", **options}


@pytest.mark.parametrize("kind", [FakeComm, FakeChainerComm])
def test_ranks_agree_by_one_small_message_each(kind, monkeypatch):
    monkeypatch.setenv("OVERLAPITER_NODE", "here")
    comm = kind(1, [proposal("here", 3), proposal("there", 3), proposal("here", 3)])
    sampler = overlapiter.scatter_order(comm, 3)
    assert (sampler.rank, sampler.size, sampler.seed) == (1, 4, 3)
    assert sampler.of_neighbours({0: sampler.of_epoch(0, 8)}, 8)[0].shape == (2, 2)
    (sent,) = comm.sent
    assert len(pickle.dumps(sent)) < 200


def test_without_a_seed_that_of_rank_0_counts():
    comm = FakeComm(1, [proposal("a", None, 77), proposal("b", None, 88)])
    sampler = overlapiter.scatter_order(comm)
    assert sampler.seed == 77


@pytest.mark.parametrize(
    ("others", "name"),
    [
        (proposal("a", 4), "seed"),
        (proposal("a", None), "seed"),
        (proposal("a", 3, shuffle=False), "shuffle"),
        (proposal("a", 3, remainder="drop"), "remainder"),
    ],
)
def test_ranks_that_do_not_agree_all_raise_an_error(others, name):
    with pytest.raises(OptionError, match="differs between the ranks") as caught:
        overlapiter.scatter_order(FakeComm(0, [others]), 3)
    assert caught.value.option == name


def test_ranks_that_meet_in_a_directory_find_their_neighbours(tmp_path: Path) -> None:
    def neighbours(rank: int) -> tuple[int, ...]:
        comm = overlapiter.Rendezvous(tmp_path / "meet", rank, 3)
        sampler = overlapiter.scatter_order(comm, np.int64(3))
        return sampler.of_neighbours({0: sampler.of_epoch(0, 9)}, 9)[0].shape

    with ThreadPoolExecutor(3) as ranks:
        assert [*ranks.map(neighbours, range(3))] == [(3, 2)] * 3
