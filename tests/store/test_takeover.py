"""What processes leave that are killed, stopped or gone with the last boot."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from overlapiter.store import boot, index, limits, reclaim, segments
from overlapiter.store.extents import SMALL_BYTES
from overlapiter.store.generation import index_path, make_generation, segments_folder
from overlapiter.store.index import IndexBusyError
from tests.store.actors import apart, in_a_process
from tests.store.stores import (
    BLOCK_BYTES,
    Files,
    disk_bytes,
    made_store,
    n_right,
    one_place,
    reserve,
    segment_paths,
    stage,
    staged,
    sum_of_charges,
    wanted,
    written,
)


def mended(directory, files):
    """Take over in a process of its own; return how many files are right once all is mended."""

    def mend():
        store = made_store(directory, 99)
        store.take_over()
        n_found = n_right(store, files)
        assert len(stage(store, files, files.paths)) == len(files.paths)
        assert n_right(store, files) == len(files.paths)
        store.close()
        assert store.total_bytes() == sum_of_charges(store)
        total_bytes = store.total_bytes()
        store.close()
        return n_found, total_bytes

    n_found, total_bytes = apart(mend)
    assert total_bytes == disk_bytes(directory) == files.blocks_bytes
    return n_found


def test_what_a_killed_process_was_copying_others_copy_and_its_reservation_is_given_back(
    directory, files, act
):
    def prefetcher():
        store = made_store(directory)
        stage(store, files, files.paths[:10])
        store.claim(wanted(store, files.paths[10:20]))
        reserve(store, 256)
        for path in files.paths[10:15]:
            written(store, path, files.contents[path])
        one_place(store, 3 * SMALL_BYTES)
        yield

    actor = act(prefetcher)
    actor.step()
    actor.kill()
    assert mended(directory, files) == 10


def test_evictions_of_a_killed_process_are_finished(directory, files, act, monkeypatch):
    def evictor():
        store = made_store(directory)
        stage(store, files, files.paths)
        with monkeypatch.context() as patch:
            patch.setattr(reclaim, "_give_back", None)
            with pytest.raises(TypeError):
                store.evict([store.key_of(path) for path in files.paths[:7]])
        yield disk_bytes(directory)

    actor = act(evictor)
    assert actor.step() > files.blocks_bytes
    actor.kill()
    assert mended(directory, files) == len(files.paths) - 7


@in_a_process
def test_evictions_that_failed_are_finished_by_the_next_one(directory, files, monkeypatch):
    store = made_store(directory)
    stage(store, files, files.paths)
    keys = [store.key_of(path) for path in files.paths]

    def punch(*_):
        raise OSError(5, "no")

    with monkeypatch.context() as patch:
        patch.setattr(segments, "punch", punch)
        with pytest.raises(OSError, match="no"):
            store.evict(keys[:7])
    store.evict(keys[7:8])
    assert n_right(store, files) == len(keys) - 8
    store.close()
    assert store.total_bytes() == disk_bytes(directory) == sum_of_charges(store)
    store.close()


def test_a_stopped_process_keeps_what_it_copies(directory, files, act):
    def prefetcher():
        store = made_store(directory)
        claim = store.claim(wanted(store, files.paths[:3]))
        yield claim.mine
        copies = [written(store, path, files.contents[path]) for path in files.paths[:3]]
        store.publish(copies, [])
        yield n_right(store, files)

    def other():
        store = made_store(directory, 2)
        assert store.take_over() == 0
        store.sweep()
        claim = store.claim(wanted(store, files.paths[:3]))
        assert claim.mine == []
        yield [*claim.others]

    one = act(prefetcher)
    keys = one.step()
    one.signal(signal.SIGSTOP)
    assert act(other).step() == keys
    one.signal(signal.SIGCONT)
    assert one.step() == 3


def test_a_process_in_another_pid_namespace_is_alive_until_it_is_killed(directory, files, act):
    if os.geteuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode:
        pytest.skip("cannot make a pid namespace")

    def prefetcher():
        os.unshare(os.CLONE_NEWPID) if hasattr(os, "unshare") else _unshare_pid()
        read_fd, write_fd = os.pipe()
        child = os.fork()
        if not child:
            store = made_store(directory)
            stage(store, files, files.paths[:5])
            claim = store.claim(wanted(store, files.paths[5:8]))
            os.write(write_fd, f"{os.getpid()} {len(claim.mine)}".encode())
            signal.pause()
        yield child, os.read(read_fd, 100)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        yield

    def other():
        store = made_store(directory, 2)
        assert store.take_over() == 0
        claim = store.claim(wanted(store, files.paths[5:8]))
        yield (
            len(claim.mine),
            [store.progress(owner) is not None for owner in claim.others.values()],
        )
        yield [store.progress(owner) is not None for owner in claim.others.values()]
        assert store.take_over() > 0
        yield len(store.claim(wanted(store, files.paths[5:8])).mine)

    one, two = act(prefetcher), act(other)
    _, answer = one.step()
    assert answer == b"1 3"
    assert two.step() == (0, [True] * 3)
    one.step()
    assert two.step() == [False] * 3
    assert two.step() == 3
    two.kill()
    assert mended(directory, files) == 5


def _unshare_pid() -> None:
    import ctypes

    assert ctypes.CDLL(None).unshare(0x20000000) == 0


@in_a_process
def test_files_that_neither_a_row_nor_a_process_has_are_removed_and_nothing_else(directory, files):
    store = made_store(directory)
    stage(store, files, files.paths[:3])
    folder = segments_folder(str(directory))
    _, kept_fd = segments.make_owned(folder)
    _, garbage_fd = segments.make_owned(folder)
    os.write(garbage_fd, b"garbage")
    os.close(garbage_fd)
    for name in ("notes.txt", "abc", "0" * 15 + "g"):
        with open(os.path.join(folder, name), "w") as file:
            file.write("a user's")
    os.mkdir(os.path.join(folder, "0" * 16))
    os.symlink("/etc/passwd", os.path.join(folder, "1" * 16))
    before = len(segment_paths(directory))
    store.sweep()
    assert len(segment_paths(directory)) == before - 1
    os.close(kept_fd)
    store.sweep()
    assert len(segment_paths(directory)) == before - 2
    assert n_right(store, files) == 3
    store.close()


def test_a_file_that_is_being_made_is_not_taken_for_garbage(directory, act):
    folder = segments_folder(str(directory))
    make_generation(str(directory))

    def maker():
        for _ in range(300):
            number, fd = segments.make_owned(folder)
            assert os.path.exists(segments.segment_path(folder, number))
            assert os.fstat(fd).st_nlink == 1
            segments.remove(folder, number)
            os.close(fd)
        yield

    def sweeper():
        while True:
            for number in segments.listed(folder):
                segments.remove_garbage(folder, number)
            yield

    makers, sweepers = [act(maker) for _ in range(2)], [act(sweeper) for _ in range(2)]
    for actor in makers:
        actor.begin()
    for _ in range(200):
        for actor in sweepers:
            actor.step()
    for actor in makers:
        actor.answer()


def test_two_processes_that_take_over_at_once_lower_a_charge_once(directory, files, act):
    def prefetcher():
        store = made_store(directory)
        stage(store, files, files.paths)
        store.claim(wanted(store, [f"{path}x" for path in files.paths]))
        reserve(store, 256)
        yield

    def heir():
        store = made_store(directory, 2)
        store.total_bytes()
        yield
        yield store.take_over()

    for _ in range(10):
        dead, heirs = act(prefetcher), [act(heir) for _ in range(3)]
        for actor in (dead, *heirs):
            actor.step()
        dead.kill()
        for actor in heirs:
            actor.begin()
        assert sum(actor.answer() > 0 for actor in heirs) == 1
        for actor in heirs:
            actor.kill()
    assert mended(directory, files) == len(files.paths)


def test_a_process_whose_segment_was_removed_begins_another(directory, files, act):
    def prefetcher():
        store = made_store(directory)
        stage(store, files, files.paths[:5])
        (path,) = segment_paths(directory)
        path.unlink()
        yield
        copies = [written(store, path, files.contents[path]) for path in files.paths[5:8]]
        store.publish(copies, [])
        stage(store, files, files.paths[8:])
        yield n_right(store, files)
        store.close()
        yield

    one = act(prefetcher)
    one.step()
    apart(lambda: made_store(directory, 2).take_over())
    assert one.step() == len(files.paths) - 5
    one.step()

    def drop_lost():
        store = made_store(directory, 2)
        store.drop(staged(store, files)[path] for path in files.paths[:5])
        store.close()

    apart(drop_lost)
    assert mended(directory, files) == len(files.paths) - 5


def test_a_segment_that_was_removed_is_noticed_when_more_is_reserved(directory, files):
    def prefetcher():
        store = made_store(directory, capacity_bytes=64 << 20)  # reserved in small pieces
        stage(store, files, files.paths[:5])
        for path in segment_paths(directory):
            path.unlink()
        for path in files.paths[5:]:
            stage(store, files, [path])
        yield n_right(store, files)

    assert apart(lambda: next(prefetcher())) > len(files.paths) / 2


# --- another boot ---------------------------------------------------------------------------------


def test_after_a_boot_files_count_once_their_checksums_were_compared(
    directory, files, monkeypatch, tmp_path
):
    def last_boot():
        store = made_store(directory)
        stage(store, files, files.paths)
        store.neighbours.want([1])
        store.close()

    def this_boot():
        monkeypatch.setattr(boot, "BOOT_ID_PATH", str(tmp_path / "boot_id"))
        store = made_store(directory, 2)
        keys = {path: store.key_of(path) for path in files.paths}
        found = store.look(wanted(store, files.paths))
        assert not any(each.is_verified for each in found.values())
        store.note_verified([keys[path] for path in files.paths[:5]])
        found = store.look(wanted(store, files.paths))
        assert [p for p in files.paths if found[keys[p]].is_verified] == files.paths[:5]
        store.close()

    (tmp_path / "boot_id").write_text("another\n")
    apart(last_boot)
    apart(this_boot)


def test_after_a_boot_segments_are_charged_for_the_files_that_their_rows_name(
    directory, files, monkeypatch, tmp_path
):
    def last_boot():
        store = made_store(directory)
        stage(store, files, files.paths[:20])
        store.close()
        stage(store, files, files.paths[20:])

        def miscount(cursor):
            cursor.execute("UPDATE segment SET charged=charged+40960 WHERE owner=0")
            cursor.execute("UPDATE fact SET value=7 WHERE name='total'")

        store._access.write(miscount)

    def this_boot():
        monkeypatch.setattr(boot, "BOOT_ID_PATH", str(tmp_path / "boot_id"))
        store = made_store(directory, 2)
        store.take_over()
        store.close()
        assert store.total_bytes() == sum_of_charges(store) == disk_bytes(directory)
        assert n_right(store, files) == len(files.paths)
        store.close()

    (tmp_path / "boot_id").write_text("another\n")
    apart(last_boot)
    apart(this_boot)


# --- processes that hold the index ----------------------------------------------------------------


#: Far less than the two seconds.
AT_ONCE_SECONDS = 1.4


def at_once(action):
    """Check that an action does not wait. A machine that is busy may pause now and then."""
    took = []
    for _ in range(4):
        began = time.monotonic()
        action()
        took.append(time.monotonic() - began)
        if took[-1] <= AT_ONCE_SECONDS:
            return
    pytest.fail(f"it waited each time: {took}")


def test_while_a_stopped_process_holds_a_transaction_others_wait_two_seconds_once(
    directory, files, act
):
    def holder():
        made_store(directory, 2).total_bytes()
        connection = sqlite3.connect(index_path(make_generation(str(directory))))
        connection.execute("BEGIN IMMEDIATE")
        yield
        yield connection.rollback()

    def other():
        store = made_store(directory)
        stage(store, files, files.paths[:5])
        yield
        new = made_store(directory, 3)

        def fail(either=store):
            with pytest.raises(IndexBusyError):
                either.claim(wanted(store, files.paths[5:8]))

        def wait_in_vain(either):
            began = time.monotonic()
            fail(either)
            return time.monotonic() - began

        with ThreadPoolExecutor() as pool:
            assert min(pool.map(wait_in_vain, (store, new))) >= 1.5
        for either in (store, new):
            at_once(lambda either=either: fail(either))
        at_once(lambda: n_right(store, files))
        assert n_right(store, files) == 5  # reading goes on
        while True:  # a second later it is asked again, for a moment
            at_once(fail)
            time.sleep(0.3)
            if time.monotonic() > store._access._patience[1]._off_until_seconds:
                break
        yield
        deadline = time.monotonic() + 60
        while True:
            try:
                assert len(stage(store, files, files.paths)) == len(files.paths)
                break
            except IndexBusyError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield n_right(store, files)
        store.close()
        yield

    one, two = act(other), act(holder)
    one.step()
    two.step()
    two.signal(signal.SIGSTOP)
    one.step()
    two.kill()
    assert one.step() == len(files.paths)
    one.step()


def test_while_a_stopped_process_reads_others_go_on(directory, act):
    files = Files(200)

    def holder():
        made_store(directory, 2).total_bytes()
        connection = sqlite3.connect(index_path(make_generation(str(directory))))
        connection.execute("BEGIN")
        yield connection.execute("SELECT COUNT(*) FROM staged").fetchone()

    def other():
        store = made_store(directory)
        stage(store, files, files.paths[:5])
        yield
        for first in range(5, 200, 3):
            stage(store, files, files.paths[first : first + 3])
        yield n_right(store, files)
        assert store._access._opened.index.checkpoint()
        yield

    one, two = act(other), act(holder)
    one.step()
    two.step()
    two.signal(signal.SIGSTOP)
    assert one.step() == 200
    two.kill()
    one.step()


def test_a_stopped_reader_makes_the_log_no_longer_than_a_limit(directory, act, monkeypatch):
    files = Files(400)
    monkeypatch.setattr(index, "_LONGEST_LOG_BYTES", 1 << 20)
    monkeypatch.setattr(index, "_CHECKPOINT_BYTES", 1 << 16)
    monkeypatch.setattr(index, "OFF_SECONDS", 0.2)

    def holder():
        made_store(directory, 2).total_bytes()
        connection = sqlite3.connect(index_path(make_generation(str(directory))))
        connection.execute("BEGIN")
        yield connection.execute("SELECT COUNT(*) FROM staged").fetchone()

    def other():
        store = made_store(directory)
        store.total_bytes()
        yield
        with pytest.raises(IndexBusyError):
            stage_one_by_one(store, files)
        yield os.stat(index_path(store._access._opened.path) + "-wal").st_size
        time.sleep(0.2)
        stage_one_by_one(store, files)
        yield n_right(store, files)

    one, two = act(other), act(holder)
    one.step()
    two.step()
    two.signal(signal.SIGSTOP)
    assert 1 << 20 < one.step() < 2 << 20
    two.kill()
    assert one.step() == 400


def stage_one_by_one(store, files):
    for path in files.paths:
        stage(store, files, [path])


@in_a_process
def test_a_run_goes_on_with_blocks_of_any_size(directory, files, monkeypatch):
    monkeypatch.setattr(limits, "_LEAST_BLOCK_BYTES", 16 * BLOCK_BYTES)
    store = made_store(directory)
    extents = stage(store, files, files.paths)
    store.evict([extent.key for extent in extents.values()][::2])
    assert n_right(store, files) == len(files.paths) // 2
    store.close()
    assert store.total_bytes() == sum_of_charges(store) == len(files.paths) // 2 * 16 * BLOCK_BYTES
    store.close()
