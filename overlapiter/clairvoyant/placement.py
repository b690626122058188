"""What of a placement nodes have room for, tier by tier.

Two placements. :func:`greedy_placement` is the published one: each rank by itself, most frequent
first. :class:`~overlapiter.peers.holders.Placement`, that of the run, pools the nodes of a job.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from overlapiter.order import Indices
from overlapiter.peers.holders import NOWHERE, Nodes, Placement

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
