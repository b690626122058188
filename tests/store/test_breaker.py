"""The breaker: one try at a time while the disk is sick, with longer and longer pauses."""

from __future__ import annotations

from overlapiter.store.breaker import Breaker


def test_one_request_passes_after_each_pause_and_the_pauses_double_up_to_five_seconds():
    breaker = Breaker()
    now_seconds, pauses = 100.0, []
    for _ in range(7):
        breaker.failed(now_seconds)
        pause_seconds = 0.0
        while not breaker.is_passable(now_seconds + pause_seconds):
            pause_seconds += 0.25
        assert not breaker.is_passable(now_seconds + pause_seconds)  # while that one is under way
        now_seconds += pause_seconds
        pauses.append(pause_seconds)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_requests_that_fail_together_count_once():
    breaker = Breaker()
    assert all(breaker.is_passable(0.0) for _ in range(64))
    for _ in range(64):
        breaker.failed(0.0)
    assert not breaker.is_passable(0.24)
    assert breaker.is_passable(0.25)


def test_a_request_that_goes_well_ends_the_pause():
    breaker = Breaker()
    assert breaker.is_closed
    breaker.failed(0.0)
    assert not breaker.is_closed
    breaker.succeeded()
    assert breaker.is_closed
    assert breaker.is_passable(0.0)
    assert breaker.is_passable(0.0)
