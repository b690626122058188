"""The simulated policies, against brute force and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.claims.epochs import POLICIES, missed


def least_misses(reads: tuple[int, ...], room: int, staged: frozenset[int] = frozenset()) -> int:
    """Return how few reads can miss, by trying everything that may be evicted, or not be kept."""
    if not reads:
        return 0
    first, rest = reads[0], reads[1:]
    if first in staged:
        return least_misses(rest, room, staged)
    wider = staged | {first}
    choices = [wider] if len(wider) <= room else [wider - {gone} for gone in wider]
    return 1 + min(least_misses(rest, room, choice) for choice in choices)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 4))
def test_belady_misses_as_rarely_as_can_be(reads: list[int], room: int) -> None:
    assert sum(missed("belady", reads, room)) == least_misses(tuple(reads), room)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 8))
def test_no_policy_beats_belady_and_each_misses_every_first_read(
    reads: list[int], room: int
) -> None:
    least = sum(missed("belady", reads, room))
    firsts = [reads.index(read) for read in set(reads)]
    for policy in POLICIES:
        found = missed(policy, reads, room)
        assert sum(found) >= least
        assert all(found[place] for place in firsts)


@pytest.mark.parametrize("policy", POLICIES)
def test_with_room_for_everything_each_example_is_read_once(policy: str) -> None:
    reads = [2, 0, 1, 1, 2, 0, 2, 0, 1]
    assert missed(policy, reads, 3) == [True, True, True] + [False] * 6


def test_what_was_read_lately_stays_in_one_queue_and_goes_from_the_other() -> None:
    reads = [0, 1, 0, 2, 0]  # the third read renews 0 for one of them
    assert missed("lru", reads, 2) == [True, True, False, True, False]
    assert missed("fifo", reads, 2) == [True, True, False, True, True]
