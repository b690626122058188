r"""Forecast a job before it is submitted: how long its epochs take, and from where they read.

PROFILE is what `overlapiter doctor … --save PROFILE` measured on a node of the kind that the job
will have. Ranks share a fresh global shuffle (scatter_order); a node serves its peers what it
has staged. Also said: what more RAM, disks or nodes would bring.

A doctor measures one node. What the store gives all nodes together it cannot know: say it with
--store-limit, or each node is taken to get what that one got.

Examples:
  overlapiter doctor --source /lustre/imagenet --to /nvme/me --save node.json
  overlapiter plan node.json --nodes 8 --ranks-per-node 4 --epochs 90 --train-rate 400
  overlapiter plan node.json --nodes 8 --capacity 30% --json --output plan.png

exit code: 0, or 1 if the figure cannot be drawn
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from typing import Any, NamedTuple

from overlapiter.clairvoyant.planner import (
    EpochForecast,
    Forecast,
    Job,
    forecast,
    store_only,
    variants,
    without_peers,
)
from overlapiter.options import parse_size
from overlapiter.words import count_words, duration_words, size_words

from .console import UsageError, above_0, add_figure, at_least, table, tell
from .plots import draw_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("profile", metavar="PROFILE", help="a file that `overlapiter doctor --save` wrote")
    count = at_least(1)
    add("--nodes", metavar="N", type=count, default=1, help="nodes of the job (%(default)s)")
    ranks = "ranks on each node (%(default)s)"
    add("--ranks-per-node", metavar="N", type=count, default=1, help=ranks)
    add("--epochs", metavar="N", type=count, default=90, help="epochs of the run (%(default)s)")
    rate = "examples/s that a rank trains if it waits for no data (default: the time of data alone)"
    add("--train-rate", metavar="N", type=above_0, help=rate)
    add("--dataset", metavar="SIZE", help="size of the data set (default: that of the profile)")
    capacity = "room on a node's disk, as 200GB, or 30%% of the data set (default: the profile's)"
    add("--capacity", metavar="SIZE", help=capacity)
    add("--ram", metavar="SIZE", default="0", help="room in a node's memory besides (none)")
    limit = "bytes/s that the store gives all nodes together, as 5GB (default: no limit)"
    add("--store-limit", metavar="SIZE", help=limit)
    add("--network", metavar="SIZE", default="1GB", help="bytes/s between two nodes (%(default)s)")
    add_figure(parser)


def run(arguments: argparse.Namespace) -> int:
    """Forecast; return the exit code."""
    job = _job(_measured(arguments.profile), arguments)
    found = {name: forecast(each) for name, each in variants(job).items()}
    others = {"the store alone": store_only(job)}
    if job.n_nodes > 1:
        others = {"each node for itself": without_peers(job), **others}
    text = "\n\n".join([_head(job), _epochs(job, found["as it is"]), _changes(found, others)])
    tell(arguments, text, **_facts(job, found, others))
    if arguments.output:
        runs = {name: each.run_seconds for name, each in found.items()} | others
        draw_plan(found["as it is"], runs, arguments.output)
    return 0


class _Measured(NamedTuple):
    """What a profile tells of a node: sizes in bytes, rates in bytes per second."""

    mean_bytes: float
    dataset_bytes: float
    store_rate: float
    disk_rate: float
    capacity: str | int


def _measured(path: str) -> _Measured:
    try:
        with open(path) as file:
            profile = json.load(file)
        n_cores, capacity = profile["node"]["n_cores"], profile["recommended"]["capacity"]
        levels, disk, mean_bytes = profile["levels"], profile["disk"], profile["mean_bytes"]
        if not mean_bytes:
            raise ValueError("all files that it has read are empty")
        held = max(levels, key=lambda level: level["seconds"])  # as doctor recommends
        cpu_seconds, disk_rate = held["cpu_seconds"] / held["n_files"], 1e12
        if disk is not None:
            cpu_seconds += disk["small_cpu_seconds"]
            # By as many readers as there are cores.
            small = disk["small_bytes"] / max(disk["small_read_seconds"], 1e-9) * n_cores
            disk_rate = min(disk["read_bytes_per_second"], small)
        # Copying takes cores; the store cannot bring more than they copy.
        store_rate = min(held["bytes_per_second"], n_cores / max(cpu_seconds, 1e-9) * mean_bytes)
        dataset_bytes = round(profile["dataset_bytes"] or 0)
        if not (mean_bytes > 0 and store_rate > 0 and disk_rate > 0 and dataset_bytes >= 0):
            raise ValueError("a size or rate in it is not above 0")
    except (OSError, ArithmeticError, ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{path} is no profile ({error}); make one: overlapiter doctor … --save node.json"
        ) from None
    return _Measured(mean_bytes, dataset_bytes, store_rate, disk_rate, capacity or 0)


def _job(node: _Measured, arguments: argparse.Namespace) -> Job:
    """Return the job, on nodes such as the one that was measured."""
    dataset_bytes = node.dataset_bytes
    if arguments.dataset is not None:
        dataset_bytes = parse_size("--dataset", arguments.dataset, int(dataset_bytes))
    if not dataset_bytes:
        raise UsageError("the size of the data set is not known: give --dataset, as 100GB")
    return Job(
        n_examples=max(1, round(dataset_bytes / node.mean_bytes)),
        dataset_bytes=dataset_bytes,
        n_epochs=arguments.epochs,
        n_nodes=arguments.nodes,
        ranks_per_node=arguments.ranks_per_node,
        ram_bytes=parse_size("--ram", arguments.ram, int(dataset_bytes)),
        disk_bytes=parse_size(
            "--capacity", arguments.capacity or node.capacity, int(dataset_bytes)
        ),
        examples_per_second=arguments.train_rate or math.inf,
        store_rate=node.store_rate,
        store_limit=_rate("--store-limit", arguments.store_limit),
        disk_rate=node.disk_rate,
        network_rate=_rate("--network", arguments.network),
    )


def _rate(option: str, text: str | None) -> float:
    rate = math.inf if text is None else parse_size(option, text.removesuffix("/s"), 0)
    if not rate:
        raise UsageError(f"{option}: give more than 0 bytes/s, as 5GB")
    return rate


# --- the report -----------------------------------------------------------------------------------


def _facts(job: Job, found: dict[str, Forecast], others: dict[str, float]) -> dict[str, Any]:
    now = found["as it is"]
    given = {k: None if v == math.inf else v for k, v in dataclasses.asdict(job).items()}
    epochs = [("first", now.first), ("second", now.second), ("later", now.later)]
    return {
        "job": given,
        "epochs": {
            name: {**epoch._asdict(), "missed_share": epoch.missed_share} for name, epoch in epochs
        },
        "run_seconds": now.run_seconds,
        "run_store_bytes": now.run_store_bytes,
        "changes": {
            name: {
                "first_seconds": each.first.seconds,
                "later_seconds": each.later.seconds,
                "missed_share": each.later.missed_share,
                "run_seconds": each.run_seconds,
                "run_store_bytes": each.run_store_bytes,
            }
            for name, each in found.items()
        },
        "others_run_seconds": others,
    }


def _head(job: Job) -> str:
    share = job.n_nodes * (job.ram_bytes + job.disk_bytes) / job.dataset_bytes
    who = "the node has" if job.n_nodes == 1 else "the nodes together have"
    ranks = count_words(job.n_ranks, "rank")
    return (
        f"{count_words(job.n_examples, 'example')}, {size_words(job.dataset_bytes)}; "
        f"{ranks} on {count_words(job.n_nodes, 'node')}, {count_words(job.n_epochs, 'epoch')}; "
        f"{who} room for {'all' if share >= 1 else f'{share:.0%}'} of the data set"
    )


def _epochs(job: Job, now: Forecast) -> str:
    def row(name: str, epoch: EpochForecast) -> tuple[str, ...]:
        sizes = epoch.ram_bytes, epoch.disk_bytes, epoch.peer_bytes, epoch.store_bytes
        missed = f"{epoch.missed_share:.1%}"
        return name, duration_words(epoch.seconds), missed, *map(size_words, sizes)

    rows = [row("1", now.first), row("2", now.second), row("later ones", now.later)]
    head = ("epoch", "takes", "missed", "own RAM", "own disk", "peers", "store")
    return table(head, rows[: job.n_epochs])


def _changes(found: dict[str, Forecast], others: dict[str, float]) -> str:
    rows = []
    for name, each in found.items():
        epochs = duration_words(each.first.seconds), duration_words(each.later.seconds)
        missed, store = f"{each.later.missed_share:.1%}", size_words(each.run_store_bytes)
        rows.append((name, duration_words(each.run_seconds), *epochs, missed, store))
    rows += [(name, duration_words(seconds), "", "", "", "") for name, seconds in others.items()]
    head = ("what it runs on", "the run", "epoch 1", "later ones", "missed", "read from the store")
    return table(head, rows)
