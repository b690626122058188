"""The order that is scattered over ranks: what they read together, and go on with on any number."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from overlapiter.errors import OptionError
from overlapiter.order import Course, EpochSampler, IterationState, advance, seeded_order
from overlapiter.scatter import UNKNOWN, ScatteredOrder, ScatterState

SEED = 5
n_examples = st.integers(1, 60)
n_ranks = st.integers(1, 9)
remainders = st.sampled_from(["fill", "drop", "uneven"])


def samplers(size: int, **options: Any) -> list[ScatteredOrder]:
    return [ScatteredOrder(rank, size, SEED, **options) for rank in range(size)]


class Job:
    """Ranks that take mini-batches in lockstep, as the iterator generates them."""

    def __init__(self, size: int, n: int, batch_size: int, remainder: Any = "fill") -> None:
        self.n, self.batch_size = n, batch_size
        self.ranks = samplers(size, remainder=remainder)
        self.states = [IterationState(0, 0, False, s.of_epoch(0, n)) for s in self.ranks]

    def step(self) -> dict[int, list[int]]:
        """Take a mini-batch on each rank; return all examples, by epoch."""
        taken: dict[int, list[int]] = {}
        for rank, sampler in enumerate(self.ranks):
            course = Course(
                self.batch_size,
                True,
                lambda _order, _position, epoch, s=sampler: s.of_epoch(epoch, self.n),
                self.n,
            )
            self.states[rank], index_list = advance(self.states[rank], course)
            for index, epoch in zip(index_list.indices, index_list.epochs, strict=True):
                taken.setdefault(int(epoch), []).append(int(index))
        return taken

    def run_until(self, epoch: int) -> Counter[tuple[int, int]]:
        """Take mini-batches into an epoch; return how often each example of each was read."""
        taken: Counter[tuple[int, int]] = Counter()
        while self.states[0].epoch < epoch:
            for reached, indices in self.step().items():
                taken.update((reached, index) for index in indices)
        return taken

    def to_save(self) -> list[ScatterState]:
        return [
            sampler.state_of(state.epoch, state.current_position, state.order, self.n)
            for sampler, state in zip(self.ranks, self.states, strict=True)
        ]

    def resume(self, saved: ScatterState) -> None:
        for rank, sampler in enumerate(self.ranks):
            position, order = sampler.resume(saved, self.n)
            self.states[rank] = IterationState(position, saved.epoch, False, order)


# --- what the ranks read ----------------------------------------------------------------------


@given(n=n_examples, size=n_ranks, epoch=st.integers(0, 5), shuffle=st.booleans())
def test_all_ranks_together_read_each_example_once_but_for_the_fill(n, size, epoch, shuffle):
    orders = [s.of_epoch(epoch, n) for s in samplers(size, shuffle=shuffle)]
    assert len({len(order) for order in orders}) == 1
    counts = np.bincount(np.concatenate(orders), minlength=n)
    assert counts.min() == 1 or n < size
    assert counts.sum() - n < size


@given(n=n_examples, size=n_ranks, epoch=st.integers(0, 5))
def test_what_does_not_fill_a_row_can_be_dropped_or_left_uneven(n, size, epoch):
    assume(n >= size)
    whole = seeded_order(SEED, epoch, n).tolist()
    dropping = [s.of_epoch(epoch, n) for s in samplers(size, remainder="drop")]
    assert np.stack(dropping, axis=1).ravel().tolist() == whole[: n - n % size]
    uneven = [s.of_epoch(epoch, n) for s in samplers(size, remainder="uneven")]
    assert [order.tolist() for order in uneven] == [whole[rank::size] for rank in range(size)]


@given(n=n_examples, size=n_ranks, batch_size=st.integers(1, 7))
def test_at_any_time_the_ranks_have_read_the_beginning_of_one_order(n, size, batch_size):
    job = Job(size, n, batch_size)
    whole = seeded_order(SEED, 0, n).tolist()
    taken: list[int] = []
    while job.states[0].epoch == 0:
        taken += job.step().get(0, [])
        assert set(taken) == set(whole[: len(taken)])


def test_the_mini_batches_of_all_ranks_are_those_of_fewer_ranks_with_larger_ones():
    jobs = [Job(size, 96, 12 // size) for size in (1, 2, 3, 4, 6, 12)]
    for _ in range(20):
        steps = [job.step() for job in jobs]
        assert all(
            {epoch: sorted(step[epoch]) for epoch in step}
            == {epoch: sorted(steps[0][epoch]) for epoch in steps[0]}
            for step in steps
        )


def test_one_rank_reads_what_the_seed_of_an_iterator_gives():
    order = ScatteredOrder(0, 1, 42).of_epoch(3, 8)
    assert order.tolist() == seeded_order(42, 3, 8).tolist()


def test_every_epoch_and_seed_has_another_order():
    orders = [
        tuple(ScatteredOrder(1, 4, seed).of_epoch(epoch, 400))
        for seed in (1, 2)
        for epoch in (0, 1)
    ]
    assert len(set(orders)) == 4


def test_the_neighbours_read_what_their_own_samplers_say():
    ranks = [ScatteredOrder(rank, 6, SEED, local_ranks=(1, 3, 4)) for rank in range(6)]
    for epoch in (0, 3):
        rows = ranks[3].of_neighbours({epoch: ranks[3].of_epoch(epoch, 60)}, 60)[epoch]
        expected = [ranks[rank].of_epoch(epoch, 60) for rank in (1, 4)]
        assert rows.T.tolist() == [order.tolist() for order in expected]
    for alone in (ScatteredOrder(0, 6, SEED, local_ranks=(0,)), ScatteredOrder(0, 6, SEED)):
        assert alone.of_neighbours({0: alone.of_epoch(0, 60)}, 60) == {}


@given(
    n=n_examples, remainder=remainders, old_size=n_ranks, new_size=n_ranks, share=st.floats(0, 0.99)
)
def test_after_a_resume_the_neighbours_are_known_to_read_what_they_resume(
    n, remainder, old_size, new_size, share
):
    assume(n >= max(old_size, new_size))
    global_position = int(share * (n // old_size)) * old_size
    saved = ScatterState(SEED, n, 1, 2, 0, global_position)
    ranks = samplers(new_size, remainder=remainder, local_ranks=range(new_size))
    resumed = [sampler.resume(saved, n) for sampler in ranks]
    position, order = resumed[0]
    told = ranks[0].of_neighbours({2: order}, n).get(2, np.empty((len(order), 0)))[position:]
    for rows, (other_position, other) in zip(told.T, resumed[1:], strict=True):
        coming = other[other_position:]
        assert rows[: len(coming)].tolist() == coming.tolist()


def test_of_another_samplers_order_it_is_not_said_what_the_neighbours_read():
    sampler = ScatteredOrder(0, 2, SEED, local_ranks=(0, 1))
    orders = {0: None, 1: np.arange(10), 2: np.arange(-5, 0), 3: np.empty(0, np.intp)}
    assert sampler.of_neighbours(orders, 10) == {}
    assert sampler.of_neighbours({0: np.empty(0, np.intp)}, 0) == {}


# --- on other ranks ---------------------------------------------------------------------------


@given(
    n=st.integers(9, 60),
    sizes=st.lists(n_ranks, min_size=2, max_size=4),
    batch_sizes=st.lists(st.integers(1, 5), min_size=4, max_size=4),
    n_steps=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    picks=st.lists(st.integers(0, 8), min_size=4, max_size=4),
)
def test_resumed_on_other_numbers_of_ranks_each_example_comes_once(
    n, sizes, batch_sizes, n_steps, picks
):
    taken: Counter[tuple[int, int]] = Counter()
    saved = None
    for size, batch_size, steps, pick in zip(sizes, batch_sizes, n_steps, picks, strict=False):
        job = Job(size, n, batch_size)
        if saved is not None:
            job.resume(saved)
        for _ in range(steps):
            for epoch, indices in job.step().items():
                taken.update((epoch, index) for index in indices)
        saved = job.to_save()[pick % size]
    last_epoch = job.states[0].epoch
    taken += job.run_until(last_epoch + 2)
    for epoch in range(last_epoch + 2):
        counts = [taken[epoch, index] for index in range(n)]
        assert min(counts) == 1
        assert sum(counts) - n < max(sizes)
    # The epoch after is regular: the fill is less than a row of the last number of ranks.
    assert sum(taken[last_epoch + 1, i] for i in range(n)) == -(-n // sizes[-1]) * sizes[-1]


@given(n=n_examples, size=n_ranks, batch_size=st.integers(1, 5), steps=st.integers(0, 9))
def test_what_any_rank_saves_leads_every_rank_to_where_it_stood(n, size, batch_size, steps):
    job = Job(size, n, batch_size)
    for _ in range(steps):
        job.step()
    before = job.states
    saved = job.to_save()
    assert len(set(saved)) == 1
    job.resume(saved[0])
    for old, new in zip(before, job.states, strict=True):
        assert old[:2] == new[:2]
        assert np.array_equal(old.order, new.order)


@given(
    n=n_examples,
    remainder=remainders,
    old_size=n_ranks,
    new_size=n_ranks,
    share=st.floats(0, 0.99),
)
def test_whatever_the_remainder_nothing_is_read_twice_after_a_resume(
    n, remainder, old_size, new_size, share
):
    assume(n >= new_size or remainder == "fill")
    position = int(share * (n // old_size))
    saved = ScatterState(SEED, n, -(-n // old_size), 2, position, position * old_size)
    left = seeded_order(SEED, 2, n)[position * old_size :].tolist()
    taken: list[int] = []
    for sampler in samplers(new_size, remainder=remainder):
        start, order = sampler.resume(saved, n)
        assert len(order) == len(sampler.of_epoch(2, n))
        taken += order[start:].tolist()
    if remainder == "fill":
        assert set(taken) >= set(left)
        assert len(taken) - len(left) < new_size
    else:
        assert len(taken) == len(set(taken))
        assert set(taken) <= set(left)
        assert len(left) - len(taken) < (new_size if remainder == "drop" else 1)


@given(
    n=n_examples, remainder=remainders, old_size=n_ranks, new_size=n_ranks, share=st.floats(0, 1)
)
def test_what_any_rank_saves_right_after_a_resume_is_what_it_resumed_from(
    n, remainder, old_size, new_size, share
):
    assume(n >= max(old_size, new_size))
    global_position = min(n, int(share * (n // old_size + 1)) * old_size)
    saved = ScatterState(SEED, n, 1, 2, 0, global_position)
    for sampler in samplers(new_size, remainder=remainder):
        position, order = sampler.resume(saved, n)
        again = sampler.state_of(2, position, order, n)
        assert again.global_position == global_position


@pytest.mark.parametrize("remainder", ["drop", "uneven"])
def test_all_ranks_refuse_to_leave_one_without_examples(remainder):
    for sampler in samplers(4, remainder=remainder):
        with pytest.raises(OptionError, match="3 examples are too few for 4 ranks"):
            sampler.of_epoch(0, 3)


def test_what_another_dataset_or_seed_saved_is_refused():
    old = ScatteredOrder(0, 2, 7)
    saved = old.state_of(0, 0, old.of_epoch(0, 10), 10)
    with pytest.raises(OptionError, match="10 examples, this one has 11"):
        ScatteredOrder(0, 2, 7).resume(saved, 11)
    with pytest.raises(OptionError, match="taken with seed=7"):
        ScatteredOrder(0, 2, 8).resume(saved, 10)
    with pytest.raises(OptionError, match="taken with seed=7"):
        ScatteredOrder(0, 2, 7, shuffle=False).resume(saved, 10)


def test_a_snapshots_seed_replaces_one_that_was_drawn():
    old, new = ScatteredOrder(0, 2, 7), ScatteredOrder(1, 3, 8, is_seed_drawn=True)
    new.resume(old.state_of(0, 0, old.of_epoch(0, 10), 10), 10)
    assert new.of_epoch(1, 10).tolist() == ScatteredOrder(1, 3, 7).of_epoch(1, 10).tolist()


def test_the_order_of_another_sampler_is_not_saved_as_a_scattered_one():
    sampler = ScatteredOrder(0, 2, SEED)
    for order in (np.arange(5), np.arange(-6, -1), np.arange(6), None):
        assert sampler.state_of(0, 1, order, 10) == UNKNOWN


@pytest.mark.parametrize("other", [(0, 2, SEED), (1, 3, SEED), (1, 2, SEED + 1)])
def test_a_saved_order_is_taken_only_by_the_rank_that_saved_it(other):
    order = ScatteredOrder(1, 2, SEED).of_epoch(4, 12)
    ScatteredOrder(1, 2, SEED).check_order(4, order, 12)
    with pytest.raises(OptionError, match=r"order of epoch 4 is not that of ScatteredOrder\("):
        ScatteredOrder(*other).check_order(4, order, 12)


def test_a_single_rank_takes_any_order_of_the_whole_dataset():
    ScatteredOrder(0, 1, SEED).check_order(1, np.array([4, 0, 3, 1, 2, 5]), 6)
    with pytest.raises(OptionError, match="the same rank of the same number of ranks"):
        ScatteredOrder(0, 1, SEED).check_order(1, np.array([4, 0, 3]), 6)


# --- asked without the epoch, as by Chainer's own iterators -----------------------------------


@given(
    n=st.integers(40, 60), size=st.integers(1, 4), remainder=remainders, epoch=st.integers(0, 1200)
)
def test_each_order_is_followed_by_that_of_the_next_epoch(n, size, remainder, epoch):
    sampler = ScatteredOrder(size - 1, size, SEED, remainder=remainder)
    first = sampler(np.arange(n), 0)
    assert first.tolist() == sampler.of_epoch(0, n).tolist()
    sampler._epoch = epoch  # as if it had been asked as often
    for asked in (epoch, epoch, epoch + 1):  # again, when what was read ahead was dropped
        following = sampler(sampler.of_epoch(asked, n), 1)
        assert following.tolist() == sampler.of_epoch(asked + 1, n).tolist()
    assert sampler(np.arange(n), 0).tolist() == first.tolist()


def test_an_ascending_order_is_followed_by_the_same_one():
    sampler = ScatteredOrder(1, 2, SEED, shuffle=False)
    order = sampler(np.arange(10), 0)
    assert order.tolist() == sampler(order, 4).tolist() == [1, 3, 5, 7, 9]


def test_the_order_of_no_epoch_is_refused():
    sampler = ScatteredOrder(0, 2, SEED)
    sampler(np.arange(26), 0)
    for other in (ScatteredOrder(1, 2, SEED), ScatteredOrder(0, 2, 1)):
        with pytest.raises(OptionError, match=r"use overlapiter\.OverlapIterator"):
            sampler(other.of_epoch(0, 26), 12)


# --- the arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2, 2, 0), "no rank 2 among 2"),
        ((-1, 2, 0), "rank: -1"),
        ((0, 0, 0), "size: 0"),
        ((0, 1, -3), "seed: -3"),
        ((0, 1, 1.5), "seed: 1.5"),
        ((0, 1, 2**63), r"below 2\*\*63"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, words):
    with pytest.raises(OptionError, match=words):
        ScatteredOrder(*arguments)


def test_an_unknown_remainder_is_refused():
    with pytest.raises(OptionError, match="'pad' is none of fill, drop, uneven"):
        ScatteredOrder(0, 1, 0, remainder="pad")


def test_a_pickle_is_small_and_the_same_sampler():
    sampler = ScatteredOrder(1, 4, SEED, local_ranks=(0, 1))
    sampler(np.arange(100_000), 0)
    pickled = pickle.dumps(sampler)
    assert len(pickled) < 1000
    revived = pickle.loads(pickled)
    assert revived.of_epoch(2, 50).tolist() == sampler.of_epoch(2, 50).tolist()
    others = [
        each.of_neighbours({2: each.of_epoch(2, 50)}, 50)[2].tolist() for each in (revived, sampler)
    ]
    assert others[0] == others[1]


def test_it_is_a_sampler_that_knows_any_epoch():
    assert isinstance(ScatteredOrder(0, 1, 0), EpochSampler)
