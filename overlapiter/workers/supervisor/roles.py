"""What a forked worker becomes: a file reader or a prefetcher."""

from __future__ import annotations

from collections.abc import Callable

from overlapiter.sources import Dataset
from overlapiter.staging.advance import N_CELLS, Advance
from overlapiter.stats import Counter, Row
from overlapiter.workers.ipc.channel import Channel
from overlapiter.workers.plan import SupervisorPlan
from overlapiter.workers.prefetcher.prefetcher import Prefetcher
from overlapiter.workers.reader.reader import FileReader

#: Runs a worker on its end of the channel, counting in its row, until the channel closes.
Role = Callable[[Channel, Row], None]


def reader_role(dataset: Dataset, plan: SupervisorPlan) -> Role:
    """Return the role of a file reader."""

    def read(channel: Channel, row: Row) -> None:
        FileReader(channel, dataset, plan, row).run()

    return read


def prefetcher_role(dataset: Dataset, plan: SupervisorPlan, validated: memoryview) -> Role:
    """Return the role of a prefetcher; ``validated`` is shared by all of them."""

    def stage(channel: Channel, row: Row) -> None:
        staging = plan.staging
        assert staging is not None
        n_reads = staging.reads_per_prefetcher
        stores, index_type = staging.stores(advance_of(row)), plan.index_type
        Prefetcher(channel, dataset, stores, validated, n_reads, index_type, row).run()

    return stage


def advance_of(row: Row) -> Advance:
    """Return what the prefetcher that counts in a row was granted in advance."""
    return Advance(row.cells(Counter.ADVANCE, N_CELLS))
