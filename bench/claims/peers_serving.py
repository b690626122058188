"""What serving staged files to another node costs; the second experiment of ``bench peers``."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np

from bench.harness.tables import table
from bench.harness.turns import call_in_turns

_SECRET = bytes(32)
_FILE_BYTES = (20_000, 100_000)
_MOST_ASKED_BYTES = 2 << 20  # as a client asks
_N_REQUESTS = 2  # on their way at the same time
_KINDS = {
    "peers": "from a peer",
    "answers": "a plain socket, an answer for each file",
    "stream": "a plain socket, a stream",
}


def take(request: dict) -> dict:
    """Fetch all files from a server that is a fork of this process; tell the rate, and the CPU."""
    size_bytes, n_rounds = request["size_bytes"], 1 if request["is_quick"] else 20
    at_once = min(64, _MOST_ASKED_BYTES // size_bytes)
    n_files = (10**7 if request["is_quick"] else 5 * 10**7) // size_bytes // at_once * at_once
    names = [str(number) for number in range(n_files)]
    batches = [names[first : first + at_once] for first in range(0, n_files, at_once)] * n_rounds
    if request["kind"] == "peers":
        directory = os.path.join(request["scratch"], f"served-{time.monotonic_ns()}")
        serve = partial(_serve_files, directory, names, size_bytes)
        fetch = partial(_fetch_files, batches)
    else:
        n_pieces = 1 if request["kind"] == "answers" else at_once  # of an answer
        n_answers, n_ahead = (n * at_once // n_pieces for n in (len(batches), _N_REQUESTS))
        serve = partial(_serve_bytes, size_bytes * n_pieces)
        fetch = partial(_fetch_bytes, n_answers, n_pieces, size_bytes, n_ahead)
    context = get_context("fork")
    ours, theirs = context.Pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = context.Process(target=serve, args=(listener, theirs), daemon=True)
        server.start()
        theirs.close()
        ours.recv()  # it is ready
        seconds, cpu_seconds = fetch(listener.getsockname())
        with contextlib.suppress(BrokenPipeError):  # that of a plain socket ends with its client
            ours.send("end")
        cpu_seconds += ours.recv()
        server.join()
    n_sent = n_files * n_rounds
    rate = n_sent * size_bytes / seconds / 1e6
    return {"mb_per_s": rate, "cpu_us": cpu_seconds / n_sent * 1e6}


def _serve_files(
    directory: str, names: list[str], size_bytes: int, listener: socket.socket, client: Pipe
) -> None:
    """Stage files and serve them as a node does until the client ends; tell it the CPU seconds."""
    from bench.harness.store_access import stage_bytes, store_in
    from overlapiter.peers.catalogue import Catalogue
    from overlapiter.peers.server import Server
    from overlapiter.store.generation import prepare
    from overlapiter.store.site import Site

    prepare(directory)
    store = store_in(directory)
    stage_bytes(store, names, os.urandom(size_bytes))
    store.close()
    catalogue, is_over = Catalogue([Site(directory)], "/nowhere", "", ""), threading.Event()
    server = Server(listener, _SECRET, catalogue, since=0)
    server.watch(client.fileno(), is_over.set)
    client.send("ready")
    before = time.process_time()
    while not is_over.is_set():
        server.take_turn()
    client.send(time.process_time() - before)


def _serve_bytes(n_bytes: int, listener: socket.socket, client: Pipe) -> None:
    """Answer each byte that comes with so many from memory; tell the client the CPU seconds.

    They are the same ones again and again, as of ``iperf``.
    """
    data = os.urandom(n_bytes)
    client.send("ready")
    end, _ = listener.accept()
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    before = time.process_time()
    with end, contextlib.suppress(ConnectionError):
        while end.recv(1):
            end.sendall(data)
    client.send(time.process_time() - before)


def _clocks() -> np.ndarray:
    """Return the time, and the CPU time of this process."""
    return np.array([time.monotonic(), time.process_time()])


def _fetch_files(batches: list[list[str]], address: tuple) -> np.ndarray:
    """Fetch files as a node does that lacks them; return what it took."""
    from overlapiter.peers.connection import Connection
    from overlapiter.store.extents import checksum_of, keys_of

    key_of, connection = keys_of("/nowhere"), Connection(address, _SECRET, 30.0)
    keys = {name: key_of(f"/nowhere/{name}") for batch in batches for name in batch}
    encoded = [[name.encode() for name in batch] for batch in batches]
    start = _clocks()
    connection.ask(encoded[0])
    for batch, following in zip_longest(batches, encoded[1:]):
        if following:
            connection.ask(following)
        for name, record in zip(batch, connection.answer(len(batch)), strict=True):
            data = connection.read(record.size)
            if checksum_of(data, keys[name], record.mtime) != record.checksum:
                raise AssertionError(name)
    took = _clocks() - start
    connection.close()
    return took


def _fetch_bytes(
    n_answers: int, n_pieces: int, size_bytes: int, n_ahead: int, address: tuple
) -> np.ndarray:
    """Take as many bytes from a plain socket, so many answers ahead; return what it took."""
    with socket.create_connection(address) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = _clocks()
        end.sendall(b"g" * n_ahead)
        for number in range(n_answers):
            for _ in range(n_pieces):
                end.recv(size_bytes, socket.MSG_WAITALL)
            if number + n_ahead < n_answers:
                end.sendall(b"g")
        return _clocks() - start


def measure_serving(is_quick: bool, scratch: Path) -> list[dict]:
    points = [{"size_bytes": n, "kind": kind} for n in _FILE_BYTES for kind in _KINDS]
    call_in_turns(points, 1 if is_quick else 5, take, is_quick=is_quick, scratch=scratch)
    return points


def serving_rows(result: dict) -> list[list[str]]:
    return table(result.get("serving", []), _COLUMNS)


_COLUMNS = {
    "": lambda point: _KINDS[point["kind"]],
    "file": lambda point: f"{point['size_bytes'] // 1000} kB",
    "MB/s": "{mb_per_s:.1f}",
    "[min, max], MB/s": "[{mb_per_s.min:.1f}, {mb_per_s.max:.1f}]",
    "µs of CPU for a file, both sides": "{cpu_us:.1f}",
    "[min, max], µs": "[{cpu_us.min:.1f}, {cpu_us.max:.1f}]",
}
