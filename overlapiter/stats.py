"""Counters of the worker processes, and frozen snapshots of them.

Each worker writes to its own row of a small piece of shared memory, so a snapshot costs the
workers nothing. A row outlives its worker: a replacement counts on in the same row.
"""

from __future__ import annotations

import dataclasses
import enum
import mmap
import os
import time


class Counter(enum.IntEnum):
    """A cell of a row. Times are nanoseconds; everything counts from the start."""

    STARTED_NS = 0
    DEQUEUE_NS = 1
    FETCH_NS = 2
    OTHER_NS = 3
    EXAMPLES_READ = 4
    OPENS_STAGED = 5
    OPENS_SOURCE = 6
    FILES_STAGED = 7
    BYTES_STAGED = 8
    FILES_FOUND_STAGED = 9
    FILES_REFUSED = 10
    DEATHS = 11
    #: What the worker is at, for the message about a stalled one: index + 1, or 0.
    CURRENT = 12
    EXAMPLES_SKIPPED = 13
    #: Copying files from the slow store, summed over the threads of a prefetcher.
    READ_NS = 14
    #: How many of them it may copy at the same time, at present.
    READS_IN_FLIGHT = 15
    FILES_EVICTED = 16
    EXAMPLES_UNSEEN = 17
    FILES_PEER = 18
    BYTES_PEER = 19
    PEER_FAULTS = 20


_ROW_CELLS = 24  # three cache lines, so that no two workers write to the same one


class Row:
    """The writing end: one worker's counters. Only that worker writes to it.

    Attributes:
        number: Of the row.
    """

    def __init__(self, cells: memoryview, number: int = 0) -> None:
        self._cells = cells
        self.number = number

    def add(self, counter: Counter, amount: int) -> None:
        """Count."""
        self._cells[counter] += amount

    def put(self, counter: Counter, value: int) -> None:
        """Replace the value."""
        self._cells[counter] = value

    def get(self, counter: Counter) -> int:
        """Return the value."""
        return int(self._cells[counter])


@dataclasses.dataclass(frozen=True)
class Stats:
    """What the workers of one iterator have done since it was made; a snapshot.

    Attributes:
        n_readers: File reader processes.
        n_prefetchers: Prefetcher processes; 0 without staging.
        initialize_seconds: From the constructor until a file reader was ready, summed over them.
        dequeue_seconds: File readers waiting for an index list, summed. Near the whole run time:
            the trainer or the slow store is the bottleneck, not decoding.
        fetch_seconds: File readers inside ``dataset[i]``, summed. Near the whole run time:
            decoding is the bottleneck; add readers while there are cores.
        other_seconds: File readers storing arrays into slots and reporting, summed. Should be
            small beside ``fetch_seconds``.
        examples_read: Examples that file readers have read; above what the trainer took by the
            mini-batches that are ready or were redone.
        examples_skipped: Examples that could not be read and were left out, each time; above the
            iterator's ``skipped`` by those that come again and those that are ready.
        opens_staged: Opens of source files that went to a staged copy.
        opens_source: Opens of source files that went to the slow store. Grows in steady state:
            something is not staged (see ``files_refused``).
        examples_unseen: Examples that file readers have read without opening a file below the
            source where overlapiter sees it, though the dataset names some; none is counted any
            more once one is opened. Above 0: C code reads the slow store itself (see
            ``overlapiter.redirect``), or the files are in memory.
        files_staged: Files copied from the slow store.
        bytes_staged: Bytes copied from the slow store.
        read_seconds: Copying files from the slow store, summed over them. Divided by
            ``files_staged``: how long one takes, the wait for the store and for a core included.
        reads_in_flight: Files that the prefetchers may copy at the same time, at present. At 256
            while the trainer waits for the slow store: give a higher number yourself.
        files_found_staged: How often a prefetcher looked a file up that was staged before: mostly
            once for each file, since a run looks up anew only what may have changed.
        files_refused: Files not staged for lack of room or because the staging disk failed.
        files_evicted: Staged files that were removed to make room. Near ``files_staged`` in
            steady state: the staging directory is smaller than the data set.
        workers_replaced: Workers that died and were replaced.
        files_peer: Files that came from another node of the job, where it was asked for them.
        bytes_peer: Their bytes.
        peer_faults: How often another node did not answer, or sent what is not right. Grows in
            steady state: look at the network, and at the nodes' ``ovl-peer`` processes.
    """

    n_readers: int
    n_prefetchers: int
    initialize_seconds: float
    dequeue_seconds: float
    fetch_seconds: float
    other_seconds: float
    examples_read: int
    examples_skipped: int
    opens_staged: int
    opens_source: int
    examples_unseen: int
    files_staged: int
    bytes_staged: int
    read_seconds: float
    reads_in_flight: int
    files_found_staged: int
    files_refused: int
    files_evicted: int
    workers_replaced: int
    files_peer: int
    bytes_peer: int
    peer_faults: int


class StatsBoard:
    """The shared rows of all workers: file readers first, then prefetchers.

    Args:
        fd: Descriptor of the memory, made by :meth:`create`; the board keeps its own duplicate.
        n_readers: Number of file reader rows.
        n_prefetchers: Number of prefetcher rows.
    """

    def __init__(self, fd: int, n_readers: int, n_prefetchers: int) -> None:
        self._n_readers = n_readers
        self._n_prefetchers = n_prefetchers
        self._memory: mmap.mmap | None = mmap.mmap(fd, self.size_bytes(n_readers, n_prefetchers))
        self._cells = memoryview(self._memory).cast("q")

    @staticmethod
    def size_bytes(n_readers: int, n_prefetchers: int) -> int:
        """Return the bytes that a board takes."""
        return (n_readers + n_prefetchers + 1) * _ROW_CELLS * 8

    @classmethod
    def create(cls, n_readers: int, n_prefetchers: int) -> tuple[StatsBoard, int]:
        """Return a zeroed board and its descriptor, which the caller owns."""
        fd = os.memfd_create("overlapiter-stats", os.MFD_CLOEXEC)
        os.ftruncate(fd, cls.size_bytes(n_readers, n_prefetchers))
        return cls(fd, n_readers, n_prefetchers), fd

    def reader_row(self, number: int) -> Row:
        """Return the row of a file reader."""
        return self._row(number)

    def prefetcher_row(self, number: int) -> Row:
        """Return the row of a prefetcher."""
        return self._row(self._n_readers + number)

    def peer_row(self) -> Row:
        """Return the row of the server for other nodes."""
        return self._row(self._n_readers + self._n_prefetchers)

    def _row(self, number: int) -> Row:
        return Row(self._cells[number * _ROW_CELLS : (number + 1) * _ROW_CELLS], number)

    def detach(self) -> None:
        """Go on with a copy of what has been counted, and let go of the memory."""
        if self._memory is not None:  # nothing global: the interpreter may be ending
            self._cells = memoryview(bytes(self._cells)).cast("q")
            self._memory = None

    def snapshot(self, created_ns: int) -> Stats:
        """Return the sums over all rows.

        Args:
            created_ns: ``time.monotonic_ns()`` of the constructor of the iterator.
        """
        readers = [self.reader_row(i) for i in range(self._n_readers)]
        rows = [*readers, *map(self.prefetcher_row, range(self._n_prefetchers)), self.peer_row()]

        def total(counter: Counter) -> int:
            return sum(row.get(counter) for row in rows)

        now_ns = time.monotonic_ns()
        started = [row.get(Counter.STARTED_NS) or now_ns for row in readers]
        return Stats(
            n_readers=self._n_readers,
            n_prefetchers=self._n_prefetchers,
            initialize_seconds=sum(ns - created_ns for ns in started) / 1e9,
            dequeue_seconds=total(Counter.DEQUEUE_NS) / 1e9,
            fetch_seconds=total(Counter.FETCH_NS) / 1e9,
            other_seconds=total(Counter.OTHER_NS) / 1e9,
            examples_read=total(Counter.EXAMPLES_READ),
            examples_skipped=total(Counter.EXAMPLES_SKIPPED),
            opens_staged=total(Counter.OPENS_STAGED),
            opens_source=total(Counter.OPENS_SOURCE),
            examples_unseen=total(Counter.EXAMPLES_UNSEEN),
            files_staged=total(Counter.FILES_STAGED),
            bytes_staged=total(Counter.BYTES_STAGED),
            read_seconds=total(Counter.READ_NS) / 1e9,
            reads_in_flight=total(Counter.READS_IN_FLIGHT),
            files_found_staged=total(Counter.FILES_FOUND_STAGED),
            files_refused=total(Counter.FILES_REFUSED),
            files_evicted=total(Counter.FILES_EVICTED),
            workers_replaced=total(Counter.DEATHS),
            files_peer=total(Counter.FILES_PEER),
            bytes_peer=total(Counter.BYTES_PEER),
            peer_faults=total(Counter.PEER_FAULTS),
        )
