"""The client: whatever a peer does, the right bytes come, from another peer or from the source."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overlapiter.peers import client
from overlapiter.peers.client import PeerFile, Peers, PeersPlan
from overlapiter.peers.connection import Address
from overlapiter.peers.protocol import (
    ABSENT,
    CODE_BYTES,
    FRESH,
    HELLO_BYTES,
    LENGTH,
    NONCE_BYTES,
    Record,
    Seal,
    packed_records,
    proof,
    unpacked_names,
)
from overlapiter.store.elsewhere import FetchedFile, Holders
from overlapiter.store.extents import checksum_of
from tests.peers.serving import FILE_BYTES, SECRET, content, key, name, served

DATA = content()[:FILE_BYTES]
MTIME = 10**18

#: What a peer that is let in does with a request: it is given its end, and the names.
Deed = Callable[[socket.socket, Seal, list[bytes]], None]


def records_of(names: list[bytes]) -> list[Record]:
    numbers = [int(each.rpartition(b"-")[2]) for each in names]
    return [Record(FRESH, FILE_BYTES, MTIME, checksum_of(DATA, key(n), MTIME)) for n in numbers]


def answer(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
    end.sendall(seal.message(packed_records(records_of(names))) + DATA * len(names))


def change_bytes(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
    wrong = DATA[:-1] + bytes([DATA[-1] ^ 1])
    end.sendall(seal.message(packed_records(records_of(names))) + wrong * len(names))


def change_bytes_and_checksum(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
    """Do what an attacker between the nodes could, who does not know the secret."""
    wrong = bytes(FILE_BYTES)
    numbers = [int(each.rpartition(b"-")[2]) for each in names]
    records = [Record(FRESH, len(wrong), MTIME, checksum_of(wrong, key(n), MTIME)) for n in numbers]
    payload = packed_records(records)
    code = seal.code(packed_records(records_of(names)))
    end.sendall(LENGTH.pack(len(payload)) + payload + code + wrong * len(names))


def swap(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
    answer(end, seal, [b"file-7" for _ in names])


def cut(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
    message = seal.message(packed_records(records_of(names)))
    end.sendall(message + DATA[: FILE_BYTES // 2])
    end.close()


def cut_in_the_answer(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
    end.sendall(seal.message(packed_records(records_of(names)))[:-3])
    end.close()


def repeat(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
    payload = packed_records(records_of(names))
    seal.code(payload)
    end.sendall(seal.message(payload) + DATA * len(names))


def say_nothing(_end: socket.socket, _seal: Seal, _names: list[bytes]) -> None:
    pass


def have_nothing(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
    end.sendall(seal.message(packed_records([Record(ABSENT) for _ in names])))


def promise_too_much(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
    records = [Record(FRESH, 1 << 40, MTIME, 0) for _ in names]
    end.sendall(seal.message(packed_records(records)) + DATA)


class FakePeer:
    """A peer that knows the secret and does one deed for each request."""

    def __init__(self, deed: Deed) -> None:
        self._deed = deed
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()
        self._is_closed = False
        self._ends: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, name="fake peer")
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_closed:
                end, _ = self._listener.accept()
                end.settimeout(5)
                self._ends.append(end)
                with contextlib.suppress(OSError):
                    self._serve(end)

    def _serve(self, end: socket.socket) -> None:
        nonce = os.urandom(NONCE_BYTES)
        end.sendall(nonce)
        nonces = nonce + end.recv(HELLO_BYTES, socket.MSG_WAITALL)[:NONCE_BYTES]
        end.sendall(proof(SECRET, b"server", nonces))
        seal = Seal(SECRET, b"server", nonces)
        while head := end.recv(LENGTH.size, socket.MSG_WAITALL):
            payload = end.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL)
            end.recv(CODE_BYTES, socket.MSG_WAITALL)
            self._deed(end, seal, unpacked_names(payload))

    def close(self) -> None:
        self._is_closed = True
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._thread.join()


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asking]:
    """Make a client of some nodes, whose connections end soon after the test."""
    monkeypatch.setattr(client, "_REST_SECONDS", 0.05)
    return Asking


@pytest.fixture
def play() -> Iterator[Callable[[Deed], Address]]:
    """Start a fake peer; give its address."""
    peers: list[FakePeer] = []

    def start(deed: Deed) -> Address:
        peers.append(FakePeer(deed))
        return peers[-1].address

    yield start
    for peer in peers:
        peer.close()


#: Far below what would be waited for if each file, or each of some hundred, were.
BOUNDED_SECONDS = 10.0


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have peers waited for however busy this machine is."""
    monkeypatch.setattr(client, "_PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(client, "WAIT_SECONDS", 60.0)
    patient = functools.partial(client.Connection, wait_seconds=60.0)
    monkeypatch.setattr(client, "Connection", patient)


class Asking:
    """Fetches from some nodes, and keeps what comes.

    Args:
        nodes: The address of each node's server, from node 1 on.
    """

    def __init__(self, *nodes: Address) -> None:
        self.n_faults = 0
        plan = PeersPlan(0, ((), *((node,) for node in nodes)), 0, SECRET, 0)
        self.crashes: list[str] = []
        self.peers = Peers(plan, self._count, self.crashes.append)
        self._came: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()

    def _count(self) -> None:
        self.n_faults += 1

    def fetch(self, number: int, *nodes: int, is_coming: bool = False) -> None:
        def take(source: FetchedFile | None) -> bool:
            if source is None:
                self._came.put((number, None))
                return True
            original = source.stat()
            if original.size_bytes > 2 * FILE_BYTES:
                return False
            data = source.read(original.size_bytes)
            is_right = checksum_of(data, key(number), original.mtime_ns) == source.checksum
            if is_right:
                self._came.put((number, data))
            return is_right

        self.peers.fetch(name(number), Holders(nodes, is_coming), take)

    def came(self, n_files: int) -> dict[int, bytes | None]:
        return dict(self._came.get(timeout=60) for _ in range(n_files))


FAULTS: list[Deed] = [
    change_bytes,
    change_bytes_and_checksum,
    swap,
    cut,
    cut_in_the_answer,
    repeat,
    say_nothing,
    promise_too_much,
]


@pytest.mark.parametrize("deed", FAULTS)
def test_what_is_not_right_is_noticed_and_the_next_holder_asked(
    ask: Callable[..., Asking],
    play: Callable[[Deed], Address],
    deed: Deed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if deed is not say_nothing:
        be_patient(monkeypatch)
    asking = ask(play(deed), play(answer))
    for number in range(3):
        asking.fetch(number, 1, 2)
    assert asking.came(3) == dict.fromkeys(range(3), DATA)
    assert asking.n_faults >= 1


@pytest.mark.parametrize("deed", FAULTS)
def test_without_another_holder_the_source_is_left(
    ask: Callable[..., Asking], play: Callable[[Deed], Address], deed: Deed
) -> None:
    asking = ask(play(deed))
    began = time.monotonic()
    for number in range(3):
        asking.fetch(number, 1)
    assert asking.came(3) == dict.fromkeys(range(3))
    assert time.monotonic() - began < BOUNDED_SECONDS


def test_a_file_that_is_about_to_be_there_is_waited_for(
    ask: Callable[..., Asking], play: Callable[[Deed], Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    be_patient(monkeypatch)
    n_asked = 0

    def late(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
        nonlocal n_asked
        n_asked += 1
        (have_nothing if n_asked < 4 else answer)(end, seal, names)

    asking = ask(play(late))
    asking.fetch(0, 1, is_coming=True)
    assert asking.came(1) == {0: DATA}
    assert asking.n_faults == 0


def test_but_not_for_ever(
    ask: Callable[..., Asking], play: Callable[[Deed], Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PATIENCE_SECONDS", 0.2)
    asking = ask(play(have_nothing))
    began = time.monotonic()
    asking.fetch(0, 1, is_coming=True)
    assert asking.came(1) == {0: None}
    assert 0.1 < time.monotonic() - began < BOUNDED_SECONDS


def test_a_further_holder_is_asked_before_the_source_and_never_waited_for(
    ask: Callable[..., Asking], play: Callable[[Deed], Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    be_patient(monkeypatch)
    n_asked = 0

    def say_and_count(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
        nonlocal n_asked
        n_asked += 1
        have_nothing(end, seal, names)

    asking = ask(play(say_and_count), play(answer))
    asking.fetch(0, 0, 1, 2, is_coming=True)  # node 0 is this one
    assert asking.came(1) == {0: DATA}
    assert n_asked == 1  # a first holder would be asked again and again
    assert asking.n_faults == 0


def test_further_holders_that_never_have_anything_are_hardly_asked(
    ask: Callable[..., Asking], play: Callable[[Deed], Address]
) -> None:
    asked: list[bytes] = []

    def note(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
        asked.extend(names)
        have_nothing(end, seal, names)

    asking = ask(play(note))
    for number in range(600):
        asking.fetch(number, 0, 1)
        assert asking.came(1) == {number: None}
    assert 64 < len(asked) < 300


def test_a_node_that_does_not_exist_costs_nobody_time(ask: Callable[..., Asking]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    asking = ask(address)
    began = time.monotonic()
    for number in range(50):
        asking.fetch(number, 1)
    assert asking.came(50) == dict.fromkeys(range(50))
    assert time.monotonic() - began < BOUNDED_SECONDS


def test_a_peer_that_was_stopped_is_used_again_when_it_goes_on(
    ask: Callable[..., Asking], tmp_path: Path
) -> None:
    with served(tmp_path / "fast") as (address, pid):
        asking = ask(address)
        asking.fetch(0, 1)
        assert asking.came(1) == {0: DATA}
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        for number in range(8):
            asking.fetch(number, 1)
        assert asking.came(8) == dict.fromkeys(range(8))
        assert time.monotonic() - began < 5  # one wait for all of them
        held_up_seconds = []
        while (n_faults := asking.n_faults) < 3:  # it is tried again, which holds up a file
            began = time.monotonic()
            asking.fetch(1, 1)
            assert asking.came(1) == {1: None}
            if asking.n_faults > n_faults:
                held_up_seconds.append(time.monotonic() - began)
        assert min(held_up_seconds) < 0.9  # for less than the first time
        os.kill(pid, signal.SIGCONT)
        found = None
        while found is None:
            asking.fetch(1, 1)
            found = asking.came(1)[1]
        assert found == DATA


@pytest.mark.parametrize(("store_seconds", "is_slow"), [(0.01, True), (0.3, False), (0.0, False)])
def test_a_node_that_is_much_slower_than_the_store_is_left_alone_until_it_is_fast(
    ask: Callable[..., Asking],
    play: Callable[[Deed], Address],
    store_seconds: float,
    is_slow: bool,
) -> None:
    is_late = threading.Event()

    def be_late(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
        time.sleep(0 if is_late.is_set() else 0.4)  # stands for the network
        answer(end, seal, names)

    asking = ask(play(be_late))
    if store_seconds:
        asking.peers.note_store(store_seconds)
    for expected in (DATA, None if is_slow else DATA):
        asking.fetch(0, 1)
        assert asking.came(1) == {0: expected}
    is_late.set()
    found = None
    while found is None:
        asking.fetch(0, 1)
        found = asking.came(1)[0]
    for _ in range(20):  # and from then on
        asking.fetch(0, 1)
        assert asking.came(1) == {0: DATA}
    assert asking.n_faults == 0


def test_what_a_slow_node_has_been_asked_for_does_not_wait_for_all_of_it(
    ask: Callable[..., Asking], play: Callable[[Deed], Address]
) -> None:
    def trickle(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
        end.sendall(seal.message(packed_records(records_of(names))))
        for _ in names:
            time.sleep(0.3)  # stands for the network
            end.sendall(DATA)

    asking = ask(play(trickle), play(answer))
    asking.peers.note_store(0.01)
    began = time.monotonic()
    for number in range(100):
        asking.fetch(number, 1, 2)
    assert asking.came(100) == dict.fromkeys(range(100), DATA)
    assert time.monotonic() - began < BOUNDED_SECONDS


def test_a_node_that_does_not_send_all_of_a_large_file_is_left_alone(
    ask: Callable[..., Asking], play: Callable[[Deed], Address]
) -> None:
    def cut_large(end: socket.socket, seal: Seal, names: list[bytes]) -> None:
        end.sendall(seal.message(packed_records([Record(FRESH, 4 << 20, MTIME, 0)] * len(names))))
        end.sendall(bytes(1 << 20))
        end.shutdown(socket.SHUT_RDWR)

    def take(source: FetchedFile | None) -> bool:
        """Copy a large file in pieces, as the store does, which tells no error of a node."""
        if source is None:
            left.put(None)
            return True
        with contextlib.suppress(OSError):
            while source.read(256 << 10):
                pass
        return False

    left: queue.SimpleQueue[None] = queue.SimpleQueue()
    asking = ask(play(cut_large))
    for number in range(8):
        asking.peers.fetch(name(number), Holders((1,)), take)
    for _ in range(8):
        left.get(timeout=60)
    assert asking.n_faults <= 4  # it is tried again after each pause; each file would be one


@contextlib.contextmanager
def bad_cable(address: Address, delay_seconds: float, most_bytes: int) -> Iterator[Address]:
    """Pass on what goes to a server and comes from it, late; cut after so many bytes."""
    ends: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(run: Callable[..., None], *arguments: socket.socket) -> None:
        threads.append(threading.Thread(target=run, args=arguments))
        threads[-1].start()

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        n_left = most_bytes
        with contextlib.suppress(OSError):
            while n_left > 0 and (data := source.recv(min(n_left, 30_000))):
                time.sleep(delay_seconds)
                target.sendall(data)
                n_left -= len(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                ends.append(listener.accept()[0])
                ends.append(socket.create_connection(address))
                start(pass_on, *ends[-2:])
                start(pass_on, *ends[:-3:-1])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        start(accept)
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        threads[0].join()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for end in ends:
            end.close()


def test_over_a_network_that_delays_and_cuts_comes_nothing_wrong(
    ask: Callable[..., Asking], tmp_path: Path
) -> None:
    with (
        served(tmp_path / "fast", n_files=20) as (address, _),
        bad_cable(address, 0.02, 10**5) as late,
    ):
        asking = ask(late)
        came: dict[int, bytes | None] = {}
        while len(came) < 20 or None in came.values():  # until all have come, over many connections
            lost = [number for number in range(20) if came.get(number) is None]
            for number in lost:
                asking.fetch(number, 1)
            came |= asking.came(len(lost))
        assert came == dict.fromkeys(range(20), DATA)
        assert asking.n_faults >= 3


def test_a_peer_that_was_replaced_is_used_again(ask: Callable[..., Asking], tmp_path: Path) -> None:
    with served(tmp_path / "fast") as (address, pid):
        asking = ask(address)
        os.kill(pid, signal.SIGKILL)
        asking.fetch(0, 1)
        assert asking.came(1) == {0: None}
        assert asking.n_faults == 1


def test_what_a_dead_holder_had_comes_from_the_next_one(
    ask: Callable[..., Asking], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_patient(monkeypatch)
    with served(tmp_path / "one") as (one, pid), served(tmp_path / "two") as (two, _):
        asking = ask(one, two)
        os.kill(pid, signal.SIGKILL)
        for number in range(8):
            asking.fetch(number, 1, 2)
        assert asking.came(8) == dict.fromkeys(range(8), DATA)


def test_many_threads_ask_many_files_of_a_real_server(
    ask: Callable[..., Asking], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_patient(monkeypatch)
    with served(tmp_path / "fast", n_files=100) as (address, _):
        asking = ask(address)

        def fetch_some(first: int) -> None:
            for number in range(first, 100, 4):
                asking.fetch(number, 1)

        threads = [threading.Thread(target=fetch_some, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert asking.came(100) == dict.fromkeys(range(100), DATA)
        assert asking.n_faults == 0


def test_a_file_is_read_in_pieces() -> None:
    class Pieces:
        def read(self, size_bytes: int) -> bytes:
            return bytes(size_bytes)

    file = PeerFile(Pieces(), Record(FRESH, 10, MTIME, 0))  # type: ignore[arg-type]  # its read is all that is used
    assert [len(file.read(4)) for _ in range(4)] == [4, 4, 2, 0]
