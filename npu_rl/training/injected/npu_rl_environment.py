"""The environment of a host as one id, and its content by part. Standard library only.

npu-rl computes it on its own host, and the driver of a run for each node from what the node has reported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

PREFIX = "env:"
# Facts of a host (npu_rl_host.py) by the part that they belong to.
_OF_THE_HOST = {
    "cann": ("cann", "kernels", "nnal", "cuda"),
    "driver": ("driver", "firmware", "gpu_driver"),
    "image": ("image", "system"),
}
_SHORT = 12  # digits of a part's id


def with_host(parts: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a workspace together with those of a host."""
    of_host = {part: {name: facts.get(name) for name in names} for part, names in _OF_THE_HOST.items()}
    return {**parts, **of_host}


def environment_id(parts: Mapping[str, Any]) -> str:
    """Return the id of all parts together: `env:` and a SHA-256."""
    return PREFIX + hashlib.sha256(_canonical(parts)).hexdigest()


def part_ids(parts: Mapping[str, Any]) -> dict[str, str]:
    """Return a short id of each part, so that a difference can be named."""
    return {name: hashlib.sha256(_canonical(value)).hexdigest()[:_SHORT] for name, value in parts.items()}


def described(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the id and the parts, each with its own id, as a record has them."""
    ids = part_ids(parts)
    each = {name: {"id": ids[name], "value": value} for name, value in sorted(parts.items())}
    return {"id": environment_id(parts), "parts": each}


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the names of the parts that differ between two descriptions."""
    names = sorted({*ours, *theirs})
    return [name for name in names if _id_of(ours.get(name)) != _id_of(theirs.get(name))]


def _id_of(part: Any) -> Any:
    return part.get("id") if isinstance(part, dict) else None


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
