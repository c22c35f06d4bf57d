"""The cause of a failed import, in words that are the same on every machine, so that a list of them can be kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Modules a build makes, so that a tree of sources never has them: extension modules, and version files.
_BUILT = re.compile(r"(?:_C|_cpp|\._version|\.vllm_flash_attn\..+)$|\._[A-Za-z]+_C_|_C\.")
_MISSING = "needs "
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def cause_of(found: Mapping[str, Any]) -> str:
    """The cause in a child's line about a module that failed (`imports.py` of the children).

    `needs X`: a package that isn't installed, or a part of the tree that only a build makes. `the tree lacks X`: a
    module the tree's own packages should have. Otherwise the exception, or how the process ended.
    """
    outcome = found["outcome"]
    if outcome == "hung":
        return "hung"
    if outcome == "signal":
        return f"signal {found['status']}"
    if outcome == "exited" or "status" in found:
        return f"exited {found['status']}"
    if "missing" in found:
        lacking = found["in_tree"] and not _BUILT.search(found["missing"])
        return f"the tree lacks {found['missing']}" if lacking else f"{_MISSING}{found['missing']}"
    text = _ADDRESS.sub("0x…", found["text"])
    return f"{found['type']}: {text}" if text else str(found["type"])


def is_fault(cause: str) -> bool:
    """Whether a cause is a fault of tree or interpreter, not just something that isn't installed here."""
    return not cause.startswith(_MISSING)
