"""What it brings that nodes give each other the files that they have staged.

Two experiments::

    python -m bench peers
    python -m bench peers --parts serving
    python -m bench peers --parts epochs --mount fuse
    python -m bench peers --parts epochs --kinds peers,alone --open-ms 0 --mb-per-s 1000

* ``epochs``: 4 ranks under ``mpiexec`` as 4 nodes or 2, in lockstep as in data-parallel training,
  fresh global shuffles, room on each node for a part of the data: reads of the slow store and
  seconds of each epoch, with peers, without, and with peers of which one server is killed or
  stopped in the middle of each epoch from the second one on; beside ``MultiprocessIterator``,
  PyTorch's ``DataLoader`` with ``DistributedSampler`` (left out without PyTorch) and fixed shards,
  of which each node holds its own and no rank sees another's. All nodes run on the cores of this
  machine, so the store is slow enough to be the limit; the last command shows where it is not.
  With room for 15 % there are twice as many files: the three mini-batches that a rank has in work
  take the place of files that are kept, and are to be as few of them as in a larger data set.
* ``serving``: one server and one client on this machine: how fast staged files come, and what they
  take of the CPU on both sides, beside a plain socket that carries as many bytes from memory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pickle
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from bench.claims.peers_serving import measure_serving, serving_rows
from bench.harness import isolated
from bench.harness.claim import Claim
from bench.harness.files import make_folder, read_pairs
from bench.harness.launching import YIELDS, launch
from bench.harness.options import option, picked
from bench.harness.text import median_of, table
from bench.harness.turns import take_turns
from bench.loaders.run import Heads
from bench.loaders.sources import EpochOptions, prepare, store_facts
from bench.slow.mount import MountPoint, SlowMount
from bench.slow.store import SlowStore, attach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Nodes, the share of the data that each has room for, and what is done.
RUNS = (
    *((4, 0.3, kind) for kind in ("peers", "alone", "multiprocess", "torch", "shards")),
    (4, 0.15, "peers"), (4, 0.15, "alone"), (2, 0.3, "peers"), (2, 0.3, "alone"),
    (4, 0.3, "kill"), (4, 0.3, "stop"),
)  # fmt: skip
#: So many times the files, where a node has room for a part.
_TIMES = {0.15: 2}
MEANINGS = {
    "peers": "OverlapIterator, peers",
    "alone": "OverlapIterator, each node for itself",
    "kill": "peers, a server killed",
    "stop": "peers, a server stopped",
    "multiprocess": "MultiprocessIterator",
    "torch": "DataLoader, DistributedSampler",
    "shards": "OverlapIterator, fixed shards",
}
_N_RANKS = 4
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_IDLE_SECONDS = 2.0
_RUN_VARIABLE = "OVERLAPITER_BENCH_RUN"


@dataclass
class PeersOptions(EpochOptions):
    """What is run."""

    examples: int = 3200
    epochs: int = 5
    batch_size: int = 8
    readers: int = 1
    repeats: int = 1
    mb_per_s: float = 6.0
    parts: list[str] = option(["epochs", "serving"], "experiments", known=("epochs", "serving"))
    kinds: list[str] = option(list(MEANINGS), "of the first experiment", known=MEANINGS)


def take(request: dict) -> dict | None:
    """Be one rank: take the epochs; rank 0 tells of each how often the store was opened."""
    import overlapiter.mpi

    comm = overlapiter.mpi.create_communicator("naive")
    store: SlowStore | SlowMount = pickle.loads(Path(request["store"]).read_bytes())
    fault = _SIGNALS.get(request["kind"])
    n_batches = request["examples"] // comm.size // request["batch_size"]
    opens, seconds = [], []
    comm.mpi_comm.Barrier()
    began = time.monotonic()
    with contextlib.ExitStack() as resources:
        mini_batches = _mini_batches(request, comm, store, resources)
        for epoch in range(request["epochs"]):
            for place in range(n_batches):
                if place == n_batches // 2 and epoch and comm.rank == 1 and fault:
                    for server in _servers():
                        server.send_signal(fault)
                next(mini_batches)
                if not epoch and not place:
                    first_seconds = time.monotonic() - began
                comm.mpi_comm.Barrier()
            seconds.append(time.monotonic() - began)
            opens.append(store.counts()["opens"])
            comm.mpi_comm.Barrier()
        idle_seconds = comm.mpi_comm.allreduce(_idle_cpu_seconds())
        first_seconds = comm.mpi_comm.allreduce(first_seconds) / comm.size
        comm.mpi_comm.Barrier()
    if comm.rank:
        return None
    found = {"seconds": np.diff(seconds, prepend=0.0).tolist(), "first_seconds": first_seconds}
    found["idle_cpu_share"] = idle_seconds / comm.size / _IDLE_SECONDS
    return found | {"reads": np.diff(opens, prepend=0).tolist()}


def _mini_batches(
    request: dict, comm: Any, store: SlowStore | SlowMount, resources: contextlib.ExitStack
) -> Iterator:
    """Return the mini-batches of this rank, epoch after epoch, as the opponent gives them."""
    import overlapiter

    kind, root = request["kind"], str(store.root)
    pairs = read_pairs(request["pairs"], request["examples"])
    is_shard = kind == "shards"
    dataset: object = Heads(pairs[comm.rank :: comm.size] if is_shard else pairs, root)
    usual = (request["batch_size"],)
    if kind == "torch":
        resources.enter_context(_slow(store))  # its workers are forks of this process
        return _torch_batches(request, comm, dataset)
    options: dict[str, Any] = {"n_processes": request["readers"]}
    options["order_sampler"] = (
        None if is_shard else overlapiter.scatter_order(comm, request["seed"])
    )
    if kind == "multiprocess":
        from chainer.iterators import MultiprocessIterator

        resources.enter_context(_slow(store))
        iterator = MultiprocessIterator(dataset, *usual, **options)
        resources.callback(iterator.finalize)
        return iterator
    if isinstance(store, SlowStore):
        dataset = attach(dataset, store)
    staging = overlapiter.Staging(
        f"{request['staging']}-{os.environ['OVERLAPITER_NODE']}",
        source=root,
        capacity=request["capacity"],
        peers=None if kind in ("alone", "shards") else comm,
    )
    make = overlapiter.OverlapIterator(dataset, *usual, staging=staging, **options)
    return resources.enter_context(make)


def _slow(store: SlowStore | SlowMount) -> contextlib.AbstractContextManager:
    return store.installed() if isinstance(store, SlowStore) else contextlib.nullcontext()


def _torch_batches(request: dict, comm: Any, dataset: Any) -> Iterator:
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    sampler = DistributedSampler(dataset, comm.size, comm.rank, seed=request["seed"])
    options = {"num_workers": request["readers"], "persistent_workers": True}
    loader = DataLoader(dataset, request["batch_size"], sampler=sampler, **options)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def _servers() -> list[psutil.Process]:
    """Return the servers of this rank's node."""
    own = [os.environ[name] for name in (_RUN_VARIABLE, "OVERLAPITER_NODE")]
    found = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "ovl-peer":
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                if [environment.get(n) for n in (_RUN_VARIABLE, "OVERLAPITER_NODE")] == own:
                    found.append(process)
    return found


def _idle_cpu_seconds() -> float:
    """Return the CPU that the servers of this node take while nothing is asked of them."""
    time.sleep(_IDLE_SECONDS / 2)  # what is staged ahead comes first
    before = [(server, sum(server.cpu_times()[:2])) for server in _servers()]
    time.sleep(_IDLE_SECONDS)
    return sum(sum(server.cpu_times()[:2]) - seconds for server, seconds in before)


def measure_epochs(options: PeersOptions, scratch: Path) -> dict:
    """Do the runs of the first experiment."""
    sources = prepare(options, scratch, options.examples * max(_TIMES.values()))
    usual = picked(options, ("seed", "epochs", "batch_size", "readers"))
    kinds = {*options.kinds} - (set() if importlib.util.find_spec("torch") else {"torch"})
    points = [
        {"nodes": n, "fraction": f, "kind": kind, "examples": options.examples * _TIMES.get(f, 1)}
        for n, f, kind in RUNS
        if kind in kinds
    ]
    numbers = options.open_ms / 1e3, options.bytes_per_second

    def run(point: dict) -> dict:
        token = f"{os.getpid()}-{time.monotonic_ns()}"
        place = make_folder(scratch / "mount")
        with (
            SlowMount(sources.slow, place, *numbers, options.stat_ms / 1e3)
            if options.mount == "fuse"
            else SlowStore(sources.slow, *numbers)
        ) as store:
            is_mount = isinstance(store, SlowMount)
            pickled = scratch / "store.pickle"
            pickled.write_bytes(pickle.dumps(MountPoint(store.root) if is_mount else store))
            request = {
                **usual,
                "pairs": sources.pairs,
                "kind": point["kind"],
                "examples": point["examples"],
                "store": str(pickled),
                "staging": str(scratch / f"staged-{token}"),
                "capacity": sources.capacity_of(point["fraction"], point["examples"]),
            }
            n_nodes = point["nodes"]
            job = partial(launch, n_ranks=_N_RANKS // n_nodes, n_nodes=n_nodes)
            return isolated.call(take, request, job, **YIELDS, **{_RUN_VARIABLE: token})

    take_turns(points, options.repeats, run)
    return {"data": sources.label, **store_facts(options), "points": points}


def epoch_rows(result: dict) -> list[list[str]]:
    """Return a row for each run: reads of the slow store as shares of the data, and seconds."""

    def mean_of(point: dict, key: str, epochs: slice) -> str:
        n_files = point.get("examples", result["options"]["examples"]) if key == "reads" else 1
        return f"{np.mean([run[key][epochs] for run in point['runs']]) / n_files:.2f}"

    later, first = slice(1, None), slice(1)
    columns: dict[str, Callable[[dict], str]] = {
        "nodes x room": lambda p: f"{p['nodes']} x {100 * p['fraction']:g} %",
        "": lambda p: p["kind"],
        "reads, epoch 1": lambda p: mean_of(p, "reads", first),
        "reads, later ones": lambda p: mean_of(p, "reads", later),
        "seconds, epoch 1": lambda p: mean_of(p, "seconds", first),
        "seconds, later ones": lambda p: mean_of(p, "seconds", later),
    }
    return table(result.get("points", []), columns)


def idle_rows(result: dict) -> list[list[str]]:
    """Return a row for each kind of run: its first mini-batch, and what idle servers cost."""
    points = [p for p in result.get("points", []) if "first_seconds" in p["runs"][0]]
    columns: dict[str, Callable[[dict], str]] = {
        "": lambda p: f"{MEANINGS[p['kind']]}, {p['nodes']} x {100 * p['fraction']:g} %",
        "s to the first mini-batch": lambda p: f"{median_of(p, 'first_seconds'):.2f}",
        "CPU of an idle server, %": lambda p: f"{100 * median_of(p, 'idle_cpu_share'):.1f}",
    }
    return table([p for p in points if p["kind"] not in _SIGNALS], columns)


def measure(options: PeersOptions, scratch: Path) -> dict:
    """Do both experiments."""
    found: dict = {}
    if "epochs" in options.parts:
        found |= measure_epochs(options, scratch)
    if "serving" in options.parts:
        found["serving"] = measure_serving(options.quick, scratch)
    return found


CLAIM = Claim(
    __doc__,
    PeersOptions,
    measure,
    quick={"examples": 320, "epochs": 2},
    tables={"peers-epochs": epoch_rows, "peers-idle": idle_rows, "peers-serving": serving_rows},
    figures="bench.claims.peers_figures",
)
