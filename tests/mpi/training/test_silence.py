"""Servers and workers that are silent are given up, but not too soon."""

from __future__ import annotations

from overlapiter.mpi.training.silence import Attendance, Watch


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


# --- workers --------------------------------------------------------------------------------------


def begun(*workers: int) -> Attendance:
    """Return workers that have all joined at time 0, and may be silent for 5 seconds."""
    attendance = Attendance(workers, 5)
    attendance.joined.update(workers)
    return attendance


def lost(
    attendance: Attendance, until: float, waiting: tuple[int, ...] = (), speaking: int = 0
) -> dict[int, str]:
    """Look once a second until a time; return the workers that are lost then."""
    for now in range(int(until) + 1):
        for worker, reason in attendance.silent(now, waiting):
            attendance.lost[worker] = reason
        attendance.hear(speaking)
    return attendance.lost


def test_a_silent_worker_is_lost_but_not_one_that_speaks_or_waits_for_the_server() -> None:
    attendance = begun(1, 2, 3)
    assert lost(attendance, 6, waiting=(3,), speaking=2) == {1: "silent for 5 s"}
    assert attendance.present == {2, 3}


def test_the_time_of_a_worker_begins_when_the_server_no_longer_keeps_it_waiting() -> None:
    attendance = begun(1, 2)
    assert lost(attendance, 10, waiting=(1,), speaking=2) == {}
    for now in (11, 12, 13, 14, 15):
        assert not [*attendance.silent(now, ())]
        attendance.hear(2)
    assert [*attendance.silent(16, ())] == [(1, "silent for 5 s")]


def test_the_last_worker_has_a_minute() -> None:
    attendance = begun(1, 2)
    assert lost(attendance, 60) == {1: "silent for 5 s"}
    assert [*attendance.silent(61, ())] == [(2, "silent for 60 s")]


def test_a_worker_that_is_to_start_has_a_minute() -> None:
    attendance = Attendance((1, 2), 5)
    attendance.joined.add(2)
    assert lost(attendance, 60, speaking=2) == {}
    assert [*attendance.silent(61, ())] == [(1, "silent for 60 s")]


def test_a_server_that_was_stopped_blames_no_worker() -> None:
    attendance = begun(1, 2)
    assert lost(attendance, 4) == {}
    assert not [*attendance.silent(1000.0, ())]
    assert [*attendance.silent(1001.0, ())]
