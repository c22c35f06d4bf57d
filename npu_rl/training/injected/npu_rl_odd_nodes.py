"""Detection of nodes whose CANN, torch, driver or devices differ from the majority. Standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

_CLOCK = 5.0  # seconds by which a clock may differ
# Facts that have to be the same -> their names for people. Collectives between two CANNs or torches don't work.
_SAME = {
    "cann": "CANN",
    "kernels": "CANN kernels",
    "nnal": "NNAL",
    "torch": "torch",
    "torch-npu": "torch_npu",
    "npus": "NPUs",
    "gpus": "GPUs",
}
# Facts that may differ, and explain much where they do.
_NOTED = {
    "driver": "driver",
    "firmware": "firmware",
    "gpu_driver": "GPU driver",
    "cuda": "CUDA",
    "image": "image",
    "system": "system",
    "kernel": "kernel",
    "nofile": "open files",
    "memlock": "locked memory",
    "shm": "/dev/shm",
    "huge_pages": "huge pages",
}


def odd_facts(
    node: str, stacks: Mapping[str, Mapping[str, Any]], here: Mapping[str, Any]
) -> list[tuple[bool, str]]:
    """Return how a node differs from the majority: whether the difference stops the run, and its description.

    Args:
        stacks: Facts by node, of all nodes with devices; a node that is not among them has no odd ones.
        here: Those of the driver's host, which is right where as many nodes have the one as the other.
    """
    if node not in stacks:
        return []
    found = []
    for name, label in {**_SAME, **_NOTED}.items():
        values = {other: stack.get(name) for other, stack in stacks.items()}
        counts = Counter(values.values())
        most = max(counts.values())
        usual = [value for value, count in counts.items() if count == most]
        right = here.get(name) if here.get(name) in usual else usual[0]
        if values[node] != right:
            found.append((name in _SAME, f"{label} {_shown(values[node])}, {_others(node, values)}"))
    return found


def clock_skew(clock: float, began: float, ended: float) -> str:
    """Return how far a node's clock, read between two times of the driver's, is off; "" if it is accurate."""
    behind, ahead = began - clock, clock - ended
    if behind > _CLOCK:
        return f"its clock is {behind:.0f} seconds behind the driver's"
    return f"its clock is {ahead:.0f} seconds ahead of the driver's" if ahead > _CLOCK else ""


def _others(node: str, values: Mapping[str, Any]) -> str:
    """Return the other nodes' values, as in `the other 15: 8.2.RC1`."""
    counts = Counter(value for other, value in values.items() if other != node)
    each = [
        _shown(value) + (f" ({count})" if len(counts) > 1 else "") for value, count in counts.most_common()
    ]
    count = sum(counts.values())
    return f"the other{f' {count}' if count > 1 else ''}: {', '.join(each)}"


def _shown(value: Any) -> str:
    return "not found" if value is None else "unlimited" if value == -1 else str(value)
