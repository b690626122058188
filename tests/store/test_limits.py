"""Capacity and free space, seen from outside while several processes stage and evict."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
from pathlib import Path

import pytest

from overlapiter.store import opened
from overlapiter.store.extents import SMALL_BYTES
from overlapiter.store.index import IndexBusyError
from overlapiter.store.store import Store
from tests.store.actors import apart, in_a_process, stopped
from tests.store.disks import mounted, mounted_btrfs, mounted_ext4, mounted_tmpfs
from tests.store.stores import (
    BLOCK_BYTES,
    Files,
    disk_bytes,
    in_blocks,
    made_store,
    n_right,
    one_place,
    segment_paths,
    stage,
    staged,
    sum_of_charges,
    wanted,
    written,
)

CAPACITY_BYTES = 60 * BLOCK_BYTES


def staging_and_evicting(store: Store, files: Files, seed: int, n_parts: int):
    """Stage parts in an order of its own; evict any files when there is no room."""
    numbers = random.Random(seed)
    for _ in range(n_parts):
        part = numbers.sample(files.paths, 3)
        n_tries = 0
        while len(stage(store, files, part)) < 3 and n_tries < 20:
            store.evict([store.key_of(path) for path in numbers.sample(files.paths, 6)])
            n_tries += 1
        yield n_tries


def in_use(directory: Path) -> int:
    found = os.statvfs(directory)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def fill(path: Path, size_bytes: int) -> None:
    """Append so many bytes again and again, until the disk is full."""
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
        while True:
            file.write(bytes(size_bytes))


def test_four_processes_never_exceed_the_capacity_nor_does_what_they_count(tmp_path, act):
    files = Files(60)
    with mounted_tmpfs(tmp_path / "fast", 16 << 20) as directory:
        beside_bytes = 0

        def prefetcher(seed):
            store = made_store(directory, seed, capacity_bytes=CAPACITY_BYTES)
            yield from staging_and_evicting(store, files, seed, 60)
            store.close()
            yield store.close()

        def onlooker():
            store = made_store(directory, 99)
            while True:
                try:
                    before = store.total_bytes()
                    yield before, sum_of_charges(store), store.total_bytes()
                except IndexBusyError:  # one was stopped amid writing to the log's own index
                    yield 0, 0, 0

        look = act(onlooker)
        look.step()
        actors = [act(lambda seed=seed: prefetcher(seed)) for seed in range(4)]
        most_bytes, n_evicting, n_looks = 0, 0, 0
        for number in range(60):
            for actor in actors:
                actor.begin()
            for _ in range(3):
                with stopped(actors):
                    most_bytes = max(most_bytes, disk_bytes(directory))
                    total_bytes, charged_bytes, _ = look.step()
                n_looks += total_bytes > 0
                assert total_bytes == charged_bytes <= CAPACITY_BYTES
            n_evicting += sum(actor.answer() > 0 for actor in actors)
            total_bytes, charged_bytes, _ = look.step()
            beside_bytes = disk_bytes(directory)
            assert beside_bytes <= total_bytes == charged_bytes <= CAPACITY_BYTES, number
        assert n_evicting > 20
        assert n_looks > 170
        assert CAPACITY_BYTES * 0.8 < most_bytes <= CAPACITY_BYTES
        for actor in actors:
            actor.step()
            actor.kill()
        total_bytes, charged_bytes, _ = look.step()
        look.kill()
        assert total_bytes == charged_bytes == disk_bytes(directory)
        assert apart(lambda: n_right_once_full(directory, files)) > 10


@in_a_process
def test_the_capacity_holds_on_a_disk_that_keeps_what_it_has_allocated_at_once(tmp_path):
    files = Files(300, most_bytes=64 * BLOCK_BYTES)
    capacity_bytes = files.blocks_bytes // 3
    with mounted_btrfs(tmp_path / "fast", 200 << 20) as directory:
        store = made_store(directory, capacity_bytes=capacity_bytes)
        os.sync()
        before_bytes = in_use(directory)
        for _ in staging_and_evicting(store, files, 1, 300):
            pass
        os.sync()
        assert in_use(directory) - before_bytes < 1.2 * capacity_bytes  # the index grows, too
        assert n_right(store, files) > 50
        store.close()


def n_right_once_full(directory: Path, files: Files) -> int:
    """Stage what there is room for, and count the files; all that are staged have to be right."""
    store = made_store(directory, capacity_bytes=CAPACITY_BYTES)
    for path in files.paths:
        stage(store, files, [path])
    found = n_right(store, files)
    assert found == len(staged(store, files))
    return found


def test_the_capacity_holds_while_processes_are_killed_and_others_take_over(tmp_path, act):
    files = Files(60)
    numbers = random.Random(7)
    with mounted_tmpfs(tmp_path / "fast", 16 << 20) as directory:

        def prefetcher(seed):
            store = made_store(directory, seed, capacity_bytes=CAPACITY_BYTES)
            store.take_over()
            yield from staging_and_evicting(store, files, seed, 10**9)

        actors = [act(lambda seed=seed: prefetcher(seed)) for seed in range(4)]
        for seed in range(4, 40):
            for actor in actors:
                actor.begin()
            for _ in range(numbers.randrange(3)):
                for actor in actors:
                    actor.answer()
                    actor.begin()
            with stopped(actors):
                assert disk_bytes(directory) <= CAPACITY_BYTES
            doomed = actors.pop(numbers.randrange(4))
            doomed.kill()
            for actor in actors:
                actor.answer()
            actors.append(act(lambda seed=seed: prefetcher(seed)))
        for actor in actors:
            actor.kill()

        def later():
            store = made_store(directory, 99)
            store.sweep()
            assert n_right(store, files)  # how many: as was just being replaced
            store.close()
            counts = store.total_bytes(), sum_of_charges(store)
            store.close()
            return counts

        assert apart(later) == (disk_bytes(directory),) * 2
        assert disk_bytes(directory) <= CAPACITY_BYTES


@in_a_process
def test_what_fits_is_staged_to_the_last_block(directory):
    files = Files(30, most_bytes=1)
    store = made_store(directory, capacity_bytes=30 * BLOCK_BYTES)
    assert len(stage(store, files, files.paths)) == 30
    assert one_place(store, 1) is None
    store.evict([store.key_of(path) for path in files.paths[:2]])
    assert one_place(store, 2 * BLOCK_BYTES) is not None
    assert one_place(store, 1) is None
    store.close()


@in_a_process
def test_a_large_file_that_does_not_fit_leaves_nothing(directory):
    store = made_store(directory, capacity_bytes=3 << 20)
    assert one_place(store, 4 << 20) is None
    assert not store.can_ever_hold(4 << 20)
    place = one_place(store, 3 << 20)
    assert one_place(store, SMALL_BYTES + 1) is None
    assert one_place(store, 1) is None
    store.give_up(place)
    assert store.can_ever_hold(3 << 20)
    assert one_place(store, 1) is not None
    store.close()


@in_a_process
def test_a_capacity_that_was_larger_before_is_known_to_be_exceeded(directory, files):
    store = made_store(directory)
    stage(store, files, files.paths)
    store.close()
    less = made_store(directory, 2, capacity_bytes=files.blocks_bytes - 7 * BLOCK_BYTES)
    assert less.excess_bytes() == 7 * BLOCK_BYTES
    assert one_place(less, 1) is None
    less.evict([less.key_of(path) for path in files.paths])
    assert less.excess_bytes() == 0
    less.close()


@in_a_process
def test_a_process_reserves_little_where_there_is_little(directory, files):
    store = made_store(directory, capacity_bytes=files.blocks_bytes)
    assert len(stage(store, files, files.paths)) == len(files.paths)
    store.close()


def test_processes_together_leave_the_free_space_that_is_to_be_kept(tmp_path, act):
    files = Files(400)
    keep_bytes = 2 << 20
    with mounted_tmpfs(tmp_path / "fast", 4 << 20) as directory:

        def prefetcher(seed):
            store = made_store(directory, seed, keep_free_bytes=keep_bytes)
            order = random.Random(seed).sample(files.paths, 400)
            for first in range(0, 400, 8):
                yield len(stage(store, files, order[first : first + 8]))

        def free_bytes():
            found = os.statvfs(directory)
            return found.f_bavail * found.f_frsize

        actors = [act(lambda seed=seed: prefetcher(seed)) for seed in range(4)]
        n_staged = [0] * 4
        for _ in range(50):
            for actor in actors:
                actor.begin()
            n_staged = [actor.answer() for actor in actors]
            assert free_bytes() >= keep_bytes
        assert min(n_staged) < 8
        assert free_bytes() < keep_bytes + (400 << 10)
        for actor in actors:
            actor.kill()


def test_the_index_has_room_where_no_free_space_is_to_be_kept(tmp_path):
    files = Files(400)
    with mounted_tmpfs(tmp_path / "fast", 4 << 20) as directory:

        def fill():
            store = made_store(directory)
            for first in range(0, 400, 8):
                stage(store, files, files.paths[first : first + 8])
            n_staged = n_right(store, files)
            assert one_place(store, SMALL_BYTES) is None
            store.close()
            return n_staged

        assert 50 < apart(fill) < 400


@in_a_process
def test_a_disk_without_inodes_is_full_for_large_files_alone(tmp_path):
    options = "-t", "tmpfs", "-o", "nr_inodes=60,size=90m", "none"
    with mounted(tmp_path / "fast", *options) as directory:
        files, store = Files(60), made_store(directory)
        files.contents = dict.fromkeys(files.paths, bytes(SMALL_BYTES + 1))
        left = iter(files.paths)
        assert not all(stage(store, files, [path]) for path in left)
        assert one_place(store, 100) is not None  # takes none
        store.close()
        later = made_store(directory, 2)
        n_files = len(staged(later, files))
        assert n_files > 40
        later.evict([later.key_of(files.paths[0])])
        assert stage(later, files, [next(left)])
        assert n_right(later, files) == n_files
        later.close()


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_on_a_disk_that_is_full_to_the_last_block_a_new_process_evicts(tmp_path, kind):
    files = Files(100)

    def stage_all():
        store = made_store(directory)
        stage(store, files, files.paths)
        store.close()

    def fill_up():
        for size_bytes in (1 << 20, 4096, 512, 1):
            fill(directory / "other", size_bytes)
        with pytest.raises(OSError, match="No space"), open(directory / "other", "ab") as other:
            other.write(bytes(2 * BLOCK_BYTES))

    def evict():
        store = made_store(directory, 2)
        keys = [store.key_of(path) for path in files.paths]
        assert len(store.evict(keys[:50])) == 50
        store.close()
        return store.total_bytes(), n_right(store, files), store.close()

    mount = mounted_tmpfs if kind == "tmpfs" else mounted_ext4
    with mount(tmp_path / "fast", 16 << 20) as directory:
        apart(stage_all)
        fill_up()
        total_bytes, n_found, _ = apart(evict)
        assert n_found == 50
        assert total_bytes == disk_bytes(directory)


def test_what_the_index_gives_up_on_a_full_disk_is_set_aside_again_later(tmp_path):
    def open_it():
        store = made_store(directory)
        store.total_bytes()
        is_set_aside = reserve.exists()
        store.close()
        return is_set_aside

    with mounted_tmpfs(tmp_path / "fast", 4 << 20) as directory:
        reserve = directory / "overlapiter" / "g0001" / "reserve"
        apart(open_it)
        reserved_bytes = reserve.stat().st_blocks * 512
        fill(directory / "other", BLOCK_BYTES)
        for _ in range(2):
            assert not apart(open_it)
            assert reserve.stat().st_blocks * 512 == reserved_bytes  # when it was closed
            fill(directory / "more", BLOCK_BYTES)
        (directory / "other").unlink()
        reserve.unlink()
        reserve.touch()  # as versions before this one have left it
        assert apart(open_it)
        assert reserve.stat().st_blocks * 512 == reserved_bytes > 0


def test_a_process_that_has_the_index_open_evicts_when_the_disk_becomes_full(tmp_path, act):
    files = Files(200)
    with mounted_tmpfs(tmp_path / "fast", 8 << 20) as directory:

        def evict():
            store = made_store(directory)
            stage(store, files, files.paths[:150])
            yield
            with contextlib.suppress(OSError):
                stage(store, files, files.paths[150:])
            while not store.evict([store.key_of(path) for path in files.paths[:75]]):
                pass
            yield len(stage(store, files, files.paths[150:])), n_right(store, files)
            store.close()
            yield

        actor = act(evict)
        actor.step()
        fill(directory / "other", BLOCK_BYTES)
        n_staged, n_found = actor.step()
        assert n_staged > 30
        assert n_found == 75 + n_staged
        actor.step()


@in_a_process
def test_below_a_limit_of_file_sizes_segments_are_as_small(directory):
    files = Files(100)
    limit_bytes = files.blocks_bytes // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    store = made_store(directory)
    for first in range(0, 100, 5):
        stage(store, files, files.paths[first : first + 5])
    assert n_right(store, files) == 100
    assert len(segment_paths(directory)) >= 3
    store.close()
    assert store.total_bytes() == disk_bytes(directory)
    store.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_segment_that_ends_at_the_limit_of_file_sizes_is_closed_or_taken_over(
    directory, is_killed
):
    limit_bytes = 1 << 20
    files = Files(8)
    files.contents = dict.fromkeys(files.paths, bytes(limit_bytes // 8))

    def limited(number):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        return made_store(directory, number)

    def fill():
        store = limited(1)
        assert len(stage(store, files, files.paths)) == 8
        if not is_killed:
            store.close()
            assert (0,) in store._access.rows("SELECT owner FROM segment")

    def look():
        store = limited(2)
        store.take_over()
        assert n_right(store, files) == 8
        store.close()
        assert store.total_bytes() == disk_bytes(directory) == limit_bytes
        store.close()

    apart(fill)
    apart(look)


def test_a_process_with_a_lower_limit_of_file_sizes_mends_and_evicts_what_others_have_staged(
    directory,
):
    files = Files(8)
    files.contents = dict.fromkeys(files.paths, bytes((256 << 10) - 100))

    def mend_and_evict():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        store = made_store(directory, 2)
        store.take_over()
        assert n_right(store, files) == 8
        store.evict([store.key_of(path) for path in files.paths[1::2]])
        assert n_right(store, files) == 4
        store.close()
        assert store.total_bytes() == 4 * 256 << 10
        store.close()

    apart(lambda: len(stage(made_store(directory), files, files.paths)))  # and is killed
    apart(mend_and_evict)


@in_a_process
def test_a_file_beyond_the_limit_of_file_sizes_is_refused(directory):
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 << 10, 512 << 10))
    store = made_store(directory)
    with pytest.raises(OSError, match="File too large") as caught:
        one_place(store, 600 << 10)
    assert caught.value.errno == errno.EFBIG
    assert one_place(store, 500 << 10) is not None
    store.close()


@in_a_process
def test_what_the_disk_refuses_to_set_aside_is_not_charged(directory, files, monkeypatch):
    store = made_store(directory)
    assert store.total_bytes() == 0

    def extend(_segment, _size_bytes):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(opened.Segment, "extend", extend)
        assert one_place(store, 100) is None
        assert one_place(store, 2 * SMALL_BYTES) is None
        claim = store.claim(wanted(store, files.paths[3:5]))
        assert len(claim.mine) == 2
        assert store.total_bytes() == sum_of_charges(store) == disk_bytes(directory) == 0
    store.publish([written(store, path, files.contents[path]) for path in files.paths[3:5]], [])
    assert n_right(store, files) == 2
    store.close()


def test_a_stopped_process_that_holds_a_reservation_keeps_no_other_from_staging(directory, act):
    files = Files(30)

    def holder():
        store = made_store(directory, 1, capacity_bytes=CAPACITY_BYTES)
        stage(store, files, files.paths[:2])
        yield

    def other():
        store = made_store(directory, 2, capacity_bytes=CAPACITY_BYTES)
        store.claim(wanted(store, files.paths[2:5]))
        for path in files.paths[2:5]:
            assert one_place(store, in_blocks(len(files.contents[path]))) is not None
        yield

    one, two = act(holder), act(other)
    one.step()
    one.signal(signal.SIGSTOP)
    two.step()
