"""What it brings that nodes give each other the files that they have staged.

Two experiments::

    python -m bench peers
    python -m bench peers --parts serving

* ``epochs``: 4 ranks under ``mpiexec`` as 4 nodes or 2, in lockstep as in data-parallel training,
  fresh global shuffles, room on each node for a part of the data: reads of the slow store and
  seconds of each epoch, with peers, without, and with peers of which one server is killed or
  stopped in the middle of each epoch from the second one on.
* ``serving``: one server and one client on this machine: how fast staged files come, and what they
  take of the CPU on both sides, beside a plain socket that carries as many bytes from memory.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import resource
import signal
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from bench.harness import isolated
from bench.harness.claim import Claim
from bench.harness.files import read_pairs
from bench.harness.launching import YIELDS, launch
from bench.harness.options import option, picked
from bench.harness.text import extremes, spread, table
from bench.harness.turns import take_turns
from bench.loaders.run import Heads
from bench.loaders.sources import EpochOptions, prepare, store_facts
from bench.slow.store import SlowStore, attach

if TYPE_CHECKING:
    from collections.abc import Callable

#: Nodes, the share of the data that each has room for, and what is done.
RUNS = (
    (4, 0.3, "peers"), (4, 0.3, "alone"), (4, 0.15, "peers"), (4, 0.15, "alone"),
    (2, 0.3, "peers"), (2, 0.3, "alone"), (4, 0.3, "kill"), (4, 0.3, "stop"),
)  # fmt: skip
_N_RANKS = 4
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_SECRET = bytes(32)
_FILE_BYTES = (20_000, 100_000)
_RUN_VARIABLE = "OVERLAPITER_BENCH_RUN"


@dataclass
class PeersOptions(EpochOptions):
    """What is run."""

    examples: int = 3200
    epochs: int = 5
    batch_size: int = 8
    readers: int = 1
    repeats: int = 1
    mb_per_s: float = 20.0
    parts: list[str] = option(["epochs", "serving"], "experiments", known=("epochs", "serving"))


# --- epochs -----------------------------------------------------------------------------------


def take(request: dict) -> dict | None:
    """Be one rank: take the epochs; rank 0 tells of each how often the store was opened."""
    import overlapiter.mpi

    comm = overlapiter.mpi.create_communicator("naive")
    store: SlowStore = pickle.loads(Path(request["store"]).read_bytes())
    root, fault = request["root"], _SIGNALS.get(request["kind"])
    staging = overlapiter.Staging(
        f"{request['staging']}-{os.environ['OVERLAPITER_NODE']}",
        source=root,
        capacity=request["capacity"],
        peers=None if request["kind"] == "alone" else comm,
    )
    n_batches = request["examples"] // comm.size // request["batch_size"]
    opens, seconds = [], []
    began = time.monotonic()
    with overlapiter.OverlapIterator(
        attach(Heads(read_pairs(request["pairs"], request["examples"]), root), store),
        request["batch_size"],
        n_processes=request["readers"],
        order_sampler=overlapiter.scatter_order(comm, request["seed"]),
        staging=staging,
    ) as iterator:
        for epoch in range(request["epochs"]):
            for place in range(n_batches):
                if place == n_batches // 2 and epoch and comm.rank == 1 and fault:
                    _signal_servers(fault)
                next(iterator)
                comm.mpi_comm.Barrier()
            seconds.append(time.monotonic() - began)
            opens.append(len(store.records()))
            comm.mpi_comm.Barrier()
        peer_files = comm.mpi_comm.allreduce(iterator.stats().files_peer)
        comm.mpi_comm.Barrier()
    if comm.rank:
        return None
    found = {"seconds": np.diff(seconds, prepend=0.0).tolist(), "peer_files": peer_files}
    return found | {"reads": np.diff(opens, prepend=0).tolist()}


def _signal_servers(number: int) -> None:
    """Send a signal to the servers of this rank's node."""
    own = [os.environ[name] for name in (_RUN_VARIABLE, "OVERLAPITER_NODE")]
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "ovl-peer":
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                if [environment.get(n) for n in (_RUN_VARIABLE, "OVERLAPITER_NODE")] == own:
                    process.send_signal(number)


def measure_epochs(options: PeersOptions, scratch: Path) -> dict:
    """Do the runs of the first experiment."""
    sources = prepare(options, scratch, options.examples)
    usual = picked(options, ("seed", "examples", "epochs", "batch_size", "readers"))
    usual |= {"pairs": sources.pairs, "root": sources.slow}
    points = [{"nodes": nodes, "fraction": f, "kind": kind} for nodes, f, kind in RUNS]

    def run(point: dict) -> dict:
        name = "-".join(map(str, point.values())).replace("[]", "")
        token = f"{os.getpid()}-{time.monotonic_ns()}"
        with SlowStore(sources.slow, options.open_ms / 1e3, options.mb_per_s * 1e6) as store:
            (scratch / "store.pickle").write_bytes(pickle.dumps(store))
            request = {
                **usual,
                "kind": point["kind"],
                "store": str(scratch / "store.pickle"),
                "staging": str(scratch / f"{name[:12]}-{token}"),
                "capacity": sources.capacity_of(point["fraction"], options.examples),
            }
            n_nodes = point["nodes"]
            job = partial(launch, n_ranks=_N_RANKS // n_nodes, n_nodes=n_nodes)
            return isolated.call(take, request, job, **YIELDS, **{_RUN_VARIABLE: token})

    take_turns(points, options.repeats, run)
    return {"data": sources.label, **store_facts(options), "points": points}


def epoch_rows(result: dict) -> list[list[str]]:
    """Return a row for each run: reads of the slow store as shares of the data, and seconds."""
    n_examples = result["options"]["examples"]

    def mean_of(point: dict, key: str, scale: float) -> str:
        return f"{np.mean([run[key][1:] for run in point['runs']]) * scale:.2f}"

    def first_of(point: dict, key: str, scale: float) -> str:
        return f"{np.mean([run[key][0] for run in point['runs']]) * scale:.2f}"

    columns: dict[str, Callable[[dict], str]] = {
        "nodes x room": lambda p: f"{p['nodes']} x {100 * p['fraction']:g} %",
        "": lambda p: p["kind"],
        "reads, epoch 1": lambda p: first_of(p, "reads", 1 / n_examples),
        "reads, later ones": lambda p: mean_of(p, "reads", 1 / n_examples),
        "seconds, epoch 1": lambda p: first_of(p, "seconds", 1.0),
        "seconds, later ones": lambda p: mean_of(p, "seconds", 1.0),
    }
    return table(result.get("points", []), columns)


# --- serving ----------------------------------------------------------------------------------


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
        _tell(request, listener)
        end, _ = listener.accept()
        data = os.urandom(size_bytes * request["at_once"])
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


def measure_serving(options: PeersOptions, scratch: Path) -> list[dict]:
    """Do the runs of the second experiment."""
    points = [{"size_bytes": n, "kind": kind} for n in _FILE_BYTES for kind in ("peers", "plain")]
    n_bytes = 10**7 if options.quick else 5 * 10**7

    def run(point: dict) -> dict:
        size_bytes = point["size_bytes"]
        at_once = min(64, (1 << 20) // size_bytes)
        n_files = n_bytes // size_bytes // at_once * at_once
        name = f"{point['kind']}-{size_bytes}-{time.monotonic_ns()}"
        request = {
            **point,
            "runs": None,
            "n_files": n_files,
            "at_once": at_once,
            "n_rounds": 1 if options.quick else 20,
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

    take_turns(points, 1 if options.quick else 5, run)
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


def measure(options: PeersOptions, scratch: Path) -> dict:
    """Do both experiments."""
    found: dict = {}
    if "epochs" in options.parts:
        found |= measure_epochs(options, scratch)
    if "serving" in options.parts:
        found["serving"] = measure_serving(options, scratch)
    return found


CLAIM = Claim(
    __doc__,
    PeersOptions,
    measure,
    quick={"examples": 320, "epochs": 2},
    tables={"peers-epochs": epoch_rows, "peers-serving": serving_rows},
    figures="bench.claims.peers_figures",
)
