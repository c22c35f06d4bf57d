"""The environment of a process that runs code of a workspace's tree: no network, nothing written beside the sources."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from npu_rl.common.callers_path import callers_path


def child_environment(roots: Sequence[Path], code: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with `variables`, and `roots` first on PYTHONPATH."""
    return {
        **os.environ,
        **variables,
        "PYTHONPATH": os.pathsep.join([*map(str, roots), *callers_path([code])]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "NPU_RL_STANDINS": "",
    }
