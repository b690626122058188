"""The server, from outside: peers get staged files, and strangers get nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from overlapiter.peers.catalogue import Entry
from overlapiter.peers.connection import Address, Connection
from overlapiter.peers.protocol import (
    ABSENT,
    CODE_BYTES,
    FRESH,
    LENGTH,
    MOST_NAMES,
    NONCE_BYTES,
    THERE,
    Seal,
    packed_names,
    proof,
    unpacked_names,
)
from overlapiter.peers.server import MOST_STRANGERS, Server
from overlapiter.store.elsewhere import name_of
from overlapiter.store.extents import WHOLE, checksum_of
from tests.chainer.scripts import wait_until
from tests.peers.serving import FILE_BYTES, SECRET, content, key, name, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Address, int]]:
    with served(tmp_path_factory.mktemp("peers") / "fast") as found:
        yield found


@contextlib.contextmanager
def connected(address: Address) -> Iterator[Connection]:
    # However busy this machine is.
    connection = Connection(address, SECRET, wait_seconds=60.0, let_in_seconds=60.0)
    try:
        yield connection
    finally:
        connection.close()


def check_served(address: Address, number: int = 0) -> None:
    with connected(address) as connection:
        connection.ask([name(number)])
        (record,) = connection.answer(1)
        data = connection.read(record.size)
    assert data == content()[:FILE_BYTES]
    assert record.checksum == checksum_of(data, key(number), record.mtime)


@contextlib.contextmanager
def stranger(address: Address) -> Iterator[socket.socket]:
    """Connect without a word, and take the nonce."""
    with socket.create_connection(address, 10) as end:
        assert len(end.recv(NONCE_BYTES, socket.MSG_WAITALL)) == NONCE_BYTES
        yield end


def is_shut_out(end: socket.socket) -> bool:
    """Return whether the server closes, and has said nothing more."""
    try:
        return end.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_request_has_many_files_and_a_second_one_need_not_wait(
    server: tuple[Address, int],
) -> None:
    with connected(server[0]) as connection:
        for numbers in ((0, 1, 2), (3, 99, 4)):
            connection.ask([name(number) for number in numbers])
        for numbers in ((0, 1, 2), (3, 99, 4)):
            records = connection.answer(3)
            assert [r.state for r in records] == [ABSENT if n == 99 else FRESH for n in numbers]
            for number, record in zip(numbers, records, strict=True):
                data = connection.read(record.size)
                assert number == 99 or data == content()[:FILE_BYTES]


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\n\r\n" * 4, os.urandom(100_000), bytes(32), b"\xff" * 33],
    ids=["http", "noise", "zeros", "ones"],
)
def test_a_stranger_is_shut_out_without_a_word(server: tuple[Address, int], words: bytes) -> None:
    with stranger(server[0]) as end:
        with contextlib.suppress(ConnectionError):
            end.sendall(words)
        assert is_shut_out(end)
    check_served(server[0])


def test_another_secret_lets_nobody_in(server: tuple[Address, int]) -> None:
    with pytest.raises(ConnectionError):
        Connection(server[0], b"of another job, which is running")


def test_a_proof_that_was_overheard_is_of_no_use(server: tuple[Address, int]) -> None:
    with stranger(server[0]) as end:
        nonces = bytes(2 * NONCE_BYTES)  # of a connection before
        end.sendall(nonces[NONCE_BYTES:] + proof(SECRET, b"client", nonces))
        assert is_shut_out(end)


def known(end: socket.socket, nonce: bytes) -> Seal:
    """Show that this side knows the secret; return the seal of its requests."""
    nonces = nonce + os.urandom(NONCE_BYTES)
    end.sendall(nonces[NONCE_BYTES:] + proof(SECRET, b"client", nonces))
    assert end.recv(CODE_BYTES, socket.MSG_WAITALL) == proof(SECRET, b"server", nonces)
    return Seal(SECRET, b"client", nonces)


@pytest.mark.parametrize("fault", ["forged", "repeated", "long", "many"])
def test_a_request_that_is_not_in_order_ends_the_connection(
    server: tuple[Address, int], fault: str
) -> None:
    with socket.create_connection(server[0], 10) as end:
        seal = known(end, end.recv(NONCE_BYTES, socket.MSG_WAITALL))
        message = seal.message(packed_names([b"absent"]))
        answer_bytes = LENGTH.size + 25 + CODE_BYTES
        if fault == "forged":
            end.sendall(message[:-1] + bytes([message[-1] ^ 1]))
        elif fault == "repeated":
            end.sendall(message)
            assert len(end.recv(answer_bytes, socket.MSG_WAITALL)) == answer_bytes
            end.sendall(message)
        elif fault == "long":
            end.sendall(LENGTH.pack(1 << 30))
        else:
            end.sendall(seal.message(packed_names([b"absent"] * 65)))
        assert is_shut_out(end)
    check_served(server[0])


@pytest.mark.parametrize("path", [b"../other/secret-0", b"secret-0", b"/etc/passwd", b"", b"\xff"])
def test_only_staged_files_of_the_own_source_are_there(
    server: tuple[Address, int], path: bytes
) -> None:
    with connected(server[0]) as connection:
        connection.ask([path])
        assert [record.state for record in connection.answer(1)] == [ABSENT]


def test_a_request_has_room_for_the_longest_names(server: tuple[Address, int]) -> None:
    longest = next(n for n in range(1 << 17, 0, -1) if name_of("/s/" + "a" * n, "/s"))
    with connected(server[0]) as connection:
        connection.ask([b"a" * longest] * MOST_NAMES)
        assert [record.state for record in connection.answer(MOST_NAMES)] == [ABSENT] * MOST_NAMES


def test_half_open_connections_and_slow_readers_keep_nobody_out(
    server: tuple[Address, int],
) -> None:
    with contextlib.ExitStack() as ends:
        slow = ends.enter_context(connected(server[0]))
        slow.ask([name(number % 8) for number in range(64)])
        slow.ask([name(number % 8) for number in range(64)])  # and reads nothing
        for _ in range(2 * MOST_STRANGERS):
            ends.enter_context(socket.create_connection(server[0], 10))
        check_served(server[0])
        n_connections = len(psutil.Process(server[1]).net_connections())
    assert n_connections <= MOST_STRANGERS + 4


def test_everyone_who_knows_the_secret_is_let_in_however_many_rest(
    server: tuple[Address, int],
) -> None:
    with contextlib.ExitStack() as ends:
        for _ in range(40):
            ends.enter_context(connected(server[0]))
        check_served(server[0])


def test_an_idle_server_takes_no_cpu(server: tuple[Address, int]) -> None:
    process = psutil.Process(server[1])

    def is_idle() -> bool:
        before = sum(process.cpu_times()[:2])
        n_switches = process.num_ctx_switches().voluntary
        time.sleep(0.5)  # nothing is waited for: it is to do nothing
        used_seconds = sum(process.cpu_times()[:2]) - before
        return used_seconds <= 0.01 and process.num_ctx_switches().voluntary - n_switches <= 1

    with connected(server[0]):
        check_served(server[0])
        wait_until(is_idle, 10)  # once it has noticed which connections were closed


def test_names_survive_their_way() -> None:
    names = [b"", b"a" * 60_000, "ä/日.jpg".encode(), b"\xff"]
    assert unpacked_names(packed_names(names)) == names


class Scattered:
    """A catalogue each of whose files lies in a segment of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def look(self, names: Sequence[bytes]) -> dict[bytes, Entry]:
        paths = {each: f"{self._folder}/{each.decode()}" for each in names}
        at = int(time.time()) + (3600 if b"ahead" in names else -1)
        return {
            each: (path, WHOLE if each == b"whole" else 0, FILE_BYTES, 1, 1, at)
            for each, path in paths.items()
        }

    def close(self) -> None:
        pass


@contextlib.contextmanager
def in_a_thread(folder: Path) -> Iterator[tuple[Address, Server]]:
    """Serve the files of a folder in a thread of this process; give the address, and the server."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        contextlib.closing(Server(listener, SECRET, Scattered(folder), since=0)) as server,
    ):
        ending, other = socket.socketpair()
        has_ended = threading.Event()
        server.watch(ending.fileno(), has_ended.set)

        def serve() -> None:
            while not has_ended.is_set():
                server.take_turn()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname(), server
        finally:
            other.close()
            thread.join()
            ending.close()


def test_the_kernel_looks_whether_the_other_end_of_a_connection_that_rests_is_there(
    server: tuple[Address, int],
) -> None:
    def has_keepalive_timer() -> bool:
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (timer,) = [row[5] for row in rows if (row[1], row[2]) == ends]
        return timer.startswith("02:")

    with stranger(server[0]) as end:
        ports = server[0][1], end.getsockname()[1]
        ends = tuple(f"0100007F:{port:04X}" for port in ports)
        wait_until(has_keepalive_timer, 4)


def test_more_segments_than_are_kept_open_are_sent_at_the_same_time(tmp_path: Path) -> None:
    n_files, n_asked, n_connections = 160, 20, 8
    for number in range(n_files):
        (tmp_path / str(number)).write_bytes(b"%04d" % number * (FILE_BYTES // 4))
    with in_a_thread(tmp_path) as (address, _), contextlib.ExitStack() as opened:
        connections = [opened.enter_context(connected(address)) for _ in range(n_connections)]
        for row, connection in enumerate(connections):
            connection.ask([b"%d" % (row * n_asked + i) for i in range(n_asked)])
        for row, connection in enumerate(connections):
            assert len(connection.answer(n_asked)) == n_asked
            for number in range(row * n_asked, (row + 1) * n_asked):
                assert connection.read(FILE_BYTES)[:4] == b"%04d" % number


def test_what_was_staged_while_the_clock_was_ahead_has_not_been_compared_by_this_job(
    tmp_path: Path,
) -> None:
    for each in ("ahead", "right"):
        (tmp_path / each).write_bytes(content()[:FILE_BYTES])
    with in_a_thread(tmp_path) as (address, _), connected(address) as connection:
        for each, state in ((b"ahead", THERE), (b"right", FRESH)):
            connection.ask([each])
            assert connection.answer(1)[0].state == state
            connection.read(FILE_BYTES)


def test_what_was_removed_is_not_kept_open(tmp_path: Path) -> None:
    def mapped() -> list[str]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return [line.split()[5] for line in maps if str(tmp_path) in line]

    for file in ("whole", "shared"):
        (tmp_path / file).write_bytes(bytes(FILE_BYTES))
    with in_a_thread(tmp_path) as (address, server), connected(address) as connection:
        connection.ask([b"whole", b"shared"])
        assert [record.size for record in connection.answer(2)] == [FILE_BYTES] * 2
        connection.read(2 * FILE_BYTES)
        wait_until(lambda: mapped() == [str(tmp_path / "shared")], 4)
        server.let_go()
        assert mapped() == []


def test_a_stranger_that_says_nothing_is_shut_out_and_no_other_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_a_thread(tmp_path) as (address, _), connected(address) as idle:
        monkeypatch.setattr("overlapiter.peers.server.STEP_SECONDS", 0.1)
        with stranger(address) as silent:
            assert is_shut_out(silent)
        idle.ask([b"absent"])
        assert [record.state for record in idle.answer(1)] == [ABSENT]


def test_a_peer_that_takes_nothing_of_an_answer_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapiter.peers.server.STEP_SECONDS", 0.5)
    (tmp_path / "file").write_bytes(bytes(FILE_BYTES))
    process = psutil.Process()
    with in_a_thread(tmp_path) as (address, _):
        slow = Connection(address, SECRET, wait_seconds=60.0)
        n_ends = len(process.net_connections())
        for _ in range(4):
            slow.ask([b"file"] * 64)  # more than the buffers take
        wait_until(lambda: len(process.net_connections()) < n_ends, 20)
        slow.close()
