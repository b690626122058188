"""Staged files that somebody has written to: the count of bytes in use is never too low."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlapiter.staging.room import Room
from overlapiter.staging.store import Outcome
from tests.staging.stores import made_store, name_of, rewrite

GROWTH_BYTES = 300_000
CAPACITY_BYTES = 500_000


@pytest.fixture
def names(source: Path) -> list[str]:
    """Return some files, written long ago."""
    for number in range(20):
        os.utime(name_of(source, number), ns=(10**18, 10**18 + number))
    return [name_of(source, number) for number in range(20)]


def grow(path: str) -> None:
    with open(path, "ab") as file:
        file.write(bytes(GROWTH_BYTES))


def lying_bytes(staging: Path) -> int:
    return sum(path.stat().st_size for path in staging.glob("*/files/**/*.bin"))


def counted(staging: Path) -> int:
    used_bytes, found_bytes = Room(str(staging), None, 0).counts()
    assert found_bytes == lying_bytes(staging)
    assert used_bytes is not None
    return used_bytes


def remove_as_outdated(store, name: str) -> None:
    assert store.stage(name).outcome is Outcome.COPIED


def remove_as_changed(store, name: str) -> None:
    rewrite(name, b"new")
    assert store.stage(name).outcome is Outcome.COPIED


def remove_by_eviction(store, name: str) -> None:
    store.evict(name)
    assert store.peek(name) is None


def remove_as_stray(store, name: str) -> None:
    folder = os.open(os.path.dirname(store.staged_path(name)), os.O_RDONLY)
    store.evict_entry(os.path.basename(name), folder)
    os.close(folder)
    assert store.peek(name) is None


@pytest.mark.parametrize(
    "remove", [remove_as_outdated, remove_as_changed, remove_by_eviction, remove_as_stray]
)
def test_what_has_grown_is_not_counted_as_free_when_it_goes(names, source, staging, remove):
    store = made_store(source, staging, CAPACITY_BYTES)
    for name in names:
        assert store.stage(name).outcome is Outcome.COPIED
    assert counted(staging) == lying_bytes(staging)
    grow(store.staged_path(names[7]))
    remove(store, names[7])
    assert counted(staging) >= lying_bytes(staging)
    room = Room(str(staging), CAPACITY_BYTES, 0)
    spare_bytes = CAPACITY_BYTES - lying_bytes(staging)
    assert not room.reserve(spare_bytes + 1)  # for which it is counted anew, without a pause
    assert counted(staging) == lying_bytes(staging)
    assert room.reserve(spare_bytes)


def test_what_has_grown_and_stays_counts_from_the_next_recount_on(names, source, staging):
    store = made_store(source, staging, CAPACITY_BYTES)
    for name in names:
        assert store.stage(name).outcome is Outcome.COPIED
    for name in names[:2]:
        grow(store.staged_path(name))
    room = Room(str(staging), CAPACITY_BYTES, 0)
    room.recount()
    assert counted(staging) == lying_bytes(staging) > CAPACITY_BYTES
    assert not room.reserve(1)


def test_a_copy_that_is_only_read_linked_or_restricted_counts_as_free(names, source, staging):
    store = made_store(source, staging, CAPACITY_BYTES)
    for name in names:
        assert store.stage(name).outcome is Outcome.COPIED
        path = Path(store.staged_path(name))
        path.read_bytes()
        path.chmod(0o600)
        assert store.evict(name) == os.path.getsize(name)
    assert counted(staging) == 0


def test_a_file_that_is_published_during_a_recount_is_counted_once(names, source, staging):
    store = made_store(source, staging)
    assert store.stage(names[0]).outcome is Outcome.COPIED
    staged = Path(store.staged_path(names[0]))
    partial = Path(store.base, "partial", "as it was")
    os.link(staged, partial)  # a walk that met it there goes on, and meets it again
    assert Room(str(staging), None, 0).counts()[1] == staged.stat().st_size
    partial.unlink()
