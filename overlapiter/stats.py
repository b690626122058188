"""Statistics: frozen snapshots of what the processes of an iterator have done."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any

from overlapiter.board import N_TIERS, Counter, Latencies, StatsBoard
from overlapiter.words import count_words, duration_words, size_words

#: Fields that hold what is at present: the difference of two of them means nothing.
GAUGES = frozenset(
    [
        "waiting_seconds",
        "waiting_for_readers_seconds",
        "n_readers",
        "n_prefetchers",
        "least_read_seconds",
        "reads_in_flight",
        "more_reads_in_vain",
        "parts_to_stage",
        "parts_to_read",
        "batches_ready",
        "memory_bytes",
        "peers_not_asked",
    ]
)


@dataclasses.dataclass(frozen=True, repr=False)
class Stats:
    """What the processes of one iterator have done since it was made; a snapshot.

    ``now.since(before)`` gives what was done between two of them: rates and shares of the whole
    run hide what is the matter now. ``print(now)`` shows the most of it, with units.

    Attributes:
        n_readers: File reader processes.
        n_prefetchers: Most prefetcher processes; 0 without staging.
        seconds: From the making of the iterator until now, or until its end. In what ``since``
            gives: between the two snapshots.
        batches_taken: Mini-batches that ``next()`` has returned.
        examples_taken: Examples that ``next()`` has returned. Divided by ``seconds``:
            ``examples_per_second``.
        wait_seconds: How long the trainer was inside ``next()``, and between calls of it that timed
            out. Near 0: data is there in time; near ``seconds``: loading is the bottleneck. The
            seven fields that follow are its parts, with ``waiting_for_readers_seconds``.
        wait_start_seconds: Of ``wait_seconds``, until the processes had started and had the
            dataset.
        wait_index_seconds: Of ``wait_seconds``, asking the order sampler for index lists.
        wait_staging_seconds: Of ``wait_seconds``, while files of the very mini-batch were being
            staged: the slow store is the bottleneck, or the prefetchers' cores.
        wait_reading_seconds: Of ``wait_seconds``, while file readers waited for files: staged
            copies, or, if ``opens_source`` grows, the slow store.
        wait_decoding_seconds: Of ``wait_seconds``, while file readers computed: decoding is the
            bottleneck.
        wait_slot_seconds: Of ``wait_seconds``, while parts that could be read had no memory to be
            read into: at the start, until the first example shows how large they are.
        wait_assembling_seconds: Of ``wait_seconds``, the rest: messages, and putting the mini-batch
            together. Should be small; grows where the cores are busy with something else.
        waiting_seconds: How long the trainer has waited for the mini-batch that it waits for, at
            present; 0 while it trains. Above a few seconds: something stalls.
        waiting_for_readers_seconds: Of ``waiting_seconds``, while file readers were at that
            mini-batch. Counts as reading and decoding once they have it.
        initialize_seconds: From the constructor until a file reader was ready, summed over them.
        dequeue_seconds: File readers waiting for an index list, summed. Near the whole run time:
            the trainer or the slow store is the bottleneck, not decoding.
        fetch_seconds: File readers inside ``dataset[i]``, summed. Near the whole run time:
            decoding is the bottleneck; add readers while there are cores.
        other_seconds: File readers storing arrays into slots and reporting, summed. Should be
            small beside ``fetch_seconds``.
        decode_seconds: Cores that file readers used while they read examples, summed.
        file_wait_seconds: File readers waiting for files meanwhile, summed. Above
            ``decode_seconds``: more readers than cores are of use.
        core_wait_seconds: File readers waiting for a core meanwhile, summed. Above
            ``decode_seconds``: there are more busy processes than cores.
        examples_read: Examples that file readers have read; above what the trainer took by the
            mini-batches that are ready or were redone.
        examples_skipped: Examples that could not be read and were left out, each time; above the
            iterator's ``skipped`` by those that come again and those that are ready.
        opens_staged: Opens of source files that went to a staged copy: the hits.
        opens_by_tier: The same for each tier, the fastest first; the fourth holds further ones.
        bytes_read_staged: Bytes of staged copies that were read; without large files, which have
            paths.
        opens_source: Opens of source files that went to the slow store: the misses. Grows in
            steady state: something is not staged (see ``files_refused``).
        examples_unseen: Examples that file readers have read without opening a file below the
            source where overlapiter sees it, though the dataset names some; none is counted any
            more once one is opened. Above 0: C code reads the slow store itself (see
            ``overlapiter.redirect``), or the files are in memory.
        disk_read_seconds: Reading staged copies from the disk, summed over them.
        disk_latency: The same for each copy. The median of a local disk is below a millisecond;
            far above: the disk is shared, or fails.
        files_staged: Files copied from the slow store.
        bytes_staged: Bytes copied from the slow store.
        read_seconds: Copying files from the slow store, summed over them. Divided by
            ``files_staged``: how long one takes, the wait for the store and for a core included.
        store_latency: The same for each file. Where the median is near ``least_read_seconds``,
            the store is limited by its latency: more reads in flight bring more. Far above: they
            wait for each other, for its bandwidth or for requests that it serves at once.
        least_read_seconds: The shortest copy of a file in the whole run; 0 before the first.
        reads_in_flight: Files that the prefetchers may copy at the same time, at present. At 256
            while the trainer waits for the slow store: give a higher number yourself.
        more_reads_in_vain: 1 if more reads in flight were tried and brought nothing.
        store_busy_seconds: For how long files were being read from the slow store.
            ``bytes_staged`` divided by it: what the store gives while it is asked.
        file_rate_changes: Sum of the squares of the relative changes of files per second, each time
            from some 24 files to the next ones, in millionths. Below ``byte_rate_changes``: the
            store serves so many requests at once.
        byte_rate_changes: Sum of the squares of the relative changes of bytes per second. Below
            ``file_rate_changes``: its bandwidth is the limit. Both alike: neither is, or all files
            have one size.
        files_found_staged: How often a prefetcher looked a file up that was staged before: mostly
            once for each file, since a run looks up anew only what may have changed.
        files_refused: How often a file could not be staged for lack of room, or because the staging
            disk failed; it is tried again when it is needed next, and may have been staged then.
        files_evicted: Staged files that were removed to make room. Near ``files_staged`` in
            steady state: the staging directory is smaller than the data set.
        parts_to_stage: Parts of mini-batches that no prefetcher has yet, at present. Many while
            the trainer waits: the slow store is behind; few: the look-ahead is nearly staged.
        parts_to_read: Staged parts that no file reader has yet, at present. Many: readers are
            behind; these wait for decoding, or for the trainer to take what is ready.
        batches_ready: Mini-batches that the trainer could take at once, at present. 0: it waits.
        cpu_seconds: Cores that all these processes used, the trainer's not included.
        memory_bytes: Memory of these processes, at present, without what they share in files:
            slots and staged copies. Objects of the dataset that they share count for each.
        workers_replaced: Workers that died and were replaced.
        supervisors_replaced: Supervisors that died and were replaced.
        copies_lost: Examples of which a staged copy was damaged or gone, and the source was read.
        files_peer: Files that came from another node of the job, where it was asked for them.
        bytes_peer: Bytes of these files, which came from other nodes.
        peer_faults: How often another node did not answer, or sent what is not right. Grows in
            steady state: look at the network, and at the nodes' ``ovl-peer`` processes.
        peers_not_asked: 1 while other nodes are not asked, since the slow store answers as soon.
    """

    n_readers: int
    n_prefetchers: int
    seconds: float
    batches_taken: int
    examples_taken: int
    wait_seconds: float
    wait_start_seconds: float
    wait_index_seconds: float
    wait_staging_seconds: float
    wait_reading_seconds: float
    wait_decoding_seconds: float
    wait_slot_seconds: float
    wait_assembling_seconds: float
    waiting_seconds: float
    waiting_for_readers_seconds: float
    initialize_seconds: float
    dequeue_seconds: float
    fetch_seconds: float
    other_seconds: float
    decode_seconds: float
    file_wait_seconds: float
    core_wait_seconds: float
    examples_read: int
    examples_skipped: int
    opens_staged: int
    opens_by_tier: tuple[int, ...]
    bytes_read_staged: int
    opens_source: int
    examples_unseen: int
    disk_read_seconds: float
    disk_latency: Latencies
    files_staged: int
    bytes_staged: int
    read_seconds: float
    store_latency: Latencies
    least_read_seconds: float
    reads_in_flight: int
    more_reads_in_vain: int
    store_busy_seconds: float
    file_rate_changes: int
    byte_rate_changes: int
    files_found_staged: int
    files_refused: int
    files_evicted: int
    parts_to_stage: int
    parts_to_read: int
    batches_ready: int
    cpu_seconds: float
    memory_bytes: int
    workers_replaced: int
    supervisors_replaced: int
    copies_lost: int
    files_peer: int
    bytes_peer: int
    peer_faults: int
    peers_not_asked: int

    def __repr__(self) -> str:
        """Return what people read, in lines; :meth:`as_dict` has every number."""
        return _words(self)

    def since(self, earlier: Stats) -> Stats:
        """Return what was done since an earlier snapshot; what is at present stays."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            now, before = getattr(self, field.name), getattr(earlier, field.name)
            if field.name in GAUGES:
                values[field.name] = now
            elif isinstance(now, Latencies):
                values[field.name] = now.since(before)
            elif isinstance(now, tuple):
                values[field.name] = tuple(a - b for a, b in zip(now, before, strict=True))
            else:
                values[field.name] = now - before
        return Stats(**values)

    @property
    def examples_per_second(self) -> float:
        """Examples that the trainer took each second; images, say."""
        return self.examples_taken / self.seconds if self.seconds else 0.0

    @property
    def store_bytes_per_second(self) -> float:
        """Bytes that the slow store delivered each second to be staged."""
        return self.bytes_staged / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        """The part of the time for which the trainer waited.

        At 0.3 the training would be 1.4 times as fast, 1 / (1 - 0.3), if data were always there.
        """
        return min(1.0, self.wait_seconds / self.seconds) if self.seconds else 0.0

    @property
    def mean_reads(self) -> float:
        """Files that were being copied at the same time, on average; by Little's law."""
        return self.read_seconds / self.seconds if self.seconds else 0.0

    @property
    def staged_share(self) -> float | None:
        """Hits of all opens; None if none was seen. Below 1 in steady state: something misses."""
        n_opens = self.opens_staged + self.opens_source
        return self.opens_staged / n_opens if n_opens else None

    @property
    def faults_survived(self) -> int:
        """Processes that were replaced, and staged copies that were lost."""
        return self.workers_replaced + self.supervisors_replaced + self.copies_lost

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: latencies as seconds at 50, 90 and 99 percent."""
        facts: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Latencies):
                for percent in (50, 90, 99):
                    facts[f"{field.name}_p{percent}_seconds"] = value.percentile(percent)
            else:
                facts[field.name] = [*value] if isinstance(value, tuple) else value
        derived = ("examples_per_second", "store_bytes_per_second", "wait_share", "mean_reads")
        return facts | {name: getattr(self, name) for name in (*derived, "faults_survived")}


#: What the trainer waits for, as the fields of ``Stats`` are named.
_WAITED_FOR = ("start", "index", "staging", "reading", "decoding", "slot", "assembling")


def waited_for(stats: Stats) -> dict[str, float]:
    """Return the parts of the waiting, by name; what goes on counts for the file readers."""
    waits = {name: getattr(stats, f"wait_{name}_seconds") for name in _WAITED_FOR}
    waits["reading"] += stats.waiting_for_readers_seconds
    return waits


def _words(stats: Stats) -> str:
    """Write statistics in a few lines, those of one subject in each."""
    lines = _who_waited(stats)
    if stats.n_prefetchers:
        lines |= _what_was_staged(stats)
    others = []
    if stats.files_peer or stats.peer_faults:
        size = size_words(stats.bytes_peer)
        others = [f"{stats.files_peer:,} files, {size}", f"faults: {stats.peer_faults:,}"]
    if stats.peers_not_asked:
        others.append("not asked, since the slow store answers as soon")
    if others:
        lines["other nodes"] = "; ".join(others)
    lines["at present"] = (
        f"mini-batches ready: {stats.batches_ready}; parts to stage: {stats.parts_to_stage}, "
        f"to read: {stats.parts_to_read}"
    )
    lines["node"] = (
        f"{stats.cpu_seconds / max(stats.seconds, 1e-9):.1f} cores, "
        f"{size_words(stats.memory_bytes)} of memory"
    )
    lines["faults"] = (
        f"{stats.faults_survived} survived; {count_words(stats.examples_skipped, 'example')} "
        f"skipped, {stats.examples_unseen:,} unseen"
    )
    return "\n".join(f"{name:12} {text}" for name, text in lines.items())


def _who_waited(stats: Stats) -> dict[str, str]:
    """Return a line on the trainer and one on the file readers, by their names."""
    waits = waited_for(stats)
    named = ", ".join(f"{name} {duration_words(s)}" for name, s in waits.items() if s >= 0.0005)
    return {
        "trainer": f"{count_words(stats.examples_taken, 'example')} in "
        f"{duration_words(stats.seconds)}, {stats.examples_per_second:,.0f} a second; waited "
        f"{stats.wait_share:.0%} of the time{': ' * bool(named)}{named}",
        "file readers": f"{stats.n_readers}: decoded for {duration_words(stats.decode_seconds)}, "
        f"waited for files {duration_words(stats.file_wait_seconds)}, for a core "
        f"{duration_words(stats.core_wait_seconds)}, for work "
        f"{duration_words(stats.dequeue_seconds)}",
    }


def _what_was_staged(stats: Stats) -> dict[str, str]:
    """Return a line on the slow store and one on the staging directory, by their names."""
    busy_seconds = max(stats.store_busy_seconds, 1e-9)
    share = stats.staged_share
    return {
        "slow store": f"{count_words(stats.files_staged, 'file')}, "
        f"{size_words(stats.bytes_staged)}, at {size_words(stats.bytes_staged / busy_seconds)}/s; "
        f"a file takes {stats.store_latency}; reads in flight: "
        f"{stats.read_seconds / busy_seconds:.1f} of {stats.reads_in_flight}",
        "staging": f"{'no file was opened' if share is None else f'{share:.1%} of opens are hits'} "
        f"({stats.opens_staged:,} hits, {stats.opens_source:,} misses); a copy takes "
        f"{stats.disk_latency}; evicted {stats.files_evicted:,}, "
        f"refused {stats.files_refused:,}",
    }


#: Between the start, which may go on, and the rest, which no counter has.
_PARTS_OF_WAIT = [Counter[f"WAIT_{name.upper()}_NS"] for name in _WAITED_FOR[1:-1]]


#: Fields that are sums of a counter, its number, and whether it counts nanoseconds.
_SUMS = [
    (field.name, int(Counter[cell]), cell.endswith("_NS"))
    for field in dataclasses.fields(Stats)
    if (cell := re.sub("_SECONDS$", "_NS", field.name.upper())) in Counter.__members__
]


def snapshot(board: StatsBoard) -> Stats:
    """Return the sums over all rows of a board."""
    created_ns = board.trainer_row().get(Counter.CREATED_NS)
    now_ns = board.ended_ns or time.monotonic_ns()
    rows = board.counters()
    totals = [*map(sum, zip(*rows, strict=True))]
    started = [row[Counter.STARTED_NS] or now_ns for row in rows[: board.n_readers]]
    least_ns = [ns for row in rows if (ns := row[Counter.LEAST_READ_NS])]
    tiers = totals[Counter.OPENS_TIER_0 : Counter.OPENS_TIER_0 + N_TIERS]
    since_ns = totals[Counter.WAITING_SINCE_NS]
    waiting_ns = max(0, now_ns - since_ns) if since_ns else 0
    start_ns = totals[Counter.WAIT_START_NS]
    if not start_ns and not totals[Counter.BATCHES_TAKEN]:
        start_ns = waiting_ns  # it is counted once it has ended
    wait_ns = totals[Counter.WAIT_NS] + waiting_ns
    rest_ns = max(0, wait_ns - start_ns - sum(totals[counter] for counter in _PARTS_OF_WAIT))
    # The supervisor counts on after a Ctrl-C.
    reading_ns = min(totals[Counter.WAITING_FOR_READERS_NS], rest_ns)
    values: dict[str, Any] = {
        name: totals[counter] / 1e9 if is_time else totals[counter]
        for name, counter, is_time in _SUMS
    }
    values |= {
        "n_readers": board.n_readers,
        "n_prefetchers": board.n_prefetchers,
        "seconds": (now_ns - created_ns) / 1e9,
        "wait_seconds": wait_ns / 1e9,
        "wait_start_seconds": start_ns / 1e9,
        "wait_assembling_seconds": (rest_ns - reading_ns) / 1e9,
        "waiting_seconds": waiting_ns / 1e9,
        "waiting_for_readers_seconds": reading_ns / 1e9,
        "initialize_seconds": sum(ns - created_ns for ns in started) / 1e9,
        "opens_staged": sum(tiers),
        "opens_by_tier": tuple(tiers),
        "least_read_seconds": min(least_ns, default=0) / 1e9,
        "disk_latency": Latencies(board.latencies(of_prefetchers=False)),
        "store_latency": Latencies(board.latencies(of_prefetchers=True)),
    }
    return Stats(**values)
