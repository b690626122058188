"""Files of a mounted directory, and what only has a name like one."""

from __future__ import annotations

import builtins
import os
import socket
import threading
from pathlib import Path

import pytest

from overlapiter.origins.origin import LocalFile, LocalOrigin, Original
from tests.support.leases import held_back


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))  # a long path would not do


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_fifo, "a FIFO, not a file"),
        (make_socket, "a socket, not a file"),
        (make_device, "a device, not a file"),
        (Path.mkdir, "Is a directory"),
    ],
)
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path, make, reason) -> None:
    make(tmp_path / "odd")
    origin = LocalOrigin()
    with (
        pytest.raises(OSError, match=reason) as caught,
        origin.open(str(tmp_path / "odd")) as opened,
    ):
        opened.stat()
    assert caught.value.filename == str(tmp_path / "odd")


def test_a_file_is_read_from_its_start_to_its_end(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    found = (tmp_path / "file").stat()
    with LocalOrigin().open(str(tmp_path / "file")) as opened:
        assert opened.stat() == Original(10, found.st_mtime_ns)
        assert [opened.read(6), opened.read(6), opened.read(6)] == [b"012345", b"6789", b""]


def test_what_cannot_be_read_at_once_is_waited_for() -> None:
    fd, other_fd = os.pipe()
    os.set_blocking(fd, False)
    read = []
    with LocalFile("offline", fd) as opened:
        thread = threading.Thread(target=lambda: read.append(opened.read(10)))
        thread.start()
        while not os.get_blocking(fd):
            assert thread.is_alive()
        os.write(other_fd, b"fetched")
        thread.join()
    os.close(other_fd)
    assert read == [b"fetched"]


def test_a_file_on_which_another_process_has_a_lease_is_waited_for(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"leased")
    done = threading.Event()
    read = []

    def open_it() -> None:
        with LocalOrigin().open(str(path)) as opened:
            read.append(opened.read(10))
        done.set()

    with held_back(path) as release:
        thread = threading.Thread(target=open_it)
        thread.start()
        assert not done.wait(0.1)
        release(path)
        thread.join()
    assert read == [b"leased"]


def test_an_open_that_was_replaced_meanwhile_is_used(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    plain, opened = open, []

    def noting_open(file, *others, **more):
        opened.append(file)
        return plain(file, *others, **more)

    origin = LocalOrigin()
    monkeypatch.setattr(builtins, "open", noting_open)
    with origin.open(str(tmp_path / "file")):
        assert opened == [str(tmp_path / "file")]


def test_a_date_beyond_64_bits_of_nanoseconds_is_another_number_of_64_bits(tmp_path) -> None:
    path, told = tmp_path / "late", []
    path.write_bytes(b"x")
    for seconds in (10_500_000_000, 10_500_000_001):  # in 2302
        os.utime(path, ns=(10**9, seconds * 10**9))
        told.append(LocalOrigin().stat(str(path)))
        with LocalOrigin().open(str(path)) as opened:
            assert opened.stat() == told[-1]
    assert told[0] != told[1]
    assert all(-(2**63) <= mtime_ns < 2**63 for _, mtime_ns in told)
