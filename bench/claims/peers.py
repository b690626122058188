"""What it brings that nodes give each other the files that they have staged.

There are two experiments, by ``--parts``: ``epochs``, 4 ranks as 4 nodes or 2, in lockstep as in
data-parallel training, with room on each node for a part of the data; and ``serving``, one server
and one client on this machine. All run on its cores, so the store is slow enough to be the limit:
``peers-fast-store`` shows where it is not.
"""

import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import psutil

from bench.harness import isolated
from bench.harness.family import PEER, cpu_seconds, descendants, kinds_of
from bench.harness.machine import is_installed
from bench.harness.options import option
from bench.harness.tables import median_of, table
from bench.loaders.ranks import run_ranks
from bench.loaders.sources import EpochOptions, capacity_of, prepare
from bench.loaders.spec import RunSpec
from overlapiter.clairvoyant.placement import GreedyPlacement
from overlapiter.peers import holders

#: Nodes, the share of the data that each has room for, and what is done.
RUNS = (
    *((4, 0.3, kind) for kind in ("peers", "alone", "multiprocess", "torch", "shards")),
    (4, 0.3, "published"), (4, 0.15, "peers"), (4, 0.15, "alone"), (2, 0.3, "peers"),
    (2, 0.3, "alone"), (4, 0.3, "kill"), (4, 0.3, "stop"),
)  # fmt: skip
#: So many times the files, where a node has room for a part.
_TIMES = {0.15: 2}
#: By name, what of a run is not usual: a job of OverlapIterator, each node for itself.
KINDS: dict[str, dict] = {
    "peers": {"has_peers": True},
    "published": {"has_peers": True, "is_published": True},  # the placement of the paper
    "alone": {},
    "kill": {"has_peers": True, "fault": int(signal.SIGKILL)},  # a server is killed
    "stop": {"has_peers": True, "fault": int(signal.SIGSTOP)},
    "multiprocess": {"loader": "slow"},
    "torch": {"loader": "torch"},  # with DistributedSampler
    "shards": {"order": "shards"},
}
_N_RANKS = 4
_IDLE_SECONDS = 2.0
#: Of the second experiment.
_SERVED = {
    "peers": "from a peer", "answers": "a plain socket, an answer for each file",
    "other answers": "the same, of as many different bytes", "stream": "a plain socket, a stream"
}  # fmt: skip
_SECRET = bytes(32)
_FILE_BYTES = (20_000, 100_000)
_N_REQUESTS = 2  # on their way at the same time


class Options(EpochOptions):
    fixed = ("source",)  # a store of the user's counts no reads
    examples: int = 3200
    epochs: int = 5
    batch_size: int = 8
    readers: int = 1
    repeats: int = 1
    mb_per_s: float = 6.0
    parts: list[str] = option(["epochs", "serving"], "experiments", known=("epochs", "serving"))
    kinds: list[str] = option(list(KINDS), "of the first experiment", known=KINDS)


def lockstep(request: dict, comm: Any, _device: int) -> tuple[Callable, Callable]:
    """Return what keeps a rank in step with the others, and what reports of its idle servers.

    With a fault, rank 1 hits its servers in the middle of each epoch but the first.
    """
    spec, fault, numbers = request["spec"], request["fault"], itertools.count(1)
    if request["is_published"]:
        holders.Placement = partial(GreedyPlacement, spec.n_epochs, request["room"])
    n_batches = spec.n_examples // comm.size // spec.batch_size

    def servers() -> list[psutil.Process]:
        family = kinds_of(descendants(os.getpid()))
        return [process for process, kind in family.items() if kind == PEER]

    def step(_loader: object, _batch: list) -> float:
        epoch, place = divmod(next(numbers), n_batches)
        if fault and comm.rank == 1 and epoch and place == n_batches // 2:
            for server in servers():
                server.send_signal(fault)
        comm.mpi_comm.Barrier()
        return 0.0

    def idle() -> dict:
        if fault or not spec.has_peers:  # a server that was hit says nothing
            return {"idle_cpu_seconds": 0.0}
        time.sleep(_IDLE_SECONDS / 2)  # what is staged ahead comes first
        pids = [server.pid for server in servers()]
        before = sum(map(cpu_seconds, pids))
        time.sleep(_IDLE_SECONDS)
        return {"idle_cpu_seconds": sum(map(cpu_seconds, pids)) - before}

    return step, idle


def run_epochs(spec: RunSpec, n_ranks: int, n_nodes: int, fraction: float, **asked: Any) -> dict:
    """Do one run of ranks in lockstep, with room for a fraction of the data.

    Returned are ``seconds`` and ``reads`` of each epoch; ``first_seconds`` to the first
    mini-batch, the mean over the ranks, and ``idle_cpu_share`` of the servers of a node.
    """
    usual = {"order": "global", "is_decoding": False, "capacity": capacity_of(spec, fraction)}
    request = {name: asked.pop(name, 0) for name in ("fault", "is_published")}
    spec = replace(spec, **{**usual, **asked})
    request["room"] = fraction * spec.n_examples
    ranks, _opens = run_ranks(spec, lockstep, request, n_ranks, n_nodes)
    return {
        "seconds": [epoch["seconds"] for epoch in ranks[0]["epochs"]],
        "reads": [epoch["opens"] for epoch in ranks[0]["epochs"]],
        "first_seconds": np.mean([rank["start_seconds"] for rank in ranks]),
        "idle_cpu_share": sum(rank["idle_cpu_seconds"] for rank in ranks) / n_nodes / _IDLE_SECONDS,
    }


def measure(options: Options) -> dict:
    found = measure_epochs(options) if "epochs" in options.parts else {}
    if "serving" in options.parts:
        points = [{"size_bytes": size, "kind": kind} for size in _FILE_BYTES for kind in _SERVED]
        n_bytes, n_rounds, n_repeats = (10**7, 1, 1) if options.quick else (5 * 10**7, 20, 5)
        common = {"n_bytes": n_bytes, "n_rounds": n_rounds, "scratch": options.scratch}
        found["serving"] = isolated.call_in_turns(points, n_repeats, take_served, **common)
    return found


def measure_epochs(options: Options) -> dict:
    base, facts = prepare(options, options.examples * max(_TIMES.values()))
    kinds = {kind for kind in options.kinds if kind != "torch" or is_installed("torch")}
    points = [
        {"nodes": n, "fraction": f, "kind": kind, "examples": options.examples * _TIMES.get(f, 1)}
        for n, f, kind in RUNS if kind in kinds
    ]  # fmt: skip

    def run(point: dict) -> dict:
        spec = replace(base, **options.usual, n_examples=point["examples"])
        n_ranks = _N_RANKS // point["nodes"]
        return run_epochs(spec, n_ranks, point["nodes"], point["fraction"], **KINDS[point["kind"]])

    return {**facts, "points": isolated.take_turns(points, options.repeats, run)}


def _mean(key: str, epochs: slice, point: dict) -> str:
    """Return the mean over some epochs: of reads as a share of the files, or of seconds."""
    n_files = point["examples"] if key == "reads" else 1
    return f"{np.mean([run[key][epochs] for run in point['runs']]) / n_files:.2f}"


def _idle_percent(point: dict) -> str:
    has_server = point["kind"] in ("peers", "published")  # and none that was hit
    return f"{100 * median_of(point, 'idle_cpu_share'):.1f}" if has_server else "-"


_COLUMNS = {
    "nodes x room": lambda point: f"{point['nodes']} x {100 * point['fraction']:g} %", "": "{kind}",
    "reads, epoch 1": partial(_mean, "reads", slice(1)),
    "reads, later ones": partial(_mean, "reads", slice(1, None)),
    "seconds, epoch 1": partial(_mean, "seconds", slice(1)),
    "seconds, later ones": partial(_mean, "seconds", slice(1, None)),
    "first mini-batch, s": "{first_seconds:.2f}", "CPU of an idle server, %": _idle_percent
}  # fmt: skip


def marks(result: dict) -> list[tuple]:
    titles = {"reads": "reads of the slow store, % of the files", "seconds": "seconds"}
    return [
        (title, f"{p['nodes']} nodes, room for {100 * p['fraction']:g} % each, {p['kind']}",
         epoch, np.divide(values, p["examples"] / 100 if key == "reads" else 1))
        for key, title in titles.items()
        for p in result.get("points", ()) if p["kind"] in ("peers", "published", "alone")
        for epoch, values in enumerate(zip(*(run[key] for run in p["runs"]), strict=True), 1)
    ]  # fmt: skip


# --- what serving staged files costs --------------------------------------------------------------


def take_served(request: dict) -> dict:
    """Fetch all files from a server that is a fork of this process; tell the rate, and the CPU."""
    from overlapiter.peers.client import REQUEST_BYTES
    from overlapiter.peers.protocol import MOST_NAMES

    size_bytes, n_rounds, kind = request["size_bytes"], request["n_rounds"], request["kind"]
    at_once = min(MOST_NAMES, REQUEST_BYTES // size_bytes)  # as a client asks
    n_files = request["n_bytes"] // size_bytes // at_once * at_once
    if kind == "peers":
        names = [str(number) for number in range(n_files)]
        directory = os.path.join(request["scratch"], f"served-{time.monotonic_ns()}")
        serve = partial(_serve_files, directory, names, size_bytes)
        batches = [names[first : first + at_once] for first in range(0, n_files, at_once)]
        fetch = partial(_fetch_files, batches * n_rounds)
    else:
        n_pieces = at_once if kind == "stream" else 1  # of an answer
        n_different = n_files if kind == "other answers" else n_pieces
        serve = partial(_serve_bytes, os.urandom(size_bytes * n_different), size_bytes * n_pieces)
        n_answers = n_files * n_rounds // n_pieces
        n_ahead = min(n_answers, _N_REQUESTS * at_once // n_pieces)
        fetch = partial(_fetch_bytes, n_answers, n_pieces, size_bytes, n_ahead)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = get_context("fork").Process(target=serve, args=(listener,), daemon=True)
        server.start()
        seconds, used_seconds = fetch(listener.getsockname(), server.pid)
        server.kill()
        server.join()
    n_sent = n_files * n_rounds
    return {"mb_per_s": n_sent * size_bytes / seconds / 1e6, "cpu_us": used_seconds / n_sent * 1e6}


def _serve_files(directory: str, names: list[str], size: int, listener: socket.socket) -> None:
    """Stage files and serve them as a node does."""
    from bench.harness.store_access import stage_bytes, store_in
    from overlapiter.peers.catalogue import Catalogue
    from overlapiter.peers.server import Server
    from overlapiter.store.generation import prepare
    from overlapiter.store.site import Site

    prepare(directory)
    with contextlib.closing(store_in(directory)) as store:
        stage_bytes(store, names, os.urandom(size))
    server = Server(listener, _SECRET, Catalogue([Site(directory)], "/nowhere", "", ""), since=0)
    while True:
        server.take_turn()


def _serve_bytes(data: bytes, size: int, listener: socket.socket) -> None:
    """Answer each byte that comes with the next of these, in a circle, as ``iperf`` with one."""
    end, _ = listener.accept()
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answers = itertools.cycle([data[at : at + size] for at in range(0, len(data), size)])
    while end.recv(1):
        end.sendall(next(answers))


def _clocks(server: int) -> np.ndarray:
    """Return the time, and the CPU time of this process and of the server."""
    return np.array([time.monotonic(), time.process_time() + cpu_seconds(server)])


def _fetch_files(batches: list[list[str]], address: tuple, server: int) -> np.ndarray:
    """Fetch files as a node does that lacks them; return what it took."""
    from overlapiter.peers.connection import Connection
    from overlapiter.store.extents import checksum_of, keys_of

    key_of = keys_of("/nowhere")
    keys = {name: key_of(f"/nowhere/{name}") for batch in batches for name in batch}
    encoded = [[name.encode() for name in batch] for batch in batches]
    # It lets the client in when it is ready.
    connection = Connection(address, _SECRET, 30.0, 60.0)
    start = _clocks(server)
    connection.ask(encoded[0])
    for batch, following in itertools.zip_longest(batches, encoded[1:]):
        if following:
            connection.ask(following)
        for name, record in zip(batch, connection.answer(len(batch)), strict=True):
            data = connection.read(record.size)
            if checksum_of(data, keys[name], record.mtime) != record.checksum:
                raise AssertionError(name)
    took = _clocks(server) - start
    connection.close()
    return took


def _fetch_bytes(
    n_answers: int, n_pieces: int, size_bytes: int, n_ahead: int, address: tuple, server: int
) -> np.ndarray:
    """Take as many bytes from a plain socket, so many answers ahead; return what it took."""
    with socket.create_connection(address) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.sendall(b"g")
        if not end.recv(n_pieces * size_bytes, socket.MSG_WAITALL):  # it is ready, or dead
            raise ConnectionError("the server has died")
        start = _clocks(server)
        end.sendall(b"g" * n_ahead)
        for number in range(n_answers):
            for _ in range(n_pieces):
                end.recv(size_bytes, socket.MSG_WAITALL)
            if number + n_ahead < n_answers:
                end.sendall(b"g")
        return _clocks(server) - start


_SERVING_COLUMNS = {
    "": lambda point: _SERVED[point["kind"]],
    "file": lambda point: f"{point['size_bytes'] // 1000} kB",
    "MB/s": "{mb_per_s:.1f}",
    "[min, max], MB/s": "[{mb_per_s.min:.1f}, {mb_per_s.max:.1f}]",
    "µs of CPU for a file, both sides": "{cpu_us:.1f}",
    "[min, max], µs": "[{cpu_us.min:.1f}, {cpu_us.max:.1f}]",
}


TABLES = {
    "peers-epochs": _COLUMNS,
    "peers-serving": lambda result: table(result.get("serving", ()), _SERVING_COLUMNS),
}
AXES = {"xlabel": "epoch", "ylim": (0, None)}
