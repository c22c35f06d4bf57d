"""Check that a manually started Ray has the resources a recipe needs. verl would wait forever for missing ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_SHOWN = 8


def lacking(nodes: Iterable[Mapping[str, Any]], needs: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return the refusal (what, where, why, hint) for a cluster that lacks resources, or None.

    Args:
        nodes: What ray.nodes() returns.
        needs: `needs` of NPU_RL_NODES.
    """
    if needs is None:
        return None
    alive = [node for node in nodes if node["Alive"]]
    resource, count = needs["resource"], needs["count"]
    enough = [node for node in alive if node["Resources"].get(resource, 0) >= count]
    cpus = sum(node["Resources"].get("CPU", 0) for node in alive)
    why = []
    if len(enough) < needs["nodes"]:
        why.append(f"{len(enough)} of {needs['nodes']} nodes offer {count} {resource}:")
        why += [
            f"  {_place(node)}: {node['Resources'].get(resource, 0):g} {resource}" for node in alive[:_SHOWN]
        ]
        why += [f"  and {len(alive) - _SHOWN} more"] if len(alive) > _SHOWN else []
    if cpus < needs["cpus"]:
        why.append(
            f"All nodes together offer {cpus:g} CPU, and the ranks and the trainer take {needs['cpus']}."
        )
    if not why:
        return None
    return {
        "what": f"The Ray at {needs['address']} lacks what {needs['recipe']} needs",
        "where": "cluster.address",
        "why": "\n".join(why),
        "hint": _hint(needs, alive),
    }


def _hint(needs: Mapping[str, Any], alive: list[Mapping[str, Any]]) -> str:
    lines = [
        f"Stop Ray there (`ray stop`) and start it with what is missing. On the head:\n  {needs['head']}"
    ]
    if needs["nodes"] > 1 or len(alive) > 1:
        lines.append(f"On each other node:\n  {needs['worker']}")
    return "\n".join(lines)


def _place(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
