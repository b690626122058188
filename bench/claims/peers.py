"""What it brings that nodes give each other the files that they have staged.

Two experiments::

    python -m bench peers
    python -m bench peers --parts serving
    python -m bench peers --parts epochs --mount fuse
    python -m bench peers --parts epochs --kinds peers,alone --open-ms 0 --mb-per-s 1000 --repeats 3

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
import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import psutil

from bench.claims.peers_serving import measure_serving, serving_rows
from bench.harness.family import cpu_seconds
from bench.harness.machine import is_installed
from bench.harness.options import option
from bench.harness.tables import median_of, spread
from bench.harness.turns import take_turns
from bench.loaders.ranks import run_ranks
from bench.loaders.sources import EpochOptions, capacity_of, prepare
from bench.loaders.spec import RunSpec

#: Nodes, the share of the data that each has room for, and what is done.
RUNS = (
    *((4, 0.3, kind) for kind in ("peers", "alone", "multiprocess", "torch", "shards")),
    (4, 0.15, "peers"), (4, 0.15, "alone"), (2, 0.3, "peers"), (2, 0.3, "alone"),
    (4, 0.3, "kill"), (4, 0.3, "stop"),
)  # fmt: skip
#: So many times the files, where a node has room for a part.
_TIMES = {0.15: 2}
#: By name, what of a run is not usual: a job of OverlapIterator, each node for itself.
KINDS: dict[str, dict] = {
    "peers": {"has_peers": True},
    "alone": {},
    "kill": {"has_peers": True, "fault": int(signal.SIGKILL)},  # a server is killed
    "stop": {"has_peers": True, "fault": int(signal.SIGSTOP)},
    "multiprocess": {"loader": "slow"},
    "torch": {"loader": "torch"},  # with DistributedSampler
    "shards": {"order": "shards"},
}
_N_RANKS = 4
_IDLE_SECONDS = 2.0
_RUN_VARIABLE = "OVERLAPITER_BENCH_RUN"


class Options(EpochOptions):
    """What is run."""

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

    With a fault, rank 1 hits the servers of its node in the middle of each epoch but the first.
    """
    spec, fault, numbers = request["spec"], request["fault"], itertools.count(1)
    n_batches = spec.n_examples // comm.size // spec.batch_size

    def step(_loader: object, _batch: list) -> float:
        epoch, place = divmod(next(numbers), n_batches)
        if fault and comm.rank == 1 and epoch and place == n_batches // 2:
            for server in _servers():
                server.send_signal(fault)
        comm.mpi_comm.Barrier()
        return 0.0

    def idle() -> dict:
        is_idle = spec.has_peers and not fault  # a server that was hit says nothing
        return {"idle_cpu_seconds": _idle_cpu_seconds() if is_idle else 0.0}

    return step, idle


def run_epochs(
    spec: RunSpec, n_ranks: int, n_nodes: int, fraction: float, fault: int = 0, **asked: object
) -> dict:
    """Do one run of ranks in lockstep, with room for a fraction of the data.

    Returns:
        ``seconds`` and ``reads`` of each epoch; ``first_seconds`` to the first mini-batch and
        ``idle_cpu_share`` of the servers, means over the ranks.
    """
    usual = {"order": "global", "is_decoding": False, "capacity": capacity_of(spec, fraction)}
    spec = replace(spec, **{**usual, **asked})
    token = {_RUN_VARIABLE: f"{os.getpid()}-{time.monotonic_ns()}"}
    ranks, _opens = run_ranks(spec, lockstep, {"fault": fault}, n_ranks, n_nodes, **token)
    return {
        "seconds": [epoch["seconds"] for epoch in ranks[0]["epochs"]],
        "reads": [epoch["opens"] for epoch in ranks[0]["epochs"]],
        "first_seconds": mean(rank["start_seconds"] for rank in ranks),
        "idle_cpu_share": mean(rank["idle_cpu_seconds"] for rank in ranks) / _IDLE_SECONDS,
    }


def _servers() -> list[psutil.Process]:
    """Return the servers of this rank's node."""
    own, found = {name: os.environ[name] for name in (_RUN_VARIABLE, "OVERLAPITER_NODE")}, []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "ovl-peer":
            with contextlib.suppress(psutil.Error):
                found += [process] if own.items() <= process.environ().items() else []
    return found


def _idle_cpu_seconds() -> float:
    """Return the CPU that the servers of this node take while nothing is asked of them."""
    time.sleep(_IDLE_SECONDS / 2)  # what is staged ahead comes first
    servers = [server.pid for server in _servers()]
    before = sum(map(cpu_seconds, servers))
    time.sleep(_IDLE_SECONDS)
    return sum(map(cpu_seconds, servers)) - before


def measure(options: Options, scratch: Path) -> dict:
    """Do both experiments."""
    found = measure_epochs(options, scratch) if "epochs" in options.parts else {}
    if "serving" in options.parts:
        found["serving"] = measure_serving(options.quick, scratch)
    return found


def measure_epochs(options: Options, scratch: Path) -> dict:
    """Do the runs of the first experiment."""
    base, facts = prepare(options, scratch, options.examples * max(_TIMES.values()))
    base = replace(base, **options.usual)
    kinds = [kind for kind in options.kinds if kind != "torch" or is_installed("torch")]
    points = [
        {"nodes": n, "fraction": f, "kind": kind, "examples": options.examples * _TIMES.get(f, 1)}
        for n, f, kind in RUNS if kind in kinds
    ]  # fmt: skip

    def run(point: dict) -> dict:
        spec, n_nodes = replace(base, n_examples=point["examples"]), point["nodes"]
        size = _N_RANKS // n_nodes, n_nodes, point["fraction"]
        return run_epochs(spec, *size, **KINDS[point["kind"]])

    take_turns(points, options.repeats, run)
    return {**facts, "points": points}


def _mean(key: str, epochs: slice, point: dict) -> str:
    """Return the mean over some epochs: of reads as a share of the files, or of seconds."""
    n_files = point["examples"] if key == "reads" else 1
    return f"{np.mean([run[key][epochs] for run in point['runs']]) / n_files:.2f}"


def _idle_percent(point: dict) -> str:
    has_server = {*KINDS[point["kind"]]} == {"has_peers"}  # and none that was hit
    return f"{100 * median_of(point, 'idle_cpu_share'):.1f}" if has_server else "-"


_FIRST, _LATER = slice(1), slice(1, None)
_COLUMNS = {
    "nodes x room": lambda point: f"{point['nodes']} x {100 * point['fraction']:g} %",
    "": "{kind}",
    "reads, epoch 1": partial(_mean, "reads", _FIRST),
    "reads, later ones": partial(_mean, "reads", _LATER),
    "seconds, epoch 1": partial(_mean, "seconds", _FIRST),
    "seconds, later ones": partial(_mean, "seconds", _LATER),
    "first mini-batch, s": "{first_seconds:.2f}",
    "CPU of an idle server, %": _idle_percent,
}


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw reads of the slow store and seconds, epoch by epoch; return the file."""
    from bench.harness.figures import BLUE, GREEN, ORANGE, legend_below, line, plt, save

    points = [p for p in result.get("points", []) if p["kind"] in ("peers", "alone")]
    if not points:
        return []
    figure, (reads, seconds) = plt.subplots(1, 2, figsize=(9.0, 4.3))
    for point in points:
        nodes, fraction, kind = point["nodes"], point["fraction"], point["kind"]
        style = {
            "color": {(4, 0.3): BLUE, (4, 0.15): ORANGE, (2, 0.3): GREEN}[nodes, fraction],
            "linestyle": "-" if kind == "peers" else ":",
            "marker": "o",
            "label": f"{nodes} nodes, room for {100 * fraction:g} % each, {kind}",
        }
        for axes, key, scale in (
            (reads, "reads", 100 / point["examples"]),
            (seconds, "seconds", 1.0),
        ):
            by_epoch = np.array([run[key] for run in point["runs"]]).T * scale
            line(axes, range(1, len(by_epoch) + 1), [*map(spread, by_epoch)], **style)
    reads.set_title("reads of the slow store, % of the files", loc="left")
    seconds.set_title("seconds", loc="left")
    for axes in (reads, seconds):
        axes.set(ylim=(0, None), xlabel="epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
    legend_below(figure, *reads.get_legend_handles_labels(), bottom_inches=0.5)
    words = [result[name] for name in ("data", "store") if name in result]
    return [save(figure, stem.with_suffix(".png"), result, *words, space_inches=1.2)]


TABLES = {"peers-epochs": _COLUMNS, "peers-serving": serving_rows}
