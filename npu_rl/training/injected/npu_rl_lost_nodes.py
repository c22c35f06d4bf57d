"""Nodes that the Ray cluster has lost since a run began. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def lost_nodes(nodes: Iterable[Mapping[str, Any]], report: Path) -> list[dict[str, str]]:
    """Return the nodes of a run's nodes.json that are not alive, with host, address and Ray's reason.

    Args:
        nodes: What ray.nodes() returns now.
        report: The attempt's nodes.json.
    """
    try:
        began = json.loads(report.read_bytes())["nodes"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    now = {node["NodeID"]: node for node in nodes}
    lost = []
    for node in began:
        found = now.get(node.get("node"), {})
        if not found.get("Alive"):
            reason = str(found.get("DeathReasonMessage") or "")[:300]
            lost.append({"host": str(node.get("host")), "ip": str(node.get("ip")), "reason": reason})
    return lost
