"""Which node holds which example: computed alike by every rank, so a holder is found unasked.

Two placements. :func:`greedy_placement` is the published one: each rank by itself, most frequent
first, tier by tier. :class:`Placement` pools the nodes of a job: ranks of one node count together,
and no example has a second holder while another has none. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from overlapiter.errors import OptionError
from overlapiter.order import Indices

from .plan import AccessPlan

#: How many holders of an example are known at most. What else a node keeps is its own affair.
MOST_HOLDERS = 4
#: An example without a holder, or a copy that there is not.
NOWHERE = -1
#: For how many epochs the later readers are looked at where the first one has no room.
_LOOK_AHEAD = 4

Sizes = NDArray[np.int64]
Array = NDArray[np.float64]


def all_sizes(size_bytes: float | Sequence[int] | Sizes, n_examples: int) -> Sizes:
    """Return the size of each example, given them or their mean; shape ``(n_examples,)``."""
    if np.ndim(size_bytes):
        sizes = np.asarray(size_bytes, np.int64)
        if sizes.shape != (n_examples,):
            raise OptionError(
                "sizes", f"{len(sizes)} sizes for {n_examples} examples; give one each"
            )
        return sizes
    # Rounded up and down in turn, so that the sum is right.
    return np.diff(np.round(np.arange(n_examples + 1) * float(size_bytes)).astype(np.int64))  # type: ignore[arg-type]  # a number


def taken(examples: Indices, sizes: Sizes | Array, capacity: float) -> Indices:
    """Return those that fit into a capacity, in this order, up to the first that does not."""
    return examples[: np.searchsorted(np.cumsum(sizes[examples]), capacity, side="right")]


def greedy_placement(
    plan: AccessPlan, rank: int, sizes: Sizes, capacities_bytes: Sequence[float]
) -> NDArray[np.int8]:
    """Return the tier of each example at a rank that counts only itself; NOWHERE without.

    Args:
        plan: The whole run.
        rank: The rank.
        sizes: Bytes of each example.
        capacities_bytes: Of each tier of this rank, the fastest first.

    Source: Dryden et al., SC '21, section 5.1: frequency first, then first use.
    """
    counts = plan.frequencies([rank])
    first = plan.first_uses([rank])
    order = np.lexsort((first, -counts))[: np.count_nonzero(counts)]
    return by_tier(order, sizes, capacities_bytes)


def by_tier(order: Indices, sizes: Sizes | Array, capacities: Sequence[float]) -> NDArray[np.int8]:
    """Fill tiers one after another, in this order; return the tier of each example or NOWHERE."""
    tiers = np.full(len(sizes), NOWHERE, np.int8)
    for tier, capacity in enumerate(capacities):
        some = taken(order, sizes, capacity)
        tiers[some] = tier
        order = order[len(some) :]
    return tiers


class Placement:
    """Which nodes of a job hold each example while it runs; the same on every rank.

    An example is held by the node that reads it first, so the slow store is read once. If that node
    has no room for all that it reads first, it holds what it reads most often, and others with room
    take the rest, in the order of who reads them next. Only then come second and further holders.
    So the examples with a holder are as many as fit into all nodes together, and stay the same.

    Args:
        plan: The run, or the part that is to be looked at: frequencies are those of ``plan.epochs``
            (two epochs where the end is unknown). Costs some 30 ns per example and epoch.
        nodes: The ranks of each node.
        capacities_bytes: What each node has room for.
        sizes: Bytes of each example, or their mean.
        most_holders: How many holders an example may have.

    Raises:
        OptionError: The nodes do not have each rank once, or an array has a wrong length.
    """

    def __init__(
        self,
        plan: AccessPlan,
        nodes: Sequence[Sequence[int]],
        capacities_bytes: Sequence[float],
        sizes: float | Sequence[int] | Sizes,
        *,
        most_holders: int = MOST_HOLDERS,
    ) -> None:
        if sorted(rank for ranks in nodes for rank in ranks) != list(range(plan.n_ranks)):
            raise OptionError("nodes", f"{nodes} does not have each of {plan.n_ranks} ranks once")
        if len(capacities_bytes) != len(nodes):
            raise OptionError("capacities", f"there are {len(nodes)} nodes; give as many")
        self.n_nodes = len(nodes)
        self._plan = plan
        self._sizes = all_sizes(sizes, plan.n_examples)
        self._free_bytes = np.array(capacities_bytes, np.float64)
        # One more, for the rank -1 of examples that are not read.
        self._node_of = np.full(plan.n_ranks + 1, NOWHERE, np.int32)
        for node, ranks in enumerate(nodes):
            self._node_of[list(ranks)] = node
        n_copies = max(1, min(most_holders, self.n_nodes))
        self._holders = np.full((plan.n_examples, n_copies), NOWHERE, np.int32)
        soon = plan.epochs[: n_copies + _LOOK_AHEAD]
        self._readers = {epoch: self._reader_nodes(epoch) for epoch in soon}
        self.first_readers, self._first_positions = self._readers[soon[0]]
        self._place()
        self._readers.clear()

    def holders(self, examples: Indices | int | slice = slice(None)) -> NDArray[np.int32]:
        """Return the nodes that hold each of these examples, or will when they have been read.

        Returns:
            Nodes of shape ``(len(examples), n_copies)``, the first holder first, then NOWHERE.
        """
        return self._holders[examples]

    def held_by(self, node: int) -> Indices:
        """Return what a node holds, in the order in which the ranks read it first."""
        (held,) = np.nonzero((self._holders == node).any(axis=1))
        return held[np.argsort(self._first_positions[held], kind="stable")]

    def tiers(self, capacities_bytes: Sequence[float]) -> NDArray[np.int8]:
        """Return in which tier each holder has each example: most frequent first, then first use.

        Args:
            capacities_bytes: Of each tier of a node, the fastest first; all nodes have the same.

        Returns:
            Tiers, of the shape of :meth:`holders`; NOWHERE without a holder.
        """
        copies = [self._holders[:, copy] for copy in range(self._holders.shape[1])]
        counts = np.concatenate(self._counts_at(copies))
        nodes = np.concatenate(copies)
        (held,) = np.nonzero(nodes != NOWHERE)
        examples = held % len(self._sizes)
        order = np.lexsort((self._first_positions[examples], -counts[held], nodes[held]))
        held, examples = held[order], examples[order]
        sizes = self._sizes[examples]
        per_node = np.bincount(nodes[held], sizes, self.n_nodes)
        within = np.cumsum(sizes) - (np.cumsum(per_node) - per_node)[nodes[held]]
        tiers = np.full(len(nodes), NOWHERE, np.int8)
        tiers[held] = np.searchsorted(np.cumsum(capacities_bytes[:-1]), within, side="left")
        return tiers.reshape(len(copies), -1).T

    def _reader_nodes(self, epoch: int) -> tuple[NDArray[np.int32], Indices]:
        ranks, positions = self._plan.first_reads(epoch)
        return self._node_of[ranks], positions

    def _place(self) -> None:
        """Give every example a first holder while there is room, then a second one, and so on."""
        for copy in range(self._holders.shape[1]):
            # A further copy is worth most where the example is read next.
            for readers, positions in [*self._readers.values()][copy : copy + _LOOK_AHEAD]:
                self._offer(copy, readers, positions)
            self._spread(copy)
            if self._free_bytes.max() < self._sizes.min():
                break

    def _offer(self, copy: int, nodes: NDArray[np.int32], positions: Indices) -> None:
        """Have each node take the examples for which it is named, as far as it has room."""
        is_open = (self._holders[:, copy] == NOWHERE) & (nodes != NOWHERE)
        is_open &= (self._holders != nodes[:, np.newaxis]).all(axis=1)
        (wanted,) = np.nonzero(is_open)
        wanted_bytes = np.bincount(nodes[wanted], self._sizes[wanted], self.n_nodes)
        keys = [nodes[wanted]]
        if (wanted_bytes > self._free_bytes).any():
            keys = [positions[wanted], -self._counts_at([nodes])[0][wanted], *keys]
        wanted = wanted[np.lexsort(keys)]
        # The sum within each node: what the nodes before it want is not its own.
        until = np.cumsum(self._sizes[wanted])
        before = np.cumsum(wanted_bytes) - wanted_bytes
        takers = nodes[wanted]
        does_fit = until - before[takers] <= self._free_bytes[takers]
        self._give(copy, takers[does_fit], wanted[does_fit])

    def _counts_at(self, named: Sequence[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
        """Return, for each array of nodes, how often its node reads each example in the run."""
        counts = [np.zeros(len(nodes), np.int32) for nodes in named]
        for epoch in self._plan.epochs:
            known = self._readers.get(epoch)
            readers = self._reader_nodes(epoch)[0] if known is None else known[0]
            for count, nodes in zip(counts, named, strict=True):
                count += readers == nodes
        return counts

    def _spread(self, copy: int) -> None:
        """Give what none of its next readers has room for to any node that has room."""
        is_left = (self._holders[:, copy] == NOWHERE) & (self._first_positions >= 0)
        (left,) = np.nonzero(is_left)
        left = left[np.argsort(self._first_positions[left], kind="stable")]
        for node in np.argsort(-self._free_bytes, kind="stable"):
            if not len(left):
                break
            wanted = left[(self._holders[left] != node).all(axis=1)]
            some = taken(wanted, self._sizes, self._free_bytes[node])
            self._give(copy, np.full(len(some), node, np.int32), some)
            left = left[self._holders[left, copy] == NOWHERE]

    def _give(self, copy: int, nodes: NDArray[np.int32], examples: Indices) -> None:
        self._holders[examples, copy] = nodes
        self._free_bytes -= np.bincount(nodes, self._sizes[examples], self.n_nodes)
