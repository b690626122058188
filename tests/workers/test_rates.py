"""What tells a limit of bandwidth from one of requests: which rate is the steadier one."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from overlapiter.workers.supervisor.rates import StoreRates


class Sums(NamedTuple):
    """What was said of all files."""

    busy_ns: int
    file_changes: float
    byte_changes: float


def read(ns_of: object, n: int = 2000, pause_ns: int = 0) -> Sums:
    """Have files read one after the other, of which each takes ``ns_of(kb)``."""
    rates, news = StoreRates(), []
    drawn = random.Random(0)
    now_ns, n_kb = 10**9, 0
    for number in range(1, n + 1):
        kb = drawn.randint(5, 35)
        now_ns += int(ns_of(kb)) + pause_ns * (number % 500 == 0)  # type: ignore[operator]
        n_kb += kb
        news.append(rates.add(now_ns, number, n_kb))
    return Sums(*map(sum, zip(*news, strict=True)))


@pytest.mark.parametrize("pause_ns", [0, 2 * 10**9])
def test_where_bandwidth_is_the_limit_bytes_come_steadily(pause_ns: int) -> None:
    rates = read(lambda kb: kb * 1e5, pause_ns=pause_ns)

    assert rates.byte_changes < 0.1 * rates.file_changes


def test_where_requests_are_the_limit_files_come_steadily() -> None:
    rates = read(lambda _kb: 2e6)

    assert rates.file_changes < 0.1 * rates.byte_changes


def test_a_pause_counts_neither_as_a_change_nor_as_being_busy() -> None:
    rates = read(lambda _kb: 2e6, pause_ns=60 * 10**9)

    assert 4e9 < rates.busy_ns < 7e9


def test_another_load_on_the_store_is_no_change_of_sizes() -> None:
    rates = read(lambda _kb: 2e6, n=1000)
    drawn = iter([*[2e6] * 1000, *[8e6] * 1000])
    twice = read(lambda _kb: next(drawn))

    assert twice.file_changes <= rates.file_changes + 1.0
