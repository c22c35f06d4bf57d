"""The runtime package as a tree, part of the code tree as `npu_rl_runtime`, which the bundled patches call."""

from __future__ import annotations

from npu_rl.bundled import runtime_root
from npu_rl.compose.git_trees import Trees
from npu_rl.git.objects import FILE, Entry, nested

NAME = "npu_rl_runtime"


def runtime_files() -> dict[str, bytes]:
    """Return the runtime's Python sources by relative path."""
    root = runtime_root()
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*.py"))
        if "__pycache__" not in path.parts
    }


def write_runtime(trees: Trees) -> str:
    """Write the installed runtime into the object database and return its tree id."""
    files = [(path, Entry(FILE, trees.write_object("blob", data))) for path, data in runtime_files().items()]
    made = [trees.write_object("tree", data) for _, data in nested(files)]
    return made[-1]
