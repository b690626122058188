"""Room in the staging directory: the capacity holds at every moment, for all processes together."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from overlapiter.errors import StagingError
from overlapiter.staging import room as room_module
from overlapiter.staging import usage as usage_module
from overlapiter.staging.room import Room
from overlapiter.staging.store import Outcome, Store
from overlapiter.staging.usage import BusyError
from tests.staging.processes import forked
from tests.staging.stores import add_file

BLOCK = 4096


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "staging").mkdir()
    return str(tmp_path / "staging")


def wait_for(pids: list[int]) -> None:
    """Reap children; all must have ended well."""
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)


def given_back(room: Room, size_bytes: int) -> None:
    room.free(lambda: size_bytes)


def test_without_limits_everything_fits_and_is_counted_all_the_same(directory):
    room = Room(directory, None, 0)
    room.prepare()
    assert room.reserve(1 << 60)
    given_back(room, 1 << 59)
    assert room._file.look().used_bytes == 1 << 59


def test_what_fits_is_granted_to_the_last_byte(directory):
    room = Room(directory, 100, 0)
    assert room.reserve(60)
    assert not room.reserve(41)
    assert room.reserve(40)
    assert not room.reserve(1)
    assert room.reserve(0)


def test_what_is_given_back_can_be_granted_again(directory):
    room = Room(directory, 100, 0)
    assert room.reserve(100)
    given_back(room, 30)
    assert not room.reserve(31)
    assert room.reserve(30)


def test_all_rooms_of_a_directory_count_together(directory):
    assert Room(directory, 100, 0).reserve(60)
    assert not Room(directory, 100, 0).reserve(60)
    assert Room(directory, 200, 0).reserve(60)


def test_giving_back_too_much_makes_no_room_out_of_nothing(directory):
    room = Room(directory, 100, 0)
    assert room.reserve(10)
    given_back(room, 1000)
    assert not room.reserve(101)


def test_the_free_space_to_keep_is_kept(directory):
    disk = os.statvfs(directory)
    free_bytes = disk.f_bavail * disk.f_frsize
    room = Room(directory, None, free_bytes // 2)
    assert room.reserve(free_bytes // 4)
    assert not room.reserve(free_bytes // 4 * 3)
    assert not Room(directory, 1 << 60, free_bytes * 2).reserve(1)


def test_counting_anew_takes_the_files_for_what_they_are(directory):
    Room(directory, 1000, 0).reserve(1000)  # by a process that died before it wrote anything
    add_file(directory, "a", 200)
    add_file(directory, "train/n01/b", 200)
    add_file(directory, "0123", 100, "partial")
    for notes in ("overlapiter.runs.jsonl", "images-0/source.json", "images-0/sums", "of the user"):
        Path(directory, notes).write_bytes(bytes(10_000))  # no staged files
    room = Room(directory, 1000, 0)
    room.recount()
    assert not room.reserve(501)
    assert room.reserve(500)


def test_counting_anew_follows_no_link(directory, tmp_path):
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "file").write_bytes(bytes(10**6))
    (tmp_path / "big" / "files").mkdir()
    (tmp_path / "big" / "files" / "file").write_bytes(bytes(10**6))
    os.symlink(tmp_path / "big", Path(directory, "images-0"))
    os.makedirs(Path(directory, "images-1", "files"))
    os.symlink(tmp_path / "big", Path(directory, "images-1", "files", "folder"))
    os.symlink(tmp_path / "big" / "file", Path(directory, "images-1", "files", "file"))
    os.symlink(tmp_path / "big", Path(directory, "images-1", "partial"))
    room = Room(directory, 10**6, 0)
    room.recount()
    assert room.reserve(10**6)


def test_while_a_file_is_being_copied_its_reservation_is_not_forgotten(directory):
    path = add_file(directory, "1", 0, "partial")
    room = Room(directory, 1000, 0)
    with path.open("r+b") as partial:
        assert room.reserve(900, fd=partial.fileno())
    assert path.stat().st_size == 900
    Room(directory, 1000, 0).recount()
    assert not room.reserve(101)
    path.unlink()
    Room(directory, 1000, 0).recount()
    assert room.reserve(1000)


def test_a_usage_file_that_is_a_link_is_not_followed(directory, tmp_path):
    (tmp_path / "precious").write_text("precious")
    os.symlink(tmp_path / "precious", Path(directory, "overlapiter.usage"))
    with pytest.raises(StagingError) as caught:
        Room(directory, 100, 0).prepare()
    assert caught.value.directory == directory
    with pytest.raises(OSError, match="symbolic links"):
        Room(directory, 100, 0).reserve(1)
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_directory_that_is_gone_is_told(directory):
    os.rmdir(directory)
    with pytest.raises(StagingError, match="cannot count"):
        Room(directory, 100, 0).prepare()


def test_threads_and_processes_together_are_granted_the_capacity_exactly(directory):
    granted = os.memfd_create("granted")

    def reserve_all() -> None:
        room = Room(directory, 500, 0)

        def reserve_some() -> None:
            for _ in range(100):
                if room.reserve(1):
                    os.write(append, b"1")

        append = os.open(f"/proc/self/fd/{granted}", os.O_WRONLY | os.O_APPEND)
        threads = [threading.Thread(target=reserve_some) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    wait_for([forked(reserve_all) for _ in range(4)])
    assert os.fstat(granted).st_size == 500
    os.close(granted)


def test_two_threads_never_look_at_the_same_moment(directory, monkeypatch):
    room, granted = Room(directory, 100, 0), []
    room.reserve(0)
    both_look, read = threading.Barrier(2), usage_module._read

    def read_together(fd: int) -> usage_module.Usage:
        used = read(fd)
        with contextlib.suppress(threading.BrokenBarrierError):
            both_look.wait(0.1)
        return used

    monkeypatch.setattr(usage_module, "_read", read_together)
    threads = [threading.Thread(target=lambda: granted.append(room.reserve(60))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(granted) == [False, True]


def held_by_a_stopped_process(directory: str) -> int:
    """Return a process that holds the usage file, and was stopped then."""

    def hold() -> None:
        with Room(directory, 100, 0)._file.hold():
            os.kill(os.getpid(), signal.SIGSTOP)

    pid = forked(hold)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    return pid


def test_a_process_that_was_stopped_with_the_count_in_its_hands_is_not_waited_for(directory):
    room = Room(directory, 100, 0)
    assert room.reserve(60)
    pid = held_by_a_stopped_process(directory)
    before = time.monotonic()
    with pytest.raises(BusyError):
        room.reserve(30)
    assert time.monotonic() - before < 10
    before = time.monotonic()
    for _ in range(50):  # nor is it waited for again, each time for a second
        with pytest.raises(BusyError):
            room.reserve(30)
    assert time.monotonic() - before < 10
    given_back(room, 50)  # counted when there is an occasion
    os.kill(pid, signal.SIGCONT)
    wait_for([pid])
    assert room.reserve(90)
    assert not room.reserve(1)


def test_a_count_that_somebody_removed_is_made_anew(directory):
    room = Room(directory, 1000, 0)
    assert room.reserve(500)
    add_file(directory, "staged", 500)
    Path(directory, "overlapiter.usage").unlink()
    assert not room.reserve(501)
    assert room.reserve(500)


def test_counting_anew_holds_nobody_up_and_forgets_nothing_that_happens_meanwhile(
    directory, monkeypatch
):
    room = Room(directory, 1000, 0)
    room.reserve(1000)  # of which nothing is there
    walk = room_module.bytes_below

    def walk_while_another_reserves(directory: str) -> int:
        used = walk(directory)
        assert Room(directory, 1900, 0).reserve(900)
        return used

    with monkeypatch.context() as patched:
        patched.setattr(room_module, "bytes_below", walk_while_another_reserves)
        room.recount()
    assert not room.reserve(101)
    assert room.reserve(100)


def test_what_was_removed_before_a_recount_is_not_counted_as_free_twice(directory):
    room = Room(directory, 1000, 0)
    assert room.reserve(600)
    path = add_file(directory, "a", 600)

    def remove_and_recount() -> int:
        path.unlink()
        Room(directory, 1000, 0).recount()
        assert room.reserve(1000)
        return 600

    room.free(remove_and_recount)
    assert not room.reserve(1)


def used_bytes(directory: str) -> int:
    files = [*Path(directory).glob("*/files/**/*"), *Path(directory).glob("*/partial/*")]
    return sum(path.stat().st_size for path in files if path.is_file())


def still_running(pids: list[int]) -> list[int]:
    """Stop the processes where they are; return those that have not ended, all well."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    statuses = {pid: os.waitpid(pid, os.WUNTRACED)[1] for pid in pids}
    stopped = [pid for pid in pids if os.WIFSTOPPED(statuses[pid])]
    assert all(statuses[pid] == 0 for pid in pids if pid not in stopped)
    return stopped


@pytest.mark.parametrize("is_outdated", [False, True])
def test_the_files_of_four_processes_never_exceed_the_capacity(directory, tmp_path, is_outdated):
    source = tmp_path / "source"
    source.mkdir()
    names = [str(source / f"{n}.bin") for n in range(60)]
    capacity_bytes = 30 * BLOCK
    if is_outdated:  # the staging directory is full of copies of what the files were before
        old = Store(directory, str(source), Room(directory, None, 0))
        old.create()
        for name in names[:30]:
            Path(name).write_bytes(bytes(BLOCK - 8))
            assert old.stage(name).outcome is Outcome.COPIED
    for n, name in enumerate(names):
        Path(name).write_bytes(bytes([n]) * (BLOCK + n % 2))
    Room(directory, capacity_bytes, 0).recount()

    def stage_all(seed: int) -> None:
        store = Store(directory, str(source), Room(directory, capacity_bytes, 0))
        store.create()
        os.kill(os.getpid(), signal.SIGSTOP)  # until all are there
        order = random.Random(seed).sample(names, len(names))
        outcomes = set()
        for name in order:
            outcomes.add(store.stage(name).outcome)
            os.write(progress_w, b"!")
        assert outcomes > {Outcome.REFUSED}

    progress_r, progress_w = os.pipe()
    pids = [forked(functools.partial(stage_all, seed)) for seed in range(4)]
    for pid in pids:
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    os.close(progress_w)
    samples = []
    while pids:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        os.read(progress_r, 1)
        pids = still_running(pids)
        samples.append(used_bytes(directory))
    os.close(progress_r)
    assert len(samples) > 2
    assert max(samples) <= capacity_bytes
    assert samples[-1] > capacity_bytes - 4 * BLOCK
    staged = [p for p in Path(directory).rglob("*.bin") if p.stat().st_size >= BLOCK]
    assert len(staged) >= 25
    for path in staged:
        assert path.read_bytes() == (source / path.name).read_bytes()
