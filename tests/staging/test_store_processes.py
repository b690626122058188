"""The store among processes: they share the copying, die in the middle of it, and sweep."""

from __future__ import annotations

import builtins
import fcntl
import os
import random
import signal
from pathlib import Path

import pytest

from overlapiter.staging import claim as claim_module
from overlapiter.staging import copying as copying_module
from overlapiter.staging.folders import key_of
from overlapiter.staging.room import Room
from overlapiter.staging.store import Outcome, Store
from tests.staging.processes import forked
from tests.staging.stores import made_store, partials

N_FILES = 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for n in range(N_FILES):
        (tmp_path / "source" / f"{n}.bin").write_bytes(bytes([n]) * 10_000)
    return tmp_path / "source"


def stuck_in_a_copy(source: Path, staging: Path, capacity_bytes: int | None = None) -> int:
    """Return a child that has written a part of the copy of 0.bin, and hangs."""
    begun_r, begun_w = os.pipe()

    def copy_for_ever() -> None:
        copying_module._CHUNK_BYTES = 1000
        real_read, n_reads = os.read, 0

        def slow_read(fd: int, size: int) -> bytes:
            nonlocal n_reads
            n_reads += 1
            if n_reads > 3:
                os.write(begun_w, b"!")
                signal.pause()
            return real_read(fd, size)

        os.read = slow_read
        made_store(source, staging, capacity_bytes).stage(str(source / "0.bin"))

    pid = forked(copy_for_ever)
    assert os.read(begun_r, 1) == b"!"
    os.close(begun_r)
    os.close(begun_w)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_processes_that_want_the_same_files_read_each_once(source, staging):
    log = os.memfd_create("opens")

    def stage_all(seed: int) -> None:
        append = os.open(f"/proc/self/fd/{log}", os.O_WRONLY | os.O_APPEND)
        real_open = builtins.open

        def counting_open(file, *args, **kwargs):
            if str(file).startswith(str(source)):
                os.write(append, f"{os.path.basename(file)}\n".encode())
            return real_open(file, *args, **kwargs)

        builtins.open = counting_open
        store = made_store(source, staging)
        for n in random.Random(seed).sample(range(N_FILES), N_FILES):
            name = str(source / f"{n}.bin")
            staged = store.stage(name)
            assert staged.outcome in (Outcome.COPIED, Outcome.FOUND)
            assert Path(staged.path).stat().st_size == 10_000

    pids = [forked(lambda seed=seed: stage_all(seed)) for seed in range(4)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    opened = os.pread(log, 10_000, 0).decode().split()
    os.close(log)
    assert sorted(opened) == sorted(f"{n}.bin" for n in range(N_FILES))
    assert partials(staging) == []
    for n in range(N_FILES):
        (staged,) = staging.rglob(f"{n}.bin")
        assert staged.read_bytes() == bytes([n]) * 10_000


def test_a_half_copied_file_is_not_published(source, staging):
    pid = stuck_in_a_copy(source, staging)
    assert [*staging.rglob("0.bin")] == []
    assert [path.stat().st_size for path in partials(staging)] == [10_000]  # what is reserved
    kill(pid)
    assert [*staging.rglob("0.bin")] == []


def test_a_process_killed_in_the_middle_of_a_copy_blocks_nobody(source, staging):
    kill(stuck_in_a_copy(source, staging))
    staged = made_store(source, staging).stage(str(source / "0.bin"))
    assert (staged.outcome, staged.copied_bytes) == (Outcome.COPIED, 10_000)
    assert Path(staged.path).read_bytes() == bytes(10_000)
    assert partials(staging) == []


def test_what_a_dead_process_left_is_no_part_of_the_new_copy(source, staging):
    kill(stuck_in_a_copy(source, staging))
    (source / "0.bin").write_bytes(b"shorter than what was copied")
    staged = made_store(source, staging).stage(str(source / "0.bin"))
    assert Path(staged.path).read_bytes() == b"shorter than what was copied"


def test_who_comes_when_a_copy_is_published_never_writes_into_that_copy(
    source, staging, monkeypatch
):
    """Between its open and its lock the file is published; then the source changes."""
    store = made_store(source, staging)
    name = str(source / "0.bin")
    real_flock, published = fcntl.flock, []

    def flock_late(fd: int, how: int) -> None:
        monkeypatch.undo()
        if not published:
            published.append(open(store.stage(name).path, "rb"))  # noqa: SIM115  # closed below
            (source / "0.bin").write_bytes(b"new")
        real_flock(fd, how)

    kill(stuck_in_a_copy(source, staging))  # so that all open the same file
    monkeypatch.setattr(claim_module.fcntl, "flock", flock_late)
    staged = store.stage(name)
    assert Path(staged.path).read_bytes() == b"new"
    assert published[0].read() == bytes(10_000)
    published[0].close()


def test_a_waiting_process_takes_over_from_one_that_is_killed(source, staging):
    pid = stuck_in_a_copy(source, staging)
    waits_r, waits_w = os.pipe()

    def wait_for_the_claim() -> None:
        real_sleep = claim_module.time.sleep

        def telling_sleep(seconds: float) -> None:
            os.write(waits_w, b"!")
            real_sleep(seconds)

        claim_module.time.sleep = telling_sleep
        staged = made_store(source, staging).stage(str(source / "0.bin"))
        assert staged.outcome is Outcome.COPIED

    waiting = forked(wait_for_the_claim)
    assert os.read(waits_r, 1) == b"!"
    kill(pid)
    assert os.waitpid(waiting, 0)[1] == 0
    os.close(waits_r)
    os.close(waits_w)
    assert partials(staging) == []


def test_sweeping_removes_what_the_dead_left_and_nothing_of_the_living(source, staging):
    store = made_store(source, staging)
    staged = store.stage(str(source / "1.bin"))
    dead = stuck_in_a_copy(source, staging)
    kill(dead)
    with store._claims.hold(key_of(str(source / "2.bin"))):
        assert len(partials(staging)) == 2
        assert store.sweep() == 1
        assert len(partials(staging)) == 1
        assert store.sweep() == 0
    assert Path(staged.path).exists()
    assert partials(staging) == []


def test_sweeping_a_directory_that_is_not_there_is_fine(source, staging):
    assert Store(str(staging), str(source), Room(str(staging), None, 0)).sweep() == 0


def test_sweeping_gives_back_the_room_of_what_it_removes(source, staging):
    kill(stuck_in_a_copy(source, staging, 10_000))
    room = Room(str(staging), 10_000, 0)
    assert not room.reserve(1)
    made_store(source, staging, 10_000).sweep()
    assert room.reserve(10_000)


def test_sweeping_never_takes_the_place_of_a_copy_that_began_meanwhile(
    source, staging, monkeypatch
):
    """Between its open and its lock the old copy is published, and a new one begins."""
    store = made_store(source, staging)
    name = str(source / "0.bin")
    claim = store._claims.hold(key_of(name))
    partial = claim.__enter__()
    real_flock, claims = fcntl.flock, []

    def flock_late(fd: int, how: int) -> None:
        monkeypatch.undo()
        store._tree.place(("0.bin",)).publish(partial)
        claim.__exit__(None, None, None)
        claims.append(store._claims.hold(key_of(name)))
        claims[0].__enter__()
        real_flock(fd, how)

    monkeypatch.setattr(claim_module.fcntl, "flock", flock_late)
    assert store.sweep() == 0
    assert len(partials(staging)) == 1
    claims[0].__exit__(None, None, None)
    assert Path(store.staged_path(name)).exists()
