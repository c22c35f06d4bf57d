"""Metadata (dist-info) of packages that are copied into the tree.

Without it importlib.metadata finds neither their version, which verl reads, nor their entry points, through which vLLM
finds vllm-ascend. Format: the "Recording installed projects" and "Core metadata" specifications of PyPA.
"""

from __future__ import annotations

import re

from npu_rl.stack.lock.lock_model import LockedDist


def dist_info(dist: LockedDist) -> dict[str, bytes]:
    """Return the dist-info files by path in the code tree."""
    name = re.sub(r"[-_.]+", "_", dist.name).lower()
    folder = f"{name}-{dist.version}.dist-info"
    files = {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {dist.name}\nVersion: {dist.version}\n",
        f"{folder}/INSTALLER": "npu-rl\n",
    }
    if dist.entry_points:
        sections = []
        for group in sorted(dist.entry_points):
            lines = [f"{key} = {value}" for key, value in sorted(dist.entry_points[group].items())]
            sections.append("\n".join([f"[{group}]", *lines, ""]))
        files[f"{folder}/entry_points.txt"] = "\n".join(sections)
    return {path: text.encode() for path, text in files.items()}
