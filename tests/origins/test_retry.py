"""Trying again: as long as it may help, and no longer."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from overlapiter.origins import retry
from overlapiter.origins.outages import Outages
from overlapiter.origins.retry import call_again, may_pass, status_of, trouble_words


class Clock:
    """Stands for the time, which passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now_seconds = 100.0
        self.pauses_seconds: list[float] = []

    def monotonic(self) -> float:
        return self.now_seconds

    def sleep(self, seconds: float) -> None:
        self.pauses_seconds.append(seconds)
        self.now_seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    fake = Clock()
    monkeypatch.setattr(retry, "time", fake)
    monkeypatch.setattr(retry, "random", random.Random(0))
    return fake


class Flaky:
    """Fails with each of some errors, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def tried(action: Flaky, patience_seconds: float, outages: Outages | None = None) -> str:
    return call_again(action, patience_seconds, outages or Outages(), "a.jpg")


def test_what_goes_well_is_done_once_and_without_a_pause(clock: Clock) -> None:
    assert tried(Flaky(), 10) == "done"
    assert clock.pauses_seconds == []


def test_pauses_double_less_a_random_part_up_to_a_longest_one(clock: Clock) -> None:
    assert tried(Flaky(*[ConnectionResetError()] * 10), 1000) == "done"
    full = [min(0.1 * 2**n, 8.0) for n in range(10)]
    for pause, longest in zip(clock.pauses_seconds, full, strict=True):
        assert longest / 2 <= pause <= longest
    assert len(set(clock.pauses_seconds)) == 10


def test_patience_counts_from_the_first_failure_and_ends_with_a_last_try(clock: Clock) -> None:
    flaky = Flaky(*[TimeoutError(str(n)) for n in range(1000)])
    with pytest.raises(TimeoutError) as caught:
        tried(flaky, 30)
    assert sum(clock.pauses_seconds) == pytest.approx(30)
    assert str(caught.value) == str(len(clock.pauses_seconds))


def test_what_cannot_pass_is_raised_at_once(clock: Clock) -> None:
    with pytest.raises(FileNotFoundError):
        tried(Flaky(FileNotFoundError()), 10)
    with pytest.raises(PermissionError):
        tried(Flaky(ConnectionResetError(), PermissionError()), 10)
    assert len(clock.pauses_seconds) == 1


def test_without_patience_everything_is_raised_at_once(clock: Clock) -> None:
    with pytest.raises(ConnectionResetError):
        tried(Flaky(ConnectionResetError()), 0)
    assert clock.pauses_seconds == []


# --- what failed before -----------------------------------------------------------------------


def refused() -> Flaky:
    return Flaky(*[ConnectionRefusedError()] * 1000)


def pauses_of(clock: Clock, outages: Outages, name: str, action: Flaky) -> float:
    """Return for how many seconds of a patience of 30 an action that fails was tried."""
    before = clock.now_seconds
    with pytest.raises(ConnectionRefusedError):
        call_again(action, 30, outages, name)
    return clock.now_seconds - before


def test_all_files_of_a_store_that_is_down_are_waited_for_together(clock: Clock) -> None:
    outages = Outages()
    waits = [pauses_of(clock, outages, f"{n}.jpg", refused()) for n in range(10)]
    assert waits == [pytest.approx(30), *[0] * 9]


def test_a_store_that_has_answered_is_waited_for_anew(clock: Clock) -> None:
    outages = Outages()
    for answer in (Flaky(), Flaky(FileNotFoundError())):
        assert pauses_of(clock, outages, "a.jpg", refused()) == pytest.approx(30)
        with contextlib.suppress(FileNotFoundError):
            call_again(answer, 30, outages, "b.jpg")
        assert pauses_of(clock, outages, "c.jpg", refused()) == pytest.approx(30)
        with contextlib.suppress(FileNotFoundError):
            call_again(answer, 30, outages, "c.jpg")
        clock.now_seconds += 100


def test_a_file_that_fails_alone_is_waited_for_once(clock: Clock) -> None:
    outages = Outages()
    assert pauses_of(clock, outages, "a.jpg", refused()) == pytest.approx(30)
    assert call_again(Flaky(), 30, outages, "b.jpg") == "done"
    assert pauses_of(clock, outages, "a.jpg", refused()) == 0
    assert call_again(Flaky(), 30, outages, "a.jpg") == "done"
    assert pauses_of(clock, outages, "a.jpg", refused()) == pytest.approx(30)


def test_a_failure_of_long_ago_does_not_count(clock: Clock) -> None:
    outages = Outages()
    assert pauses_of(clock, outages, "a.jpg", refused()) == pytest.approx(30)
    clock.now_seconds += 61
    assert pauses_of(clock, outages, "a.jpg", refused()) == pytest.approx(30)


def test_a_process_that_is_forked_knows_what_failed_in_another_one(clock: Clock) -> None:
    outages = pickle.loads(pickle.dumps(Outages()))  # as in the plan of a supervisor
    if not (pid := os.fork()):
        outages.note("a.jpg", clock.now_seconds - 50)
        os._exit(0)
    os.waitpid(pid, 0)
    assert pauses_of(clock, outages, "b.jpg", refused()) == 0


# --- what may pass ----------------------------------------------------------------------------


def botocore_error(status: int) -> Exception:
    error = Exception("An error occurred")
    error.response = {"ResponseMetadata": {"HTTPStatusCode": status}}  # type: ignore[attr-defined]
    return error


def aiohttp_error(status: int) -> Exception:
    error = Exception("refused")
    error.status = status  # type: ignore[attr-defined]
    return error


def translated(cause: BaseException, kind: Any = FileNotFoundError) -> Exception:
    """Return an error as fsspec raises it instead of its cause."""
    error: Exception = kind("s3://bucket/a")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("made", [botocore_error, aiohttp_error])
@pytest.mark.parametrize(
    ("status", "expected"),
    [(408, True), (429, True), (500, True), (503, True), (501, False), (404, False), (403, False)],
)
def test_the_answer_of_the_server_decides(made: Any, status: int, expected: bool) -> None:
    error = translated(made(status))
    assert status_of(error) == status
    assert may_pass(error) is expected


def test_a_broken_connection_passes_even_where_it_is_reported_as_a_missing_file() -> None:
    payload = type("ClientPayloadError", (Exception,), {})("not completed")
    payload.__cause__ = aiohttp_error(400)  # as aiohttp calls an answer that was cut
    refused = type("EndpointConnectionError", (type("ConnectionError", (Exception,), {}),), {})
    for cause in (payload, refused("no"), ConnectionRefusedError(), TimeoutError()):
        assert may_pass(translated(cause))
    assert may_pass(OSError(errno.ENETUNREACH, "no route"))


def test_a_host_that_does_not_exist_will_not_come_into_being() -> None:
    connection = type("ClientConnectionError", (Exception,), {})("cannot connect")
    connection.__cause__ = socket.gaierror(socket.EAI_NONAME, "not known")
    assert not may_pass(translated(connection))
    connection.__cause__ = socket.gaierror(socket.EAI_AGAIN, "try again")
    assert may_pass(translated(connection))


@pytest.mark.parametrize("error", [ValueError("no"), OSError(5, "I/O error"), KeyError("a")])
def test_anything_else_stays_as_it_is(error: Exception) -> None:
    assert not may_pass(error)
    assert status_of(error) is None


def test_what_is_the_matter_is_said_with_what_to_look_at() -> None:
    found = [
        trouble_words(translated(cause))
        for cause in (
            aiohttp_error(503),
            ConnectionRefusedError(errno.ECONNREFUSED, "no"),
            socket.gaierror(socket.EAI_NONAME, "not known"),
            type("EndpointConnectionError", (Exception,), {})(),
            TimeoutError(),
            ValueError(),
        )
    ]
    assert [words.partition(";")[0] for words in found] == [
        "the server answers 503",
        "the server refuses connections",
        "the server cannot be reached",
        "the server cannot be reached",
        "the connection broke",
        "the request failed",
    ]
