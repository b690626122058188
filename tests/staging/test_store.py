"""The store: a file crosses the slow store once, and is published complete or not at all."""

from __future__ import annotations

import builtins
import os
import threading
import time
from pathlib import Path

import pytest

from overlapiter.staging import claim as claim_module
from overlapiter.staging import copying as copying_module
from overlapiter.staging.folders import key_of, subdirectory
from overlapiter.staging.room import Room
from overlapiter.staging.store import Outcome, Staged, Store
from tests.staging.stores import DAY_NS, is_same, made_store, name_of, partials, rewrite

# --- one file ---------------------------------------------------------------------------------


def test_a_file_is_copied_with_its_mtime_under_a_tree_like_that_of_the_source(
    source, staging, store
):
    name = name_of(source, 3)
    os.utime(name, ns=(DAY_NS + 1, DAY_NS + 123_456_789))
    staged = store.stage(name)
    assert (staged.outcome, staged.copied_bytes) == (Outcome.COPIED, 1003)
    assert staged.path == store.staged_path(name)
    assert staged.path == subdirectory(str(staging), str(source)) + "/files/train/n01/3.bin"
    assert is_same(staged, name)
    assert os.stat(staged.path).st_mtime_ns == DAY_NS + 123_456_789
    assert partials(staging) == []


def test_a_file_without_a_size_is_left_to_the_file_reader(source, store):
    (source / "empty").touch()  # some file systems say so of files that have content
    assert store.stage(str(source / "empty")) == Staged(Outcome.SOURCE_FAILED, None)


def test_a_file_of_many_chunks_is_copied(source, store, monkeypatch):
    monkeypatch.setattr(copying_module, "_CHUNK_BYTES", 7)
    for name, data in (("one", b"1"), ("odd", bytes(range(100)))):
        (source / name).write_bytes(data)
        staged = store.stage(str(source / name))
        assert (staged.outcome, staged.copied_bytes) == (Outcome.COPIED, len(data))
        assert Path(staged.path).read_bytes() == data


def test_a_staged_file_is_found_by_this_run_and_by_later_ones(source, staging, store):
    name = name_of(source, 1)
    copied = store.stage(name)
    before = os.stat(copied.path)
    for later in (store, made_store(source, staging)):
        assert later.stage(name)[:3] == (Outcome.FOUND, copied.path, copied.stamp)
    assert os.stat(copied.path).st_ino == before.st_ino


@pytest.mark.parametrize("data", [b"longer" * 500, b"short", bytes([1]) * 1001], ids=len)
def test_a_changed_source_replaces_the_staged_file(source, store, data):
    name = name_of(source, 1)
    store.stage(name)
    rewrite(name, data)  # the last one has the size that it had
    staged = store.stage(name)
    assert staged.outcome is Outcome.COPIED
    assert is_same(staged, name)


def test_a_source_that_became_older_replaces_the_staged_file_too(source, store):
    name = name_of(source, 1)
    store.stage(name)
    os.utime(name, ns=(DAY_NS, DAY_NS))
    assert store.stage(name).outcome is Outcome.COPIED


def test_a_truncated_copy_is_replaced_even_if_its_mtime_is_right(source, store):
    name = name_of(source, 1)
    staged = store.stage(name)
    mtime_ns = os.stat(name).st_mtime_ns
    os.truncate(staged.path, 500)
    os.utime(staged.path, ns=(mtime_ns, mtime_ns))
    assert store.stage(name).outcome is Outcome.COPIED
    assert is_same(staged, name)


@pytest.mark.parametrize("trust", ["validate", "stamp"])
def test_a_trusted_copy_is_taken_as_it_is_without_asking_the_source(source, staging, trust):
    name = name_of(source, 1)
    stamp = made_store(source, staging).stage(name).stamp
    Path(name).unlink()
    store = made_store(source, staging, validate="never" if trust == "validate" else "mtime")
    assert store.stage(name, stamp=stamp if trust == "stamp" else 0).outcome is Outcome.FOUND
    assert made_store(source, staging).stage(name).outcome is Outcome.SOURCE_FAILED


def test_a_missing_source_is_left_to_the_file_reader(source, staging, store):
    assert store.stage(str(source / "none.bin")) == Staged(Outcome.SOURCE_FAILED, None)
    assert [*staging.rglob("none.bin")] == partials(staging) == []


@pytest.mark.parametrize("error", [(13, "denied"), (5, "I/O error")])
def test_an_unreadable_source_is_left_to_the_file_reader(
    source, staging, store, monkeypatch, error
):
    def broken_open(*_args, **_kwargs):
        raise OSError(*error)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", broken_open)
        assert store.stage(name_of(source, 1)).outcome is Outcome.SOURCE_FAILED
    assert partials(staging) == []
    assert store.stage(name_of(source, 1)).outcome is Outcome.COPIED


def test_a_folder_is_no_file(source, store):
    assert store.stage(str(source / "train")).outcome is Outcome.SOURCE_FAILED


@pytest.mark.parametrize("change", ["grows", "shrinks", "is rewritten"])
def test_a_file_that_is_written_while_it_is_copied_is_not_kept(
    source, staging, store, monkeypatch, change
):
    name = name_of(source, 1)
    pump = copying_module._pump

    def pump_slowly(*arguments):
        if change == "shrinks":
            os.truncate(name, 10)
        copied_bytes = pump(*arguments)
        if change == "grows":
            with open(name, "ab") as file:
                file.write(b"more")
        elif change == "is rewritten":
            rewrite(name, Path(name).read_bytes())
        return copied_bytes

    with monkeypatch.context() as patched:
        patched.setattr(copying_module, "_pump", pump_slowly)
        assert store.stage(name) == Staged(Outcome.SOURCE_FAILED, None)
    assert [*staging.rglob("1.bin")] == partials(staging) == []
    assert is_same(store.stage(name), name)


def test_a_failing_staging_disk_is_told_and_leaves_nothing(source, staging, store, monkeypatch):
    room = Room(str(staging), 5000, 0)
    store = Store(str(staging), str(source), room)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(copying_module, "_pump", full)
        with pytest.raises(OSError, match="No space left"):
            store.stage(name_of(source, 1))
    assert partials(staging) == []
    assert room.reserve(5000)  # what was reserved has been given back


def test_without_room_a_file_is_refused_but_its_outdated_copy_makes_room(source, staging):
    name = name_of(source, 1)
    made_store(source, staging)
    small = Store(str(staging), str(source), Room(str(staging), 1010, 0))
    assert small.stage(name).outcome is Outcome.COPIED
    assert small.stage(name_of(source, 2)) == Staged(Outcome.REFUSED, None)
    rewrite(name, b"x" * 1010)
    assert small.stage(name).outcome is Outcome.COPIED
    rewrite(name, b"x" * 1011)
    assert small.stage(name).outcome is Outcome.TOO_LARGE
    assert partials(staging) == []


# --- together with threads --------------------------------------------------------------------


def test_threads_that_want_the_same_files_read_each_once(source, store, monkeypatch):
    opened = []
    real_open = builtins.open

    def counting_open(file, *args, **kwargs):
        opened.append(file)
        return real_open(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", counting_open)
    names = [name_of(source, n) for n in range(20)]
    answers = []

    def stage_all() -> None:
        answers.extend(store.stage(name) for name in names)

    threads = [threading.Thread(target=stage_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert sorted(opened) == sorted(names)
    assert sum(answer.outcome is Outcome.COPIED for answer in answers) == 20
    assert sum(answer.outcome is Outcome.FOUND for answer in answers) == 140


def test_who_waits_too_long_for_a_claim_reads_the_source(source, staging, store, monkeypatch):
    monkeypatch.setattr(claim_module, "_PATIENCE_SECONDS", 0.01)
    name = name_of(source, 1)
    with store._claims.hold(key_of(name)):
        before = time.monotonic()
        assert made_store(source, staging).stage(name) == Staged(Outcome.BUSY, None)
        assert time.monotonic() - before < 5
    assert store.stage(name).outcome is Outcome.COPIED
