"""What a job reads: the sizes of its examples and the plan of its accesses. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from overlapiter.order import Indices

from .model import Array, System, Tier
from .plan import AccessPlan


class Workload(NamedTuple):
    """A data set, and the order in which the ranks of a job read it.

    Attributes:
        plan: Which rank reads which example when.
        sizes: Of the examples, in MB, of shape ``(n_examples,)``.
    """

    plan: AccessPlan
    sizes: Array

    def epochs(self) -> Iterator[tuple[Indices, Array]]:
        """Yield, for each epoch, examples and their sizes: (mini-batches, batch size, ranks).

        The last mini-batch of an epoch is filled with examples -1 of no size.
        """
        plan = self.plan
        for epoch in plan.epochs:
            examples = plan.of_ranks(range(plan.n_ranks), epoch)
            missing = -len(examples) % plan.batch_size
            examples = np.pad(examples, ((0, missing), (0, 0)), constant_values=-1)
            examples = examples.reshape(-1, plan.batch_size, plan.n_ranks)
            yield examples, np.where(examples < 0, 0.0, self.sizes[examples])

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
        plan = AccessPlan.of_global_batch(
            seed, self.n_examples, self.system.n_ranks, self.n_epochs, self.global_batch_size
        )
        random = np.random.default_rng(seed)
        sizes = random.normal(self.mean_size, self.size_deviation, self.n_examples)
        positive = np.maximum(sizes, self.mean_size / 100)
        return Workload(plan, positive)


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
