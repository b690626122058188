"""The access plan: what the samplers really do, and the published counts."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from overlapiter.clairvoyant.model import binomial
from overlapiter.clairvoyant.plan import AccessPlan
from overlapiter.errors import OptionError
from overlapiter.nextuse import FAR
from overlapiter.peers.holders import NOWHERE, Placement
from overlapiter.scatter import ScatteredOrder

SEED = 3


@pytest.mark.parametrize("n_examples", [40, 43])
def test_it_has_the_accesses_that_the_samplers_of_all_ranks_have(n_examples) -> None:
    plan = AccessPlan(SEED, n_examples, 4, 3)
    for epoch in range(3):
        expected = [ScatteredOrder(rank, 4, SEED).of_epoch(epoch, n_examples) for rank in range(4)]
        assert plan.of_ranks(range(4), epoch).T.tolist() == np.array(expected).tolist()
        assert plan.of_ranks([2], epoch).T.tolist() == [expected[2].tolist()]


@pytest.mark.parametrize("n_examples", [8, 40, 43])  # of 43 some come twice in an epoch
def test_frequencies_and_next_uses_are_those_of_the_accesses(n_examples) -> None:
    plan = AccessPlan(SEED, n_examples, 4, 3)
    for rank in range(4):
        accesses = [plan.of_ranks([rank], epoch).ravel().tolist() for epoch in plan.epochs]
        accesses = [example for epoch in accesses for example in epoch]
        counts = [accesses.count(example) for example in range(n_examples)]
        assert plan.frequencies(rank).tolist() == counts
        for position in range(len(accesses) + 1):
            later = accesses[position:]
            assert plan.next_uses(rank, position).tolist() == [
                position + later.index(example) if example in later else FAR
                for example in range(n_examples)
            ]


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
    assert AccessPlan.of_global_batch(0, 100, 4, 1, 32).batch_size == 8
    with pytest.raises(OptionError, match="take 32"):
        AccessPlan.of_global_batch(0, 100, 4, 1, 33)
    with pytest.raises(OptionError, match="take 4"):
        AccessPlan.of_global_batch(0, 100, 4, 1, 3)


@pytest.mark.parametrize(
    ("n_examples", "n_ranks", "n_epochs", "excess", "published"),
    [(10_000, 4, 1000, 0.1, 323), (1_281_167, 16, 90, 0.8, 31_635)],
)
def test_the_published_counts_of_examples_that_a_rank_reads_often_are_expected(
    n_examples, n_ranks, n_epochs, excess, published
) -> None:
    most = int((1 + excess) * n_epochs / n_ranks)
    share = binomial(n_epochs, 1 / n_ranks)[most + 1 :].sum()
    assert round(n_examples * share) == published


def test_a_plan_has_the_published_count_but_for_chance() -> None:
    plan = AccessPlan(SEED, 10_000, 4, 1000)
    assert np.count_nonzero(plan.frequencies(2) > 275) == pytest.approx(323, abs=4 * 323**0.5)


def test_the_probabilities_are_those_of_the_binomial_distribution() -> None:
    assert binomial(3, 0.5).tolist() == pytest.approx([0.125, 0.375, 0.375, 0.125])
    assert binomial(2, 1.0).tolist() == [0.0, 0.0, 1.0]
    assert binomial(2, 0.0).tolist() == [1.0, 0.0, 0.0]


def test_the_plan_of_one_rank_of_1024_takes_less_than_10_s_and_1_gb() -> None:
    script = "from overlapiter.clairvoyant.plan import AccessPlan\n"
    script += "plan = AccessPlan(1, 1_281_167, 1024, 90)\n"
    script += "print(sum(plan.of_ranks([5], epoch).size for epoch in plan.epochs))"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as plan:
        printed = plan.stdout.read()
        _, status, used = os.wait4(plan.pid, 0)  # of this child alone
        plan.returncode = os.waitstatus_to_exitcode(status)
    assert (plan.returncode, printed) == (0, "112680\n")
    assert used.ru_utime < 10
    assert used.ru_maxrss < 1e6  # kB
