"""Places of evicted files: written to again by files of as many blocks, or given back."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from overlapiter.store.extents import SMALL_BYTES, DamagedError, ExtentReader
from overlapiter.store.store import Store
from tests.store.stores import (
    BLOCK_BYTES,
    Files,
    check_accounts,
    disk_bytes,
    in_blocks,
    made_store,
    read,
    stage,
    staged,
    sum_of_charges,
)


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


def test_a_capacity_that_became_less_counts_what_is_vacant(tmp_path: Path) -> None:
    files = files_of(4, 4, 4)
    store = made_store(tmp_path, 1, capacity_bytes=12 * BLOCK_BYTES)
    stage(store, files, files.paths)
    evict(store, files.paths[:1])
    store.site = store.site._replace(capacity_bytes=8 * BLOCK_BYTES)
    assert store.excess_bytes() == 0
    store.close()
