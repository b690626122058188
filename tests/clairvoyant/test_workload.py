"""The order of a job: what the samplers really do, and the published counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from overlapiter.clairvoyant.model import binomial
from overlapiter.clairvoyant.workload import SCENARIOS, Workload
from overlapiter.errors import OptionError
from overlapiter.peers.holders import NOWHERE, Placement
from overlapiter.scatter import ScatteredOrder

SEED = 3


@pytest.mark.parametrize("n_examples", [40, 43])
def test_it_has_the_accesses_that_the_samplers_of_all_ranks_have(n_examples) -> None:
    workload = Workload(np.ones(n_examples), 4, 3, 2, SEED)
    for epoch in range(3):
        expected = [ScatteredOrder(rank, 4, SEED).of_epoch(epoch, n_examples) for rank in range(4)]
        assert workload.of_epoch(epoch).T.tolist() == np.array(expected).tolist()


@pytest.mark.parametrize("remainder", ["fill", "drop", "uneven"])
def test_the_first_reader_is_the_rank_that_has_an_example_first(remainder) -> None:
    n = 43
    orders = [ScatteredOrder(rank, 4, SEED, remainder=remainder) for rank in range(4)]
    nodes, positions = Placement(orders[0], range(4), n).readers(0)
    first: dict[int, tuple[int, int]] = {}
    for rank in range(4):
        for position, example in enumerate(orders[rank].of_epoch(0, n).tolist()):
            first[example] = min(first.get(example, (n, n)), (position, rank))
    expected = [first.get(example, (0, NOWHERE)) for example in range(n)]
    assert list(zip(positions.tolist(), nodes.tolist(), strict=True)) == expected


def test_a_global_batch_that_ranks_cannot_share_equally_is_refused() -> None:
    for global_batch_size, near in ((33, 32), (3, 4)):
        scenario = SCENARIOS[1]._replace(global_batch_size=global_batch_size)
        with pytest.raises(OptionError, match=f"take {near}"):
            scenario.workload(0)


def expected_often(n_examples: int, n_ranks: int, n_epochs: int, excess: float) -> float:
    """Return how many examples a rank is expected to read over ``1 + excess`` times the mean."""
    most = math.floor((1 + excess) * n_epochs / n_ranks)
    return n_examples * float(binomial(n_epochs, 1 / n_ranks)[most + 1 :].sum())


def test_the_published_counts_come_out() -> None:
    assert round(expected_often(10_000, 4, 1000, 0.1)) == 323
    assert round(expected_often(1_281_167, 16, 90, 0.8)) == 31_635
    order = ScatteredOrder(2, 4, SEED)
    counts = sum(np.bincount(order.of_epoch(e, 10_000), minlength=10_000) for e in range(1000))
    assert np.count_nonzero(counts > 275) == pytest.approx(323, abs=4 * 323**0.5)


def test_the_probabilities_are_those_of_the_binomial_distribution() -> None:
    assert binomial(3, 0.5).tolist() == pytest.approx([0.125, 0.375, 0.375, 0.125])
    assert binomial(2, 1.0).tolist() == [0.0, 0.0, 1.0]
    assert binomial(2, 0.0).tolist() == [1.0, 0.0, 0.0]
