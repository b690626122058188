"""Room in advance: the count is too high by what is left of it, never too low."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import overlapiter.staging.room as room_module
from overlapiter.staging.advance import ADVANCE_BYTES, ADVANCE_INODES, N_CELLS, Advance
from overlapiter.staging.amounts import bytes_below
from overlapiter.staging.room import Room

SMALL_BYTES = 1000
PLENTY_BYTES = 1 << 40
STAGED_BYTES = 64 * ADVANCE_BYTES

#: Reserves room for a partial file of that name and size.
Reserve = Callable[[str, int], bool]


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    folder = tmp_path / "source-0123" / "partial"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def cells() -> memoryview:
    return memoryview(bytearray(8 * N_CELLS)).cast("q")


def made_room(partial: Path, cells: memoryview, capacity_bytes: int | None = PLENTY_BYTES) -> Room:
    """Return the room of a directory in which so much is staged that advances are whole."""
    room = Room(str(partial.parents[1]), capacity_bytes, 0, advance=Advance(cells))
    room.prepare()
    if not (partial / "staged").exists():
        assert reserve(room, partial, "staged", STAGED_BYTES)
    return room


def reserve(room: Room, partial: Path, name: str, size_bytes: int = SMALL_BYTES) -> bool:
    with open(partial / name, "wb") as file:
        return room.reserve(size_bytes, fd=file.fileno())


def used_bytes(partial: Path) -> int:
    """Return what is counted as used besides."""
    return room_module.UsageFile(str(partial.parents[1])).look().used_bytes - STAGED_BYTES


def test_small_files_are_taken_from_one_advance_and_the_rest_of_it_is_given_back(partial, cells):
    room = made_room(partial, cells)
    for number in range(10):
        assert reserve(room, partial, str(number))
        assert (partial / str(number)).stat().st_size == SMALL_BYTES
        assert used_bytes(partial) == SMALL_BYTES + ADVANCE_BYTES
        assert not room.is_at_rest
    room.rest()
    assert room.is_at_rest
    assert used_bytes(partial) == 10 * SMALL_BYTES
    room.rest()
    assert used_bytes(partial) == 10 * SMALL_BYTES


@pytest.mark.parametrize(
    ("capacity_bytes", "size_bytes"),
    [(PLENTY_BYTES, ADVANCE_BYTES // 2), (STAGED_BYTES + 512 * SMALL_BYTES, SMALL_BYTES)],
    ids=["large file", "small capacity"],
)
def test_nothing_is_granted_in_advance_where_little_is_left_or_files_are_large(
    partial, cells, capacity_bytes, size_bytes
):
    room = made_room(partial, cells, capacity_bytes)
    for number in range(1, 4):
        assert reserve(room, partial, str(number), size_bytes)
        assert used_bytes(partial) == number * size_bytes


def test_nothing_is_granted_in_advance_where_little_is_staged(partial, cells):
    room = Room(str(partial.parents[1]), None, 0, advance=Advance(cells))
    for number in range(1, 4):
        assert reserve(room, partial, str(number))
        assert used_bytes(partial) == number * SMALL_BYTES - STAGED_BYTES


def test_an_advance_that_is_used_up_is_followed_by_another_one(partial, cells):
    room = made_room(partial, cells)
    n_files = 2 * ADVANCE_INODES + 5
    for number in range(n_files):
        assert reserve(room, partial, str(number))
    room.rest()
    assert used_bytes(partial) == n_files * SMALL_BYTES
    assert bytes_below(str(partial.parents[1])) == STAGED_BYTES + n_files * SMALL_BYTES


def test_what_a_dead_process_has_left_another_one_gives_back(partial, cells):
    assert reserve(made_room(partial, cells), partial, "1")
    heir = made_room(partial, cells)
    assert not heir.is_at_rest
    heir.rest()
    assert used_bytes(partial) == SMALL_BYTES


def test_a_process_that_takes_over_an_advance_takes_nothing_from_it(partial, cells):
    assert reserve(made_room(partial, cells), partial, "1")
    heir = made_room(partial, cells)
    assert reserve(heir, partial, "2")
    heir.rest()
    assert used_bytes(partial) == 2 * SMALL_BYTES


def test_a_file_that_cannot_be_given_its_size_takes_nothing(partial, cells):
    room = made_room(partial, cells)
    assert reserve(room, partial, "1")
    read_fd = os.open(partial / "1", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            room.reserve(SMALL_BYTES, fd=read_fd)
    finally:
        os.close(read_fd)
    room.rest()
    assert used_bytes(partial) == SMALL_BYTES


def test_a_recount_finds_all_that_was_taken_of_an_advance_before_and_meanwhile(
    partial, cells, monkeypatch
):
    room = made_room(partial, cells)
    assert reserve(room, partial, "before")

    def walk(directory: str) -> int:
        found_bytes = bytes_below(directory)
        assert reserve(room, partial, "meanwhile")  # where the walk has been
        return found_bytes

    monkeypatch.setattr(room_module, "bytes_below", walk)
    Room(str(partial.parents[1]), None, 0).recount()
    assert used_bytes(partial) >= 2 * SMALL_BYTES
    assert reserve(room, partial, "afterwards")
    room.rest()
    assert used_bytes(partial) >= 3 * SMALL_BYTES
    monkeypatch.undo()
    Room(str(partial.parents[1]), None, 0).recount()
    assert used_bytes(partial) == 3 * SMALL_BYTES


def test_free_space_that_was_granted_in_advance_is_not_granted_again(partial, cells, monkeypatch):
    block_bytes, keep_free_bytes = 4096, 1 << 30
    free_bytes = keep_free_bytes + (1 << 30)
    disk = SimpleNamespace(f_bavail=free_bytes // block_bytes, f_frsize=block_bytes, f_files=0)
    made_room(partial, cells).rest()  # where advances are whole
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    directory = str(partial.parents[1])
    room = Room(directory, None, keep_free_bytes, advance=Advance(cells))
    other = Room(directory, None, keep_free_bytes)
    os.truncate(partial / "staged", 0)  # so that nothing is on the way to the disk
    assert reserve(room, partial, "1")
    rest_bytes = free_bytes - keep_free_bytes - ADVANCE_BYTES // 2
    assert not room.is_at_rest
    assert not reserve(other, partial, "large", rest_bytes)
    room.rest()
    assert reserve(other, partial, "large", rest_bytes)


def test_a_large_file_that_cannot_be_given_its_size_leaves_the_advance_given_back(partial, cells):
    room = made_room(partial, cells)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert reserve(room, partial, "1")
    resource.setrlimit(resource.RLIMIT_FSIZE, (ADVANCE_BYTES, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            reserve(room, partial, "large", 2 * ADVANCE_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert used_bytes(partial) == SMALL_BYTES
