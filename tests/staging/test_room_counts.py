"""When the room in the staging directory is counted anew, and who waits for that: nobody."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from overlapiter.staging import room as room_module
from overlapiter.staging.room import Room
from overlapiter.staging.usage import BusyError
from tests.staging.stores import add_file


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "staging").mkdir()
    return str(tmp_path / "staging")


class Counts:
    """How often the directory is walked, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_walks = 0
        self.now = time.time()
        walk = room_module.bytes_below
        monkeypatch.setattr(room_module, "bytes_below", lambda path: self._count() or walk(path))
        monkeypatch.setattr(room_module.time, "time", lambda: self.now)

    def _count(self) -> None:
        self.n_walks += 1


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    return Counts(monkeypatch)


def test_a_count_is_kept_from_run_to_run_and_nothing_is_walked(directory, counts):
    Room(directory, None, 0).prepare()
    assert Room(directory, None, 0).reserve(600)
    add_file(directory, "a", 600)
    room = Room(directory, 1000, 0)
    room.prepare()
    assert room.reserve(400)
    add_file(directory, "b", 400)
    assert counts.n_walks == 0
    assert not room.reserve(1)  # only then it is


def test_what_users_removed_by_hand_is_found_out_when_there_is_no_room_but_not_each_time(
    directory, counts
):
    room = Room(directory, 1000, 0)
    room.prepare()
    path = add_file(directory, "a", 1000)
    assert room.reserve(1000)
    for _ in range(3):
        assert not room.reserve(1)
    assert counts.n_walks == 1
    path.unlink()
    assert not room.reserve(1)
    counts.now += 601
    assert room.reserve(1000)
    assert counts.n_walks == 2


def test_what_was_counted_before_a_reboot_is_counted_anew(directory, counts, monkeypatch):
    room = Room(directory, 1000, 0)
    room.prepare()
    add_file(directory, "a", 500)  # whose count was not written when the power failed
    monkeypatch.setattr(room_module, "boot_number", lambda: 4711)
    room.prepare()
    assert not room.reserve(501)
    assert room.reserve(500)
    assert counts.n_walks == 1


def test_while_one_counts_the_others_go_on(directory, monkeypatch):
    add_file(directory, "a", 500)
    room, other = Room(directory, 1000, 0), Room(directory, 1000, 0)
    begun, go_on, walk = threading.Event(), threading.Event(), room_module.bytes_below

    def walk_long(directory: str) -> int:
        begun.set()
        assert go_on.wait(30)
        return walk(directory)

    monkeypatch.setattr(room_module, "bytes_below", walk_long)
    for each in (room, other):  # the first one begins to count; neither waits to its end
        with pytest.raises(BusyError):
            each.reserve(1)
    assert begun.wait(30)
    assert Room(directory, None, 0).reserve(100)
    go_on.set()
    (counting,) = [t for t in threading.enumerate() if t.daemon and "_recount" in t.name]
    counting.join()
    assert not other.reserve(401)
    assert other.reserve(400)
