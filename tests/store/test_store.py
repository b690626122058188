"""Staging by one process and by several: each file is copied once, and found by all."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from overlapiter.store import access, opened, segments
from overlapiter.store.extents import SMALL_BYTES, WHOLE, Extent, ExtentReader
from overlapiter.store.index import Index
from overlapiter.store.store import Wanted
from tests.store.actors import apart, in_a_process
from tests.store.stores import (
    BLOCK_BYTES,
    SOURCE,
    Files,
    check_accounts,
    disk_bytes,
    in_blocks,
    made_store,
    n_right,
    one_place,
    read,
    segment_paths,
    stage,
    staged,
    sum_of_charges,
    wanted,
    written,
    written_together,
)


@in_a_process
def test_a_staged_file_is_found_and_read_by_this_process_and_by_later_ones(directory, files):
    store = made_store(directory)
    assert len(stage(store, files, files.paths)) == len(files.paths)
    assert n_right(store, files) == len(files.paths)
    store.close()
    later = made_store(directory, run=2)
    assert n_right(later, files) == len(files.paths)
    later.close()


@in_a_process
def test_closing_gives_back_what_is_reserved_and_the_total_is_what_lies_on_the_disk(
    directory, files
):
    store = made_store(directory)
    stage(store, files, files.paths)
    assert store.total_bytes() > files.blocks_bytes
    store.close()
    assert store.total_bytes() == files.blocks_bytes
    store.close()
    assert disk_bytes(directory) == files.blocks_bytes


@in_a_process
def test_what_could_not_be_given_back_at_first_is_when_the_process_rests(
    directory, files, monkeypatch
):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = made_store(directory)
    stage(store, files, files.paths)
    with monkeypatch.context() as patch:
        patch.setattr(segments, "punch", fail)
        with pytest.raises(OSError, match="Input/output error"):
            store.evict([store.key_of(path) for path in files.paths])
    store.rest()
    assert store.total_bytes() == disk_bytes(directory) == 0
    store.close()


def test_a_file_is_claimed_by_one_process_and_the_others_see_by_which(directory, files, act):
    def first():
        store = made_store(directory)
        claim = store.claim(wanted(store, files.paths[:3]))
        yield claim.mine
        store.publish([written(store, path, files.contents[path]) for path in files.paths[:3]], [])
        yield
        store.close()

    def second():
        store = made_store(directory)
        claim = store.claim(wanted(store, files.paths[:4]))
        yield claim.mine, claim.others
        assert [store.progress(owner) is not None for owner in claim.others.values()] == [True] * 3
        assert store.being_copied([*claim.mine, *claim.others]).keys() >= claim.others.keys()
        yield
        assert store.being_copied([*claim.others]) == {}
        yield n_right(store, files)
        store.close()

    one, other = act(first), act(second)
    keys = one.step()
    assert len(keys) == 3
    mine, others = other.step()
    assert (len(mine), list(others)) == (1, keys)
    assert len(set(others.values())) == 1
    other.step()
    one.step()
    assert other.step() == 3


def test_of_four_processes_that_want_the_same_files_one_copies_each(directory, act):
    files = Files(60)

    def prefetcher():
        store = made_store(directory)
        n_mine = 0
        for first in range(0, 60, 5):
            part = wanted(store, files.paths[first : first + 5])
            claim = store.claim(part)
            n_mine += len(claim.mine)
            mine = [w for w in part if w.key in claim.mine]
            store.publish([written(store, w.path, files.contents[w.path]) for w in mine], [])
        yield n_mine
        store.close()
        yield

    actors = [act(prefetcher) for _ in range(4)]
    for actor in actors:
        actor.begin()
    assert sum(actor.answer() for actor in actors) == 60
    for actor in actors:
        actor.step()
        actor.kill()
    assert disk_bytes(directory) == files.blocks_bytes
    store = made_store(directory)
    assert apart(lambda: (n_right(store, files), store.total_bytes())) == (60, files.blocks_bytes)


@in_a_process
def test_threads_of_one_process_share_a_store(directory):
    files = Files(200)
    store = made_store(directory)
    parts = [files.paths[first : first + 5] for first in range(0, 200, 5)]
    threads = [
        threading.Thread(target=lambda mine: [stage(store, files, part) for part in mine], args=[m])
        for m in (parts, parts[::-1], parts[10:] + parts[:10], parts[20:] + parts[:20])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert n_right(store, files) == 200
    store.close()
    assert store.total_bytes() == disk_bytes(directory) == files.blocks_bytes
    store.close()


@in_a_process
def test_a_file_that_was_not_copied_can_be_claimed_again(directory, files):
    store = made_store(directory)
    part = wanted(store, files.paths[:2])
    claim = store.claim(part)
    copy = written(store, part[0].path, b"half of it")
    store.give_up(copy[1])
    store.publish([], claim.mine)
    assert store.claim(part).mine == claim.mine
    store.close()
    assert store.total_bytes() == disk_bytes(directory) == 0
    store.close()


@in_a_process
def test_the_same_file_twice_in_a_part_is_claimed_once(directory, files):
    store = made_store(directory)
    part = wanted(store, [files.paths[0]] * 2)
    assert store.claim(part).mine == [part[0].key]
    store.close()


@in_a_process
def test_a_large_file_has_a_segment_of_its_own_with_a_path(directory):
    files = Files(3, most_bytes=1)
    files.contents[files.paths[0]] = os.urandom(SMALL_BYTES + 1)
    store = made_store(directory)
    extent = stage(store, files, files.paths)[files.paths[0]]
    assert extent.start == WHOLE
    path = ExtentReader([str(directory)]).path_of(extent)
    assert Path(path).read_bytes() == files.contents[files.paths[0]]
    with open(path, "rb") as opened:
        assert store.evict([extent.key]) == {extent.key: in_blocks(SMALL_BYTES + 1)}
        assert not os.path.exists(path)
        assert opened.read() == files.contents[files.paths[0]]
    store.close()
    assert store.total_bytes() == disk_bytes(directory) == 2 * BLOCK_BYTES
    store.close()


@in_a_process
def test_an_outdated_copy_is_replaced_and_its_blocks_are_given_back(directory, files):
    store = made_store(directory)
    old = stage(store, files, files.paths[:4])
    path = files.paths[1]
    files.contents[path] = b"new"
    store.drop([old[path]])
    claim = store.claim(wanted(store, [path]))
    assert claim.mine == [store.key_of(path)]
    store.publish([written(store, path, b"new")], [])
    assert n_right(store, files) == 4
    reader = ExtentReader([str(directory)])
    assert read(reader, old[path]) is None
    reader.close()
    store.close()
    assert store.total_bytes() == disk_bytes(directory) == sum_of_charges(store)
    store.close()


@in_a_process
def test_a_copy_that_another_process_has_replaced_is_no_more_outdated(directory, files):
    store = made_store(directory)
    path = files.paths[0]
    old = stage(store, files, [path])[path]
    store.drop([old._replace(checksum=old.checksum + 1)])
    assert staged(store, files) == {path: old}
    store.drop([old])
    assert staged(store, files) == {}
    store.close()


@in_a_process
def test_a_file_that_is_published_twice_leaves_nothing_of_the_first_copy(directory, files):
    store = made_store(directory)
    copy = written(store, files.paths[0], files.contents[files.paths[0]])
    store.publish([copy], [])
    again = written(store, files.paths[0], files.contents[files.paths[0]])
    store.publish([again], [])
    assert staged(store, files) == {files.paths[0]: again[2]}
    store.close()
    size_bytes = in_blocks(len(files.contents[files.paths[0]]))
    assert store.total_bytes() == disk_bytes(directory) == size_bytes
    store.close()


@in_a_process
def test_of_two_paths_with_one_key_the_later_is_staged(directory, files):
    store = made_store(directory)
    extent = stage(store, files, files.paths[:1])[files.paths[0]]
    twin = Wanted(extent.key, f"{SOURCE}/twin.jpg")
    assert store.look([twin]) == {}
    assert store.claim([twin]).mine == [twin.key]
    _, place, later = written(store, twin.path, b"twin")
    store.publish([(twin, place, later._replace(key=twin.key))], [])
    assert [*store.look([twin])] == [twin.key]
    assert store.look(wanted(store, files.paths[:1])) == {}
    store.close()
    assert store.total_bytes() == disk_bytes(directory) == in_blocks(4)
    store.close()


@in_a_process
def test_files_of_one_name_below_two_sources_do_not_meet(directory, files):
    one, other = made_store(directory), made_store(directory, run=2, source="/lustre/others")
    stage(one, files, files.paths[:3])
    assert other.look(wanted(other, files.paths[:3])) == {}
    assert one.key_of("/a") != other.key_of("/a")
    other.close()
    one.close()


@in_a_process
def test_names_that_are_no_text_are_staged(directory):
    files = Files(0)
    path = os.fsdecode(os.fsencode(SOURCE) + b"/\xff\n'\".jpg")
    files.contents[path] = b"content"
    files.paths.append(path)
    store = made_store(directory)
    stage(store, files, [path])
    assert n_right(store, files) == 1
    store.close()


@in_a_process
def test_empty_files_take_a_block_each_so_that_no_two_places_are_the_same(directory):
    files = Files(4, most_bytes=1)
    files.contents = dict.fromkeys(files.paths, b"")
    store = made_store(directory)
    extents = stage(store, files, files.paths)
    assert len({extent.start for extent in extents.values()}) == 4
    assert sum(store.evict([extent.key for extent in extents.values()]).values()) == 16384
    store.close()
    assert store.total_bytes() == disk_bytes(directory) == 0
    store.close()


@in_a_process
def test_a_full_segment_is_followed_by_another_and_removed_when_it_is_empty(directory, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 16 * BLOCK_BYTES)
    files = Files(40)
    store = made_store(directory)
    extents = {}
    for first in range(0, 40, 4):
        extents |= stage(store, files, files.paths[first : first + 4])
    assert n_right(store, files) == 40
    assert all(path.stat().st_size <= 16 * BLOCK_BYTES for path in segment_paths(directory))
    n_segments = len(segment_paths(directory))
    assert n_segments >= files.blocks_bytes // (16 * BLOCK_BYTES)
    store.evict([extent.key for path, extent in extents.items() if path in files.paths[:30]])
    assert len(segment_paths(directory)) < n_segments / 2
    assert n_right(store, files) == 10
    store.close()
    assert store.total_bytes() == disk_bytes(directory) == sum_of_charges(store)
    store.close()


@pytest.mark.parametrize("end", ["published", "closed"])
@in_a_process
def test_a_segment_is_not_closed_while_a_thread_is_about_to_lower_its_charge(
    directory, monkeypatch, end
):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4 * BLOCK_BYTES)
    monkeypatch.setattr(opened, "_PATIENCE_SECONDS", 0.01)
    files = Files(9, BLOCK_BYTES)
    store = made_store(directory)
    stage(store, files, files.paths[:4])  # into the segment that stays open
    (*_, failed) = store.claim(wanted(store, files.paths[4:8])).mine
    copies = written_together(store, [(path, files.contents[path]) for path in files.paths[4:8]])
    store.publish(copies[:3], [])
    store.give_up(copies[3][1])
    index, begun, go_on = store._access._opened.index, threading.Event(), threading.Event()
    write = index.write

    def write_later(work):
        if threading.current_thread() is late:
            begun.set()
            go_on.wait()
        return write(work)

    late = threading.Thread(target=store.publish, args=[[], [failed]])
    monkeypatch.setattr(index, "write", write_later)
    late.start()
    begun.wait()
    if end == "published":
        stage(store, files, files.paths[8:])  # into the next segment
    else:
        store.close()
    go_on.set()
    late.join()
    store.take_over()
    store.close()
    check_accounts(store, directory)


def test_the_progress_of_a_process_is_seen_in_whichever_segment_it_writes(
    directory, monkeypatch, act
):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4 * BLOCK_BYTES)

    def writer():
        store = made_store(directory)
        claim = store.claim(wanted(store, [f"{SOURCE}/claimed.jpg"]))
        yield claim.mine
        for number in range(10):
            path = f"{SOURCE}/{number}.jpg"
            store.publish([written(store, path, bytes(2 * BLOCK_BYTES))], [])
            yield
        yield written(store, f"{SOURCE}/large", bytes(2 * SMALL_BYTES)) and None

    def onlooker():
        store = made_store(directory)
        (owner,) = store.claim(wanted(store, [f"{SOURCE}/claimed.jpg"])).others.values()
        while True:
            yield store.progress(owner)

    one, other = act(writer), act(onlooker)
    one.step()
    before = other.step()
    for _ in range(11):
        one.step()
        after = other.step()
        assert after != before
        before = after
    assert other.step() == before


@in_a_process
def test_looking_at_a_process_that_copies_reads_the_rows_of_its_own_segments(
    directory, files, monkeypatch
):
    store = made_store(directory)
    stage(store, files, files.paths)
    ((owner,),) = store._access.rows("SELECT owner FROM segment WHERE owner > 0")
    statements, rows = [], Index.rows

    def noted(index, statement, *values):
        statements.append(statement)
        return rows(index, statement, *values)

    with monkeypatch.context() as patch:
        patch.setattr(Index, "rows", noted)
        assert len(store.progress(owner)) == 1
    ((*_, plan),) = store._access.rows(f"EXPLAIN QUERY PLAN {statements[-1]}", owner)
    assert "open_segment" in plan
    store.close()


@in_a_process
def test_places_that_stay_pending_while_a_store_is_closed_are_left_to_others(
    directory, files, monkeypatch
):
    monkeypatch.setattr(opened, "_PATIENCE_SECONDS", 0.01)
    store = made_store(directory)
    (claimed,) = store.claim(wanted(store, files.paths[:1])).mine
    copy = written(store, files.paths[0], files.contents[files.paths[0]])
    large = one_place(store, 2 * SMALL_BYTES)
    store.close()
    os.pwrite(copy[1].segment.fd, b"late", copy[1].start)  # into its own file still
    store.publish([copy], [])
    assert store.look(wanted(store, files.paths[:1])) == {}
    store.give_up(large)
    assert copy[1].segment.fd == large.segment.fd == -1
    assert store.take_over() > 0
    assert store.claim(wanted(store, files.paths[:1])).mine == [claimed]
    store.close()
    assert store.total_bytes() == disk_bytes(directory) == 0
    store.close()


@in_a_process
def test_a_large_file_that_is_copied_while_a_store_is_closed_is_given_back_at_once(
    directory, files
):
    store = made_store(directory)
    store.claim(wanted(store, files.paths[:2]))
    published = written(store, files.paths[1], bytes(2 * SMALL_BYTES))
    large = one_place(store, 2 * SMALL_BYTES)
    store.publish([published], [])
    store.close()
    assert len(segment_paths(directory)) == 1
    os.pwrite(large.segment.fd, b"late", 0)  # into its own file still
    store.give_up(large)
    assert large.segment.fd == -1
    later = made_store(directory, 2)
    assert later.take_over() == 0
    assert later.total_bytes() == disk_bytes(directory) == 2 * SMALL_BYTES
    assert len(later.claim(wanted(later, files.paths[:1])).mine) == 1
    later.close()


@in_a_process
def test_the_last_close_waits_for_what_threads_write_and_lets_nothing_begin_after_it(
    directory, files, monkeypatch
):
    monkeypatch.setattr(opened, "_PATIENCE_SECONDS", 60)
    monkeypatch.setattr(access, "_END_SECONDS", 60)
    store = made_store(directory)
    store.claim(wanted(store, files.paths[:1]))
    copy = written(store, files.paths[0], files.contents[files.paths[0]])
    end = threading.Thread(target=store.close, kwargs={"is_last": True})
    end.start()
    while not store._access._has_ended:
        time.sleep(0.001)
    with pytest.raises(OSError, match="has ended"):
        store.look([])
    with pytest.raises(OSError, match="has ended"):
        store.publish([copy], [])
    end.join()
    later = made_store(directory, 2)
    assert later.take_over() == 0
    assert later.total_bytes() == disk_bytes(directory)
    assert len(later.claim(wanted(later, files.paths[:1])).mine) == 1
    later.close()


@in_a_process
def test_an_extent_is_refused_whatever_its_numbers_are(directory, files):
    store = made_store(directory)
    extent = stage(store, files, files.paths[:1])[files.paths[0]]
    reader = ExtentReader([str(directory)])
    assert read(reader, extent) == files.contents[files.paths[0]]
    for name in Extent._fields:
        if name != "tier":
            for number in (-(1 << 63), -1, 0, 1, 7, 1 << 40, (1 << 63) - 1):
                data = read(reader, extent._replace(**{name: number}))
                assert data in (None, files.contents[files.paths[0]])
                assert data is None or number in (extent._asdict()[name], WHOLE)
    reader.close()
    store.close()


@pytest.mark.parametrize("size_bytes", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_a_size_in_blocks_is_at_least_one(size_bytes):
    assert segments.aligned(size_bytes, BLOCK_BYTES) == max(BLOCK_BYTES, in_blocks(size_bytes))
