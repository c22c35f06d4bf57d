"""The content of the store that a lock needs: units and texts of patches."""

from __future__ import annotations

from npu_rl.stack.compose.composed_unit import runtime_key
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.sources.deliver import wanted_units


def units_of(lock: Lock) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the key of each unit that a lock needs -> its component, and the requested ids."""
    found = {
        wanted.request.key: (wanted.request.component, wanted.request.wants)
        for name, component in lock.components.items()
        for wanted in wanted_units(name, component)
    }
    if lock.runtime is not None:
        found[runtime_key(lock.runtime)] = ("npu_rl_runtime", (lock.runtime,))
    return found


def patches_of(lock: Lock) -> set[str]:
    """Return the SHA-256 of each patch of a lock."""
    return {patch.sha256 for _, patch in lock.patches()}
