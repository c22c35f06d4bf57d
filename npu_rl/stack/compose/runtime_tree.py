"""The runtime package as a tree: the code tree's `npu_rl_runtime`, which the bundled patches call."""

from __future__ import annotations

import os
from pathlib import Path

from npu_rl.common.bundled import runtime_root
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.objects import FILE, Entry, nested

NAME = "npu_rl_runtime"


def runtime_files() -> dict[str, bytes]:
    """Return the runtime's Python sources by relative path."""
    root = str(runtime_root())
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            if name.endswith(".py"):
                path = f"{folder}/{name}"
                found[path[len(root) + 1 :]] = Path(path).read_bytes()
    return found


def write_runtime(trees: Trees) -> str:
    """Write the installed runtime into the object database and return its tree id."""
    files = [(path, Entry(FILE, trees.write_object("blob", data))) for path, data in runtime_files().items()]
    made = [trees.write_object("tree", data) for _, data in nested(files)]
    return made[-1]
