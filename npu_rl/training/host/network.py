"""Network interfaces, ports and clock of a host, read from files."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

from npu_rl.training.injected.npu_rl_host import below, entries, read_text

_LISTENS = "0A"  # state of a socket in /proc/net/tcp
_UNSYNCHRONIZED = 5  # TIME_ERROR of adjtimex(2)
# A daemon that keeps the time, where the kernel can't be asked: systemd-timesyncd, chrony, ntpd.
_SYNCHRONIZED = (
    "/run/systemd/timesync/synchronized",
    "/run/chrony/chronyd.pid",
    "/run/chronyd.pid",
    "/run/ntpd.pid",
)


@dataclass(frozen=True)
class HostNetwork:
    """The network facts of a host.

    Attributes:
        interfaces: State by name, such as up.
        listening: Ports on which a process listens.
        ephemeral: First and last port that the kernel gives away; None if not known.
        reserved: Ports that it does not give away, as written: 60000-60015,64247.
        synchronized: Whether something keeps the clock; None if not known.
    """

    interfaces: dict[str, str]
    listening: frozenset[int]
    ephemeral: tuple[int, int] | None
    reserved: str
    synchronized: bool | None


def read_network(root: Path) -> HostNetwork:
    """Return interfaces, ports and clock of a host."""
    base = str(root)
    states = {
        name: read_text(base, f"/sys/class/net/{name}/operstate").strip() or "unknown"
        for name in entries(base, "/sys/class/net")
    }
    return HostNetwork(
        interfaces=states,
        listening=frozenset(_listening(read_text(base, "/proc/net/tcp") + read_text(base, "/proc/net/tcp6"))),
        ephemeral=_range(read_text(base, "/proc/sys/net/ipv4/ip_local_port_range")),
        reserved=read_text(base, "/proc/sys/net/ipv4/ip_local_reserved_ports").strip(),
        synchronized=_synchronized(root),
    )


def _listening(text: str) -> list[int]:
    ports = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and words[3] == _LISTENS:
            try:
                ports.append(int(words[1].rpartition(":")[2], 16))
            except ValueError:
                continue
    return ports


def _range(text: str) -> tuple[int, int] | None:
    words = text.split()
    return (int(words[0]), int(words[1])) if len(words) == 2 and all(map(str.isdigit, words)) else None


def is_reserved(port: int, reserved: str) -> bool:
    """Return whether the kernel reserves a port, according to ip_local_reserved_ports."""
    for part in reserved.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and int(first) <= port <= (int(last) if last.isdigit() else int(first)):
            return True
    return False


def _synchronized(root: Path) -> bool | None:
    if any(Path(below(str(root), name)).exists() for name in _SYNCHRONIZED):
        return True
    if str(root) != "/" or not sys.platform.startswith("linux"):
        return None
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # all zero: it only reads
    return None if state < 0 else bool(state != _UNSYNCHRONIZED)
