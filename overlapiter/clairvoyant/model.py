"""The performance model: how long a byte takes from the store, from a peer, and from a tier.

Sizes are in MB, rates in MB/s, times in seconds; all that is done per byte, so most functions give
seconds per MB. Pure.

Source: Böhringer, "Clairvoyant Prefetching for Machine Learning I/O", ETH Zürich, 2020 ([T]),
equations 3.1 to 3.13; Dryden et al., SC '21, section 4.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Tier:
    """A storage class of a rank: ``d_j``, ``p_j``, and ``r_j(p_j) = w_j(p_j)`` of [T].

    Attributes:
        capacity: What it holds, in MB.
        rate: Of all its threads together, in MB/s; [T] tells that of reading alone.
        n_threads: That read and write it.
    """

    capacity: float
    rate: float
    n_threads: int = 2

    @property
    def seconds(self) -> float:
        """What one thread takes to read a MB, the fetch from an own tier, or to write one."""
        return self.n_threads / self.rate


@dataclasses.dataclass(frozen=True)
class System:
    """What a job runs on.

    Attributes:
        n_ranks: Ranks, each with a staging buffer and tiers of its own.
        compute_rate: ``c``: what the trainer of a rank consumes, in MB/s.
        preprocess_rate: ``β``: what a thread decodes, in MB/s.
        network_rate: ``b_c``: between two ranks, in MB/s.
        store_link_rate: ``b_fs``: from the store to a rank, in MB/s.
        store_rates: ``t(g)``: what the store gives g clients together, by g, in MB/s.
        buffer: The staging buffer, class 0.
        tiers: The classes from 1 on, the fastest first.
        ranks_per_node: Ranks that share a node, whose tiers are then one.
    """

    n_ranks: int
    compute_rate: float
    preprocess_rate: float
    network_rate: float
    store_link_rate: float
    store_rates: dict[int, float]
    buffer: Tier
    tiers: tuple[Tier, ...] = ()
    ranks_per_node: int = 1

    def store_rate(self, n_clients: float | Array) -> Array:
        """Return ``t(g)``, linear between the measured points and constant beyond them."""
        points = sorted(self.store_rates.items())
        clients, rates = zip(*points, strict=True)
        return np.asarray(np.interp(n_clients, clients, rates))

    def store_seconds(self, n_clients: float | Array) -> Array:
        """Return what a thread takes to fetch a MB while so many clients read.

        Source: [T]: fetch from the store, ``s_k / min(b_fs, t(g) / g)``.
        """
        return 1.0 / np.minimum(self.store_link_rate, self.store_rate(n_clients) / n_clients)

    def peer_seconds(self, tier: Tier) -> float:
        """Return what a thread takes to fetch a MB from a tier of another rank.

        Source: [T]: fetch from a peer, ``s_k / min(b_c, r_j(p_j) / p_j)``.
        """
        return max(1.0 / self.network_rate, tier.seconds)

    @property
    def n_threads(self) -> int:
        """The threads of a rank, those of all its classes."""
        return self.buffer.n_threads + sum(tier.n_threads for tier in self.tiers)

    @property
    def node_of_rank(self) -> NDArray[np.intp]:
        """The number of each rank's node."""
        return np.arange(self.n_ranks) // self.ranks_per_node

    @property
    def write_seconds(self) -> float:
        """What a thread takes to decode a MB and write it to the staging buffer.

        Source: [T]: ``write_k = max(s_k / β, s_k / (w_0(p_0) / p_0))``.
        """
        return max(1.0 / self.preprocess_rate, self.buffer.seconds)

    @property
    def busy_store_seconds(self) -> float:
        """What a thread takes to read a MB, ``fetch_k + write_k``, while all ranks fetch."""
        return float(self.store_seconds(self.n_ranks)) + self.write_seconds


def binomial(n: int, p: float) -> Array:
    """Return P[X = k] for k from 0 to n and X ~ Binomial(n, p); shape ``(n + 1,)``."""
    k = np.arange(n + 1)
    if p in (0.0, 1.0):
        return np.asarray(k == n * p, np.float64)
    ratios = (n - k[:-1]) / (k[:-1] + 1.0) * (p / (1.0 - p))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])  # what is tiny is not lost
    return np.asarray(np.exp(logs + n * np.log1p(-p)))


def expected_store_seconds(system: System, idle_seconds: float) -> float:
    """Return the mean time of a thread to fetch a MB, where ranks fetch and do something else.

    A rank is a client of the store for the share of time in which it fetches, at any phase to
    the others, so how many of them are clients beside it is binomial.

    Args:
        system: The system.
        idle_seconds: For each MB, the time in which the rank does not fetch.
    """
    others = np.arange(system.n_ranks)
    by_number = system.store_seconds(1.0 + others)
    seconds = float(by_number[-1])
    for _ in range(100):  # a contraction: it has converged long before
        share = seconds / (seconds + idle_seconds)
        seconds = float(binomial(system.n_ranks - 1, share) @ by_number)
    return seconds


class Clock:
    """The time at which mini-batches end; all ranks wait for the slowest one.

    Args:
        system: The system.
        n_threads: ``p_0``: threads that read ahead, in order.

    Attributes:
        now: When the latest mini-batch has ended, in seconds.
    """

    def __init__(self, system: System, n_threads: int | None = None, started: float = 0.0) -> None:
        self.now = started
        self._system = system
        self._n_threads = system.buffer.n_threads if n_threads is None else n_threads
        #: When the threads of each rank have read all that was consumed.
        self.avail = np.full(system.n_ranks, started)

    def begin(self) -> Array:
        """Return when each rank begins to read what it consumes next.

        Its staging buffer has to have room, so reading is ahead of ``now`` by what fits.
        """
        ahead = self._system.buffer.capacity / self._system.compute_rate
        return np.maximum(self.avail, self.now - ahead)

    def consume(self, sizes: Array, read_seconds: Array) -> None:
        """Consume mini-batches whose examples are read ahead of time.

        Args:
            sizes: MB of the examples, of shape (mini-batches, batch size, ranks).
            read_seconds: What a thread takes to read each of them, of the same shape.

        Source: [T]: ``avail(f) = (Σ_{k<=f} read_k) / p_0`` and
        ``t(f) = max(avail(f), t(f-1) + s_{f-1} / c)``, solved for the ends of mini-batches.
        """
        self.consume_at(
            sizes, np.cumsum(read_seconds.reshape(-1, sizes.shape[2]), axis=0) / self._n_threads
        )

    def consume_at(self, sizes: Array, after_seconds: Array) -> None:
        """As :meth:`consume`, given when each example is there, in seconds after :meth:`begin`."""
        avail = (self.begin() + after_seconds).reshape(sizes.shape)
        computed = sizes / self._system.compute_rate
        # An example that comes late puts off itself and all that follow it in the mini-batch.
        rest = np.cumsum(computed[:, ::-1], axis=1)[:, ::-1]
        latest = (avail + rest).max(axis=(1, 2))
        shortest = np.cumsum(rest[:, 0].max(axis=1))
        delay = max(self.now, float((latest - shortest).max()))
        self.now = float(shortest[-1]) + delay
        self.avail = avail[-1, -1].copy()

    def consume_one_ahead(self, sizes: Array, read_seconds: Array, *, waits: bool = True) -> None:
        """Consume mini-batches where a rank reads only the next example while it computes.

        Source: [T], with ``avail(f) = t(f-1) + read_f / p_0``: a buffer of two places.

        Args:
            sizes: As for :meth:`consume`.
            read_seconds: As for :meth:`consume`.
            waits: Whether ranks meet after each mini-batch, or only at the end.
        """
        computed = (sizes / self._system.compute_rate).reshape(-1, sizes.shape[2])
        read = read_seconds.reshape(computed.shape) / self._n_threads
        steps = np.maximum(computed, np.vstack([read[1:], np.zeros_like(read[:1])]))
        if waits:
            seconds = steps.reshape(sizes.shape).sum(axis=1).max(axis=1).sum()
        else:
            seconds = steps.sum(axis=0).max()
        self.now += float(seconds + read[0].max())
        self.avail = np.full(sizes.shape[2], self.now)


def naive_seconds(system: System, sizes: Array) -> float:
    """Return the time of mini-batches that are read, decoded and computed example by example.

    An event for each beginning and end of a fetch, for all mini-batches at once: they begin
    together. The number of clients is that of the ranks that are fetching when a fetch begins.
    """
    n_batches, batch_size, n_ranks = sizes.shape
    rows = np.arange(n_batches)
    fetch_seconds = system.store_seconds(1.0 + np.arange(n_ranks))  # by the other clients
    n_fetching = np.zeros(n_batches, np.intp)
    at = np.zeros((n_batches, n_ranks))  # the next event of each rank
    is_fetching = np.zeros((n_batches, n_ranks), bool)
    index = np.zeros((n_batches, n_ranks), np.intp)
    ends = np.zeros((n_batches, n_ranks))
    other_seconds = system.write_seconds + 1.0 / system.compute_rate
    for _ in range(2 * batch_size * n_ranks):
        rank = at.argmin(axis=1)
        here = rows, rank
        size = sizes[rows, index[here], rank]
        ends_fetch = is_fetching[here]
        n_fetching -= ends_fetch
        at[here] += size * np.where(ends_fetch, other_seconds, fetch_seconds[n_fetching])
        n_fetching += ~ends_fetch
        is_fetching[here] = ~ends_fetch
        index[here] += ends_fetch
        is_over = index[here] == batch_size
        ends[rows[is_over], rank[is_over]] = at[rows[is_over], rank[is_over]]
        at[rows[is_over], rank[is_over]] = np.inf
        index[rows[is_over], rank[is_over]] = 0
    return float(ends.max(axis=1).sum())
