"""Eviction in a directory that the ranks of a node share, each of which has its own books."""

from __future__ import annotations

import numpy as np
import pytest

from overlapiter.scatter import ScatteredOrder
from overlapiter.store.eviction import Eviction
from tests.store.test_eviction import FILE_BYTES, belady_misses

N_EXAMPLES, N_RANKS, N_EPOCHS = 480, 4, 4
SIZE = N_EXAMPLES // N_RANKS


class Rank:
    """One of the ranks that take turns; what is staged they share."""

    def __init__(self, rank: int, staged: set[int], room: int, *, knows_others: bool) -> None:
        local_ranks = range(N_RANKS) if knows_others else ()
        self.sampler = ScatteredOrder(rank, N_RANKS, 1, local_ranks=local_ranks)
        self.eviction = Eviction(N_EXAMPLES)
        self.staged, self.room = staged, room
        self.window = room // 16 // N_RANKS

    def enter(self, epoch: int) -> None:
        orders = {known: self.sampler.of_epoch(known, N_EXAMPLES) for known in (epoch, epoch + 1)}
        self.eviction.learn(orders, self.sampler.of_neighbours(orders, N_EXAMPLES))

    def read(self, position: int) -> bool:
        """Stage an example, and return whether it was not staged before."""
        epoch, place = divmod(position, SIZE)
        example = int(self.sampler.of_epoch(epoch, N_EXAMPLES)[place])
        self.eviction.settle(position - self.window)
        self.eviction.hand_out(position, [example])
        is_miss = example not in self.staged
        is_staged = not is_miss or len(self.staged) < self.room
        while not is_staged and (victims := self.eviction.offer(0, 1)):
            victim, *others = victims
            self.eviction.give_back(others)
            is_staged = victim.example in self.staged
            self.staged.discard(victim.example)
            self.eviction.note_evicted(victim, was_there=is_staged)
        if is_staged:
            self.staged.add(example)
            self.eviction.note(example, 0, [(example + 1, FILE_BYTES)])
        return is_miss


def share_missed(room: int, *, knows_others: bool) -> float:
    """Return the share of the reads of the second and later epochs that miss."""
    staged: set[int] = set()
    ranks = [Rank(r, staged, room, knows_others=knows_others) for r in range(N_RANKS)]
    misses = []
    for position in range(N_EPOCHS * SIZE):
        for rank in ranks:
            if position % SIZE == 0:
                rank.enter(position // SIZE)
            misses.append(rank.read(position))
    return float(np.mean(misses[N_EXAMPLES:]))


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_ranks_that_know_each_others_orders_miss_hardly_more_than_must_be(share: float) -> None:
    room = int(share * N_EXAMPLES)
    whole = ScatteredOrder(0, 1, 1)
    sequence = [i for epoch in range(N_EPOCHS) for i in whole.of_epoch(epoch, N_EXAMPLES).tolist()]
    optimum = float(np.mean(belady_misses(sequence, room)[N_EXAMPLES:]))
    found = share_missed(room, knows_others=True)
    assert optimum - 1e-9 <= found <= optimum + 0.02
    assert share_missed(room, knows_others=False) > found + 0.02


def test_what_another_rank_has_read_is_for_that_one_to_evict() -> None:
    eviction = Eviction(4)
    eviction.learn({0: np.array([0, 1]), 1: np.array([2, 3])}, {0: np.array([[2], [3]])})
    eviction.learn({2: np.array([0, 1])}, {1: np.array([[0], [1]]), 2: np.array([[2], [3]])})
    for index in range(2):
        eviction.hand_out(index, [index])
        eviction.note(index, 0, [(index + 1, FILE_BYTES)])
    eviction.note(2, 0, [(3, FILE_BYTES)])  # once, in an earlier life
    eviction.settle(1)
    assert [victim.example for victim in eviction.offer(0, 1)] == [0]
    assert eviction.staged_bytes == 2 * FILE_BYTES
    eviction.settle(2)
    assert [victim.example for victim in eviction.offer(0, 100)] == [1]
