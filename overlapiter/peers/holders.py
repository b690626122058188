"""Which nodes hold what, from the order of all ranks alone. Pure.

The node that is the first to read an example in this run holds it: it has to read it from the slow
store in any case, so each file crosses that once, and no message is needed. It keeps what it holds
as long as any rank of the job will read it. A copy that another node fetches from it is the first
to go there, but stays while there is room: so the nodes that have read an example of late are its
further holders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overlapiter.nextuse import FAR, Served
from overlapiter.order import Indices
from overlapiter.scatter import ScatteredOrder
from overlapiter.store.elsewhere import Holders

#: The node of an example without a holder.
NOWHERE = -1
#: Epochs that are looked at until the first reader of every example is known. With a remainder
#: that is dropped an example may not come for some epochs; it is then held by no node.
_MOST_EPOCHS = 4
#: Its readers in so many epochs before may still have a copy of an example.
_RECENT_EPOCHS = 2

#: In the smallest type that holds their numbers: there is one for each example.
Nodes = NDArray[np.signedinteger[Any]]


class Placement:
    """Which nodes hold each example; the same on all ranks, for a run and for its simulation.

    Args:
        order: That of any rank.
        node_of_rank: The number of each rank's node.
        n_examples: Examples in the dataset.
        start: The epoch in which the run begins or goes on, and the global position there.

    Attributes:
        nodes: For each example the node that reads it first, or NOWHERE.
        since: For each example the position at which that node reads it, or FAR.
    """

    def __init__(
        self,
        order: ScatteredOrder,
        node_of_rank: Sequence[int],
        n_examples: int,
        start: tuple[int, int] = (0, 0),
    ) -> None:
        self._order = order
        # One more, for the rank -1 of examples that are not read.
        node_type = np.min_scalar_type(-len(node_of_rank))
        self._node_of = np.array([*node_of_rank, NOWHERE], node_type)
        self.start = start
        self.length = order.length(n_examples)
        self._recent: dict[int, tuple[Nodes, NDArray[np.int64]]] = {}
        self.nodes = np.full(n_examples, NOWHERE, node_type)
        self.since = np.full(n_examples, FAR, np.int64)
        for epoch in range(start[0], start[0] + _MOST_EPOCHS):
            is_new = self.nodes == NOWHERE
            if not is_new.any():
                break
            nodes, positions = self.readers(epoch)
            is_new &= nodes != NOWHERE
            self.nodes[is_new], self.since[is_new] = nodes[is_new], positions[is_new]

    def readers(self, epoch: int) -> tuple[Nodes, NDArray[np.int64]]:
        """Return the node that reads each example first in an epoch, or NOWHERE, and where.

        Returns:
            Nodes and positions; a position is ``epoch * length + offset in the epoch``.
        """
        if epoch not in self._recent:
            global_position = self.start[1] if epoch == self.start[0] else 0
            ranks, offsets = self._order.readers(epoch, global_position, len(self.nodes))
            self._recent[epoch] = self._node_of[ranks], epoch * self.length + offsets
            for past in [e for e in self._recent if e < epoch - _RECENT_EPOCHS]:
                del self._recent[past]
        return self._recent[epoch]

    def holders(self, epoch: int) -> Nodes:
        """Return which nodes may hold each example when it is read in an epoch, the best first.

        Returns:
            Its first reader, then those of the latest epochs; shape ``(n_examples, 1 + epochs)``.
            A node may be named more than once, and NOWHERE among others.
        """
        first = max(self.start[0], epoch - _RECENT_EPOCHS)
        latest = [self.readers(past)[0] for past in reversed(range(first, epoch))]
        return np.stack([self.nodes, *latest], axis=1)


class Sharing(NamedTuple):
    """What the nodes of a job hold for each other, seen from one of them."""

    own: int  # the number of this node
    first: Nodes  # for each example its first holder, or NOWHERE
    nodes: dict[int, Nodes]  # by epoch, who may hold each example; see `Placement.holders`
    since: NDArray[np.int64]  # for each example from which position on its first holder may have it
    length: int  # examples that a rank reads in an epoch
    served: dict[int, Served]  # by epoch, what others read from this node

    def is_elsewhere(self) -> NDArray[np.bool_]:
        """Return for each example whether another node is its first holder."""
        return np.asarray((self.first != self.own) & (self.first != NOWHERE))

    def of(
        self, indices: Sequence[int], position: int, settled_position: int
    ) -> list[Holders | None]:
        """Return for each example which nodes may hold it; None if no other one does.

        Args:
            indices: The examples.
            position: That at which they are read, or somewhat earlier.
            settled_position: All ranks have read what they read before.
        """
        # After a restart the plan of the new epoch comes a little later than its first tasks.
        nodes = self.nodes.get(position // self.length, self.first[:, np.newaxis])
        is_coming = (self.since[indices] >= settled_position).tolist()
        rows = [dict.fromkeys(n for n in row if n != NOWHERE) for row in nodes[indices].tolist()]
        return [
            Holders(tuple(row), is_late) if row.keys() - {self.own} else None
            for row, is_late in zip(rows, is_coming, strict=True)
        ]


class NodeShare:
    """What one node of a job holds, as a rank of it knows by its order.

    Attributes:
        has_begun: Whether there is a plan for a run.
    """

    has_begun = False

    def __init__(
        self, order: ScatteredOrder, node_of_rank: Sequence[int], dataset_size: int
    ) -> None:
        self._order = order
        self._node_of_rank = node_of_rank
        self._own = node_of_rank[order.rank]
        self._dataset_size = dataset_size

    def begin(self, epoch: int, position: int, order: Indices | None) -> None:
        """Plan for a run that begins, or goes on, somewhere in an epoch.

        Args:
            epoch: The epoch.
            position: Examples that this rank has read in it.
            order: The order of this rank in it.
        """
        reached = self._order.state_of(epoch, position, order, self._dataset_size)
        start = epoch, max(0, reached.global_position)  # that is -1 of an order of another's
        self._placement = Placement(self._order, self._node_of_rank, self._dataset_size, start)
        self.has_begun = True

    def sharing(self, epochs: Iterable[int]) -> Sharing:
        """Return what the nodes hold, and what others read from this one, in some epochs."""
        placement = self._placement
        coming = sorted(epoch for epoch in epochs if epoch >= placement.start[0])
        return Sharing(
            self._own,
            placement.nodes,
            {epoch: placement.holders(epoch) for epoch in coming},
            placement.since,
            placement.length,
            {epoch: self._served(epoch) for epoch in coming},
        )

    def _served(self, epoch: int) -> Served:
        placement = self._placement
        nodes, positions = placement.readers(epoch)
        is_served = (placement.nodes == self._own) & (nodes != self._own) & (nodes != NOWHERE)
        (examples,) = np.nonzero(is_served)
        offsets = positions[examples] - epoch * placement.length
        by_offset = np.argsort(offsets, kind="stable")
        return Served(offsets[by_offset], examples[by_offset])
