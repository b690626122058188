"""The board: counters that each process of an iterator writes to a row of shared memory of its own.

A snapshot of them costs the workers nothing. A row outlives its worker: a replacement counts on in
the same row.
"""

from __future__ import annotations

import array
import dataclasses
import enum
import functools
import math
import mmap
import os
import time
from collections.abc import Sequence

from overlapiter.words import duration_words


class Counter(enum.IntEnum):
    """A cell of a row. Times are nanoseconds; everything counts from the start.

    A field of ``Stats`` with the same name (``_seconds`` for ``_NS``) is the sum over all rows.
    """

    STARTED_NS = 0
    DEQUEUE_NS = 1
    FETCH_NS = 2
    OTHER_NS = 3
    EXAMPLES_READ = 4
    OPENS_SOURCE = 6
    FILES_STAGED = 7
    BYTES_STAGED = 8
    FILES_FOUND_STAGED = 9
    FILES_REFUSED = 10
    WORKERS_REPLACED = 11
    #: What the worker is at, for the message about a stalled one: index + 1, or 0.
    CURRENT = 12
    EXAMPLES_SKIPPED = 13
    #: Copying files from the slow store, summed over the threads of a prefetcher.
    READ_NS = 14
    #: How many of them it may copy at the same time, at present.
    READS_IN_FLIGHT = 15
    FILES_EVICTED = 16
    EXAMPLES_UNSEEN = 17
    #: What each process has used of the cores, and holds of the memory.
    CPU_NS = 18
    MEMORY_BYTES = 19

    # Of file readers: how the time of reading examples divides.
    DECODE_NS = 20
    FILE_WAIT_NS = 21
    CORE_WAIT_NS = 22
    COPIES_LOST = 23
    BYTES_READ_STAGED = 24
    DISK_READ_NS = 25
    #: Opens of staged copies by tier: so many cells from here on.
    OPENS_TIER_0 = 48

    # Of prefetchers: when a read ended last, and what was read up to then.
    LEAST_READ_NS = 32
    ANSWERED_NS = 29
    ANSWERS = 30
    ANSWERED_KB = 31

    # Of the supervisor: what the trainer waits for, and what is queued at present.
    WAIT_STAGING_NS = 33
    WAIT_READING_NS = 34
    WAIT_DECODING_NS = 35
    WAIT_SLOT_NS = 36
    #: For file readers, for the mini-batch at hand: what of it was decoding shows when it is read.
    WAITING_FOR_READERS_NS = 26
    PARTS_TO_STAGE = 37
    PARTS_TO_READ = 38
    BATCHES_READY = 39
    #: 1 once more reads in flight than at present were tried, and brought nothing.
    MORE_READS_IN_VAIN = 40

    # Of the trainer.
    WAIT_NS = 41
    WAIT_START_NS = 42
    WAIT_INDEX_NS = 43
    #: Since when it has waited for the mini-batch at hand; 0 while it trains.
    WAITING_SINCE_NS = 47
    BATCHES_TAKEN = 44
    EXAMPLES_TAKEN = 45
    SUPERVISORS_REPLACED = 46

    # Of the trainer, from the start: what this board and its iterator are like.
    VERSION = 64
    N_READERS = 65
    N_PREFETCHERS = 66
    N_CORES = 67
    DATASET_SIZE = 68
    FIXED_READS = 69
    CREATED_NS = 71

    # Of prefetchers: what came from other nodes of the job.
    FILES_PEER = 54
    BYTES_PEER = 55
    PEER_FAULTS = 56
    #: Of the supervisor: 1 while other nodes are not asked, since the slow store is as near.
    PEERS_NOT_ASKED = 57

    # Of the supervisor: how steady the slow store is; the changes are millionths.
    STORE_BUSY_NS = 72
    FILE_RATE_CHANGES = 74
    BYTE_RATE_CHANGES = 75


#: Tiers that are counted apart; what is in further ones counts for the last.
N_TIERS = 4
_N_COUNTERS = 80
#: Of the layout of a board; another one is not read.
_VERSION = 3
#: Latencies: four classes for each doubling, from 8 microseconds to 2 minutes.
N_CLASSES = 96
_FIRST_CLASS = 4 * 13
_ROW_CELLS = _N_COUNTERS + N_CLASSES  # whole cache lines: no two processes write to the same one


class Row:
    """The writing end: the counters of one process. Only that process writes to it."""

    def __init__(self, cells: memoryview, number: int = 0) -> None:
        self._cells = cells
        self.number = number

    def add(self, counter: int, amount: int) -> None:
        """Count."""
        self._cells[counter] += amount

    def put(self, counter: int, value: int) -> None:
        """Replace the value."""
        self._cells[counter] = value

    def get(self, counter: int) -> int:
        """Return the value."""
        return int(self._cells[counter])

    def detach(self) -> None:
        """Count on in a copy, which no process reads, and let go of the memory."""
        self._cells = memoryview(bytearray(self._cells)).cast("q")  # nothing global, as below

    def add_answers(self, answers: Sequence[tuple[int, int]]) -> None:
        """Count answers of the slow store, ns and bytes of each, in the row of a prefetcher."""
        for took_ns, _ in answers:
            self.add_latency(took_ns)
        cells, (least_ns, _) = self._cells, min(answers)
        cells[Counter.ANSWERS] += len(answers)
        cells[Counter.ANSWERED_KB] += sum([n_bytes // 1000 for _, n_bytes in answers])
        cells[Counter.ANSWERED_NS] = time.monotonic_ns()
        if not 0 < cells[Counter.LEAST_READ_NS] <= least_ns:
            cells[Counter.LEAST_READ_NS] = least_ns

    def add_latency(self, ns: int) -> None:
        """Count a latency: of the slow store in the row of a prefetcher, else of the disk."""
        number = int(math.log2(ns or 1) * 4) - _FIRST_CLASS
        self._cells[_N_COUNTERS + min(max(number, 0), N_CLASSES - 1)] += 1


def _class_seconds(number: float) -> float:
    """Return the latency at which a class begins; between two numbers, one within the class."""
    return float(2 ** ((number + _FIRST_CLASS) / 4) / 1e9)


@dataclasses.dataclass(frozen=True)
class Latencies:
    """How long something took, each time: ``rows`` is how often, as the board holds it."""

    rows: bytes = dataclasses.field(default=b"", repr=False)

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """How often it took how long: four classes for each doubling, from 8 microseconds."""
        cells = memoryview(self.rows).cast("q")
        return tuple(sum(cells[i::N_CLASSES]) for i in range(N_CLASSES))

    def percentile(self, percent: float) -> float:
        """Return the seconds within which so many percent of them were done, to about 10%; or 0."""
        left = percent / 100 * sum(self.counts)
        for number, count in enumerate(self.counts):
            if count and left <= count:
                return _class_seconds(number + left / count)
            left -= count
        return 0.0

    def __str__(self) -> str:
        median, most = self.percentile(50), self.percentile(99)
        return f"{duration_words(median)} (99%: {duration_words(most)})"

    def since(self, earlier: Latencies) -> Latencies:
        """Return those that came since an earlier snapshot."""
        pairs = zip(self.counts, earlier.counts, strict=True)
        return Latencies(array.array("q", [now - before for now, before in pairs]).tobytes())


class StatsBoard:
    """The shared rows: file readers first, then prefetchers, the supervisor and the trainer.

    Args:
        fd: Descriptor of the memory, made by :meth:`create`; the board keeps its own duplicate.

    Raises:
        ValueError: It is no board, or one of another version of overlapiter.
    """

    def __init__(self, fd: int) -> None:
        self.ended_ns = 0  # when detach was called; 0 before
        self._clock = time.monotonic_ns
        self._memory: mmap.mmap | None = mmap.mmap(fd, 0)
        self._cells = memoryview(self._memory).cast("q")
        self._n_rows, rest = divmod(len(self._cells), _ROW_CELLS)
        setup = self.trainer_row()
        self.n_readers = setup.get(Counter.N_READERS)
        self.n_prefetchers = setup.get(Counter.N_PREFETCHERS)
        is_whole = not rest and self._n_rows == self.n_readers + self.n_prefetchers + 2
        if not is_whole or setup.get(Counter.VERSION) != _VERSION:
            raise ValueError("the counters are of another version of overlapiter")

    @classmethod
    def create(cls, n_readers: int, n_prefetchers: int) -> tuple[StatsBoard, int]:
        """Return a zeroed board and its descriptor, which the caller owns."""
        fd = os.memfd_create("overlapiter-stats", os.MFD_CLOEXEC)
        setup = array.array("q", bytes(_ROW_CELLS * 8))
        setup[Counter.VERSION] = _VERSION
        setup[Counter.N_READERS] = n_readers
        setup[Counter.N_PREFETCHERS] = n_prefetchers
        os.pwrite(fd, setup, (n_readers + n_prefetchers + 1) * _ROW_CELLS * 8)
        return cls(fd), fd

    def reader_row(self, number: int) -> Row:
        """Return the row of a file reader."""
        return self._row(number)

    def prefetcher_row(self, number: int) -> Row:
        """Return the row of a prefetcher."""
        return self._row(self.n_readers + number)

    def total(self, counter: Counter) -> int:
        """Return the sum of a counter over the rows of prefetchers."""
        first = self.n_readers * _ROW_CELLS + counter
        return sum(self._cells[first : first + self.n_prefetchers * _ROW_CELLS : _ROW_CELLS])

    def supervisor_row(self) -> Row:
        """Return the row of the supervisor."""
        return self._row(self._n_rows - 2)

    def trainer_row(self) -> Row:
        """Return the row of the trainer."""
        return self._row(self._n_rows - 1)

    def _row(self, number: int) -> Row:
        return Row(self._cells[number * _ROW_CELLS : (number + 1) * _ROW_CELLS], number)

    def detach(self) -> None:
        """Go on with a copy of what has been counted, and let go of the memory."""
        if self._memory is not None:  # nothing global: the interpreter may be ending
            self._cells = memoryview(bytes(self._cells)).cast("q")
            self._memory = None
            self.ended_ns = self._clock()

    def counters(self) -> list[Sequence[int]]:
        """Return the counters of all rows, up to now."""
        cells = memoryview(bytes(self._cells)).cast("q")
        return [cells[i : i + _N_COUNTERS].tolist() for i in range(0, len(cells), _ROW_CELLS)]

    def latencies(self, *, of_prefetchers: bool) -> bytes:
        """Return the latencies that the rows of prefetchers hold, or those of file readers."""
        first = self.n_readers if of_prefetchers else 0
        end = first + (self.n_prefetchers if of_prefetchers else self.n_readers)
        rows = [
            self._cells[i * _ROW_CELLS + _N_COUNTERS : (i + 1) * _ROW_CELLS]
            for i in range(first, end)
        ]
        return b"".join(rows)
