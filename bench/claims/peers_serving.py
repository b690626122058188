"""What serving staged files to another node costs; the second experiment of ``bench peers``."""

from __future__ import annotations

import collections
import contextlib
import os
import resource
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import isolated
from bench.harness.text import extremes, spread, table
from bench.harness.turns import take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

_SECRET = bytes(32)
_FILE_BYTES = (20_000, 100_000)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(request: dict) -> dict:
    """Serve from a process of its own until the client has all; tell the CPU that it took."""
    from bench.harness.store_access import stage_bytes, store_in
    from overlapiter.peers.catalogue import Catalogue
    from overlapiter.peers.server import Server
    from overlapiter.store.generation import prepare as prepare_store
    from overlapiter.store.site import Site

    directory, size_bytes = request["directory"], request["size_bytes"]
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if request["kind"] == "peers":
            prepare_store(directory)
            store = store_in(directory)
            stage_bytes(store, [str(n) for n in range(request["n_files"])], os.urandom(size_bytes))
            store.close()
            catalogue = Catalogue([Site(directory)], "/nowhere", "", "")
            server = Server(listener, _SECRET, catalogue, most_peers=2, since=0)
            ending, other = socket.socketpair()
            server.watch(ending.fileno(), is_over.set)
            _tell(request, listener)
            threading.Thread(target=_wait_for_end, args=(request, other), daemon=True).start()
            before = _cpu_seconds()
            while not is_over.is_set():
                server.take_turn()
            return {"seconds": _cpu_seconds() - before}
        data = os.urandom(size_bytes * request["at_once"])
        _tell(request, listener)
        end, _ = listener.accept()
        before = _cpu_seconds()
        with end, contextlib.suppress(ConnectionError):
            while end.recv(1):
                end.sendall(data)
        return {"seconds": _cpu_seconds() - before}


def _tell(request: dict, listener: socket.socket) -> None:
    part = Path(request["port"] + ".part")
    part.write_text(str(listener.getsockname()[1]))
    part.replace(request["port"])


def _wait_for_end(request: dict, end: socket.socket) -> None:
    while not Path(request["port"] + ".over").exists():
        time.sleep(0.05)
    end.close()


def fetch(request: dict) -> dict:
    """Be the client; tell how long it took, and the CPU."""
    from overlapiter.peers.connection import Connection
    from overlapiter.store.extents import checksum_of, keys_of

    n_files, at_once, size_bytes = (request[k] for k in ("n_files", "at_once", "size_bytes"))
    while not Path(request["port"]).exists():
        time.sleep(0.01)
    address = "127.0.0.1", int(Path(request["port"]).read_text())
    names = [str(number).encode() for number in range(n_files)]
    batches = [names[first : first + at_once] for first in range(0, n_files, at_once)]
    batches *= request["n_rounds"]
    asked: collections.deque[list[bytes]] = collections.deque()
    key_of = keys_of("/nowhere")
    keys = {name: key_of(f"/nowhere/{name.decode()}") for name in names}
    if request["kind"] == "peers":
        connection = Connection(address, _SECRET, 30.0)
        began, before = time.monotonic(), _cpu_seconds()
        for batch in [*batches, None, None]:
            if batch is not None:
                connection.ask(batch)
                asked.append(batch)
            if asked and (batch is None or len(asked) == 2):
                wanted = asked.popleft()
                for name, record in zip(wanted, connection.answer(len(wanted)), strict=True):
                    data = connection.read(record.size)
                    if checksum_of(data, keys[name], record.mtime) != record.checksum:
                        raise AssertionError(name)
        found = {"seconds": time.monotonic() - began, "cpu_seconds": _cpu_seconds() - before}
        connection.close()
    else:
        with socket.create_connection(address) as end:
            began, before = time.monotonic(), _cpu_seconds()
            end.sendall(b"go")
            for batch in batches:
                for _ in batch:
                    end.recv(size_bytes, socket.MSG_WAITALL)
                end.sendall(b"g")
            found = {"seconds": time.monotonic() - began, "cpu_seconds": _cpu_seconds() - before}
    Path(request["port"] + ".over").touch()
    return found


def measure_serving(is_quick: bool, scratch: Path) -> list[dict]:
    """Do the runs of the second experiment."""
    points = [{"size_bytes": n, "kind": kind} for n in _FILE_BYTES for kind in ("peers", "plain")]
    n_bytes = 10**7 if is_quick else 5 * 10**7

    def run(point: dict) -> dict:
        size_bytes = point["size_bytes"]
        at_once = min(64, (2 << 20) // size_bytes)  # as a client asks
        n_files = n_bytes // size_bytes // at_once * at_once
        name = f"{point['kind']}-{size_bytes}-{time.monotonic_ns()}"
        request = {
            **point,
            "runs": None,
            "n_files": n_files,
            "at_once": at_once,
            "n_rounds": 1 if is_quick else 20,
            "directory": str(scratch / name),
            "port": str(scratch / f"{name}.port"),
        }
        answers: dict[str, dict] = {}

        def call_server() -> None:
            answers["server"] = isolated.call(serve, request)

        server = threading.Thread(target=call_server)
        server.start()
        client = isolated.call(fetch, request)
        server.join()
        n_sent = n_files * request["n_rounds"]
        cpu_seconds = client["cpu_seconds"] + answers["server"]["seconds"]
        return {
            "mb_per_s": n_sent * size_bytes / client["seconds"] / 1e6,
            "cpu_us": cpu_seconds / n_sent * 1e6,
        }

    take_turns(points, 1 if is_quick else 5, run)
    return points


def serving_rows(result: dict) -> list[list[str]]:
    """Return a row for each way and size: rate, and CPU of both sides for a file."""
    columns: dict[str, Callable[[dict], str]] = {
        "": lambda p: {"peers": "from a peer", "plain": "a plain socket"}[p["kind"]],
        "file": lambda p: f"{p['size_bytes'] // 1000} kB",
    }
    for key, head in (("mb_per_s", "MB/s"), ("cpu_us", "µs of CPU for a file, both sides")):
        columns[head] = lambda p, key=key: f"{spread(r[key] for r in p['runs'])['median']:.1f}"
        columns[f"[min, max], {head.split()[0]}"] = lambda p, key=key: extremes(
            spread(r[key] for r in p["runs"]), 1
        )
    return table(result.get("serving", []), columns)
