"""The policies that the simulator compares: what each example costs, and what comes first.

Each takes a system and a workload and returns the seconds of the whole run, or None where it cannot
run. How they read the published descriptions is in docs/clairvoyant.md. Pure.

Source: Böhringer 2020 ([T]), chapter 4; Dryden et al., SC '21, table 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overlapiter.order import Indices

from .model import Array, Clock, System, expected_store_seconds, naive_seconds
from .placement import greedy_placement, pooled_tiers
from .workload import Scenario, Workload

Policy = Callable[[System, Workload], "float | None"]


def lower_bound(system: System, workload: Workload) -> float:
    """No example is waited for: each mini-batch takes what the slowest rank computes."""
    bounds = (sizes.sum(axis=1).max(axis=1).sum() for _, sizes in workload.epochs())
    return float(sum(bounds)) / system.compute_rate


def naive(system: System, workload: Workload) -> float:
    """Each example is fetched from the store, decoded and computed, one after another."""
    return sum(naive_seconds(system, sizes) for _, sizes in workload.epochs())


def staging_buffer(system: System, workload: Workload) -> float:
    """The next example is read from the store while one is computed: double buffering.

    The threads of a rank decode while others of it fetch, so reading takes as long as fetching,
    from a store of which the rank is a client while it fetches.
    """
    seconds = max(expected_store_seconds(system, system.write_seconds), system.write_seconds)
    clock = Clock(system)
    for _, sizes in workload.epochs():
        clock.consume_one_ahead(sizes, sizes * seconds)
    return clock.now


def _shard_seconds(system: System, workload: Workload, share: float = 1.0) -> float:
    """Return how long the ranks take to read a shard each, or a part of it, from the store."""
    shards = [workload.sizes[rank :: system.n_ranks].sum() for rank in range(system.n_ranks)]
    return share * float(max(shards)) * system.busy_store_seconds / system.buffer.n_threads


def _memory_share(system: System, workload: Workload) -> float:
    """Return which part of the data set fits into the memory, the first tier, of all ranks."""
    return min(1.0, system.n_ranks * system.tiers[0].capacity / workload.total)


def _from_memory(system: System, workload: Workload, started: float, cached_share: float) -> float:
    """Return the end of a run that reads the memory of all ranks, and the rest from the store."""
    clock = Clock(system, started=started)
    memory = system.tiers[0]
    n_cached = int(cached_share * workload.plan.n_examples)
    for examples, sizes in workload.epochs():
        is_own = examples % system.n_ranks == np.arange(system.n_ranks)
        fetch = np.where(is_own, memory.seconds, system.peer_seconds(memory))
        seconds = np.where(
            examples < n_cached, fetch + system.write_seconds, system.busy_store_seconds
        )
        clock.consume(sizes, sizes * seconds)
    return clock.now


def loaded_shards(system: System, workload: Workload) -> float:
    """Each rank loads its shard into memory; the order is kept, so what does not fit is missed.

    Locality-aware loading, too: ranks take of each mini-batch what they hold and exchange the rest,
    so they fetch from peers what a mini-batch holds unevenly, and nothing else that fits.
    """
    share = _memory_share(system, workload)
    return _from_memory(system, workload, _shard_seconds(system, workload, share), share)


def deepio_opportunistic(system: System, workload: Workload) -> float:
    """As ordered, but ranks take examples that are in their memory for those that are not."""
    share = _memory_share(system, workload)
    clock = Clock(system, started=_shard_seconds(system, workload, share))
    seconds = system.tiers[0].seconds + system.write_seconds
    for sizes in _own_sizes(system, workload, int(share * workload.plan.n_examples)):
        clock.consume(sizes, sizes * seconds)
    return clock.now


def _own_sizes(system: System, workload: Workload, n_held: int) -> Iterator[Array]:
    """Yield the sizes of an epoch in which ranks read their own part of what all hold instead."""
    n_ranks = system.n_ranks
    for examples, _ in workload.epochs():
        own = examples - examples % n_ranks + np.arange(n_ranks)
        own %= max(n_held - n_held % n_ranks, n_ranks)
        yield np.where(examples < 0, 0.0, workload.sizes[own])


def parallel_staging(system: System, workload: Workload) -> float | None:
    """Each rank copies its shard, decoded, to its disk, and trains on that alone.

    None if a shard does not fit on the disk, the last tier.
    """
    disk = system.tiers[-1]
    if workload.total > disk.capacity * system.n_ranks:
        return None
    clock = Clock(system, disk.n_threads, started=_shard_seconds(system, workload))
    for sizes in _own_sizes(system, workload, workload.plan.n_examples):
        clock.consume_one_ahead(sizes, sizes * disk.seconds, waits=False)
    return clock.now


def lbann_dynamic(system: System, workload: Workload) -> float | None:
    """The first epoch reads the store and fills the memory of the ranks; later ones read that."""
    if _memory_share(system, workload) < 1.0:
        return None
    clock = Clock(system)
    memory = system.tiers[0]
    owner = np.empty(workload.plan.n_examples, np.intp)
    for epoch, (examples, sizes) in enumerate(workload.epochs()):
        ranks = np.arange(system.n_ranks)
        if not epoch:
            seconds = np.full(sizes.shape, system.busy_store_seconds)
            owner[examples] = ranks  # an example -1 of no size changes nothing that is timed
        else:
            peer = system.peer_seconds(memory)
            fetch = np.where(owner[examples] == ranks, memory.seconds, peer)
            seconds = fetch + system.write_seconds
        clock.consume(sizes, sizes * seconds)
    return clock.now


def lbann_preloading(system: System, workload: Workload) -> float | None:
    """Each rank loads its shard into memory before the first epoch; None if it does not fit."""
    return None if _memory_share(system, workload) < 1.0 else loaded_shards(system, workload)


def _tier_schedules(
    system: System, workload: Workload, stream: Indices
) -> tuple[Indices, NDArray[np.int8], Array, Indices]:
    """Return what a rank that reads ``stream`` places where, and when its tiers have it.

    Returns:
        Its examples; the tier of each, or -1; when it is there, if the tiers' threads prefetch from
        the start; for each access, the number of its example among those.
    """
    found, first, inverse, counts = np.unique(
        stream, return_index=True, return_inverse=True, return_counts=True
    )
    sizes = workload.sizes[found]
    tiers = greedy_placement(counts, first, sizes, [tier.capacity for tier in system.tiers])
    there = np.full(len(found), np.inf)
    for number, tier in enumerate(system.tiers):
        (some,) = np.nonzero(tiers == number)
        by_use = some[np.argsort(first[some], kind="stable")]
        seconds = system.busy_store_seconds + tier.seconds
        there[by_use] = np.cumsum(sizes[by_use]) * seconds / tier.n_threads
    return found, tiers, there, inverse


def _tier_seconds(system: System) -> tuple[Array, Array]:
    """Return what a thread takes to read a MB of each own tier, and of each of a peer.

    That of the tier -1, where nothing is, comes last.
    """
    own = [tier.seconds for tier in system.tiers]
    peers = [system.peer_seconds(tier) for tier in system.tiers]
    return np.array([*own, np.inf]), np.array([*peers, np.inf])


def clairvoyant(system: System, workload: Workload) -> float:
    """The published policy: each rank places by its own frequencies, and prefetches by first use.

    The threads of each tier fetch from the store from the start on, while those of the staging
    buffer fetch each example from where it is soonest: the own tier, a peer's, or the store.
    """
    plan = workload.plan
    streams = np.concatenate([plan.of_ranks(range(plan.n_ranks), e) for e in plan.epochs]).T
    holder_there = np.full(plan.n_examples, np.inf)
    holder_seconds = np.full(plan.n_examples, np.inf)
    there_by_rank, seconds_by_rank = [], []
    local, peer = _tier_seconds(system)
    for stream in streams:
        found, tiers, there, inverse = _tier_schedules(system, workload, stream)
        is_sooner = there < holder_there[found]
        some = found[is_sooner]
        holder_there[some], holder_seconds[some] = there[is_sooner], peer[tiers[is_sooner]]
        there_by_rank.append(there[inverse].astype(np.float32))
        seconds_by_rank.append(local[tiers][inverse].astype(np.float32))
    own_there, own_seconds = np.stack(there_by_rank, axis=1), np.stack(seconds_by_rank, axis=1)
    clock = Clock(system)
    store = float(system.store_seconds(system.n_ranks))
    epoch_size = len(own_there) // len(plan.epochs)
    for epoch, (examples, sizes) in enumerate(workload.epochs()):
        batch_size = sizes.shape[1]
        for number, (some, some_sizes) in enumerate(zip(examples, sizes, strict=True)):
            begun = clock.begin()
            fetch = np.full(some.shape, store)
            is_held = holder_there[some] <= begun
            fetch[is_held] = np.minimum(store, holder_seconds[some][is_held])
            offset = number * batch_size
            n = min(batch_size, epoch_size - offset)  # the last mini-batch is filled up
            at = slice(epoch * epoch_size + offset, epoch * epoch_size + offset + n)
            own = np.where(own_there[at] <= begun, own_seconds[at], np.inf)
            fetch[:n] = np.minimum(fetch[:n], own)
            seconds = fetch + system.write_seconds
            clock.consume(some_sizes[np.newaxis], (some_sizes * seconds)[np.newaxis])
    return clock.now


class EpochReads(NamedTuple):
    """What the ranks read in an epoch, each array of shape (mini-batches, batch size, ranks).

    Attributes:
        sizes: MB.
        seconds: What a thread takes to read and decode each MB.
        sources: -1 for the store; the number of an own tier; for one of a peer, that number added
            to how many tiers there are.
    """

    sizes: Array
    seconds: Array
    sources: NDArray[np.int8]


def ours(system: System, workload: Workload) -> float:
    """Pooled placement: each example is read once from the store while the nodes have room.

    All threads of a rank read what is needed next, from wherever it is; a tier serves no more than
    its own threads can read.
    """
    clock = Clock(system)
    for reads in pooled_reads(system, workload):
        clock.consume_at(reads.sizes, pooled_times(system, reads, system.n_threads))
    return clock.now


def pooled_times(system: System, reads: EpochReads, n_store_threads: int) -> Array:
    """Return when each example is there, in seconds after reading began, of shape (_, ranks).

    Args:
        system: The system.
        reads: What is read.
        n_store_threads: How many threads of a rank may read the store at the same time.
    """
    work = (reads.sizes * reads.seconds).reshape(-1, system.n_ranks)
    sources = reads.sources.reshape(work.shape)
    times: Array = np.cumsum(work, axis=0) / system.n_threads
    n_tiers = max(1, len(system.tiers))
    channels = [(sources == -1, n_store_threads)]
    for number, tier in enumerate(system.tiers):
        channels.append(((sources >= 0) & (sources % n_tiers == number), tier.n_threads))
    for is_read, n_threads in channels:
        read = np.cumsum(np.where(is_read, work, 0.0), axis=0)
        np.maximum(times, read / n_threads, out=times)
    return times


def pooled_reads(system: System, workload: Workload) -> Iterator[EpochReads]:
    """Yield, for each epoch, from where each example is read with the placement of the run.

    That is the fastest copy; the store is asked for what none of the nodes holds.
    """
    node_of = system.node_of_rank
    placement = workload.plan.placement(node_of.tolist())
    rooms = np.outer(np.bincount(node_of), [tier.capacity for tier in system.tiers])
    store = float(system.store_seconds(system.n_ranks))
    local, peer = _tier_seconds(system)
    for epoch, (examples, sizes) in enumerate(workload.epochs()):
        fetch = np.full(sizes.shape, np.inf)
        sources = np.full(sizes.shape, -1, np.int8)
        is_first = epoch == placement.start[0]
        nodes, tiers = pooled_tiers(placement, epoch, workload.sizes, rooms)
        for copy in range(0 if is_first else nodes.shape[1]):
            tier = tiers[examples, copy]
            is_local = nodes[examples, copy] == node_of
            seconds = np.where(is_local, local[tier], peer[tier])
            source = np.where(is_local, tier, tier + len(system.tiers))
            is_faster = seconds < fetch
            fetch[is_faster], sources[is_faster] = seconds[is_faster], source[is_faster]
        fetch[sources < 0] = store
        yield EpochReads(sizes, fetch + system.write_seconds, sources)


POLICIES: dict[str, Policy] = {
    "lower bound": lower_bound,
    "naive": naive,
    "staging buffer": staging_buffer,
    "deepio ordered": loaded_shards,
    "deepio opportunistic": deepio_opportunistic,
    "parallel staging": parallel_staging,
    "lbann dynamic": lbann_dynamic,
    "lbann preloading": lbann_preloading,
    "locality aware": loaded_shards,
    "clairvoyant": clairvoyant,
    "ours": ours,
}


def simulate(
    scenario: Scenario,
    seed: int,
    policies: Iterable[str] = tuple(POLICIES),
    begin: Callable[[str], object] = lambda _name: None,
) -> dict[str, float | None]:
    """Return the seconds that a whole run takes, by policy; None where one cannot run.

    Args:
        scenario: The scenario.
        seed: Sizes and orders follow from it.
        policies: Some of ``POLICIES``.
        begin: Called with the name of each before it runs.
    """
    workload = scenario.workload(seed)
    seconds = {}
    for name in policies:
        begin(name)
        seconds[name] = POLICIES[name](scenario.system, workload)
    return seconds
