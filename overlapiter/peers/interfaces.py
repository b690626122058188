"""Which address the other nodes of a job reach this one at."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence

from overlapiter.errors import OptionError
from overlapiter.node import kernel_text

#: Names the interface, such as ``ib0``, that the nodes of a job use; or an address of this node.
INTERFACE_VARIABLE = "OVERLAPITER_INTERFACE"

_LOOPBACK = "127.0.0.1"
_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_UP = 0x1
#: Has the IPv6 addresses of this host: of each its digits, number of the interface, length of the
#: prefix, scope (0 for one that other networks know), flags, and the name of the interface.
_IPV6_ADDRESSES = "/proc/net/if_inet6"


def own_addresses() -> dict[str, str]:
    """Return the addresses of this host by the names of its interfaces, the fastest first.

    Of one without an IPv4 address it is one of IPv6. If the user names an interface by
    :data:`INTERFACE_VARIABLE`, that one alone. Those that carry no packets now are left out.

    Raises:
        OptionError: There is no such interface.
    """
    named = os.environ.get(INTERFACE_VARIABLE, "")
    found: dict[str, str] = {}
    of_ipv6 = _ipv6_addresses()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # it has gone, or has none of IPv4
                flags = fcntl.ioctl(any_socket.fileno(), _SIOCGIFFLAGS, request)
                if struct.unpack_from("h", flags, 16)[0] & _UP and _has_carrier(name):
                    if name in of_ipv6:
                        found[name] = of_ipv6[name]
                    answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
                    found[name] = socket.inet_ntoa(answer[20:24])
    if named not in found and any(mark in named for mark in ".:"):  # ib0.8001 is an interface
        return {"": named}
    if named and named not in found:
        raise OptionError(
            INTERFACE_VARIABLE,
            f"{named!r} is no interface of {socket.gethostname()} that is up and has an address; "
            f"it has {', '.join(found)}",
        )
    if named:
        return {named: found[named]}
    usable = {name: address for name, address in found.items() if not address.startswith("127.")}
    return dict(sorted(usable.items(), key=lambda item: -_speed_of(item[0])))


def _ipv6_addresses() -> dict[str, str]:
    """Return IPv6 addresses of this host that all hosts know, by the names of its interfaces."""
    found = {}
    for line in kernel_text(_IPV6_ADDRESSES).splitlines():
        digits, _, _, scope, _, name = line.split()
        if scope == "00":
            found[name] = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    return found


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


def _has_carrier(name: str) -> bool:
    """Return whether the other end of an interface's cable is up; True if it does not tell.

    IFF_RUNNING says the same up to a second later.
    """
    return kernel_text(f"/sys/class/net/{name}/carrier") != "0"


def _speed_of(name: str) -> int:
    """Return the speed of an interface in Mb/s; 0 if it does not tell."""
    return max(0, int(kernel_text(f"/sys/class/net/{name}/speed") or 0))
