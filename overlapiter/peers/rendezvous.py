"""The rendezvous: how the servers of a job's nodes become known to all ranks. In the trainer alone.

It calls the communicator that it is given, and does not import MPI.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from overlapiter.agreement import Communicator, allgather
from overlapiter.errors import OptionError, StagingWarning, described, warn
from overlapiter.node import this_host
from overlapiter.scatter import ScatteredOrder

from .client import PeersPlan
from .connection import Address
from .holders import NodeShare
from .interfaces import INTERFACE_VARIABLE, address_among, own_addresses
from .meeting import Rendezvous, StoreCommunicator
from .protocol import SECRET_BYTES

T = TypeVar("T")


class Joined(NamedTuple):
    """What a rank keeps of having met the others; nothing of it if all of them share a node."""

    peers: PeersPlan | None = None  # the nodes, for its workers
    listener: socket.socket | None = None  # where other nodes come; the caller's
    share: NodeShare | None = None  # what this node holds for them


def communicator_of(peers: object, rank: int, size: int) -> Communicator:
    """Return the communicator that ``Staging.peers`` stands for.

    Args:
        peers: A communicator of ChainerMN or of mpi4py, a directory that all ranks see, or a store
            of ``torch.distributed``.
        rank: Of this process.
        size: The number of ranks.

    Raises:
        OptionError: It is none of these, or of other ranks.
    """
    if isinstance(peers, (str, os.PathLike)):
        return Rendezvous(peers, rank, size)
    if hasattr(peers, "gather_obj") or hasattr(peers, "allgather"):
        comm: Communicator = peers  # type: ignore[assignment]  # as far as can be seen
        if (comm.rank, comm.size) == (rank, size):
            return comm
        raise OptionError(
            "peers",
            f"is a communicator of rank {comm.rank} of {comm.size}, but scatter_order was given "
            f"one of rank {rank} of {size}; give both the same",
        )
    if hasattr(peers, "add") and hasattr(peers, "set") and hasattr(peers, "get"):
        return StoreCommunicator(peers, rank, size)
    raise OptionError(
        "peers",
        f"{peers!r} is no communicator, no directory and no store; give the communicator that "
        f"scatter_order was given",
    )


def join(comm: Communicator, order: ScatteredOrder, dataset_size: int) -> Joined:
    """Have all ranks of a job, which share an order, find each other. Collective.

    Raises:
        OptionError: On all ranks, if what the user names on one of them is no interface and no
            address of its host, if no interface is common to all, or if one cannot listen.
    """
    host, rank = this_host(), order.rank

    def look() -> tuple[str, str, dict[str, str]]:
        network = f"{host.machine} {os.stat('/proc/self/ns/net').st_ino}"  # has one loopback
        return " ".join(host.key), network, own_addresses()

    nodes, networks, addresses = zip(*from_all(comm, look), strict=True)
    names = list(dict.fromkeys(nodes))
    if len(names) == 1:
        return Joined()
    node_of_rank = tuple(map(names.index, nodes))
    is_one_host = len({*networks}) == 1
    listeners: list[socket.socket] = []

    def listen() -> tuple[Address, str]:
        listeners.append(_listener(address_among(addresses, rank, is_one_host=is_one_host)))
        secret = secrets.token_hex(SECRET_BYTES) if rank == 0 else ""
        return listeners[0].getsockname()[:2], secret

    try:
        offers = from_all(comm, listen)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    servers: list[list[Address]] = [[] for _ in names]
    for node, ((at, port), _) in zip(node_of_rank, offers, strict=True):
        servers[node].append((at, port))  # a directory gives lists back
    plan = PeersPlan(
        own=node_of_rank[rank],
        nodes=tuple(map(tuple, servers)),
        rank=rank,
        secret=bytes.fromhex(offers[0][1]),
        since=int(time.time()),
    )
    return Joined(plan, listeners[0], NodeShare(order, node_of_rank, dataset_size))


def from_all(comm: Communicator, make: Callable[[], T]) -> list[T]:
    """Return what each rank makes, by rank. Collective.

    Raises:
        OptionError: Another rank could not make it; what this one raises itself it raises here.
    """
    made, own_error = None, None
    try:
        made = make()
    except Exception as error:  # whatever it is, the others wait to be told
        own_error = error
        words = f"rank {comm.rank} tells the others that it cannot begin: {described(error)[0]}"
        with contextlib.suppress(StagingWarning):  # as an error it would leave the others waiting
            warn(words, StagingWarning)
    try:
        found = allgather(comm, (made, _words_of(own_error)))
    except Exception as error:
        if own_error is not None:  # which says more than that the others do not come
            raise own_error from error
        raise
    if own_error is not None:
        raise own_error
    for rank, (_, text) in enumerate(found):
        if text:
            raise OptionError("peers", f"rank {rank} cannot take part: {text}")
    return [made for made, _ in found]  # type: ignore[misc]  # all have made theirs


def _words_of(error: Exception | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"


def _listener(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        raise OptionError(
            INTERFACE_VARIABLE,
            f"no server can listen at {address} ({error.strerror}); name an interface of "
            f"{socket.gethostname()}, or an address of it",
        ) from error
