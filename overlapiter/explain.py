"""Says in plain words what a training waits for, what to change, and what that would bring. Pure.

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

import dataclasses
import enum
from typing import NamedTuple

from overlapiter.board import Counter, StatsBoard
from overlapiter.stats import Stats
from overlapiter.words import duration_words

#: A smaller share of the time is not worth any change.
_LITTLE = 0.05
#: A median of reads above so many times the shortest one: they wait for each other.
_QUEUED = 1.8
#: A median of reads below it is that of a local disk: the time goes elsewhere.
_NO_LATENCY_SECONDS = 0.001
#: Of the files: a few may be new or refused.
_NEARLY_ALL = 0.99


class Cause(enum.Enum):
    """What limits a training."""

    STARTING = "starting"
    TRAINER = "trainer"
    STORE_LATENCY = "store latency"
    STORE_BANDWIDTH = "store bandwidth"
    STORE_REQUESTS = "store requests"
    NOT_STAGED = "not staged"
    DECODING = "decoding"
    DIRECTORY_TOO_SMALL = "directory too small"
    STAGING_DISK = "staging disk"
    ORDER_SAMPLER = "order sampler"
    CORES = "cores"
    STALLED = "stalled"


class Setup(NamedTuple):
    """What an iterator is like.

    Attributes:
        n_cores: Cores for this rank and its workers.
        dataset_size: Examples in the dataset.
        fixed_reads: ``reads_in_flight``, if the user gave it; else 0.
        capacity_bytes: ``capacity``, if the user gave it; else 0.
    """

    n_cores: int
    dataset_size: int
    fixed_reads: int
    capacity_bytes: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What limits a training, what to change, and what that would bring.

    Attributes:
        cause: What limits it.
        text: The paragraph.
        change: What to change, in a few words; empty if there is nothing.
        examples_per_second: What it ran at.
        expected: What it is expected to run at after the change; None if that cannot be known.
    """

    cause: Cause
    text: str
    change: str
    examples_per_second: float
    expected: float | None

    def __str__(self) -> str:
        return self.text


def setup_of(board: StatsBoard) -> Setup:
    """Return the setup that a board describes."""
    row = board.trainer_row()
    return Setup(
        row.get(Counter.N_CORES),
        row.get(Counter.DATASET_SIZE),
        row.get(Counter.FIXED_READS),
        row.get(Counter.CAPACITY_BYTES),
    )


def explain(setup: Setup, now: Stats, earlier: Stats | None = None) -> Explanation:
    """Explain what was done since an earlier snapshot, or since the processes had started.

    Args:
        setup: The iterator.
        now: The last snapshot.
        earlier: The first one; None for the start.
    """
    facts = _Facts(setup, now, now.since(earlier) if earlier else _without_start(now))
    if not now.examples_taken or facts.span.seconds <= 0:
        text = "No mini-batch has been taken yet, so there is nothing to explain."
        return Explanation(Cause.STARTING, text, "", 0.0, None)
    long_seconds = max(1.0, facts.span.wait_seconds / 2)
    if now.waiting_seconds > long_seconds:
        return Explanation(Cause.STALLED, _stalled_words(facts), "", facts.rate, None)
    if not facts.span.examples_taken:
        text = (
            f"The trainer has taken no mini-batch for {facts.span.seconds:,.1f} s, and computed: "
            f"it waited for data for {facts.span.wait_seconds:,.1f} s of these."
        )
        return Explanation(Cause.TRAINER, text, "", facts.rate, None)
    cause = _cause_of(facts)
    reason, change, expected = _ADVICE[cause](facts)
    words = [_waited_words(facts, cause), reason]
    if change:
        words.append(f"{change[0].upper()}{change[1:]}{_gain_words(facts, expected)}.")
    return Explanation(cause, " ".join(words), change, facts.rate, expected)


def _without_start(now: Stats) -> Stats:
    """Return a snapshot without the time until the processes had started."""
    start_seconds = now.wait_start_seconds
    return dataclasses.replace(
        now,
        seconds=now.seconds - start_seconds,
        wait_seconds=now.wait_seconds - start_seconds,
        wait_start_seconds=0.0,
    )


class _Facts:
    """What follows from the counters.

    Attributes:
        setup: The iterator.
        total: The counters since the start.
        span: The counters of the time to be explained.
        rate: Examples per second.
    """

    def __init__(self, setup: Setup, total: Stats, span: Stats) -> None:
        self.setup = setup
        self.total = total
        self.span = span
        self.rate = span.examples_per_second

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
        return min(by_readers, self.setup.n_cores / cpu_seconds)

    def expected_rate(self, n_readers: int | None = None) -> float:
        """What the training can do if the slow store is not in its way."""
        return min(self.trainer_rate, self.readers_rate(n_readers))

    @property
    def n_files(self) -> int:
        """Files of the data set, as far as can be seen."""
        opens = self.total.opens_staged + self.total.opens_source
        per_example = opens / self.total.examples_read if self.total.examples_read else 1.0
        return round(self.setup.dataset_size * max(per_example, 1e-9))

    @property
    def file_bytes(self) -> float:
        """Mean size of the files that were copied."""
        return self.total.bytes_staged / max(1, self.total.files_staged)

    @property
    def staged_share(self) -> float:
        """The part of the data set that is staged."""
        held = self.total.files_staged + self.total.files_found_staged - self.total.files_evicted
        return min(1.0, max(0, held) / max(1, self.n_files))


# --- which it is ----------------------------------------------------------------------------------


def _cause_of(facts: _Facts) -> Cause:
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
        n_in_vain = span.files_evicted + span.files_refused
        if n_in_vain > _LITTLE * max(1, span.files_staged + span.files_refused):
            return Cause.DIRECTORY_TOO_SMALL
    return _cause_of_store(facts) if cause is Cause.STORE_LATENCY else cause


def _cause_of_store(facts: _Facts) -> Cause:
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


# --- in words -------------------------------------------------------------------------------------

_Advice = tuple[str, str, float | None]

_WAITED_FOR = {
    Cause.TRAINER: "",
    Cause.STORE_LATENCY: ", mostly for files to be staged",
    Cause.STORE_BANDWIDTH: ", mostly for files to be staged",
    Cause.STORE_REQUESTS: ", mostly for files to be staged",
    Cause.DIRECTORY_TOO_SMALL: ", mostly for files to be staged",
    Cause.NOT_STAGED: ", mostly for file readers that read the slow store",
    Cause.STAGING_DISK: ", mostly for file readers that read staged copies",
    Cause.DECODING: ", mostly for file readers that compute",
    Cause.ORDER_SAMPLER: ", mostly for its own order sampler",
    Cause.CORES: ", mostly for the processes to be given a core",
}


def _waited_words(facts: _Facts, cause: Cause) -> str:
    share = facts.span.wait_share
    return (
        f"The trainer waited for data {share:.0%} of the time{_WAITED_FOR[cause]}, and took "
        f"{facts.rate:,.0f} examples/s."
    )


def _gain_words(facts: _Facts, expected: float | None) -> str:
    if expected is None:
        return ""
    times = expected / facts.rate
    return f": about {expected:,.0f} examples/s, {times:.2g} times as many as now"


def _stalled_words(facts: _Facts) -> str:
    """Say what the trainer waits for, where no mini-batch that has come tells."""
    now = facts.total
    elsewhere_seconds = now.waiting_seconds - now.waiting_for_readers_seconds
    waiting_for = {
        "file readers to read or decode it": now.waiting_for_readers_seconds,
        "its files to be staged": min(elsewhere_seconds, facts.span.wait_staging_seconds),
        "a core, or for messages": now.waiting_seconds / 2,
    }
    words = max(waiting_for, key=waiting_for.__getitem__)
    return (
        f"The trainer has waited {now.waiting_seconds:,.1f} s for a mini-batch, mostly for "
        f"{words}. After dataset_timeout a warning names the process and the file."
    )


def _store_words(span: Stats) -> str:
    seconds = max(span.store_busy_seconds, 1e-9)
    files, reads = span.files_staged / seconds, max(1, span.read_seconds / seconds)
    return (
        f"{span.bytes_staged / seconds / 1e6:,.1f} MB/s, {files:,.0f} files/s, "
        f"with {reads:,.0f} {'read' if reads < 1.5 else 'reads'} in flight"
    )


def _trainer(facts: _Facts) -> _Advice:
    spare = facts.readers_rate() / facts.rate
    reason = (
        f"Loading is not the bottleneck, the trainer is: without any waiting it would do "
        f"{facts.trainer_rate:,.0f}."
    )
    if facts.span.staged_share == 1.0 and spare > 1:
        reason += (
            f" The file readers could give {facts.readers_rate():,.0f} examples/s, enough for a "
            f"trainer {spare:.2g} times as fast."
        )
    return reason, "", None


def _on_hold(facts: _Facts, change: str) -> str:
    """Return a change, which all staged files make needless."""
    if facts.staged_share > _NEARLY_ALL:
        return "let it run on: all files are staged now"
    return change


def _latency(facts: _Facts) -> _Advice:
    span, setup = facts.span, facts.setup
    reason = (
        f"The slow store takes {duration_words(span.store_latency.percentile(50))} for a file, "
        f"however many are read at once, and gives {_store_words(span)}: its latency is the limit."
    )
    if setup.fixed_reads:
        change = f"leave out reads_in_flight={setup.fixed_reads}, so that it tunes itself"
    elif span.reads_in_flight >= 256:
        change = f"give a reads_in_flight above {span.reads_in_flight}"
    else:
        change = "let it run on: the number of reads in flight grows by itself"
    reason += f" {facts.staged_share:.0%} of the data set is staged."
    return reason, _on_hold(facts, change), facts.expected_rate()


def _saturated(facts: _Facts, limit: str, more: str) -> _Advice:
    reason = (
        f"The slow store gives {_store_words(facts.span)}, and they wait for each other: {limit} "
        f"is the limit, and more prefetchers or reads in flight will not help{more}. "
        f"{facts.staged_share:.0%} of the data set is staged; what is staged does not wait."
    )
    change = "stage it before the job (`overlapiter stage`), or keep the directory for the next one"
    return reason, _on_hold(facts, change), facts.expected_rate()


def _bandwidth(facts: _Facts) -> _Advice:
    return _saturated(facts, "its bandwidth", "; smaller files would")


def _requests(facts: _Facts) -> _Advice:
    span = facts.span
    at_once = span.files_staged / max(span.store_busy_seconds, 1e-9) * span.least_read_seconds
    more = f"; fewer, larger files would (it serves about {max(1, at_once):.0f} requests at once)"
    return _saturated(facts, "the number of requests that it serves at once", more)


def _not_staged(facts: _Facts) -> _Advice:
    span = facts.span
    each = span.file_wait_seconds / max(1, span.examples_read)
    reason = f"A file reader waits {each * 1e3:,.1f} ms for the files of an example."
    if not span.n_prefetchers:
        return reason, "stage the files: staging=overlapiter.Staging(...)", facts.expected_rate()
    reason += f" {span.opens_source:,} opens went to the slow store; "
    if facts.total.files_refused or facts.total.examples_unseen:
        return f"{reason}a warning has said why.", "have all files staged", facts.expected_rate()
    reason += "no prefetcher could foresee them, as where a dataset reads in threads of its own."
    return reason, "have the dataset declare its files (source_paths)", facts.expected_rate()


def _decoding(facts: _Facts) -> _Advice:
    span, n_cores = facts.span, facts.setup.n_cores
    each = span.decode_seconds / max(1, span.examples_read)
    reason = (
        f"Decoding an example takes {each * 1e3:,.1f} ms of a core; file readers: "
        f"{span.n_readers}, cores: {n_cores}."
    )
    if span.core_wait_seconds > span.decode_seconds and span.n_readers <= n_cores:
        each = span.core_wait_seconds / max(1, span.examples_read)
        reason += f" They wait {each * 1e3:,.1f} ms for a core, which others use."
        return reason, "leave them more cores: fewer other processes on this node", None
    if span.n_readers < n_cores:
        change = f"give n_processes={n_cores}"
        return reason, change, facts.expected_rate(n_cores)
    reason += " They keep all cores busy, so that more of them will not help."
    return reason, "store smaller images, or take more cores", None


def _too_small(facts: _Facts) -> _Advice:
    span, needed_bytes = facts.span, facts.n_files * facts.file_bytes
    reason = (
        f"The staging directory is too small: {span.files_evicted:,} files were removed from it "
        f"and {span.files_refused:,} found no room, so that the slow store is read again."
    )
    about = f", about {1.02 * needed_bytes / 1e6:,.0f} MB" if needed_bytes else ""
    change = f"give it room for the whole data set{about}"
    return reason, change, facts.expected_rate()


def _disk(facts: _Facts) -> _Advice:
    median = facts.span.disk_latency.percentile(50)
    reason = f"A staged copy takes {median * 1e3:,.2f} ms to read."
    return reason, "stage to a faster disk, or to /dev/shm", None


def _sampler(facts: _Facts) -> _Advice:
    each = facts.span.wait_index_seconds / max(1, facts.span.batches_taken)
    return f"It takes {each * 1e3:,.1f} ms for each mini-batch.", "make it faster", None


def _cores(facts: _Facts) -> _Advice:
    used = facts.span.cpu_seconds / facts.span.seconds
    reason = (
        f"The pipeline's processes used {used:.1f} of {facts.setup.n_cores} cores, and waited for "
        f"one for {facts.span.core_wait_seconds:,.1f} s."
    )
    return reason, "leave them more cores: fewer other processes or threads on this node", None


_ADVICE = {
    Cause.TRAINER: _trainer,
    Cause.STORE_LATENCY: _latency,
    Cause.STORE_BANDWIDTH: _bandwidth,
    Cause.STORE_REQUESTS: _requests,
    Cause.NOT_STAGED: _not_staged,
    Cause.STAGING_DISK: _disk,
    Cause.DECODING: _decoding,
    Cause.DIRECTORY_TOO_SMALL: _too_small,
    Cause.ORDER_SAMPLER: _sampler,
    Cause.CORES: _cores,
}
