"""Address of this host for other hosts. Uses the standard library, and Ray if it is already running."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

LOOPBACK = "127.0.0.1"
SOURCES = (
    "VLLM_HOST_IP, the interface that GLOO_SOCKET_IFNAME or HCCL_SOCKET_IFNAME names, Ray's address of the node, the "
    "way to MASTER_ADDR"
)
_SIOCGIFADDR = 0x8915


def node_address() -> str | None:
    """Return this host's IPv4 or IPv6 address for other hosts, from the first of SOURCES that has one, or None.

    A user's setting comes first; then the address by which Ray's nodes reach each other; then the interface that the
    training world already uses. Never loopback.
    """
    for address in _candidates():
        if _serves(address):
            return address
    return None


def machine() -> str:
    """Return an id that is equal for processes that share 127.0.0.1: one kernel, one network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:  # no Linux, or /proc is hidden
        return socket.gethostname()


def _candidates() -> Iterator[str]:
    yield os.environ.get("VLLM_HOST_IP", "").strip()
    for variable in ("GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"):
        yield from _addresses_of(os.environ.get(variable, ""))
    yield _by_ray()
    yield _towards(os.environ.get("MASTER_ADDR", ""))


def _serves(address: str) -> bool:
    """Return whether another host could connect to it. A link-local address would need the interface too."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (known.is_loopback or known.is_unspecified or known.is_link_local or known.is_multicast)


def _addresses_of(names: str) -> Iterator[str]:
    """Yield the addresses of the interfaces "eth0,bond". As in HCCL, a name is a prefix unless "=" precedes it."""
    there = [name for _, name in socket.if_nameindex()]
    for name in names.split(","):
        wanted, exactly = name.strip().lstrip("="), name.strip().startswith("=")
        if not wanted or wanted.startswith("^"):  # an exclusion names no interface
            continue
        for interface in sorted(there, key=lambda other: other != wanted):
            if interface == wanted or (not exactly and interface.startswith(wanted)):
                yield from _addresses(interface)


def _addresses(interface: str) -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            yield socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:
            pass  # it has no IPv4 address
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines:  # address, index, prefix, scope, flags, name
        words = line.split()
        if words[-1] == interface:
            yield str(ipaddress.IPv6Address(bytes.fromhex(words[0])))


def _by_ray() -> str:
    """Return this node's address from Ray; "" outside Ray's processes. Ray is not imported for it."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.util.get_node_ip_address())


def _towards(master: str) -> str:
    """Return this host's address on the route to another host. A UDP socket finds it without sending anything."""
    if not master:
        return ""
    try:
        ends = socket.getaddrinfo(master.strip("[]"), 9, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, protocol, _, end in ends:
        try:
            with socket.socket(family, kind, protocol) as way:
                way.connect(end)
                return str(way.getsockname()[0])
        except OSError:
            continue
    return ""
