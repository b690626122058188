"""Finds what limits a training, by the counters of its processes. Pure.

The model: a training runs at the least of three rates, each in examples per second.

* The trainer alone: the examples that it took, divided by the time for which it did not wait.
* The file readers, when all they read is staged: their number divided by the time that an example
  takes of a core and of the staging disk; and never more than the cores allow.
* The slow store, as long as it has to be read.

Whether reads of the slow store wait for each other follows from the shortest of them, which met an
idle store; whether for its bandwidth or for its number of requests, from what is steadier: bytes
per second or files per second.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from overlapiter.board import Counter, Row
from overlapiter.stats import Stats

#: A smaller share of the time is not worth any change.
_LITTLE = 0.05
#: A median of reads above so many times the shortest one: they wait for each other.
_QUEUED = 1.8
#: A median of reads below it is that of a local disk: the time goes elsewhere.
_NO_LATENCY_SECONDS = 0.001


class Cause(enum.Enum):
    """What limits a training."""

    STARTING = "starting"
    TRAINER = "trainer"
    STORE_LATENCY = "store latency"
    STORE_BANDWIDTH = "store bandwidth"
    STORE_REQUESTS = "store requests"
    OTHER_NODES = "other nodes"
    NOT_STAGED = "not staged"
    DECODING = "decoding"
    DIRECTORY_TOO_SMALL = "directory too small"
    STAGING_DISK = "staging disk"
    ORDER_SAMPLER = "order sampler"
    CORES = "cores"
    STALLED = "stalled"


class Facts(NamedTuple):
    """What follows from the counters.

    Attributes:
        setup: The row of the trainer, which says what the iterator is like.
        total: The counters since the start.
        span: The counters of the time to be explained.
    """

    setup: Row
    total: Stats
    span: Stats

    @property
    def n_cores(self) -> int:
        """Cores for this rank and its workers."""
        return self.setup.get(Counter.N_CORES)

    @property
    def trainer_rate(self) -> float:
        """What the trainer alone can do."""
        busy_seconds = max(self.span.seconds - self.span.wait_seconds, 1e-9)
        return self.span.examples_taken / busy_seconds

    def readers_rate(self, n_readers: int | None = None) -> float:
        """What so many file readers can do from staged copies, on the cores there are."""
        span, n_readers = self.span, n_readers or self.span.n_readers
        n_read = max(1, span.examples_read)
        cpu_seconds = max(span.decode_seconds / n_read, 1e-9)
        disk_seconds = min(span.file_wait_seconds, span.disk_read_seconds) / n_read
        by_readers = n_readers / (cpu_seconds + disk_seconds)
        return min(by_readers, self.n_cores / cpu_seconds)

    def expected_rate(self, n_readers: int | None = None) -> float:
        """What the training can do if the slow store is not in its way."""
        return min(self.trainer_rate, self.readers_rate(n_readers))

    @property
    def n_files(self) -> int:
        """Files of the data set, as far as can be seen."""
        opens = self.total.opens_staged + self.total.opens_source
        per_example = opens / self.total.examples_read if self.total.examples_read else 1.0
        return round(self.setup.get(Counter.DATASET_SIZE) * max(per_example, 1e-9))

    @property
    def file_bytes(self) -> float:
        """Mean size of the files that were copied."""
        return self.total.bytes_staged / max(1, self.total.files_staged)

    @property
    def staged_share(self) -> float:
        """The part of the data set that is staged."""
        total = self.total
        got = total.files_staged + total.files_peer + total.files_found_staged
        return min(1.0, max(0, got - total.files_evicted) / max(1, self.n_files))


def cause_of(facts: Facts) -> Cause:
    """Return what the trainer has waited for the longest."""
    span = facts.span
    if span.wait_share < _LITTLE:
        return Cause.TRAINER
    on_the_way = span.wait_assembling_seconds + span.wait_slot_seconds
    parts = {
        Cause.STORE_LATENCY: span.wait_staging_seconds,
        Cause.NOT_STAGED: span.wait_reading_seconds,
        Cause.DECODING: span.wait_decoding_seconds,
        Cause.ORDER_SAMPLER: span.wait_index_seconds,
        # Where the cores are busy, file readers wait for them, too.
        Cause.CORES: min(on_the_way, span.core_wait_seconds),
    }
    cause = max(parts, key=parts.__getitem__)
    if cause is Cause.NOT_STAGED:
        has_missed = span.opens_source or facts.total.examples_unseen or not span.n_prefetchers
        on_disk = min(span.file_wait_seconds, span.disk_read_seconds)
        if not has_missed:
            on_disk = span.file_wait_seconds  # some staged files are read by their paths
        # Copies that mostly take no time took some for want of a core.
        likely_seconds = span.opens_staged * span.disk_latency.percentile(90)
        late_seconds = max(0.0, min(on_disk, span.disk_read_seconds) - likely_seconds)
        parts = {
            Cause.NOT_STAGED: span.file_wait_seconds - on_disk,
            Cause.STAGING_DISK: on_disk - late_seconds,
            Cause.CORES: span.core_wait_seconds + late_seconds,
        }
        cause = max(parts, key=parts.__getitem__)
    if cause in (Cause.STORE_LATENCY, Cause.NOT_STAGED):
        # What has made room for a copy from another node is not read from the store for that.
        n_in_vain = max(0, span.files_evicted - span.files_peer) + span.files_refused
        n_brought = span.files_staged + span.files_peer + span.files_refused
        if n_in_vain > _LITTLE * max(1, n_brought):
            return Cause.DIRECTORY_TOO_SMALL
    if cause is Cause.STORE_LATENCY and span.files_peer > span.files_staged:
        return Cause.OTHER_NODES
    return _cause_of_store(facts) if cause is Cause.STORE_LATENCY else cause


def _cause_of_store(facts: Facts) -> Cause:
    """Return what limits the slow store."""
    span = facts.span
    busy_seconds = max(span.store_busy_seconds, 1e-9)
    is_asked_little = span.read_seconds / busy_seconds < span.reads_in_flight / 2
    if is_asked_little and span.store_latency.percentile(50) < _NO_LATENCY_SECONDS:
        return Cause.CORES  # the prefetchers could ask for more, and do not get to it
    is_queued = span.store_latency.percentile(50) > _QUEUED * span.least_read_seconds
    if not is_queued and not span.more_reads_in_vain:
        return Cause.STORE_LATENCY
    is_bytes_steady = span.byte_rate_changes < span.file_rate_changes
    return Cause.STORE_BANDWIDTH if is_bytes_steady else Cause.STORE_REQUESTS
