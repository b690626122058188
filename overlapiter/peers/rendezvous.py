"""The rendezvous: how the servers of a job's nodes become known to all ranks. In the trainer alone.

It calls the communicator that it is given, and does not import MPI.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

from overlapiter.agreement import Communicator, allgather
from overlapiter.node import this_host

from .client import PeersPlan
from .connection import Address
from .interfaces import address_among, own_addresses
from .protocol import SECRET_BYTES

#: Connections beside those of all prefetchers: those of processes that were just replaced.
_SPARE_CONNECTIONS = 16


class _Card(NamedTuple):
    """What a rank tells the others first.

    Attributes:
        node: Equal for ranks that share a node.
        network: Equal for ranks that reach each other by the loopback.
        addresses: By the names of this host's interfaces.
        n_prefetchers: Prefetcher processes of this rank.
    """

    node: tuple[str, str]
    network: tuple[str, int]
    addresses: dict[str, str]
    n_prefetchers: int


class Joined(NamedTuple):
    """What a rank has after the rendezvous.

    Attributes:
        plan: For its workers.
        node_of_rank: The number of each rank's node.
        listener: Where other nodes come; the caller's.
    """

    plan: PeersPlan
    node_of_rank: tuple[int, ...]
    listener: socket.socket


def join(comm: Communicator, rank: int, n_prefetchers: int) -> Joined | None:
    """Have all ranks of a job find each other. Collective.

    Args:
        comm: The communicator.
        rank: Of this process.
        n_prefetchers: Of this process.

    Returns:
        None if all ranks are on one node, and have nothing to fetch from each other.

    Raises:
        OptionError: The interface that the user names is none of this host, or no interface is
            common to all.
        OSError: No socket can be opened.
    """
    host = this_host()
    network = host.machine, os.stat("/proc/self/ns/net").st_ino
    cards = [
        _Card(*fields)
        for fields in allgather(comm, (host.key, network, own_addresses(), n_prefetchers))
    ]
    names = list(dict.fromkeys(card.node for card in cards))
    if len(names) == 1:
        return None
    node_of_rank = tuple(names.index(card.node) for card in cards)
    is_one_host = len({card.network for card in cards}) == 1
    listener = _listener(address_among([card.addresses for card in cards], rank, is_one_host))
    offers = allgather(comm, (listener.getsockname()[:2], secrets.token_bytes(SECRET_BYTES)))
    plan = PeersPlan(
        own=node_of_rank[rank],
        nodes=_servers(node_of_rank, [address for address, _ in offers]),
        rank=rank,
        secret=offers[0][1],
        since=int(time.time()),
        most_peers=_SPARE_CONNECTIONS + sum(card.n_prefetchers for card in cards),
    )
    return Joined(plan, node_of_rank, listener)


def _servers(
    node_of_rank: Sequence[int], addresses: Sequence[Address]
) -> tuple[tuple[Address, ...], ...]:
    """Return the addresses of each node's servers."""
    by_node: list[list[Address]] = [[] for _ in range(max(node_of_rank) + 1)]
    for node, (host, port) in zip(node_of_rank, addresses, strict=True):
        by_node[node].append((host, port))
    return tuple(map(tuple, by_node))


def _listener(address: str) -> socket.socket:
    """Return a socket that listens at an address, on a port of the kernel's choice."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(socket.SOMAXCONN)
    except BaseException:
        listener.close()
        raise
    return listener
