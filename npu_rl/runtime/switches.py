"""Switch of each adaptation: the variable NPU_RL_<SLUG>. Off means upstream's behaviour."""

from __future__ import annotations

import os

_OFF = frozenset({"0", "false", "no", "off"})
_ON = frozenset({"1", "true", "yes", "on"})


def enabled(slug: str, default: bool = True) -> bool:
    """Return whether the adaptation `slug` ("hf-rollout-repeat") is on.

    Raises ValueError for a value that is neither yes nor no: a typo must not change the setting.
    """
    name = "NPU_RL_" + slug.upper().replace("-", "_")
    value = os.environ.get(name, "").strip().lower()
    if not value:
        return default
    if value in _ON:
        return True
    if value in _OFF:
        return False
    raise ValueError(f"{name}={value!r}: write 1 or 0")
