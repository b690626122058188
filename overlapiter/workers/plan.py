"""What the supervisor is told when it starts: everything that the user's options come down to."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from overlapiter.options import FIRST_READS_IN_FLIGHT, MAX_READS_IN_FLIGHT, MIN_READS_IN_FLIGHT
from overlapiter.staging.advance import Advance
from overlapiter.staging.room import Room
from overlapiter.staging.store import Store, Validation
from overlapiter.urls import is_url

if TYPE_CHECKING:  # only what stages from URLs pays for their import
    from overlapiter.origins.direct import Direct
    from overlapiter.origins.remote import RemoteOrigin

#: A file reader reads one file at a time, for which it needs no more.
_DIRECT_CONNECTIONS = 4


@dataclasses.dataclass(frozen=True)
class TierPlan:
    """One tier of the staging directory, in absolute paths and bytes.

    Attributes:
        directory: Its directory.
        capacity_bytes: Most bytes of staged files; None for no limit.
        keep_free_bytes: Free space to leave on the disk.
        keep_free_inodes: Free inodes to leave, where their number is fixed.
    """

    directory: str
    capacity_bytes: int | None
    keep_free_bytes: int
    keep_free_inodes: int

    def room(self, advance: Advance | None = None) -> Room:
        """Return the room that this plan describes."""
        return Room(
            self.directory,
            self.capacity_bytes,
            self.keep_free_bytes,
            self.keep_free_inodes,
            advance=advance,
        )

    def excess_words(self) -> str:
        """Say that more is staged than the capacity, if so; empty otherwise. Walks nothing."""
        excess_bytes = 0
        with contextlib.suppress(OSError):  # whoever stages a file is told of it
            excess_bytes = self.room().excess_bytes()
        if not excess_bytes or self.capacity_bytes is None:
            return ""
        return (
            f"{self.directory} holds {self.capacity_bytes + excess_bytes:,} bytes, more than the "
            f"capacity of {self.capacity_bytes:,}: a job lets files go that it needs last, little "
            f"by little; to free room now, run `overlapiter evict {self.directory} --to-free "
            f"{excess_bytes}`"
        )


@dataclasses.dataclass(frozen=True)
class StagingPlan:
    """Where and how to stage.

    Attributes:
        tiers: Where the files are staged, the fastest tier first; at least one.
        source: Root of the files on the slow store: a directory, or a URL.
        validate: How a staged file is compared with its source.
        n_prefetchers: Prefetcher processes.
        reads_in_flight: Files that they read at the same time, together; None to tune it.
        storage_options: For fsspec; may hold credentials, so they are not shown.
        retry_seconds: How long a remote store is tried again.
        imports: Modules that reading a URL needs, imported once before the workers are forked.
        n_sharers: Ranks of this node, which share the store's bandwidth and the directory; each
            does as many of the reads, and stages as much ahead, as is its part.
    """

    tiers: tuple[TierPlan, ...]
    source: str
    validate: Validation
    n_prefetchers: int
    reads_in_flight: int | None
    storage_options: Mapping[str, object] = dataclasses.field(default_factory=dict, repr=False)
    retry_seconds: float = 0.0
    imports: tuple[str, ...] = ()
    n_sharers: int = 1

    @property
    def first_reads_in_flight(self) -> int:
        """Files that all prefetchers read at the same time, at first."""
        return self.reads_in_flight or max(1, FIRST_READS_IN_FLIGHT // self.n_sharers)

    @property
    def least_reads_in_flight(self) -> int:
        """Bound below which their number does not tune itself; each prefetcher has a read."""
        return max(MIN_READS_IN_FLIGHT // self.n_sharers, self.n_prefetchers)

    @property
    def most_reads_in_flight(self) -> int:
        """Bound above which their number does not tune itself; each prefetcher has a read."""
        return max(MAX_READS_IN_FLIGHT // self.n_sharers, self.n_prefetchers)

    @property
    def reads_per_prefetcher(self) -> int:
        """Files that one prefetcher reads at the same time, at first."""
        return -(-self.first_reads_in_flight // self.n_prefetchers)

    @property
    def capacity_bytes(self) -> int | None:
        """Most bytes of staged files in all tiers together; None for no limit."""
        capacities = [tier.capacity_bytes for tier in self.tiers]
        return None if None in capacities else sum(map(int, filter(None, capacities)))

    def stores(self, advance: Advance | None = None) -> list[Store]:
        """Return the stores that this plan describes, the fastest first.

        Args:
            advance: For the first one.
        """
        origin, place = None, ""
        if is_url(self.source):
            from overlapiter.origins.remote import place_of

            most_reads = self.reads_in_flight or self.most_reads_in_flight
            origin = self._remote(-(-most_reads // self.n_prefetchers))
            place = place_of(self.storage_options)
        return [
            Store(
                tier.directory,
                self.source,
                tier.room(advance if tier is self.tiers[0] else None),
                validate=self.validate,
                origin=origin,
                place=place,
            )
            for tier in self.tiers
        ]

    def direct(self) -> Direct | None:
        """Return what reads a source that is a URL without staging; None for a directory."""
        if not is_url(self.source):
            return None
        from overlapiter.origins.direct import Direct

        return Direct(self._remote(_DIRECT_CONNECTIONS))

    def _remote(self, n_connections: int) -> RemoteOrigin:
        from overlapiter.origins.remote import RemoteOrigin  # and with it asyncio, for URLs alone

        return RemoteOrigin(
            self.source,
            self.storage_options,
            n_connections=n_connections,
            patience_seconds=self.retry_seconds,
        )


@dataclasses.dataclass(frozen=True)
class SupervisorPlan:
    """All that the supervisor needs to know besides the dataset.

    Attributes:
        n_readers: File reader processes.
        n_build_ahead: Mini-batches that are built or ready beyond the one that is asked for.
        batch_size: Examples in a full mini-batch.
        dataset_size: Examples in the dataset.
        index_type: As which the dataset is asked for an example: a character of NumPy's.
        seed: Seeds the random streams of each example; None leaves them alone.
        is_skipping: Whether examples that cannot be read are left out.
        max_parts_per_reader: Parts after which a file reader is replaced; None for never.
        staging: None to read files where they are.
        imports: Modules to import before the dataset is unpickled.
        trainer_pid: The process whose end is the end of all.
    """

    n_readers: int
    n_build_ahead: int
    batch_size: int
    dataset_size: int
    index_type: str
    seed: int | None
    is_skipping: bool
    max_parts_per_reader: int | None
    staging: StagingPlan | None
    imports: tuple[str, ...]
    trainer_pid: int = 0
