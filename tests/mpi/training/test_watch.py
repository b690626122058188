"""A server that does not answer is taken for dead, but not too soon."""

from __future__ import annotations

from overlapiter.mpi.training.watch import Watch


def pings(watch: Watch, begin: float, end: float) -> list[float]:
    """Look ten times a second; return when the server is asked for a sign of life."""
    times = [begin + i / 10 for i in range(round(10 * (end - begin)) + 1)]
    return [now for now in times if watch.look(now)]


def test_a_server_is_asked_four_times_before_it_is_taken_for_dead() -> None:
    watch = Watch(20)
    watch.hear()
    assert [round(at) for at in pings(watch, 0, 19)] == [5, 10, 15]
    assert not watch.reason
    pings(watch, 19, 20.2)
    assert watch.reason == "silent for 20 s"


def test_a_sign_of_life_begins_the_count_anew() -> None:
    watch = Watch(20)
    pings(watch, 0, 19)
    watch.hear()
    pings(watch, 19, 38)
    assert not watch.reason


def test_a_server_has_a_minute_to_start_and_10_seconds_on_a_busy_node() -> None:
    watch = Watch(1)
    pings(watch, 0, 59)
    assert not watch.reason
    watch.hear()
    pings(watch, 59, 68.5)
    assert not watch.reason
    pings(watch, 68.5, 69.5)
    assert watch.reason == "silent for 10 s"


def test_a_rank_that_was_stopped_itself_blames_no_server() -> None:
    watch = Watch(20)
    watch.look(0.0)
    watch.look(1000.0)
    assert not watch.reason
