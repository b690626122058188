"""A worker that is silent is given up, but not too soon."""

from __future__ import annotations

from overlapiter.mpi.training.attendance import Attendance


def begun(*workers: int) -> Attendance:
    """Return workers that have all joined at time 0, and may be silent for 5 seconds."""
    attendance = Attendance(workers, 5, 0.0)
    for worker in workers:
        attendance.join(worker)
    return attendance


def lost(attendance: Attendance, until: float, waiting: tuple[int, ...] = ()) -> dict[int, str]:
    """Look once a second until a time; return the workers that are lost then."""
    for now in range(int(until) + 1):
        for worker, reason in attendance.silent(now, waiting):
            attendance.lost[worker] = reason
    return attendance.lost


def test_a_silent_worker_is_lost_but_not_one_that_waits_for_the_server() -> None:
    attendance = begun(1, 2, 3)
    attendance.hear(2, 4.0)
    assert lost(attendance, 6, waiting=(3,)) == {1: "silent for 5 s"}
    assert attendance.present == {2, 3}


def test_the_time_of_a_worker_begins_when_the_server_no_longer_keeps_it_waiting() -> None:
    attendance = begun(1, 2)
    attendance.hear(2, 20.0)
    assert lost(attendance, 10, waiting=(1,)) == {}
    assert [[*attendance.silent(now, ())] for now in (11, 12, 13, 14, 15)] == [[]] * 5
    assert [*attendance.silent(16, ())] == [(1, "silent for 5 s")]


def test_the_last_worker_has_a_minute() -> None:
    attendance = begun(1, 2)
    assert lost(attendance, 60) == {1: "silent for 5 s"}
    assert lost(attendance, 61)[2] == "silent for 60 s"


def test_a_worker_that_is_to_start_has_a_minute() -> None:
    attendance = Attendance((1, 2), 5, 0.0)
    assert not attendance.has_begun
    attendance.join(2)
    attendance.hear(2, 60.0)
    assert lost(attendance, 60) == {}
    assert lost(attendance, 61) == {1: "silent for 60 s"}


def test_a_server_that_was_stopped_blames_no_worker() -> None:
    attendance = begun(1, 2)
    assert lost(attendance, 4) == {}
    assert not [*attendance.silent(1000.0, ())]
    assert [*attendance.silent(1001.0, ())]
