"""What a job reads: the sizes of its examples and the order of all ranks. Pure.

The order is that of :class:`overlapiter.scatter.ScatteredOrder`: nothing here computes another.
Each epoch is computed directly, and arrays are as long as an epoch or as the data set, so a longer
run or more ranks take time, not memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from overlapiter.errors import OptionError
from overlapiter.order import Indices
from overlapiter.peers.holders import Placement
from overlapiter.scatter import ScatteredOrder

from .model import Array, System, Tier


class Workload:
    """A data set, and the order in which the ranks of a job read it.

    Args:
        sizes: Of the examples, in MB, of shape ``(n_examples,)``.
        n_ranks: Ranks of the job.
        n_epochs: Epochs of the run.
        batch_size: Examples in a mini-batch of one rank.
        seed: That of ``overlapiter.scatter_order``.
    """

    def __init__(
        self, sizes: Array, n_ranks: int, n_epochs: int, batch_size: int, seed: int
    ) -> None:
        self.sizes = sizes
        self.n_examples = len(sizes)
        self.n_epochs = n_epochs
        self._n_ranks = n_ranks
        self._batch_size = batch_size
        self._order = ScatteredOrder(0, n_ranks, seed)

    def of_epoch(self, epoch: int) -> Indices:
        """Return what all ranks read in an epoch, in order; shape ``(epoch size, ranks)``."""
        return self._order.of_ranks(epoch, self.n_examples, range(self._n_ranks))

    def epochs(self) -> Iterator[tuple[Indices, Array]]:
        """Yield, for each epoch, examples and their sizes: (mini-batches, batch size, ranks).

        The last mini-batch of an epoch is filled with examples -1 of no size.
        """
        for epoch in range(self.n_epochs):
            examples = self.of_epoch(epoch)
            missing = -len(examples) % self._batch_size
            examples = np.pad(examples, ((0, missing), (0, 0)), constant_values=-1)
            examples = examples.reshape(-1, self._batch_size, self._n_ranks)
            yield examples, np.where(examples < 0, 0.0, self.sizes[examples])

    def placement(self, node_of_rank: Sequence[int]) -> Placement:
        """Return which node holds each example, as the run itself computes it."""
        return Placement(self._order, node_of_rank, self.n_examples)

    @property
    def total(self) -> float:
        """The size of the data set, in MB."""
        return float(self.sizes.sum())


class Scenario(NamedTuple):
    """A case to simulate.

    Attributes:
        system: What it runs on.
        n_examples: Examples in the data set.
        mean_size: Mean of their sizes, in MB.
        size_deviation: Standard deviation of their sizes, in MB.
        n_epochs: Epochs.
        global_batch_size: Examples in a mini-batch of all ranks.
    """

    system: System
    n_examples: int
    mean_size: float
    size_deviation: float
    n_epochs: int
    global_batch_size: int

    def workload(self, seed: int) -> Workload:
        """Draw the sizes, normal and positive, and plan the run.

        Raises:
            OptionError: The ranks cannot have equal shares of a mini-batch.
        """
        n_ranks = self.system.n_ranks
        batch_size, rest = divmod(self.global_batch_size, n_ranks)
        if rest or not batch_size:
            near = max(1, round(self.global_batch_size / n_ranks)) * n_ranks
            raise OptionError(
                "global_batch_size",
                f"{n_ranks} ranks cannot share {self.global_batch_size} examples equally, and a "
                f"rank with fewer mini-batches lets the others wait for ever; take {near}",
            )
        random = np.random.default_rng(seed)
        sizes = random.normal(self.mean_size, self.size_deviation, self.n_examples)
        positive = np.maximum(sizes, self.mean_size / 100)
        return Workload(positive, n_ranks, self.n_epochs, batch_size, seed)


#: The system of the published simulations. Writing is as fast as reading, of which alone they tell.
PUBLISHED = System(
    n_ranks=4,
    compute_rate=100.0,
    preprocess_rate=200.0,
    network_rate=10_000.0,
    store_link_rate=2_000.0,
    store_rates={1: 66.0, 2: 86.0, 3: 129.0, 4: 146.0},
    buffer=Tier(1_000.0, 21_164.0),
    tiers=(Tier(50_000.0, 21_164.0), Tier(100_000.0, 86.0)),
)
#: Source: Böhringer 2020, section 5.2; that 1 and 2 have 10 epochs follows from their lower bounds.
SCENARIOS = {
    1: Scenario(PUBLISHED, 10_000, 0.027, 0.01, 10, 100),
    2: Scenario(PUBLISHED, 150_000, 1.0, 0.1, 10, 100),
    3: Scenario(PUBLISHED, 300_000, 2.0, 0.2, 10, 100),
    4: Scenario(PUBLISHED, 400_000, 3.0, 0.2, 5, 100),
}
