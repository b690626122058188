"""Which node holds what, from the order of all ranks alone. Pure.

The node that is the first to read an example in this run holds it: it has to read it from the slow
store in any case, so each file crosses that once, and no message is needed. It keeps what it holds
as long as any rank of the job will read it; a copy that another node fetches from it is the first
to go there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overlapiter.nextuse import FAR, Served
from overlapiter.order import Indices
from overlapiter.scatter import ScatteredOrder
from overlapiter.store.elsewhere import Holders

#: Epochs that are looked at until the first reader of every example is known. With a remainder
#: that is dropped an example may not come for some epochs; it is then held by no node.
_MOST_EPOCHS = 4


class HolderPlan(NamedTuple):
    """Where one node finds examples that it does not hold.

    Attributes:
        nodes: For each example the node that holds it; -1 if that is this one, or none.
        since: For each example the position from which on its holder may have it.
    """

    nodes: NDArray[np.int16]
    since: NDArray[np.int64]

    def of(self, indices: Sequence[int], settled_position: int) -> list[Holders | None]:
        """Return for each example which nodes may hold it; None if no other one does.

        Args:
            indices: The examples.
            settled_position: All ranks have read what they read before.
        """
        nodes = self.nodes[indices].tolist()
        is_coming = (self.since[indices] >= settled_position).tolist()
        return [
            Holders((node,), is_late) if node >= 0 else None
            for node, is_late in zip(nodes, is_coming, strict=True)
        ]


class Sharing(NamedTuple):
    """What the nodes of a job hold for each other, seen from one of them.

    Attributes:
        holders: Where it finds what it does not hold.
        served: By epoch, what others read from it.
    """

    holders: HolderPlan
    served: dict[int, Served]


class NodeShare:
    """What one node of a job holds.

    Args:
        order: The order of its rank.
        node_of_rank: The number of each rank's node.
        dataset_size: Examples in the dataset.
    """

    def __init__(
        self, order: ScatteredOrder, node_of_rank: Sequence[int], dataset_size: int
    ) -> None:
        self._order = order
        self._node_of_rank = np.array(node_of_rank, np.int16)
        self._own = self._node_of_rank[order.rank]
        self._dataset_size = dataset_size
        self._start = 0, 0
        self._holder = np.empty(0, np.int16)

    def begin(self, epoch: int, position: int, order: Indices | None) -> None:
        """Plan for a run that begins, or goes on, somewhere in an epoch.

        Args:
            epoch: The epoch.
            position: Examples that this rank has read in it.
            order: The order of this rank in it.
        """
        reached = self._order.state_of(epoch, position, order, self._dataset_size)
        global_position = max(0, reached.global_position)  # that is -1 of an order of another's
        self._start = epoch, global_position
        n = self._dataset_size
        self._holder = np.full(n, -1, np.int16)
        self._since = np.full(n, FAR, np.int64)
        for later in range(epoch, epoch + _MOST_EPOCHS):
            is_new = self._holder < 0
            if not is_new.any():
                break
            ranks, positions = self._readers(later)
            is_new &= ranks >= 0
            self._holder[is_new] = self._node_of_rank[ranks[is_new]]
            self._since[is_new] = positions[is_new]

    def _readers(self, epoch: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the rank that reads each example in an epoch, or -1, and its position then."""
        start_epoch, start_position = self._start
        global_position = start_position if epoch == start_epoch else 0
        ranks, offsets = self._order.readers(epoch, global_position, self._dataset_size)
        length = self._order.length(self._dataset_size)
        return ranks, epoch * length + offsets

    def sharing(self, epochs: Iterable[int]) -> Sharing:
        """Return what the nodes hold, and what others read from this one in some epochs."""
        nodes = np.where(self._holder == self._own, np.int16(-1), self._holder)
        served = {epoch: self._served(epoch) for epoch in epochs if epoch >= self._start[0]}
        return Sharing(HolderPlan(nodes, self._since), served)

    def _served(self, epoch: int) -> Served:
        ranks, positions = self._readers(epoch)
        is_served = (self._holder == self._own) & (ranks >= 0)
        is_served[is_served] = self._node_of_rank[ranks[is_served]] != self._own
        (examples,) = np.nonzero(is_served)
        length = self._order.length(self._dataset_size)
        offsets = positions[examples] - epoch * length
        by_offset = np.argsort(offsets, kind="stable")
        return Served(offsets[by_offset], examples[by_offset])
