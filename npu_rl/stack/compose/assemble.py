"""Assembly of component trees into one code tree, with a linear, synthetic history.

The ids depend on the lock alone: `lock_format` fixes authors, dates and message templates. There is one commit per
pinned component, merge and patch, so `git log`, `blame` and `bisect` work on the stack.
Beside the components it has the runtime, and a dist-info of each that has `dist`: vLLM finds vllm-ascend by its entry
point, verl asks for versions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from npu_rl.common.bundled import data_root, runtime_root
from npu_rl.common.errors import ComposeError
from npu_rl.stack.compose.git_trees import Collision, Trees
from npu_rl.stack.git.objects import EMPTY_TREE, FILE, TREE, Entry, format_commit, nested, short
from npu_rl.stack.lock.lock_model import Lock, LockedComponent, LockedDist, LockedMerge, LockedPatch

AUTHOR = "npu-rl <npu-rl@invalid>"
RUNTIME = "npu_rl_runtime"  # the folder in the code tree
EPOCH = 1577836800  # 2020-01-01 00:00 UTC; each commit is a second later, so that `git log` keeps the order


def lay_components(trees: Trees, lock: Lock, current: dict[str, str]) -> str:
    """Return the code tree of the components in `current` (name to tree). Raises ComposeError."""
    root = EMPTY_TREE
    for name, tree in current.items():
        for take in lock.components[name].take:
            entry = trees.find(tree, take.path)
            if entry is None:
                continue  # a patch removed all of it
            try:
                root = trees.lay(root, take.to, entry)
            except Collision as error:
                raise _collision_error(trees, lock, current, name, error.path) from error
    return root


def _collision_error(trees: Trees, lock: Lock, current: dict[str, str], name: str, path: str) -> ComposeError:
    def lays(other: str) -> bool:
        upstream = upstream_paths(lock.components[other], path)
        return any(trees.find(current[other], p) is not None for p in upstream)

    owner = next((other for other in current if other != name and lays(other)), name)
    what = f"{owner} and {name} both take {path}" if owner != name else f"{name} takes {path} twice"
    return ComposeError(
        what, hint="Change `take:` of one of them: two components may share a folder, but not a file."
    )


def upstream_paths(component: LockedComponent, path: str) -> list[str]:
    """Return the paths of the component that a path of the code tree may come from."""
    return [found for t in component.take if (found := _rebased(path, t.to, t.path)) is not None]


def code_paths(component: LockedComponent, path: str) -> list[str]:
    """Return the paths in the code tree that a component's path is copied to."""
    return [found for t in component.take if (found := _rebased(path, t.path, t.to)) is not None]


def patches_by_file(lock: Lock) -> dict[str, list[tuple[str, bool]]]:
    """Return the patches that touch each file of the code tree, in order: name, and whether npu-rl ships it."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for name, patch in lock.patches():
        shipped = data_root() / "patchsets" / patch.file
        ours = shipped.is_file() and sha256(shipped.read_bytes()).hexdigest() == patch.sha256
        component = lock.components.get(name)
        for file in patch.files:
            for path in code_paths(component, file) if component else [file]:
                found.setdefault(path, []).append((patch.file.removesuffix(".patch"), ours))
    return found


def _rebased(path: str, start: str, to: str) -> str | None:
    """Return a path at or below `start` with `start` replaced by `to`; None for any other path."""
    if start == ".":
        rest = path
    elif path == start:
        rest = ""
    elif path.startswith(start + "/"):
        rest = path[len(start) + 1 :]
    else:
        return None
    return "/".join(part for part in ("" if to == "." else to, rest) if part)


def _component_history(name: str, component: LockedComponent) -> Iterator[tuple[str, str]]:
    """Yield the component's tree and the message of each of its commits."""
    yield component.tree, _pin_message(name, component)
    for merge in component.merges:
        yield merge.tree, _merge_message(name, merge)
    for patch in component.patches:
        yield patch.tree, _patch_message(name, patch)


def assemble(trees: Trees, lock: Lock, *, with_tree_patches: bool = True) -> tuple[str, str]:
    """Return the code tree and its commit. The component trees of the lock must be in the object database."""
    current: dict[str, str] = {}
    root = EMPTY_TREE
    history: list[tuple[str, str]] = []
    for name, component in lock.components.items():
        for tree, message in _component_history(name, component):
            current[name] = tree
            root = lay_components(trees, lock, current)
            history.append((root, message))
    if any(c.dist for c in lock.components.values()):
        root = lay_dists(trees, lock, root)
        history.append((root, "Write dist-info for the copied packages\n"))
    if lock.runtime is not None:
        root = lay_runtime(trees, lock.runtime, root)
        history.append((root, f"Lay the runtime\n\nRuntime-Tree: {lock.runtime}\n"))
    for patch in lock.tree_patches if with_tree_patches else ():
        root = patch.tree
        history.append((root, _patch_message("the tree", patch)))
    return root, _write_history(trees, history)


def _write_history(trees: Trees, history: Iterable[tuple[str, str]]) -> str:
    """Write one commit for each tree and message, and return the last."""
    commit = ""
    for count, (tree, message) in enumerate(history):
        data = format_commit(tree, [commit] if commit else [], AUTHOR, EPOCH + count, message)
        commit = trees.write_object("commit", data)
    return commit


def lay_dists(trees: Trees, lock: Lock, root: str) -> str:
    """Return the code tree with the dist-info of every component that has one. Raises ComposeError."""
    for name, component in lock.components.items():
        for path, data in dist_info(component.dist).items() if component.dist else ():
            entry = Entry(FILE, trees.write_object("blob", data))
            root = _lay(trees, root, path, entry, f"dist of {name}")
    return root


def lay_runtime(trees: Trees, runtime: str, root: str) -> str:
    """Return the code tree with npu_rl_runtime. Raises ComposeError."""
    return _lay(trees, root, RUNTIME, Entry(TREE, runtime), "the runtime")


def unpatched(trees: Trees, lock: Lock) -> str:
    """Return the code tree before the first patch."""
    root = lay_components(trees, lock, {name: merged(c) for name, c in lock.components.items()})
    root = lay_dists(trees, lock, root)
    return root if lock.runtime is None else lay_runtime(trees, lock.runtime, root)


def merged(component: LockedComponent) -> str:
    """Return the component's tree after its merges, before its patches."""
    return component.merges[-1].tree if component.merges else component.tree


def _lay(trees: Trees, root: str, path: str, entry: Entry, what: str) -> str:
    try:
        return trees.lay(root, path, entry)
    except Collision as error:
        raise ComposeError(f"{what} needs the path {error.path}, which a component also takes") from error


def component_commit(trees: Trees, name: str, component: LockedComponent) -> str:
    """Write the history of a single component, for `src/`, and return its last commit."""
    return _write_history(trees, _component_history(name, component))


def _trailers(subject: str, body: list[str], trailers: list[tuple[str, str | None]]) -> str:
    lines = [subject, ""]
    if body:
        lines += [*body, ""]
    lines += [f"{key}: {value}" for key, value in trailers if value]
    return "\n".join(lines) + "\n"


def _pin_message(name: str, component: LockedComponent) -> str:
    shown = short(component.pin) if component.pin else component.sources[0].pypi
    takes = [f"{t.path} -> {t.to}" for t in component.take]
    return _trailers(
        f"Pin {name} at {shown}",
        [],
        [
            ("Component", name),
            ("Pin", component.shown_pin()),
            ("Ref", component.ref),
            ("Component-Tree", component.tree),
            *(("Take", t) for t in takes),
        ],
    )


def _merge_message(name: str, merge: LockedMerge) -> str:
    verb = "Pick" if merge.how == "pick" else "Merge"
    return _trailers(
        f"{verb} {merge.ref} into {name}",
        [*([f"({merge.older} older commits)"] if merge.older else []), *merge.commits],
        [
            ("Component", name),
            ("Pull-Request", merge.ref),
            ("Pull-Request-Head", merge.head),
            ("Merge-Base", merge.merge_base),
            ("Component-Tree", merge.tree),
        ],
    )


def _patch_message(name: str, patch: LockedPatch) -> str:
    return _trailers(
        f"Apply {patch.name} to {name}",
        [],
        [
            ("Component", name),
            ("Patch", patch.file),
            ("Patch-SHA256", patch.sha256),
            ("Repair", patch.repair if patch.repair != "none" else None),
            ("Replaces", patch.replaces),
            ("Tree", patch.tree),
        ],
    )


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
