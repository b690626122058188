"""What is said of counters that no small training shows; the others are in tests/pipeline."""

from __future__ import annotations

import os
import time

import pytest

from overlapiter.board import Counter, StatsBoard
from overlapiter.explain import Cause, Explanation, explain
from overlapiter.stats import snapshot

SECOND = 10**9


def explained(
    trainer: dict[Counter, int], reader: dict[Counter, int], copy_ns: int = 0
) -> Explanation:
    """Explain a training of ten seconds with 1,000 examples, one file reader and four cores.

    Each staged copy took ``copy_ns`` to read.
    """
    board, fd = StatsBoard.create(1, 1)
    os.close(fd)
    ten_ago = time.monotonic_ns() - 10 * SECOND
    setup = {Counter.CREATED_NS: ten_ago, Counter.N_CORES: 4, Counter.DATASET_SIZE: 1000}
    taken = {Counter.BATCHES_TAKEN: 100, Counter.EXAMPLES_TAKEN: 1000}
    for row, counts in (
        (board.trainer_row(), {**setup, **taken, **trainer}),
        (board.reader_row(0), {Counter.EXAMPLES_READ: 1000, **reader}),
    ):
        for counter, value in counts.items():
            row.put(counter, value)
    for _ in range(reader.get(Counter.OPENS_TIER_0, 0)):
        board.reader_row(0).add_latency(copy_ns)
    return explain(board, snapshot(board))


def test_before_the_first_mini_batch_there_is_nothing_to_explain() -> None:
    found = explained({Counter.EXAMPLES_TAKEN: 0}, {})
    assert (found.cause, found.change, found.expected) == (Cause.STARTING, "", None)


def test_an_order_sampler_that_takes_its_time_is_named() -> None:
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_INDEX_NS: 4 * SECOND}
    found = explained(waited, {Counter.DECODE_NS: SECOND})
    assert found.cause is Cause.ORDER_SAMPLER
    assert "40.0 ms for each mini-batch" in found.text


def test_the_start_of_the_processes_does_not_count() -> None:
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_START_NS: 5 * SECOND}
    found = explained(waited, {Counter.DECODE_NS: SECOND})
    assert found.cause is Cause.TRAINER
    assert found.examples_per_second == pytest.approx(200, rel=0.01)


def test_more_readers_are_said_to_bring_what_cores_and_trainer_allow() -> None:
    # A core decodes 125 examples/s, and the trainer alone does 500: 8 of 10 seconds are waited.
    waited = {Counter.WAIT_NS: 8 * SECOND, Counter.WAIT_DECODING_NS: 8 * SECOND}
    found = explained(waited, {Counter.DECODE_NS: 8 * SECOND})
    elsewhere = explained({Counter.WAIT_NS: 8 * SECOND}, {Counter.DECODE_NS: 8 * SECOND})

    assert elsewhere.cause is not Cause.DECODING  # nothing says that it was waited for
    assert (found.cause, found.change) == (Cause.DECODING, "give n_processes=4")
    assert found.expected == pytest.approx(500, rel=0.01)
    assert "about 500 examples/s, 5 times as many as now" in found.text


def test_cores_that_others_use_promise_nothing() -> None:
    waited = {Counter.WAIT_NS: 8 * SECOND, Counter.WAIT_DECODING_NS: 8 * SECOND}
    busy = {Counter.DECODE_NS: 3 * SECOND, Counter.CORE_WAIT_NS: 5 * SECOND}
    found = explained(waited, busy)
    assert "leave them more cores" in found.change
    assert found.expected is None


def test_cores_are_named_only_where_a_file_reader_has_waited_for_one() -> None:
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_DECODING_NS: SECOND}
    busy = {Counter.DECODE_NS: 2 * SECOND}
    assert explained(waited, busy).cause is Cause.DECODING
    assert explained(waited, {**busy, Counter.CORE_WAIT_NS: 3 * SECOND}).cause is Cause.CORES


def test_readers_that_wait_for_cores_are_not_told_to_get_another_disk() -> None:
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_READING_NS: 4 * SECOND}
    opened = {Counter.OPENS_TIER_0: 1000, Counter.DECODE_NS: 2 * SECOND}
    disk = {**opened, Counter.FILE_WAIT_NS: 3 * SECOND, Counter.DISK_READ_NS: 3 * SECOND}
    cores = {**opened, Counter.DISK_READ_NS: SECOND // 10, Counter.CORE_WAIT_NS: 2 * SECOND}
    assert explained(waited, disk, SECOND // 300).cause is Cause.STAGING_DISK
    assert explained(waited, cores, SECOND // 10_000).cause is Cause.CORES


def test_copies_that_mostly_take_no_time_are_not_said_to_need_another_disk() -> None:
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_READING_NS: 4 * SECOND}
    opened = {Counter.OPENS_TIER_0: 1000, Counter.DECODE_NS: 2 * SECOND}
    late = {**opened, Counter.FILE_WAIT_NS: 3 * SECOND, Counter.DISK_READ_NS: 3 * SECOND}
    assert explained(waited, late, SECOND // 100_000).cause is Cause.CORES


def test_where_all_opens_are_hits_the_slow_store_is_not_blamed() -> None:
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_READING_NS: 4 * SECOND}
    hits = {Counter.OPENS_TIER_0: 1000, Counter.FILE_WAIT_NS: 3 * SECOND}
    assert explained(waited, hits).cause is Cause.STAGING_DISK
    missed = explained(waited, {**hits, Counter.OPENS_SOURCE: 1})
    assert missed.cause is Cause.NOT_STAGED
    assert missed.change == "have the dataset declare its files (source_paths)"
    refused = {**hits, Counter.OPENS_SOURCE: 1, Counter.FILES_STAGED: 99, Counter.FILES_REFUSED: 1}
    assert "a warning has said why" in explained(waited, refused).text
    unseen = {Counter.FILE_WAIT_NS: 3 * SECOND, Counter.EXAMPLES_UNSEEN: 1000}
    words = (
        "0 opens went to the slow store, and 1,000 examples opened their files unseen; a warning"
    )
    assert words in explained(waited, unseen).text


@pytest.mark.parametrize("waited_ns", [0, 5 * SECOND])
def test_that_most_files_are_not_staged_is_said_whatever_is_waited_for(waited_ns: int) -> None:
    def said(counts: dict[Counter, int]) -> str:
        found = explained({Counter.WAIT_NS: waited_ns}, {**counts, Counter.CORE_WAIT_NS: waited_ns})
        assert found.cause is (Cause.CORES if waited_ns else Cause.TRAINER)
        return found.text

    missed = {Counter.OPENS_SOURCE: 1000, Counter.FILES_REFUSED: 1000}
    assert "Nothing is staged: no example opens a file below the source." in said({})
    assert "1,000 opens went to the slow store; a warning has said why." in said(missed)
    fine = said({Counter.OPENS_TIER_0: 900, Counter.OPENS_SOURCE: 100})
    assert "Nothing is staged" not in fine
    assert "went to the slow store" not in fine


def test_a_source_that_answers_at_once_is_not_said_to_be_slow() -> None:
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_STAGING_NS: 4 * SECOND}
    copied = {Counter.FILES_STAGED: 1000, Counter.STORE_BUSY_NS: 5 * SECOND}
    reads = {**copied, Counter.READ_NS: 5 * SECOND}
    assert explained(waited, {**reads, Counter.READS_IN_FLIGHT: 64}).cause is Cause.CORES
    assert explained(waited, {**reads, Counter.READS_IN_FLIGHT: 1}).cause is Cause.STORE_LATENCY


def test_a_directory_in_which_nothing_finds_room_is_given_no_size() -> None:
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_STAGING_NS: 4 * SECOND}
    found = explained(waited, {Counter.FILES_REFUSED: 1000, Counter.OPENS_SOURCE: 1000})
    assert found.cause is Cause.DIRECTORY_TOO_SMALL
    assert found.change == (
        "give it room for the whole data set, besides what else is there, or remove that "
        "(`overlapiter evict`)"
    )


def test_a_directory_in_which_the_data_set_makes_room_for_itself_is_not_to_be_emptied() -> None:
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_STAGING_NS: 4 * SECOND}
    counts = {Counter.FILES_STAGED: 1000, Counter.FILES_EVICTED: 900, Counter.FILES_REFUSED: 100}
    counts |= {Counter.BYTES_STAGED: 10**9, Counter.OPENS_SOURCE: 1000}
    found = explained(waited, counts)
    assert found.change == "give it room for the whole data set, about 1,020 MB"


def test_readers_that_wait_for_files_which_were_removed_are_told_of_the_directory() -> None:
    # Most opens find a copy, in no time; the few that do not are what is waited for.
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_READING_NS: 4 * SECOND}
    counts = {Counter.OPENS_TIER_0: 900, Counter.OPENS_SOURCE: 100}
    times = {Counter.FILE_WAIT_NS: 4 * SECOND, Counter.DISK_READ_NS: SECOND // 10}
    reader = {**counts, **times, Counter.DECODE_NS: SECOND}
    copied = {Counter.FILES_STAGED: 500, Counter.FILES_EVICTED: 400}
    assert explained(waited, reader).cause is Cause.NOT_STAGED
    assert explained(waited, {**reader, **copied}).cause is Cause.DIRECTORY_TOO_SMALL


def test_what_makes_room_for_copies_of_other_nodes_is_not_said_to_be_read_again() -> None:
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_STAGING_NS: 4 * SECOND}
    held = {Counter.OPENS_TIER_0: 1000, Counter.FILES_STAGED: 300, Counter.FILES_PEER: 900}
    found = explained(waited, {**held, Counter.FILES_EVICTED: 900})
    assert found.cause is Cause.OTHER_NODES
    assert "900 came from other nodes, and 300 from the slow store" in found.text
    missed = explained(waited, {**held, Counter.FILES_EVICTED: 1100})
    assert missed.cause is Cause.DIRECTORY_TOO_SMALL
    first = explained(waited, {**held, Counter.FILES_PEER: 200, Counter.FILES_EVICTED: 200})
    assert "30% of the data set is staged" in first.text


@pytest.mark.parametrize(("seconds", "cause"), [(0.01, Cause.TRAINER), (30.0, Cause.STALLED)])
def test_what_stalls_is_told_from_a_look_that_falls_into_a_short_wait(seconds, cause) -> None:
    board, fd = StatsBoard.create(1, 1)
    os.close(fd)
    row, now_ns = board.trainer_row(), time.monotonic_ns()
    row.put(Counter.CREATED_NS, now_ns - 100 * SECOND)
    row.put(Counter.EXAMPLES_TAKEN, 1000)
    earlier = snapshot(board)
    row.put(Counter.WAITING_SINCE_NS, now_ns - int(seconds * SECOND))
    assert explain(board, snapshot(board), earlier).cause is cause


def test_a_stall_in_a_file_reader_is_not_blamed_on_what_was_staged_before() -> None:
    now_ns = time.monotonic_ns()
    waited = {Counter.WAIT_NS: 5 * SECOND, Counter.WAIT_STAGING_NS: 5 * SECOND}
    waits = {Counter.WAITING_SINCE_NS: now_ns - 6 * SECOND}
    found = explained({**waited, **waits}, {Counter.WAITING_FOR_READERS_NS: 5 * SECOND})
    assert found.cause is Cause.STALLED
    assert "mostly for file readers" in found.text
