"""Nodes that left a run's Ray cluster, which explain all errors in its logs."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common.bounded import read_json
from npu_rl.common.printable import printable

_HINT = (
    "Look at these hosts (power, network, `dmesg`). Start Ray there again with worker.sh of `--dry-run` or take them "
    "out, end what is left of this run there with `npu-rl runs stop RUN`, and continue with --resume."
)
_ON_ONE_MACHINE = (
    "Ray ended: this machine was too busy, or was asleep. Close other programs, and run it again; --resume continues "
    "from the newest checkpoint."
)


def lost_nodes_hint(*, one_machine: bool) -> str:
    """Return what to do, in a run on one node or on several."""
    return _ON_ONE_MACHINE if one_machine else _HINT


def lost_nodes(attempt: Path) -> list[str]:
    """Return the nodes that left the cluster during the attempt of a folder, with host, address and Ray's reason."""
    try:
        rows = read_json(attempt / "lost-nodes.json")
    except FileNotFoundError:
        return []
    lost = []
    for row in rows:
        host, ip, reason = (printable(str(row[name])) for name in ("host", "ip", "reason"))
        lost.append(f"{host} ({ip}){f': {reason}' if reason else ''}")
    return lost
