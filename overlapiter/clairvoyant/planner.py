"""What a job will take, from measured rates, before it is submitted. Pure.

The rates of a node are divided between its ranks, and each source is a channel of its own: what is
read from the store, from peers and from the tiers overlaps, and the slowest channel, or training,
sets the pace. Unlike the published model, no source gives more than was measured.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from .model import Clock, System, Tier
from .plan import AccessPlan
from .policies import pooled_reads, pooled_times
from .workload import Workload

#: So many examples are simulated at most; more of them are taken together as one.
_MOST_EXAMPLES = 50_000
#: Epochs that are simulated; those after them are like the last.
_SIMULATED_EPOCHS = 3
_BATCH_SIZE = 16


@dataclasses.dataclass(frozen=True)
class Job:
    """A job, with the rates of a node in bytes per second.

    Attributes:
        n_examples: Examples in the data set.
        dataset_bytes: Its size.
        n_epochs: Epochs.
        n_nodes: Nodes.
        ranks_per_node: Ranks on each of them.
        ram_bytes: Room for staged files in the memory of a node.
        disk_bytes: Room on the disk of a node.
        examples_per_second: What a rank trains while it waits for no data; infinite if unknown.
        store_rate: What the store gives a node.
        store_limit: What it gives all nodes.
        disk_rate: What the disk of a node gives in reads of examples.
        network_rate: What a node sends or receives.
    """

    n_examples: int
    dataset_bytes: float
    n_epochs: int
    n_nodes: int
    ranks_per_node: int
    ram_bytes: float
    disk_bytes: float
    examples_per_second: float
    store_rate: float
    store_limit: float
    disk_rate: float
    network_rate: float

    @property
    def n_ranks(self) -> int:
        """The ranks of the job."""
        return self.n_nodes * self.ranks_per_node

    @property
    def training_seconds(self) -> float:
        """An epoch in which no rank waits for data."""
        return self.n_examples / (self.examples_per_second * self.n_ranks)

    @property
    def store_seconds(self) -> float:
        """To read the whole data set from the store once, all nodes together."""
        return self.dataset_bytes / min(self.store_limit, self.store_rate * self.n_nodes)


class EpochForecast(NamedTuple):
    """An epoch: its time, and the bytes that all ranks read, by source."""

    seconds: float
    store_bytes: float
    peer_bytes: float
    ram_bytes: float
    disk_bytes: float

    @property
    def missed_share(self) -> float:
        """Which part of the bytes was read from the store."""
        return self.store_bytes / max(sum(self[1:]), 1.0)


class Forecast(NamedTuple):
    """What a job will take: its first and second epoch, those after them, and the run.

    Where it has no such epoch, it is the last that it has.
    """

    first: EpochForecast
    second: EpochForecast
    later: EpochForecast
    run_seconds: float
    run_store_bytes: float


def forecast(job: Job) -> Forecast:
    """Simulate a job with pooled placement, and return what it will take."""
    n_epochs = min(job.n_epochs, _SIMULATED_EPOCHS)
    n_examples = min(job.n_examples, _MOST_EXAMPLES)
    n_examples = max(n_examples, min(job.n_examples, 16 * job.n_ranks))
    sizes = np.full(n_examples, job.dataset_bytes / n_examples / 1e6)
    plan = AccessPlan(0, n_examples, job.n_ranks, n_epochs, _BATCH_SIZE)
    system, workload = _system(job), Workload(plan, sizes)
    clock, epochs = Clock(system), []
    for reads in pooled_reads(system, workload):
        began = clock.now
        clock.consume_at(reads.sizes, pooled_times(system, reads, 1))
        sums = np.bincount(reads.sources.ravel() + 1, reads.sizes.ravel(), 5) * 1e6
        store, ram, disk, *peers = map(float, sums)
        epochs.append(EpochForecast(clock.now - began, store, sum(peers), ram, disk))
    told = epochs[0], epochs[:2][-1], epochs[-1]
    numbers = 1, min(1, job.n_epochs - 1), max(0, job.n_epochs - 2)
    counted = [*zip(told, numbers, strict=True)]
    return Forecast(
        *told,
        math.fsum(n * epoch.seconds for epoch, n in counted),
        math.fsum(n * epoch.store_bytes for epoch, n in counted),
    )


def _system(job: Job) -> System:
    """Return what each rank has: its part of the rates of its node, in MB/s."""
    part = 1e-6 / job.ranks_per_node
    mean_bytes = job.dataset_bytes / job.n_examples
    per_rank = min(job.store_rate, job.store_limit / job.n_nodes) * part
    ram_rate = 1e12 * part  # memory does not hold up anything that is simulated here
    return System(
        n_ranks=job.n_ranks,
        compute_rate=min(job.examples_per_second * mean_bytes * 1e-6, 1e12),
        preprocess_rate=1e12,  # it is part of what was measured as training
        network_rate=job.network_rate * part,
        store_link_rate=math.inf,
        store_rates={job.n_ranks: per_rank * job.n_ranks},
        buffer=Tier(max(1.0, 4 * _BATCH_SIZE * mean_bytes * 1e-6), 1e12, n_threads=1),
        tiers=(
            Tier(job.ram_bytes * part, ram_rate, n_threads=1),
            Tier(job.disk_bytes * part, job.disk_rate * part, n_threads=1),
        ),
        ranks_per_node=job.ranks_per_node,
    )


def without_peers(job: Job) -> float:
    """Return the seconds of the run if each node stages for itself alone.

    A node then holds its room's share of the whole data set, since it reads all of it in the end,
    and misses the rest in each epoch.
    """
    held = min(1.0, (job.ram_bytes + job.disk_bytes) / job.dataset_bytes)
    in_ram = min(1.0, job.ram_bytes / max(1.0, held * job.dataset_bytes))
    # It meets what it has not read yet for some epochs: 1 - 1 / nodes of it after each.
    unread = np.maximum(1.0 - held, (1.0 - 1.0 / job.n_nodes) ** np.arange(job.n_epochs))
    disk_seconds = job.dataset_bytes / job.n_nodes / job.disk_rate * (1.0 - in_ram)
    reading = np.maximum(unread * job.store_seconds, (1.0 - unread) * disk_seconds)
    return float(np.maximum(job.training_seconds, reading).sum())


def store_only(job: Job) -> float:
    """Return the seconds of the run if each epoch reads the store, as much ahead as is needed."""
    return job.n_epochs * max(job.training_seconds, job.store_seconds)


def variants(job: Job) -> dict[str, Job]:
    """Return the job as it is, and with more or less of what it runs on, by a name for each."""
    change = dataclasses.replace
    rest_bytes = max(0.0, job.dataset_bytes / job.n_nodes - job.ram_bytes)
    found = {
        "as it is": job,
        "twice the disk": change(job, disk_bytes=2 * job.disk_bytes),
        "a disk of twice the speed": change(job, disk_rate=2 * job.disk_rate),
        "RAM for as much as the disk": change(job, ram_bytes=job.ram_bytes + job.disk_bytes),
        "twice the nodes": change(job, n_nodes=2 * job.n_nodes),
    }
    if job.disk_bytes < rest_bytes:
        found["disks that hold all together"] = change(job, disk_bytes=1.02 * rest_bytes)
    if not job.n_nodes % 2:
        found["half the nodes"] = change(job, n_nodes=job.n_nodes // 2)
    return found
