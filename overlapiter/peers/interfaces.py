"""Which address the other nodes of a job reach this one at."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence

from overlapiter.errors import OptionError

#: Names the interface, such as ``ib0``, that the nodes of a job use; or an address of this node.
INTERFACE_VARIABLE = "OVERLAPITER_INTERFACE"

_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915


def own_addresses() -> dict[str, str]:
    """Return the IPv4 addresses of this host by the names of its interfaces, the fastest first.

    If the user names one by :data:`INTERFACE_VARIABLE`, that one alone.

    Raises:
        OptionError: There is no such interface.
    """
    named = os.environ.get(INTERFACE_VARIABLE, "")
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
                found[name] = socket.inet_ntoa(answer[20:24])
    if named not in found and any(mark in named for mark in ".:"):  # ib0.8001 is an interface
        return {"": named}
    if named and named not in found:
        raise OptionError(
            INTERFACE_VARIABLE,
            f"{named!r} is no interface of {socket.gethostname()} with an address; it has "
            f"{', '.join(found)}",
        )
    if named:
        return {named: found[named]}
    usable = {name: address for name, address in found.items() if not address.startswith("127.")}
    return dict(sorted(usable.items(), key=lambda item: -_speed_of(item[0])))


def address_among(addresses: Sequence[Mapping[str, str]], rank: int, *, is_one_host: bool) -> str:
    """Return the address at which a rank serves the others. Pure.

    Args:
        addresses: Those of each rank's host, by the names of the interfaces, the fastest first.
        rank: The rank.
        is_one_host: Whether all ranks reach each other by the loopback.

    Raises:
        OptionError: No interface is common to all hosts.
    """
    if "" in addresses[rank]:
        return addresses[rank][""]
    if is_one_host:
        return _LOOPBACK
    common = [name for name in addresses[0] if all(name in own for own in addresses)]
    for name in common:
        # Bridges of containers and virtual machines have the same address on every host.
        if len({own[name] for own in addresses}) > 1:
            return addresses[rank][name]
    raise OptionError(
        INTERFACE_VARIABLE,
        f"the nodes of this job have no network interface in common; name one on each node, or its "
        f"address, in this variable (here: {', '.join(addresses[rank]) or 'none'})",
    )


def _speed_of(name: str) -> int:
    """Return the speed of an interface in Mb/s; 0 if it does not tell."""
    try:
        with open(f"/sys/class/net/{name}/speed") as file:
            return max(0, int(file.read()))
    except (OSError, ValueError):
        return 0
