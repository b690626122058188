"""Places of evicted files: written to again by files of as many blocks, or given back."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from overlapiter.store import places, segments
from overlapiter.store.extents import SMALL_BYTES, DamagedError, ExtentReader
from overlapiter.store.store import Store
from tests.store.actors import in_a_process
from tests.store.stores import (
    BLOCK_BYTES,
    Files,
    check_accounts,
    disk_bytes,
    in_blocks,
    made_store,
    one_place,
    read,
    stage,
    staged,
    sum_of_charges,
    wanted,
)

#: What takes longer hangs.
_LONG_SECONDS = 30.0


def files_of(*n_blocks: int) -> Files:
    """Return files that take so many blocks each."""
    files, numbers = Files(len(n_blocks)), random.Random(1)
    for path, n in zip(files.paths, n_blocks, strict=True):
        files.contents[path] = numbers.randbytes(n * BLOCK_BYTES - 100)
    return files


def evict(store: Store, paths: list[str]) -> None:
    store.evict([store.key_of(path) for path in paths], keep_room=True)


def assert_right(store: Store, files: Files, paths: list[str]) -> None:
    reader = ExtentReader([store.site.directory])
    extents = staged(store, files)
    assert {path: read(reader, extents[path]) for path in paths} == {
        path: files.contents[path] for path in paths
    }
    reader.close()


@in_a_process
def test_a_file_of_as_many_blocks_takes_the_place_of_an_evicted_one(tmp_path: Path) -> None:
    files = files_of(3, 5, 2, 5, 3, 2)
    old, new = files.paths[:3], files.paths[3:]
    store = made_store(tmp_path, capacity_bytes=10 * BLOCK_BYTES)
    before = stage(store, files, old)
    evict(store, old)
    after = stage(store, files, new)
    assert {e[2:4] for e in after.values()} == {e[2:4] for e in before.values()}
    assert sorted(staged(store, files)) == sorted(new)
    assert_right(store, files, new)
    assert store.total_bytes() == sum_of_charges(store) == 10 * BLOCK_BYTES
    reader = ExtentReader([str(tmp_path)])
    for extent in before.values():
        with pytest.raises(DamagedError):
            reader.read(extent)
    reader.close()
    store.close()
    check_accounts(store, tmp_path)


@in_a_process
def test_places_of_other_sizes_make_room_all_the_same(tmp_path: Path) -> None:
    files = files_of(3, 3, 3, 4, 5)
    store = made_store(tmp_path, capacity_bytes=10 * BLOCK_BYTES)
    stage(store, files, files.paths[:3])
    evict(store, files.paths[:3])
    assert sorted(stage(store, files, files.paths[3:])) == sorted(files.paths[3:])
    assert_right(store, files, files.paths[3:])
    assert disk_bytes(tmp_path) <= store.total_bytes() <= 10 * BLOCK_BYTES
    store.close()
    check_accounts(store, tmp_path)


@in_a_process
def test_files_that_are_written_together_get_their_places_together(tmp_path: Path) -> None:
    # Between two calls the room of the second file could be given to others.
    files = files_of(3, 5, 3, 4)
    store = made_store(tmp_path, capacity_bytes=8 * BLOCK_BYTES)
    stage(store, files, files.paths[:2])
    evict(store, files.paths[:2])
    places_of_both = store.places([len(files.contents[path]) for path in files.paths[2:]])
    assert len(places_of_both) == 2
    for place in places_of_both:
        store.give_up(place)
    store.close()
    check_accounts(store, tmp_path)


@in_a_process
def test_a_large_file_has_the_room_of_small_ones(tmp_path: Path) -> None:
    files = files_of(*[8] * 40, 300)
    assert len(files.contents[files.paths[-1]]) > SMALL_BYTES
    store = made_store(tmp_path, capacity_bytes=320 * BLOCK_BYTES)
    stage(store, files, files.paths[:40])
    evict(store, files.paths[:40])
    assert [*stage(store, files, files.paths[40:])] == files.paths[40:]
    assert_right(store, files, files.paths[40:])
    store.close()
    check_accounts(store, tmp_path)


@in_a_process
def test_a_large_file_that_takes_the_room_of_another_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(300, 300, 300)
    store = made_store(tmp_path, capacity_bytes=610 * BLOCK_BYTES)
    stage(store, files, files.paths[:2])
    evict(store, files.paths[:1])
    made, make_owned = [], segments.make_owned
    monkeypatch.setattr(segments, "make_owned", lambda f: made.append(f) or make_owned(f))
    assert [*stage(store, files, files.paths[2:])] == files.paths[2:]
    assert len(made) == 1
    store.close()
    check_accounts(store, tmp_path)


@in_a_process
def test_places_that_nothing_is_written_to_are_given_back(tmp_path: Path) -> None:
    files = files_of(3, 4, 5)
    store = made_store(tmp_path)
    stage(store, files, files.paths)
    evict(store, files.paths[:2])
    assert store.total_bytes() >= 12 * BLOCK_BYTES
    store.rest()
    assert store.total_bytes() == disk_bytes(tmp_path) == 5 * BLOCK_BYTES
    evict(store, files.paths[2:])
    store.close()
    check_accounts(store, tmp_path)


@in_a_process
def test_places_of_another_process_are_written_to(tmp_path: Path) -> None:
    files = files_of(3, 3, 3)
    one = made_store(tmp_path, 1, capacity_bytes=3 * BLOCK_BYTES)
    other = made_store(tmp_path, 2, capacity_bytes=3 * BLOCK_BYTES)
    before = stage(one, files, files.paths[:1])
    evict(other, files.paths[:1])
    after = stage(other, files, files.paths[1:2])
    assert [e[2:4] for e in after.values()] == [e[2:4] for e in before.values()]
    one.close()
    assert_right(other, files, files.paths[1:2])
    evict(other, files.paths[1:2])  # in a segment that nobody appends to any more
    stage(other, files, files.paths[2:])
    assert_right(other, files, files.paths[2:])
    other.close()
    check_accounts(other, tmp_path)


@pytest.mark.parametrize("limit", ["capacity", "free space"])
@in_a_process
def test_where_less_is_to_be_on_the_disk_all_is_given_back(tmp_path: Path, limit: str) -> None:
    files = files_of(4, 4, 4)
    before = made_store(tmp_path, 1)
    stage(before, files, files.paths)
    before.close()
    disk = os.statvfs(tmp_path)
    limits = {"capacity_bytes": 6 * BLOCK_BYTES}
    if limit == "free space":
        limits = {"keep_free_bytes": disk.f_blocks * disk.f_frsize}
    store = made_store(tmp_path, 2, **limits)
    evict(store, files.paths[:1])
    assert store.total_bytes() == disk_bytes(tmp_path) == 2 * in_blocks(4 * BLOCK_BYTES)
    assert stage(store, files, files.paths[:1]) == {}
    store.close()


@in_a_process
def test_a_capacity_that_became_less_counts_what_is_vacant(tmp_path: Path) -> None:
    files = files_of(4, 4, 4)
    store = made_store(tmp_path, 1, capacity_bytes=12 * BLOCK_BYTES)
    stage(store, files, files.paths)
    evict(store, files.paths[:1])
    store.site = store.site._replace(capacity_bytes=8 * BLOCK_BYTES)
    assert store.excess_bytes() == 0
    store.close()


@in_a_process
def test_who_waits_for_a_process_sees_that_it_writes_to_such_places(tmp_path: Path) -> None:
    files = files_of(*[2] * 6)
    old = made_store(tmp_path, 1, capacity_bytes=4 * BLOCK_BYTES)
    stage(old, files, files.paths[:2])
    old.close()
    store, waiting = (
        made_store(tmp_path, 2, capacity_bytes=4 * BLOCK_BYTES),
        made_store(tmp_path, 3),
    )
    slow = wanted(store, files.paths[5:])
    store.claim(slow)
    owner = waiting.claim(slow).others[slow[0].key]
    evict(store, files.paths[:1])
    stage(store, files, files.paths[2:3])
    before = waiting.progress(owner)
    time.sleep(0.02)
    evict(store, files.paths[1:2])
    stage(store, files, files.paths[3:4])
    assert waiting.progress(owner) != before
    store.publish([], [slow[0].key])
    store.close()
    waiting.close()


@in_a_process
@pytest.mark.parametrize("start", [-BLOCK_BYTES, 1 << 61])
def test_a_place_that_cannot_be_is_damage_and_is_not_written_to(tmp_path: Path, start: int) -> None:
    files = files_of(2, 2, 2)
    warnings: list[str] = []
    store = made_store(tmp_path, capacity_bytes=6 * BLOCK_BYTES)
    store._access._warn = warnings.append
    stage(store, files, files.paths)
    key = store.key_of(files.paths[1])
    store._access.write(lambda c: c.execute("UPDATE staged SET start=? WHERE key=?", (start, key)))
    evict(store, files.paths[1:2])
    assert "damaged" in warnings[0]
    stage(store, files, files.paths)
    assert_right(store, files, files.paths)
    store.close()
    check_accounts(store, tmp_path)


@in_a_process
def test_a_place_that_cannot_be_written_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(*[2] * 8)
    store = made_store(tmp_path, capacity_bytes=8 * BLOCK_BYTES)
    bad_start = stage(store, files, files.paths[:4])[files.paths[3]].start
    write_many = places.write_many

    def fail_there(fd: int, pieces: Any, start: int) -> None:
        if start == bad_start:
            raise OSError(errno.EIO, "bad sector")
        write_many(fd, pieces, start)

    monkeypatch.setattr(places, "write_many", fail_there)
    evict(store, files.paths[:4])
    n_staged = 0
    for path in files.paths[4:]:
        store.claim(wanted(store, [path]))
        with contextlib.suppress(OSError):
            place = one_place(store, len(files.contents[path]))
            assert place is not None
            try:
                places.write_files([(place, files.contents[path])])
                n_staged += 1
            finally:
                store.give_up(place)  # what it holds does not matter here
    assert n_staged == 3
    store.close()
    check_accounts(store, tmp_path)


@in_a_process
def test_a_place_that_is_given_up_while_the_store_is_closed_is_given_back(tmp_path: Path) -> None:
    files = files_of(3, 3)
    store = made_store(tmp_path)
    stage(store, files, files.paths)
    evict(store, files.paths[:1])
    place = one_place(store, 3 * BLOCK_BYTES)
    assert place is not None
    is_waiting = threading.Event()
    condition = place.give_up.__self__._settled
    wait_for = condition.wait_for

    def noted(is_settled: Any, _patience: float) -> bool:
        is_waiting.set()
        return wait_for(is_settled, _LONG_SECONDS)

    condition.wait_for = noted
    closing = threading.Thread(target=store.close, kwargs={"is_last": True})
    closing.start()
    assert is_waiting.wait(_LONG_SECONDS)
    store.give_up(place)
    closing.join()
    another = made_store(tmp_path, run=2)
    assert another.total_bytes() == 3 * BLOCK_BYTES
    another.close()
