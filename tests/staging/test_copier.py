"""The copier: one try at a time while the disk is sick, and each trouble told in one text."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from overlapiter.staging import copier as copier_module
from overlapiter.staging.breaker import Breaker
from overlapiter.staging.copier import Copier
from overlapiter.staging.store import Outcome, Staged

COPIED = Staged(Outcome.COPIED, "/staged/a", 1, 10)
FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_breaker_lets_one_request_through_after_each_pause_and_pauses_longer_each_time():
    breaker = Breaker()
    now, pauses = 100.0, []
    for _ in range(7):
        ticket = breaker.enter(now)
        assert ticket is not None
        breaker.failed(ticket, now)
        start = now
        while True:
            assert breaker.enter(now) is None
            now += 0.25
            if now - start >= 2.0 * (pauses or [0.125])[-1] or now - start >= 5:
                break
        pauses.append(now - start)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_requests_that_fail_together_count_once():
    breaker = Breaker()
    tickets = [breaker.enter(0.0) for _ in range(64)]
    for ticket in tickets:
        breaker.failed(ticket, 0.0)
    assert breaker.enter(0.24) is None
    assert breaker.enter(0.25) is not None
    assert breaker.enter(0.25) is None  # the one above is under way


def test_a_request_that_goes_well_ends_the_pause_but_not_one_from_before_it():
    breaker = Breaker()
    early, other = breaker.enter(0.0), breaker.enter(0.0)
    breaker.failed(other, 0.0)
    breaker.succeeded(early)
    assert breaker.enter(0.1) is None
    breaker.succeeded(breaker.enter(1.0))
    assert breaker.enter(1.0) == breaker.enter(1.0)


class Disk:
    """In the place of a store: gives or raises what it is told to."""

    directory = "/fast"

    def __init__(self) -> None:
        self.n_asked = 0
        self.answer: Any = COPIED

    def fetch(self, _path: str, _make_room: Any = None, _origin: Any = None) -> Staged:
        self.n_asked += 1
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


class Clock:
    """In the place of the module ``time``."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(copier_module, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [
        (FULL, Outcome.REFUSED),
        (OSError(5, "EIO", "/fast/x"), Outcome.FAILED),
        (Staged(Outcome.REFUSED, None), Outcome.REFUSED),
    ],
)
def test_a_sick_disk_is_left_alone_and_staging_goes_on_when_it_has_recovered(
    clock, trouble, outcome
):
    disk, told = Disk(), []
    copier = Copier(disk, told.append)
    disk.answer = trouble
    for _ in range(10):
        assert copier.copy("/a").outcome is outcome
    n_told = int(outcome is Outcome.FAILED)  # of a full one its owner tells
    assert (disk.n_asked, len(told)) == (1, n_told)
    clock.now += 0.25
    copier.copy("/a")
    assert (disk.n_asked, len(set(told))) == (2, n_told)

    disk.answer = COPIED
    clock.now += 0.5
    for _ in range(10):
        assert copier.copy("/a") == COPIED


@pytest.mark.usefixtures("clock")
def test_what_is_told_of_a_disk_names_the_directory_and_what_to_do_but_no_file():
    for number, words in (
        (errno.EROFS, ["Read-only", "full or broken"]),
        (errno.EMFILE, ["Too many open files", "ulimit -n"]),
    ):
        told: list[str] = []
        disk = Disk()
        for name in ("one", "other"):
            disk.answer = OSError(number, os.strerror(number), f"/fast/{name}")
            Copier(disk, told.append).copy("/a")
        assert len(set(told)) == 1
        assert all(word in told[0] for word in ["/fast", *words])


@pytest.mark.parametrize("trouble", [FULL, OSError(errno.EDQUOT, "Disk quota exceeded")])
def test_while_a_disk_is_full_room_is_made_and_the_file_tried_again(trouble):
    disk = Disk()
    disk.answer = trouble
    n_victims = 3

    def make_room() -> bool:
        nonlocal n_victims
        n_victims -= 1
        if n_victims == 0:
            disk.answer = COPIED
        return n_victims >= 0

    assert Copier(disk, pytest.fail).copy("/a", make_room) == COPIED
    assert (disk.n_asked, n_victims) == (3, 0)  # each time twice as many go
    disk.answer = trouble
    assert Copier(disk, pytest.fail).copy("/a", make_room).outcome is Outcome.REFUSED


def test_a_full_disk_is_not_left_alone_where_room_can_be_made(clock):
    disk = Disk()
    copier = Copier(disk, pytest.fail)
    disk.answer = FULL
    for _ in range(3):
        assert copier.copy("/a").outcome is Outcome.REFUSED
    disk.answer = COPIED
    assert copier.copy("/a", lambda: True) == COPIED
    assert copier.copy("/a").outcome is Outcome.REFUSED
    clock.now += 0.25
    assert copier.copy("/a") == COPIED


@pytest.mark.usefixtures("clock")
def test_a_path_that_cannot_be_staged_says_nothing_about_the_disk():
    disk, told = Disk(), []
    copier = Copier(disk, told.append)
    for number in (errno.EISDIR, errno.EFBIG):
        disk.answer = OSError(number, os.strerror(number))
        assert copier.copy("/a").outcome is Outcome.FAILED
        disk.answer = COPIED
        assert copier.copy("/b") == COPIED
    assert len(told) == 1
    assert "ulimit -f" in told[0]
