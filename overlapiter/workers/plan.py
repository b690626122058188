"""What the supervisor needs to know when it starts: the user's options as paths, bytes, counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from overlapiter.options import FIRST_READS_IN_FLIGHT, MAX_READS_IN_FLIGHT, MIN_READS_IN_FLIGHT
from overlapiter.origins.origin import LocalOrigin, Origin
from overlapiter.origins.outages import Outages
from overlapiter.redirection import Reader
from overlapiter.store.site import Run, Site
from overlapiter.tracing import TraceFile
from overlapiter.urls import is_url

if TYPE_CHECKING:  # the trainer loads no database, and only what stages from URLs loads their code
    from overlapiter.origins.direct import Direct
    from overlapiter.origins.remote import RemoteOrigin
    from overlapiter.peers.client import PeersPlan
    from overlapiter.store.comparer import Validation
    from overlapiter.store.store import Store

#: A file reader reads one file at a time, for which it needs no more.
_DIRECT_CONNECTIONS = 4


@dataclasses.dataclass(frozen=True)
class StagingPlan:
    """Where and how to stage."""

    sites: tuple[Site, ...]  # where the files are staged, the fastest tier first; at least one
    source: str  # root of the files on the slow store: a directory, or a URL
    validate: Validation  # how a staged file is compared with its source
    n_prefetchers: int  # most prefetcher processes
    reads_in_flight: int | None  # files that they read at the same time, together; None to tune it
    #: For fsspec; may hold credentials, so they are not shown.
    storage_options: Mapping[str, object] = dataclasses.field(default_factory=dict, repr=False)
    retry_seconds: float = 0.0  # how long a remote store is tried again
    #: Modules that reading a URL needs, imported once before the workers are forked.
    imports: tuple[str, ...] = ()
    #: Of files, in C, that the program has added to those that are redirected.
    readers: tuple[Reader, ...] = ()
    #: Ranks of this node, which share the store's bandwidth and the directory; each does as many of
    #: the reads, and stages as much ahead, as is its part.
    n_sharers: int = 1
    n_cores: int = 1 << 16  # of this rank; more prefetchers would only share out what one does
    real_source: str = ""  # the same directory without symbolic links; empty for a URL
    #: The other nodes of the job, where they give each other what they have staged.
    peers: PeersPlan | None = None
    #: What the workers, which are forked from one that has it, know of a remote store.
    outages: Outages = dataclasses.field(default_factory=Outages, repr=False, compare=False)

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
    def n_first_prefetchers(self) -> int:
        """Prefetchers that are started: others only for user code that waits for the source."""
        are_given = self.reads_in_flight is not None  # to all of them
        return self.n_prefetchers if are_given else min(self.n_prefetchers, self.n_cores)

    @property
    def reads_per_prefetcher(self) -> int:
        """Files that one prefetcher reads at the same time, at first."""
        return -(-self.first_reads_in_flight // self.n_first_prefetchers)

    @property
    def capacity_bytes(self) -> int | None:
        """Most bytes of staged files in all tiers together; None for no limit."""
        capacities = [site.capacity_bytes for site in self.sites]
        return None if None in capacities else sum(map(int, filter(None, capacities)))

    @property
    def place(self) -> str:
        """What tells sources of one name apart, such as two servers; mostly empty."""
        if not is_url(self.source):
            return ""
        from overlapiter.origins.remote import place_of

        return place_of(self.storage_options)

    def stores(
        self,
        run: Run,
        warn: Callable[[str], None],
        note_gone: Callable[[str], None] = lambda _generation: None,
    ) -> list[Store]:
        """Return the stores that this plan describes, the fastest first; for prefetchers alone."""
        from overlapiter.store.store import Store

        return [
            Store(
                site,
                self.source,
                run,
                tier=tier,
                place=self.place,
                real=self.real_source,
                warn=warn,
                note_gone=note_gone,
            )
            for tier, site in enumerate(self.sites)
        ]

    def origin(self) -> Origin:
        """Return what gives the source files."""
        if not is_url(self.source):
            return LocalOrigin()
        most_reads = self.reads_in_flight or self.most_reads_in_flight
        return self._remote(-(-most_reads // self.n_first_prefetchers))

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
            outages=self.outages,
        )


@dataclasses.dataclass(frozen=True)
class SupervisorPlan:
    """All that the supervisor needs to know besides the dataset."""

    n_readers: int
    n_build_ahead: int  # mini-batches that are built or ready beyond the one that is asked for
    batch_size: int  # examples in a full mini-batch
    dataset_size: int
    index_type: str  # as which the dataset is asked for an example: a character of NumPy's
    seed: int | None  # seeds the random streams of each example; None leaves them alone
    is_skipping: bool  # whether examples that cannot be read are left out
    max_parts_per_reader: int | None  # parts after which a file reader is replaced; None for never
    #: Modules to import before the dataset is unpickled; the forkserver imports them, if it is
    #: started for this.
    imports: tuple[str, ...]
    staging: StagingPlan | None = None  # None to read files where they are
    names_source: bool = False  # whether the dataset has paths below the source in it
    trace: TraceFile | None = None  # where the processes record what they do; None for nowhere
    trainer_pid: int = 0  # the trainer; when it ends, the supervisor and its workers do
    run_number: int = 0  # by which the stores know this run
    renewal: Any = None  # what the face is told for the first processes

    @property
    def n_prefetchers(self) -> int:
        """Prefetcher processes; none without staging."""
        return self.staging.n_prefetchers if self.staging else 0
