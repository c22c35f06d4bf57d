"""The state of each bundled patch in the other versions of its component that have a patchset.

It is computed from the locks and the objects that they name, by the merge that a port uses, and committed as
patchsets/versions.json (`.ci/regenerate`), which `patches list` prints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.objects import EMPTY_TREE
from npu_rl.stack.lock.lock_fields import Allowance
from npu_rl.stack.lock.lock_model import Lock, LockedComponent, LockedPatch
from npu_rl.stack.patches.patch_names import slug_of_file
from npu_rl.stack.port.ported_patches import merged_tree

_COMMITTED = re.compile(rb"^committer .*> (\d+) [+-]\d{4}$", re.M)
_LARGEST = 64 << 20  # bytes of a lock's proofs


class _PatchsetAtPin(NamedTuple):
    """A bundled patchset. patches: by slug, the trees before and after a patch, and its files, in `folder`."""

    date: int
    tree: str
    folder: str
    patches: dict[str, tuple[str, str, tuple[str, ...]]]


def patch_versions(trees: Trees, locks: Sequence[Lock]) -> dict[str, Any]:
    """Return, by component, its versions in commit order, and the state of each patch from its first version on.

    Args:
        trees: The objects of all locks.
    """
    known: dict[str, dict[str, _PatchsetAtPin]] = {}
    for component in (one for lock in locks for one in lock.components.values()):
        pin = before = assemble.merged(component)
        for patch in component.patches:
            name, _, version_and_file = patch.file.partition("/")
            version, _, file = version_and_file.partition("/")
            if (
                file and not name.startswith(".") and ":" not in name
            ):  # neither the user's nor another component's
                one = _PatchsetAtPin(_date(component, patch), pin, patch.directory, {})
                one = known.setdefault(name, {}).setdefault(version, one)
                one.patches[slug_of_file(file)] = before, patch.tree, patch.files
            before = patch.tree
    return {name: _table(trees, found) for name, found in sorted(known.items())}


def _table(trees: Trees, found: dict[str, _PatchsetAtPin]) -> dict[str, Any]:
    versions = dict(sorted(found.items(), key=lambda pair: (pair[1].date, pair[0])))
    slugs = sorted({slug for one in versions.values() for slug in one.patches})
    return {"versions": list(versions), "patches": {slug: _states(trees, slug, versions) for slug in slugs}}


def _states(trees: Trees, slug: str, versions: dict[str, _PatchsetAtPin]) -> dict[str, str]:
    states: dict[str, str] = {}
    last: _PatchsetAtPin | None = None
    for version, one in versions.items():
        if slug in one.patches:
            states[version], last = "present", one
        elif last is not None and (last.date, last.folder) != (one.date, one.folder):
            states[version] = _state(trees, last, slug, one)
    return states


def _state(trees: Trees, old: _PatchsetAtPin, slug: str, new: _PatchsetAtPin) -> str:
    before, after, files = old.patches[slug]
    paths = [path.removeprefix(f"{old.folder}/") for path in files]

    def only(tree: str, folder: str) -> str:
        found = ((path, trees.find(tree, f"{folder}/{path}" if folder else path)) for path in paths)
        return trees.put_all(EMPTY_TREE, [(path, entry) for path, entry in found if entry is not None])

    base, there = only(before, old.folder), only(new.tree, new.folder)
    if merged_tree(trees, base, there, only(after, old.folder)) == there:
        return "upstream"
    return "gone" if any(trees.find(base, p) and not trees.find(there, p) for p in paths) else "retired"


def _date(component: LockedComponent, patch: LockedPatch) -> int:
    """Return the date of the commit that a patch's files come from; 0 for a release without one."""
    owners = [m.proof for m in component.submodules if f"{patch.directory}/".startswith(f"{m.path}/")]
    proof = owners[0] if owners else component.proof
    found = _COMMITTED.search(Allowance(each=_LARGEST, total=_LARGEST).unpack(proof[0])) if proof else None
    return int(found[1]) if found else 0
