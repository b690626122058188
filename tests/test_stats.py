"""The counters: what a worker writes, another process reads, and a replacement goes on with."""

from __future__ import annotations

import dataclasses
import inspect
import os
import time

import pytest

from overlapiter.board import Counter, StatsBoard
from overlapiter.stats import Stats, snapshot

FIELD_OF = {
    Counter.EXAMPLES_READ: "examples_read",
    Counter.EXAMPLES_SKIPPED: "examples_skipped",
    Counter.OPENS_SOURCE: "opens_source",
    Counter.FILES_STAGED: "files_staged",
    Counter.BYTES_STAGED: "bytes_staged",
    Counter.FILES_FOUND_STAGED: "files_found_staged",
    Counter.FILES_REFUSED: "files_refused",
    Counter.READS_IN_FLIGHT: "reads_in_flight",
    Counter.WORKERS_REPLACED: "workers_replaced",
}
SECONDS_OF = {
    Counter.DEQUEUE_NS: "dequeue_seconds",
    Counter.FETCH_NS: "fetch_seconds",
    Counter.OTHER_NS: "other_seconds",
    Counter.READ_NS: "read_seconds",
}


def snapshot_of(board: StatsBoard, created_ns: int) -> Stats:
    board.trainer_row().put(Counter.CREATED_NS, created_ns)
    return snapshot(board)


def new_board() -> StatsBoard:
    board, fd = StatsBoard.create(2, 1)
    os.close(fd)
    return board


def test_a_new_board_counts_nothing():
    board = new_board()
    stats = snapshot_of(board, time.monotonic_ns())
    assert (stats.n_readers, stats.n_prefetchers) == (2, 1)
    facts = stats.as_dict()
    for name in ("n_readers", "n_prefetchers", "initialize_seconds", "seconds"):
        del facts[name]
    assert facts.pop("opens_by_tier") == [0, 0, 0, 0]
    assert not any(facts.values())


@pytest.mark.parametrize("counter", FIELD_OF)
def test_a_snapshot_sums_a_counter_over_all_workers(counter):
    board = new_board()
    for amount, row in enumerate(
        [board.reader_row(0), board.reader_row(1), board.prefetcher_row(0)], start=1
    ):
        row.add(counter, amount)
        row.add(counter, 10 * amount)
    stats = snapshot_of(board, 0)
    others = [name for other, name in FIELD_OF.items() if other is not counter]
    assert getattr(stats, FIELD_OF[counter]) == 66
    assert not any(getattr(stats, name) for name in others)


def test_opens_of_staged_copies_are_the_sum_of_those_of_all_tiers():
    board = new_board()
    for tier, number in enumerate((5, 3)):
        board.reader_row(tier).add(Counter.OPENS_TIER_0 + tier, number)
    stats = snapshot_of(board, 0)
    assert (stats.opens_by_tier, stats.opens_staged) == ((5, 3, 0, 0), 8)


@pytest.mark.parametrize("counter", SECONDS_OF)
def test_nanoseconds_become_seconds(counter):
    board = new_board()
    board.reader_row(0).add(counter, 1_500_000_000)
    board.reader_row(1).add(counter, 500_000_000)
    assert getattr(snapshot_of(board, 0), SECONDS_OF[counter]) == 2.0


def test_what_a_worker_is_at_is_in_no_sum():
    board = new_board()
    board.reader_row(0).put(Counter.CURRENT, 77)
    assert 77 not in dataclasses.asdict(snapshot_of(board, time.monotonic_ns())).values()
    assert board.reader_row(0).get(Counter.CURRENT) == 77


def test_initializing_lasts_until_each_reader_has_started():
    board = new_board()
    created_ns = time.monotonic_ns() - 10**9
    for number in range(2):
        board.reader_row(number).put(Counter.STARTED_NS, created_ns + (number + 1) * 10**8)
    assert snapshot_of(board, created_ns).initialize_seconds == pytest.approx(0.3)


def test_a_reader_that_has_not_started_is_still_initializing():
    board = new_board()
    before_ns = time.monotonic_ns()
    board.reader_row(0).put(Counter.STARTED_NS, before_ns)
    first = snapshot_of(board, before_ns).initialize_seconds
    while time.monotonic_ns() == before_ns:
        pass
    assert snapshot_of(board, before_ns).initialize_seconds > first > 0


def test_rows_do_not_overlap():
    board = new_board()
    rows = [board.reader_row(0), board.reader_row(1), board.prefetcher_row(0)]
    for number, row in enumerate(rows):
        for counter in Counter:
            row.put(counter, 100 * number + counter)
    for number, row in enumerate(rows):
        assert [row.get(counter) for counter in Counter] == [100 * number + c for c in Counter]


def test_two_boards_of_one_descriptor_are_the_same_board():
    one, fd = StatsBoard.create(1, 0)
    other = StatsBoard(fd)
    os.close(fd)
    one.reader_row(0).add(Counter.EXAMPLES_READ, 3)
    other.reader_row(0).add(Counter.EXAMPLES_READ, 4)
    assert snapshot_of(one, 0).examples_read == snapshot_of(other, 0).examples_read == 7


def test_another_process_counts_on_the_same_board_and_its_replacement_goes_on():
    board = new_board()
    for _ in range(2):  # a worker and its replacement
        pid = os.fork()
        if not pid:
            board.reader_row(1).add(Counter.EXAMPLES_READ, 5)
            os._exit(0)
        os.waitpid(pid, 0)
    assert snapshot_of(board, 0).examples_read == 10


def test_counters_hold_more_than_32_bits():
    board = new_board()
    board.prefetcher_row(0).add(Counter.BYTES_STAGED, 3 * 10**12)
    assert snapshot_of(board, 0).bytes_staged == 3 * 10**12


def test_a_snapshot_is_frozen_and_every_field_of_it_is_explained():
    board = new_board()
    stats = snapshot_of(board, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.examples_read = 1  # type: ignore[misc]  # that is the point
    explained = inspect.cleandoc(Stats.__doc__ or "")
    for field in dataclasses.fields(Stats):
        assert f"\n    {field.name}: " in explained


def test_printed_statistics_are_lines_with_units():
    board = new_board()
    reader, prefetcher = board.reader_row(0), board.prefetcher_row(0)
    reader.put(Counter.OPENS_TIER_0, 990)
    reader.put(Counter.OPENS_SOURCE, 10)
    prefetcher.put(Counter.FILES_STAGED, 1200)
    prefetcher.put(Counter.BYTES_STAGED, 24 * 10**6)
    prefetcher.add_latency(20_000_000)
    board.trainer_row().put(Counter.WAIT_NS, 2 * 10**9)
    board.trainer_row().put(Counter.WAIT_INDEX_NS, 2 * 10**9)
    board.supervisor_row().put(Counter.STORE_BUSY_NS, 10**10)
    text = str(snapshot_of(board, time.monotonic_ns() - 10**10))
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert max(map(len, text.splitlines())) < 150
    assert lines["trainer"].endswith("waited 20% of the time: index 2.0 s")
    assert "1,200 files, 24.0 MB, at 2.4 MB/s; a file takes 2" in text
    assert "99.0% of opens are hits (990 hits, 10 misses)" in lines["staging"]
    assert "other nodes" not in text
