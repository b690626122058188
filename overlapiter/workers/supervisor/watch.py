"""Watches the supervisor: what the trainer waits for, and how much is queued."""

from __future__ import annotations

import time

from overlapiter.board import Counter, StatsBoard
from overlapiter.tracing import Tracing
from overlapiter.workers.supervisor.rates import StoreRates
from overlapiter.workers.supervisor.schedule import Batch, PartState, Schedule
from overlapiter.workers.usage import Usage

#: How often to look at what the slow store gives, and how often to note how much is queued, which
#: takes longer.
_LOOK_AFTER_NS = 20_000_000
_NOTE_AFTER_NS = 100_000_000


class Watch:
    """Notes, at the end of each turn of the supervisor, what is in the way of the trainer.

    Nothing changes between two turns, so the time until the next one counts for that.
    """

    def __init__(self, board: StatsBoard, schedule: Schedule, trace: Tracing) -> None:
        self._board = board
        self._row = board.supervisor_row()
        self._schedule = schedule
        self._trace = trace
        self._usage = Usage(self._row)
        self._cause: Counter | None = None
        self._batch: Batch | None = None
        self._row.put(Counter.WAITING_FOR_READERS_NS, 0)  # as another one may have left it
        self._since_ns = time.monotonic_ns()
        self._look_at_ns = self._note_at_ns = 0
        self._recorded = 0, 0
        self._rates = StoreRates()
        self._rates.add(*self._answers())  # another supervisor has counted these

    def note_turn(self, consumed_id: int, *, is_probing: bool) -> None:
        """Note what the trainer waits for now; it has the mini-batches before ``consumed_id``."""
        now_ns = time.monotonic_ns()
        if self._cause is not None:
            self._row.add(self._cause, now_ns - self._since_ns)
        self._since_ns = now_ns
        batch = self._schedule.batch(consumed_id - 1)
        if batch is not self._batch:
            self._divide_reading()
            self._batch = batch
        self._cause = None if batch is None else _cause_of(batch, is_probing=is_probing)
        if now_ns >= self._look_at_ns:
            self._look_at_ns = now_ns + _LOOK_AFTER_NS
            self._note_store()
        if now_ns >= self._note_at_ns:
            self._note_at_ns = now_ns + _NOTE_AFTER_NS
            self._note_queues(now_ns, consumed_id, is_waiting=batch is not None)

    def _divide_reading(self) -> None:
        """Divide the wait for file readers as their time for that very mini-batch divides.

        Others do not tell: the mini-batches that are waited for are those that took long. What it
        took beyond that time were messages, and file readers that waited for a core.
        """
        batch, waited_ns = self._batch, self._row.get(Counter.WAITING_FOR_READERS_NS)
        self._row.put(Counter.WAITING_FOR_READERS_NS, 0)
        if batch is not None and batch.busy_ns:
            busy_ns = min(waited_ns, batch.busy_ns)
            decoding_ns = busy_ns * min(batch.cpu_ns, batch.busy_ns) // batch.busy_ns
            self._row.add(Counter.WAIT_DECODING_NS, decoding_ns)
            self._row.add(Counter.WAIT_READING_NS, busy_ns - decoding_ns)

    def _note_queues(self, now_ns: int, consumed_id: int, *, is_waiting: bool) -> None:
        schedule = self._schedule
        n_ready = max(0, schedule.next_batch_id - consumed_id - schedule.n_batches + is_waiting)
        self._row.put(Counter.PARTS_TO_STAGE, schedule.n_to_stage)
        self._row.put(Counter.PARTS_TO_READ, schedule.n_to_read)
        self._row.put(Counter.BATCHES_READY, n_ready)
        self._usage.note()
        if self._trace.is_on:
            self._trace.counter("parts waiting", stage=schedule.n_to_stage, read=schedule.n_to_read)
            self._trace.counter("mini-batches ready", ready=n_ready)
            self._record_store(now_ns)

    def _answers(self) -> tuple[int, int, int]:
        """Return when the slow store has answered last, how often it has, and with how many kB."""
        board = self._board
        prefetchers = map(board.prefetcher_row, range(board.n_prefetchers))
        ended_ns = max((each.get(Counter.ANSWERED_NS) for each in prefetchers), default=0)
        return ended_ns, board.total(Counter.ANSWERS), board.total(Counter.ANSWERED_KB)

    def _note_store(self) -> None:
        """Note how steady the slow store is, if it has answered since."""
        news = self._rates.add(*self._answers())
        if news is not None:
            busy_ns, file_change, byte_change = news
            self._row.add(Counter.STORE_BUSY_NS, busy_ns)
            self._row.add(Counter.FILE_RATE_CHANGES, round(file_change * 1e6))
            self._row.add(Counter.BYTE_RATE_CHANGES, round(byte_change * 1e6))

    def _record_store(self, now_ns: int) -> None:
        (before_kb, before_ns), n_kb = self._recorded, self._board.total(Counter.ANSWERED_KB)
        self._recorded = n_kb, now_ns
        if before_ns and self._board.n_prefetchers:
            speed = (n_kb - before_kb) * 1e6 / (now_ns - before_ns)
            n_reads = self._board.total(Counter.READS_IN_FLIGHT)
            self._trace.counter("slow store, MB/s", read=round(speed, 1))
            self._trace.counter("reads in flight, at most", allowed=n_reads)


def _cause_of(batch: Batch, *, is_probing: bool) -> Counter:
    states = [part.state for part in batch.parts]
    if PartState.TO_STAGE in states or PartState.STAGING in states:
        return Counter.WAIT_STAGING_NS
    if is_probing and PartState.READING not in states:
        return Counter.WAIT_SLOT_NS
    return Counter.WAITING_FOR_READERS_NS
