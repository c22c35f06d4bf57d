"""Composition of one tree from a lock and its objects; `lock` and `setup` run the same code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from npu_rl.common.errors import ComposeError
from npu_rl.common.yaml_documents.text_checks import invalid_name_reason
from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.apply_patch import run_patch
from npu_rl.stack.compose.assemble import write_runtime
from npu_rl.stack.compose.git_trees import Trees, check_links, refused_path, taken_tree
from npu_rl.stack.compose.portable_tree import check_collisions, check_pointers, check_started_by_python
from npu_rl.stack.compose.replay_merge import content_allowance, replay
from npu_rl.stack.git.objects import TREE, Entry, nested, short
from npu_rl.stack.hunks.hunk_states import trace_hunks
from npu_rl.stack.lock.lock_model import Lock, LockedComponent, LockedPatch
from npu_rl.stack.patches.patch_model import Patch as ParsedPatch

TextOf = Callable[[LockedPatch, dict[str, str]], bytes]


@dataclass
class Composition:
    """The result of composing: trees, commits, a record per hunk for verify, and patch texts by SHA-256."""

    tree: str = ""
    commit: str = ""
    src: dict[str, str] = field(default_factory=dict)
    hunks: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, bytes] = field(default_factory=dict)


def base_tree(trees: Trees, component: LockedComponent) -> str:
    """Return the tree of the taken paths at the pin, with the listed submodules and without the skipped ones."""
    tree = component.root or taken_tree(trees, component.entries_at_pin())
    tree = trees.put_all(tree, [(path, None) for path in component.skipped])
    for module in component.submodules:
        tree = trees.put(tree, module.path, Entry(TREE, module.root))
    return tree


def compose(trees: Trees, lock: Lock, text_of: TextOf) -> Composition:
    """Build every tree of the lock and check its id. Raises ComposeError, PatchError."""
    composition = Composition()
    results: dict[str, str] = {}
    stacks: dict[str, list[tuple[LockedPatch, ParsedPatch]]] = {}
    allowance = content_allowance()

    def patched(tree: str, patch: LockedPatch, name: str, what: str, taken: Sequence[str]) -> str:
        data = composition.texts[patch.sha256] = text_of(patch, results)
        parsed, result = run_patch(trees, tree, patch, data, name, taken, headings=False)
        stacks.setdefault(name, []).append((patch, parsed))
        return _expect(result, patch.tree, f"{what} after {patch.name}")

    for name, component in lock.components.items():
        tree = _expect(base_tree(trees, component), component.tree, f"what {name} takes")
        for merge in component.merges:
            what = f"{name}, {merge.how} of {merge.ref}"
            tree = _expect(replay(trees, tree, merge.records, what, allowance), merge.tree, what)
        for patch in component.patches:
            tree = patched(tree, patch, name, name, taken_paths(component))
        results[name] = _expect(tree, component.result, f"{name} after its patches")
    if lock.runtime is not None:
        _check_runtime(trees, lock.runtime)
    tree, _ = assemble.assemble(trees, lock, with_tree_patches=False)
    for patch in lock.tree_patches:
        tree = patched(tree, patch, "tree", "the tree", (".",))
    composition.tree, composition.commit = assemble.assemble(trees, lock)
    for name, component in lock.components.items():
        if component.checkout == "full":
            composition.src[name] = assemble.component_commit(trees, name, component)
    composition.hunks = hunk_records(trees, lock, stacks)
    return composition


def list_files(trees: Trees, lock: Lock, composition: Composition) -> dict[str, list[tuple[str, str, str]]]:
    """Return path, mode and id of the files of each root ("code", "src/NAME"). Raises ComposeError for bad links."""
    roots = {
        "code": composition.tree,
        **{f"src/{name}": lock.components[name].result for name in composition.src},
    }
    listing = {}
    for root, tree in roots.items():
        files = list(trees.files(tree))
        what = "The code tree" if root == "code" else root.removeprefix("src/")
        _check_names(files, what)
        check_collisions((path for path, _ in files), what)
        check_links(files, trees, what)
        _check_modes(files, tree, what)
        _check_blobs(files, trees, what)
        listing[root] = [(path, entry.mode, entry.oid) for path, entry in files]
    return listing


def check_new_tree(
    trees: Trees, listing: dict[str, list[tuple[str, str, str]]], notify: Callable[[str], None]
) -> None:
    """Raise ComposeError for files that a new lock must not have; a lock made before stays as it is.

    Pointers in a whole checkout under `src/` are only reported: not every build needs every file.
    """
    for root, files in listing.items():
        if root == "code":
            check_started_by_python(path for path, _, _ in files)
            check_pointers(trees, files, "The code tree")
        else:
            check_pointers(trees, files, root, notify)


def _check_names(files: list[tuple[str, Entry]], what: str) -> None:
    """Raise ComposeError for names that git stores but refuses to check out, so that `lock` fails, not `setup`."""
    known: set[str] = set()
    for path, _ in files:
        for name in path.split("/"):
            if name not in known:
                known.add(name)
                if why := invalid_name_reason(name):
                    raise refused_path(f"{what} has a path that git refuses to check out", path[:1000], why)


def _check_blobs(files: list[tuple[str, Entry]], trees: Trees, what: str) -> None:
    """Raise ComposeError for a file whose object is not a blob, which git notices only when it writes the file."""
    not_blobs_found = trees.not_blobs({entry.oid for _, entry in files})
    path = next((path for path, entry in files if entry.oid in not_blobs_found), None)
    if path is not None:
        oid = dict(files)[path].oid
        raise refused_path(
            f"{what} has a file whose object is not a blob", path, f"{not_blobs_found[oid]} {oid}"
        )


def _check_modes(files: list[tuple[str, Entry]], tree: str, what: str) -> None:
    """Raise ComposeError for modes that a checkout does not restore (100664 in old repositories)."""
    *_, (found, _) = nested(files)
    if found != tree:
        why = f"Its files give {found}, not {tree}: a file has an unusual mode, or a folder is empty."
        raise refused_path(f"{what} is not a tree that git would write", None, why)


def taken_paths(component: LockedComponent) -> tuple[str, ...]:
    """Return the paths that patches may change."""
    if component.checkout == "full":
        return (".",)
    return tuple(part.path for part in component.delivered_paths())


def _expect(found: str, locked: str, what: str) -> str:
    if found != locked:
        raise ComposeError(
            f"{what} does not match the lock",
            why=f"Expected tree {locked}, found {found}.",
            hint="If you changed the lock or a patch, make a new lock. Otherwise please report this as a bug.",
        )
    return found


def _check_runtime(trees: Trees, locked: str) -> None:
    if trees.has(locked):
        trees.adopt(locked)  # from the store, which keeps every version of the runtime
        return
    found = write_runtime(trees)
    if found != locked:
        raise ComposeError(
            "The lock was made with another version of npu_rl_runtime",
            why=f"Locked {short(locked)}, installed {short(found)}, and the store does not have the locked one.",
            hint="Install the npu-rl that made the lock, or make a new lock: npu-rl lock --manifest M",
        )


def hunk_records(
    trees: Trees, lock: Lock, stacks: dict[str, list[tuple[LockedPatch, ParsedPatch]]]
) -> list[dict[str, Any]]:
    """Return the final position of every hunk in the code tree and in `src/`, traced through all later patches.

    Each record is a `HunkRecord` as JSON, with `root`: "code" or "src/NAME".
    """
    code: list[tuple[str, ParsedPatch]] = []
    records: list[dict[str, Any]] = []
    for name, stack in stacks.items():
        if name == "tree":
            code += [(f"tree/{patch.name}", parsed) for patch, parsed in stack]
            continue
        component = lock.components[name]
        own = [(f"{name}/{patch.name}", parsed) for patch, parsed in stack]
        code += [(key, _with_code_paths(component, parsed)) for key, parsed in own]
        if component.checkout == "full":
            before = assemble.merged(component)
            records += _traced(own, partial(_blob, trees, before), f"src/{name}")
    before = assemble.unpatched(trees, lock)
    return _traced(code, partial(_blob, trees, before), "code") + records


def _traced(
    stack: list[tuple[str, ParsedPatch]],
    base: Callable[[str], bytes | None],
    root: str,
) -> list[dict[str, Any]]:
    found = []
    for record in trace_hunks(stack, base):
        component, _, patch = record.patch.partition("/")
        found.append({**replace(record, component=component, patch=patch).to_json(), "root": root})
    return found


def _with_code_paths(component: LockedComponent, parsed: ParsedPatch) -> ParsedPatch:
    """Return the patch with the paths of the code tree, without files that are not in it."""
    files = [
        replace(file, path=path)
        for file in parsed.files
        for path in assemble.code_paths(component, file.path)
    ]
    return replace(parsed, files=tuple(files))


def _blob(trees: Trees, tree: str, path: str) -> bytes | None:
    entry = trees.find(tree, path)
    return None if entry is None or entry.is_tree else trees.blob(entry.oid)
