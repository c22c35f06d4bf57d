"""Check that a manually started Ray has the resources a recipe needs. verl would wait forever for missing ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_SHOWN = 8


def lacking(
    nodes: Iterable[Mapping[str, Any]],
    needs: Mapping[str, Any] | None,
    free: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, str] | None:
    """Return the refusal (what, where, why, hint) for a cluster that lacks resources, or None.

    Args:
        nodes: What ray.nodes() returns.
        needs: `needs` of NPU_RL_NODES.
        free: Resources that no job holds, by node id.
    """
    if needs is None:
        return None
    alive = [node for node in nodes if node["Alive"]]
    resource, count, wanted = needs["resource"], needs["count"], needs["nodes"]
    short = [node for node in alive if node["Resources"].get(resource, 0) < count]
    enough = [node for node in alive if node not in short]
    cpus = sum(node["Resources"].get("CPU", 0) for node in alive)
    held = [node for node in enough if free and free.get(node["NodeID"], {}).get(resource, 0) < count]
    what = f"The Ray at {needs['address']} lacks what {needs['recipe']} needs"
    why, hint = [], []
    if len(enough) < wanted:
        why = [f"{len(enough)} of {wanted} nodes offer {count} {resource}:", *_offers(alive, resource)]
        places = ", ".join(map(_place, short[:_SHOWN])) or "nodes that are not in Ray yet"
        hint = [
            f"Stop Ray (`ray stop`) on {places}, and start it there with head.sh or worker.sh, which npu-rl train "
            f"{needs['recipe']} --dry-run writes, after CANN's set_env.sh."
        ]
    elif len(enough) - len(held) < wanted:
        what = f"Another job holds what {needs['recipe']} needs of the Ray at {needs['address']}"
        why = [
            f"{len(enough) - len(held)} of {wanted} nodes have {count} {resource} free; others hold them on"
        ]
        why += [f"  {_place(node)}" for node in held[:_SHOWN]]
        hint = [
            "Wait for that job, or end it: `ray list jobs` names it, npu-rl runs stop RUN ends a run of npu-rl."
        ]
    if cpus < needs["cpus"]:
        why.append(
            f"All nodes together offer {cpus:g} CPU, and the ranks and the trainer take {needs['cpus']}."
        )
        hint.append("`ray start` offers what a machine has, unless --num-cpus says otherwise.")
    if not why:
        return None
    return {"what": what, "where": "cluster.address", "why": "\n".join(why), "hint": "\n".join(hint)}


def _offers(alive: list[Mapping[str, Any]], resource: str) -> list[str]:
    lines = [
        f"  {_place(node)}: {node['Resources'].get(resource, 0):g} {resource}" for node in alive[:_SHOWN]
    ]
    return [*lines, *([f"  and {len(alive) - _SHOWN} more"] if len(alive) > _SHOWN else [])]


def _place(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
