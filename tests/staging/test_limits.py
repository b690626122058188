"""Capacity, free space and inodes, seen from outside while four processes stage at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlapiter.staging.room import Room
from overlapiter.staging.store import Store
from tests.chainer.faults import mounted, mounted_tmpfs
from tests.staging.processes import (
    BLOCK_BYTES,
    counts,
    disk_bytes,
    forked,
    make_files,
    stager,
    used_bytes,
    watched,
    without_locks,
)  # fmt: skip

N_FILES = 150
MOST_BLOCKS = 5
MOST_BYTES = MOST_BLOCKS * BLOCK_BYTES
CAPACITY_BYTES = 40 * MOST_BYTES
#: The usage file and the mark of the source are not counted.
NOTES_BYTES = 2 * BLOCK_BYTES


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    return make_files(tmp_path / "source", N_FILES, MOST_BLOCKS)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with mounted_tmpfs(tmp_path / "fast", 2 * CAPACITY_BYTES) as disk:
        yield disk


def made_store(directory: Path, room: Room) -> Store:
    return Store(str(directory), str(directory.parent / "source"), room)


@pytest.mark.parametrize("evicts", [False, True], ids=["", "evicting"])
@pytest.mark.parametrize("locks", ["locks", "no locks"])
def test_four_processes_never_exceed_the_capacity_and_count_exactly(
    directory, names, monkeypatch, evicts, locks
):
    if locks == "no locks":
        without_locks(monkeypatch)
    pids = [
        forked(
            stager(
                made_store(directory, Room(str(directory), CAPACITY_BYTES, 0)),
                names,
                seed,
                evicts=evicts,
            )
        )
        for seed in range(4)
    ]
    if evicts:  # a file removed while it is open takes space for a moment: look at the sizes
        samples = list(watched(pids, lambda: used_bytes(directory), stops=True))
    else:
        samples = list(watched(pids, lambda: disk_bytes(directory) - NOTES_BYTES))
    assert len(samples) > 3
    assert max(samples) <= CAPACITY_BYTES
    assert disk_bytes(directory) > CAPACITY_BYTES - 2 * MOST_BYTES
    assert list(directory.glob("*/partial/*")) == []
    counted_bytes, actual_bytes = counts(directory)
    # Without locks two may have published the same file: the count may be too high, never low.
    assert counted_bytes == actual_bytes or (locks == "no locks" and counted_bytes > actual_bytes)


def test_a_job_without_a_capacity_counts_for_one_that_has_one(directory, names):
    unlimited = made_store(directory, Room(str(directory), None, 0))
    limited = made_store(directory, Room(str(directory), CAPACITY_BYTES, 0))
    for _ in watched([forked(stager(unlimited, names[:30], 0, evicts=False))], lambda: 0):
        pass
    assert disk_bytes(directory) > 30 * BLOCK_BYTES
    pids = [forked(stager(limited, names[30:], seed, evicts=False)) for seed in range(3)]
    samples = list(watched(pids, lambda: disk_bytes(directory)))
    assert max(samples) <= CAPACITY_BYTES + NOTES_BYTES
    counted_bytes, actual_bytes = counts(directory)
    assert counted_bytes == actual_bytes


@pytest.mark.parametrize("locks", ["locks", "no locks"])
def test_the_capacity_holds_while_processes_are_killed_and_others_take_over(
    directory, names, monkeypatch, locks
):
    if locks == "no locks":
        without_locks(monkeypatch)
    numbers = random.Random(7)

    def start(seed: int) -> int:
        store = made_store(directory, Room(str(directory), CAPACITY_BYTES, 0))
        return forked(stager(store, names, seed, evicts=True))

    samples = []
    for round_ in range(5):
        pids = [start(4 * round_ + number) for number in range(4)]
        doomed, n_looks = set(pids[:3]), numbers.randint(1, 8)
        for sample in watched(pids, lambda: used_bytes(directory), stops=True):
            samples.append(sample)
            if len(samples) % n_looks == 0 and doomed:
                with contextlib.suppress(ProcessLookupError):  # it is done
                    os.kill(doomed.pop(), signal.SIGKILL)
    assert max(samples) <= CAPACITY_BYTES
    room = Room(str(directory), CAPACITY_BYTES, 0)
    store = made_store(directory, room)
    store.sweep()
    assert list(directory.glob("*/partial/*")) == []
    assert list(directory.glob("overlapiter.usage*")) != []
    assert room.counts()[0] >= room.counts()[1]
    room.recount()
    assert room.counts()[0] == room.counts()[1]
    for name in names:  # nothing that is there is wrong
        copy = Path(store.staged_path(name))
        assert not copy.exists() or copy.read_bytes() == Path(name).read_bytes()
    store.close()


def test_four_processes_leave_the_free_space_that_is_to_be_kept(tmp_path, names):
    keep_bytes = CAPACITY_BYTES // 2
    with mounted_tmpfs(tmp_path / "disk", 2 * CAPACITY_BYTES) as disk:

        def free_bytes() -> int:
            found = os.statvfs(disk)
            return found.f_bavail * found.f_frsize

        pids = []
        for seed in range(4):
            store = Store(str(disk), str(tmp_path / "source"), Room(str(disk), None, keep_bytes))
            pids.append(forked(stager(store, names, seed, evicts=False)))
        samples = list(watched(pids, free_bytes))
        assert min(samples) >= keep_bytes
        assert free_bytes() < keep_bytes + 5 * MOST_BYTES


def test_four_processes_leave_the_inodes_that_are_to_be_kept(tmp_path):
    names = make_files(tmp_path / "source", 400, 1)
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "nr_inodes=300,size=8m", "none") as disk:

        def free_inodes() -> int:
            return os.statvfs(disk).f_favail

        pids = []
        for seed in range(4):
            room = Room(str(disk), None, 0, keep_free_inodes=30)
            store = Store(str(disk), str(tmp_path / "source"), room)
            pids.append(forked(stager(store, names, seed, evicts=False)))
        samples = list(watched(pids, free_inodes))
        assert min(samples) >= 30
        assert free_inodes() < 30 + 300 // 8 + 10


def test_a_file_system_that_has_no_number_of_inodes_is_left_alone(directory, monkeypatch):
    found = os.statvfs(directory)
    unknown = os.statvfs_result((*found[:5], 0, 0, 0, *found[8:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: unknown)
    assert Room(str(directory), None, 0, keep_free_inodes=10**9).reserve(1)
    assert Room(str(directory), None, 1, keep_free_inodes=0).reserve(1)


def test_a_copy_under_way_counts_as_what_it_will_take_of_the_disk(tmp_path):
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m", "none") as disk:
        partial = disk / "images-0" / "partial" / "1"
        partial.parent.mkdir(parents=True)
        with partial.open("wb") as file:
            assert Room(str(disk), None, 1 << 20).reserve(2 << 20, fd=file.fileno())
        assert not Room(str(disk), None, 1 << 20).reserve(1 << 20)  # 1 MiB less some blocks
        assert Room(str(disk), None, 1 << 20).reserve(1 << 19)
        partial.unlink()
