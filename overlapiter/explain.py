"""Says in plain words what a training waits for, what to change, and what that brings. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from overlapiter.board import Counter, StatsBoard
from overlapiter.bottleneck import Cause, Facts, cause_of
from overlapiter.stats import Stats
from overlapiter.words import count_words, duration_words

#: Of the files: a few may be new or refused.
_NEARLY_ALL = 0.99


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


def explain(board: StatsBoard, now: Stats, earlier: Stats | None = None) -> Explanation:
    """Explain what was done since an earlier snapshot, or since the processes had started.

    Args:
        board: The iterator's, which says what it is like.
        now: The last snapshot.
        earlier: The first one; None for the start.
    """
    span = now.since(earlier) if earlier else _without_start(now)
    facts, rate = Facts(board.trainer_row(), now, span), span.examples_per_second
    if not now.examples_taken or span.seconds <= 0:
        text = "No mini-batch has been taken yet, so there is nothing to explain."
        return Explanation(Cause.STARTING, text, "", 0.0, None)
    if now.waiting_seconds > max(1.0, span.wait_seconds / 2):
        return Explanation(Cause.STALLED, _stalled_words(facts), "", rate, None)
    if not span.examples_taken:
        text = (
            f"The trainer has taken no mini-batch for {span.seconds:,.1f} s, and computed: "
            f"it waited for data for {span.wait_seconds:,.1f} s of these."
        )
        return Explanation(Cause.TRAINER, text, "", rate, None)
    cause = cause_of(facts)
    waited_for, advice = _SAID[cause]
    reason, change, expected = advice(facts)
    text = (
        f"The trainer waited for data {span.wait_share:.0%} of the time{waited_for}, and took "
        f"{rate:,.0f} examples/s. {reason}"
    )
    if cause not in (Cause.NOT_STAGED, Cause.DIRECTORY_TOO_SMALL):
        text += _unstaged_words(facts)
    if change:
        text += f" {change[0].upper()}{change[1:]}"
        if expected is not None:
            times = _times_words(expected / rate)
            text += f": about {expected:,.0f} examples/s, {times} as many as now"
        text += "."
    return Explanation(cause, text, change, rate, expected)


def _without_start(now: Stats) -> Stats:
    """Return a snapshot without the time until the processes had started."""
    start_seconds = now.wait_start_seconds
    return dataclasses.replace(
        now,
        seconds=now.seconds - start_seconds,
        wait_seconds=now.wait_seconds - start_seconds,
        wait_start_seconds=0.0,
    )


# --- in words -------------------------------------------------------------------------------------

#: The reason, what to change, and the rate to expect then.
_Advice = tuple[str, str, float | None]


def _times_words(times: float) -> str:
    return f"{times:.2g} times" if times < 99.5 else f"{times:,.0f} times"


def _stalled_words(facts: Facts) -> str:
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


def _trainer(facts: Facts) -> _Advice:
    spare = facts.readers_rate() / facts.span.examples_per_second
    reason = (
        f"Loading is not the bottleneck, the trainer is: without any waiting it would do "
        f"{facts.trainer_rate:,.0f}."
    )
    if facts.span.staged_share == 1.0 and spare > 1:
        reason += (
            f" The file readers could give {facts.readers_rate():,.0f} examples/s, enough for a "
            f"trainer {_times_words(spare)} as fast."
        )
    return reason, "", None


def _on_hold(facts: Facts, change: str) -> str:
    """Return a change, which all staged files make needless."""
    if facts.staged_share > _NEARLY_ALL:
        return "let it run on: all files are staged now"
    return change


def _latency(facts: Facts) -> _Advice:
    span, fixed_reads = facts.span, facts.setup.get(Counter.FIXED_READS)
    reason = (
        f"The slow store takes {duration_words(span.store_latency.percentile(50))} for a file, "
        f"however many are read at once, and gives {_store_words(span)}: its latency is the limit."
    )
    if fixed_reads:
        change = f"leave out reads_in_flight={fixed_reads}, so that it tunes itself"
    elif span.reads_in_flight >= 256:
        change = f"give a reads_in_flight above {span.reads_in_flight}"
    else:
        change = "let it run on: the number of reads in flight grows by itself"
    reason += f" {facts.staged_share:.0%} of the data set is staged."
    return reason, _on_hold(facts, change), facts.expected_rate()


def _saturated(facts: Facts, limit: str, more: str) -> _Advice:
    reason = (
        f"The slow store gives {_store_words(facts.span)}, and they wait for each other: {limit} "
        f"is the limit, and more prefetchers or reads in flight will not help{more}. "
        f"{facts.staged_share:.0%} of the data set is staged; what is staged does not wait."
    )
    change = "stage it before the job (`overlapiter stage`), or keep the directory for the next one"
    return reason, _on_hold(facts, change), facts.expected_rate()


def _bandwidth(facts: Facts) -> _Advice:
    return _saturated(facts, "its bandwidth", "; smaller files would")


def _requests(facts: Facts) -> _Advice:
    span = facts.span
    at_once = span.files_staged / max(span.store_busy_seconds, 1e-9) * span.least_read_seconds
    requests = count_words(max(1, round(at_once)), "request")
    more = f"; fewer, larger files would (it serves about {requests} at once)"
    return _saturated(facts, "the number of requests that it serves at once", more)


def _other_nodes(facts: Facts) -> _Advice:
    span = facts.span
    reason = (
        f"Of the files that were fetched {span.files_peer:,} came from other nodes, and "
        f"{span.files_staged:,} from the slow store; {span.peer_faults:,} answers failed."
    )
    change = "have the nodes use their fastest network, or give this one more room"
    return reason, change, facts.expected_rate()


def _not_staged(facts: Facts) -> _Advice:
    span = facts.span
    each = span.file_wait_seconds / max(1, span.examples_read)
    reason = f"A file reader waits {each * 1e3:,.1f} ms for the files of an example."
    if not span.n_prefetchers:
        return reason, "stage the files: staging=overlapiter.Staging(...)", facts.expected_rate()
    unseen = f", and {span.examples_unseen:,} examples opened their files unseen"
    reason += f" {span.opens_source:,} opens went to the slow store"
    reason += f"{unseen if span.examples_unseen else ''}; "
    if facts.total.files_refused or facts.total.examples_unseen:
        return f"{reason}a warning has said why.", "have all files staged", facts.expected_rate()
    reason += "no prefetcher could foresee them, as where a dataset reads in threads of its own."
    return reason, "have the dataset declare its files (source_paths)", facts.expected_rate()


def _unstaged_words(facts: Facts) -> str:
    """Say that most files are not staged, though they are to be, where another cause hides it."""
    span, total = facts.span, facts.total
    if not span.n_prefetchers:
        return ""
    if span.opens_source > span.opens_staged:
        return f" {_not_staged(facts)[0]}"
    n_staged = total.files_staged + total.files_found_staged + total.files_peer
    if n_staged or total.opens_staged or total.opens_source:
        return ""
    return " Nothing is staged: no example opens a file below the source."


def _decoding(facts: Facts) -> _Advice:
    span, n_cores = facts.span, facts.n_cores
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


def _too_small(facts: Facts) -> _Advice:
    span, needed_bytes = facts.span, facts.n_files * facts.file_bytes
    reason = (
        f"The staging directory is too small: {span.files_evicted:,} files were removed from it "
        f"and {span.files_refused:,} found no room, so that the slow store is read again."
    )
    about = f", about {1.02 * needed_bytes / 1e6:,.0f} MB" if needed_bytes else ""
    change = f"give it room for the whole data set{about}"
    if span.files_refused > span.files_evicted:  # there was little of this data set to remove
        change += ", besides what else is there, or remove that (`overlapiter evict`)"
    return reason, change, facts.expected_rate()


def _disk(facts: Facts) -> _Advice:
    median = facts.span.disk_latency.percentile(50)
    reason = f"A staged copy takes {median * 1e3:,.2f} ms to read."
    return reason, "stage to a faster disk, or to /dev/shm", None


def _sampler(facts: Facts) -> _Advice:
    each = facts.span.wait_index_seconds / max(1, facts.span.batches_taken)
    return f"It takes {each * 1e3:,.1f} ms for each mini-batch.", "make it faster", None


def _cores(facts: Facts) -> _Advice:
    used = facts.span.cpu_seconds / facts.span.seconds
    reason = (
        f"The pipeline's processes used {used:.1f} of {facts.n_cores} cores, and waited for "
        f"one for {facts.span.core_wait_seconds:,.1f} s."
    )
    return reason, "leave them more cores: fewer other processes or threads on this node", None


_FOR_STAGING = ", mostly for files to be staged"
#: What the trainer waits for, and what else is said, by what limits it.
_SAID: dict[Cause, tuple[str, Callable[[Facts], _Advice]]] = {
    Cause.TRAINER: ("", _trainer),
    Cause.STORE_LATENCY: (_FOR_STAGING, _latency),
    Cause.STORE_BANDWIDTH: (_FOR_STAGING, _bandwidth),
    Cause.STORE_REQUESTS: (_FOR_STAGING, _requests),
    Cause.OTHER_NODES: (_FOR_STAGING, _other_nodes),
    Cause.DIRECTORY_TOO_SMALL: (_FOR_STAGING, _too_small),
    Cause.NOT_STAGED: (", mostly for file readers that read the slow store", _not_staged),
    Cause.STAGING_DISK: (", mostly for file readers that read staged copies", _disk),
    Cause.DECODING: (", mostly for file readers that compute", _decoding),
    Cause.ORDER_SAMPLER: (", mostly for its own order sampler", _sampler),
    Cause.CORES: (", mostly for the processes to be given a core", _cores),
}
