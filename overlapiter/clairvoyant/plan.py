"""Which rank reads which example when, over the whole run; all of it follows from the seed.

The order is that of :class:`overlapiter.scatter.ScatteredOrder`: nothing here computes another.
Each epoch is computed directly, and arrays are as long as an epoch or as the data set, so a longer
run or more ranks take time, not memory. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from overlapiter.errors import OptionError
from overlapiter.nextuse import FAR
from overlapiter.options import check_count
from overlapiter.order import Indices
from overlapiter.peers.holders import Placement
from overlapiter.scatter import ScatteredOrder


class AccessPlan:
    """The accesses of all ranks of a job.

    Args:
        seed: That of ``overlapiter.scatter_order``.
        n_examples: Examples in the data set.
        n_ranks: Ranks of the job.
        n_epochs: Epochs of the run.
        batch_size: Examples in a mini-batch of one rank.

    Raises:
        OptionError: An argument cannot work.
    """

    def __init__(
        self, seed: int, n_examples: int, n_ranks: int, n_epochs: int, batch_size: int = 1
    ) -> None:
        self.n_examples = check_count("n_examples", n_examples)
        self.n_ranks = check_count("n_ranks", n_ranks)
        self.batch_size = check_count("batch_size", batch_size)
        self.epochs = range(check_count("n_epochs", n_epochs))
        self._order = ScatteredOrder(0, n_ranks, seed)

    @classmethod
    def of_global_batch(
        cls, seed: int, n_examples: int, n_ranks: int, n_epochs: int, global_batch_size: int
    ) -> AccessPlan:
        """Return the plan of a job whose ranks share mini-batches of ``global_batch_size``.

        Raises:
            OptionError: The ranks cannot have equal shares of a mini-batch.
        """
        batch_size, rest = divmod(global_batch_size, n_ranks)
        if rest or not batch_size:
            near = max(1, round(global_batch_size / n_ranks)) * n_ranks
            raise OptionError(
                "global_batch_size",
                f"{n_ranks} ranks cannot share {global_batch_size} examples equally, and a rank "
                f"with fewer mini-batches lets the others wait for ever; take {near}",
            )
        return cls(seed, n_examples, n_ranks, n_epochs, batch_size)

    def of_ranks(self, ranks: Sequence[int], epoch: int) -> Indices:
        """Return what some ranks read in an epoch, in order; any epoch, at the same cost.

        Returns:
            An array of shape ``(epoch size, ranks)``.
        """
        return self._order.of_ranks(epoch, self.n_examples, ranks)

    def frequencies(self, rank: int) -> Indices:
        """Return how often a rank reads each example in the run, of shape ``(n_examples,)``."""
        counts = np.zeros(self.n_examples, np.intp)
        for epoch in self.epochs:
            counts += np.bincount(self.of_ranks([rank], epoch)[:, 0], minlength=self.n_examples)
        return counts

    def next_uses(self, rank: int, position: int = 0) -> NDArray[np.int64]:
        """Return when a rank reads each example first, from a position on; FAR if never again.

        Returns:
            Positions, of shape ``(n_examples,)``; one is ``epoch * epoch size + offset in it``.
        """
        uses = np.full(self.n_examples, FAR, np.int64)
        length = self._order.length(self.n_examples)
        for epoch in reversed(self.epochs[position // length :]):
            skipped = max(0, position - epoch * length)
            examples = self.of_ranks([rank], epoch)[skipped:, 0]
            positions = epoch * length + np.arange(skipped, length)
            uses[examples[::-1]] = positions[::-1]  # of several uses the first one is written last
        return uses

    def placement(self, node_of_rank: Sequence[int]) -> Placement:
        """Return which node holds each example, as the run itself computes it."""
        return Placement(self._order, node_of_rank, self.n_examples)
