"""Nodes that left a run's Ray cluster, which explain all errors in its logs."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common.bounded import read_json
from npu_rl.common.printable import printable

HINT = (
    "Look at these hosts (power, network, `dmesg`). Start Ray there again with worker.sh of `--dry-run` or take them "
    "out, end what is left of this run there with `npu-rl runs stop RUN`, and continue with --resume."
)


def lost_nodes(attempt: Path) -> list[str]:
    """Return the nodes that left the cluster during the attempt of a folder, with host, address and Ray's reason."""
    try:
        rows = read_json(attempt / "lost-nodes.json")
    except (OSError, ValueError):
        return []
    lost = []
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            host, ip, reason = (printable(str(row.get(name, ""))) for name in ("host", "ip", "reason"))
            lost.append(f"{host} ({ip}){f': {reason}' if reason else ''}")
    return lost
