"""What of a placement nodes have room for, tier by tier.

Two placements. :func:`greedy_placement` is the published one, and :class:`GreedyPlacement` for a
run: each rank by itself, most frequent first. :class:`~overlapiter.peers.holders.Placement` is that
of our runs: it pools the nodes of a job. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapiter.nextuse import FAR
from overlapiter.order import Indices
from overlapiter.peers.holders import NOWHERE, Nodes, Placement
from overlapiter.scatter import ScatteredOrder

from .plan import AccessPlan

Sizes = NDArray[np.int64]
Array = NDArray[np.float64]


def greedy_placement(
    counts: Indices, first_uses: Indices, sizes: Sizes | Array, capacities: Sequence[float]
) -> NDArray[np.int8]:
    """Return the tier of each example at a rank that counts only itself; NOWHERE without.

    Args:
        counts: How often the rank reads each example.
        first_uses: When it first does.
        sizes: Of each example.
        capacities: Of each tier of this rank, the fastest first.

    Source: Dryden et al., SC '21, section 5.1: frequency first, then first use.
    """
    order = np.lexsort((first_uses, -counts))[: np.count_nonzero(counts)]
    tiers = np.full(len(sizes), NOWHERE, np.int8)
    for tier, capacity in enumerate(capacities):
        n_fitting = np.searchsorted(np.cumsum(sizes[order]), capacity, side="right")
        tiers[order[:n_fitting]] = tier
        order = order[n_fitting:]
    return tiers


class GreedyPlacement(Placement):
    """The published placement for a run, to measure what :class:`Placement` gains over it.

    Each rank by itself keeps what it reads most often until the end, of examples of one size, and
    knows one holder of each: itself, or else the rank that has it first, for which it never waits.

    Args:
        n_epochs: Epochs of the run.
        room: The examples that a rank has room for.
        order: That of a rank, whose view this is.
        arguments: As :class:`Placement` takes them.
    """

    def __init__(self, n_epochs: int, room: float, order: ScatteredOrder, *arguments: Any) -> None:
        super().__init__(order, *arguments)
        n_examples = len(self.nodes)
        plan = AccessPlan(order.seed, n_examples, order.size, n_epochs)
        self.nodes.fill(NOWHERE)
        self.since.fill(-1)
        soonest = np.full(n_examples, FAR)
        for rank in sorted(range(order.size), key=lambda rank: rank == order.rank):  # last
            first = plan.next_uses(rank)
            tiers = greedy_placement(plan.frequencies(rank), first, np.ones(n_examples), [room])
            is_it = (tiers == 0) & ((first < soonest) | (rank == order.rank))
            self.nodes[is_it], soonest[is_it] = self._node_of[rank], first[is_it]

    def holders(self, epoch: int) -> Nodes:
        """Return which node holds each example, of shape ``(n_examples, 1)``: at first none."""
        return np.where(epoch > self.start[0], self.nodes, NOWHERE)[:, np.newaxis]


def pooled_tiers(
    placement: Placement, epoch: int, sizes: Sizes | Array, rooms: Array
) -> tuple[Nodes, NDArray[np.int8]]:
    """Return which nodes hold each example in an epoch, and in which tier.

    A node has room for what it is the first to read, in the order in which it does; then for
    copies, the latest first. So no example has a second holder while that node misses a first one.

    Args:
        placement: Who holds what, if there is room.
        epoch: The epoch.
        sizes: Of each example.
        rooms: Of each tier of each node, the fastest first, of shape ``(nodes, tiers)``.

    Returns:
        Two arrays of shape ``(n_examples, holders)``; NOWHERE where there is none.
    """
    holders = placement.holders(epoch)
    for copy in range(1, holders.shape[1]):
        is_named = (holders[:, :copy] == holders[:, copy, np.newaxis]).any(axis=1)
        holders[is_named, copy] = NOWHERE
    nodes = holders.T.ravel()  # all first holders, then the readers of the latest epoch
    (held,) = np.nonzero(nodes != NOWHERE)
    copies, examples = np.divmod(held, len(sizes))
    held = held[np.lexsort((placement.since[examples], copies, nodes[held]))]
    takers, held_sizes = nodes[held], sizes[held % len(sizes)]
    per_node = np.bincount(takers, held_sizes, len(rooms))
    until = np.cumsum(held_sizes) - (np.cumsum(per_node) - per_node)[takers]
    limits = np.cumsum(rooms, axis=1)[takers]
    found = np.count_nonzero(until[:, np.newaxis] > limits, axis=1)
    tiers = np.full(len(nodes), NOWHERE, np.int8)
    tiers[held] = np.where(found == rooms.shape[1], NOWHERE, found)
    tiers = tiers.reshape(holders.T.shape).T
    holders[tiers == NOWHERE] = NOWHERE
    return holders, tiers
