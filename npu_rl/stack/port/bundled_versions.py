"""The state of each bundled patch in later versions of its component that have a patchset.

It is computed from the locks and the objects that they name, by the judgement of `patches port`, and committed as
patchsets/versions.json (`.ci/regenerate`), which `patches list` prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.lock.lock_model import Lock, LockedComponent, LockedPatch
from npu_rl.stack.lock.packed_bytes import Allowance
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Patch
from npu_rl.stack.patches.patch_names import slug_of_file
from npu_rl.stack.port.port_judgement import MarkerNames, PortedPatch
from npu_rl.stack.port.port_patch import port_patch
from npu_rl.stack.port.version_files import VersionFiles

PatchFate = Literal["present", "upstream", "gone", "retired"]
"""In a version: its patchset has the patch; upstream has the change; what it changes is gone; none of these."""

_COMMITTED = re.compile(rb"^committer .*> (\d+) [+-]\d{4}$", re.M)
_LARGEST = 64 << 20  # bytes of a lock's proofs


@dataclass
class PatchsetAtPin:
    """A bundled patchset on its own tree.

    Attributes:
        date: The commit date of its version, in seconds; 0 for a release without a commit.
        tree: The tree before its first patch; `folder` has the component's files in it.
        patches: By slug, the patch and the tree before it.
    """

    component: str
    version: str
    date: int
    trees: Trees
    tree: str
    folder: str
    patches: dict[str, tuple[Patch, str]] = field(default_factory=dict)


def bundled_patchsets(lock: Lock, trees: Trees, texts: Mapping[str, bytes]) -> list[PatchsetAtPin]:
    """Return the bundled patchsets of a lock.

    Args:
        trees: Objects of the lock's trees, which outlive the result.
        texts: The files of its patches by SHA-256.
    """
    found: dict[tuple[str, str], PatchsetAtPin] = {}
    for component in lock.components.values():
        before = assemble.merged(component)
        for locked in component.patches:
            place = locked.file.split("/")
            if len(place) == 3 and ":" not in locked.file and place[0] != ".":
                name, version, file = place
                patchset = found.setdefault(
                    (name, version),
                    PatchsetAtPin(name, version, _date(component, locked), trees, before, locked.directory),
                )
                text = locked.applied_text(texts[locked.sha256])
                patch = parse_patch(text, name=file, strip=locked.strip, exclude=locked.exclude)
                patchset.patches[slug_of_file(file)] = patch, before
            before = locked.tree
    return list(found.values())


def _date(component: LockedComponent, patch: LockedPatch) -> int:
    """Return the date of the commit that a patch's files come from."""
    owners = [m.proof for m in component.submodules if f"{patch.directory}/".startswith(f"{m.path}/")]
    proof = owners[0] if owners else component.proof
    if not proof:
        return 0
    commit = Allowance(each=_LARGEST, total=_LARGEST).unpack(proof[0])
    found = _COMMITTED.search(commit)
    return int(found[1]) if found else 0


def patch_versions(patchsets: Sequence[PatchsetAtPin]) -> dict[str, Any]:
    """Return, by component, its versions in commit order, and the state of each patch in each version."""
    by_component: dict[str, dict[str, PatchsetAtPin]] = {}
    for patchset in sorted(patchsets, key=lambda p: (p.component, p.date, p.version)):
        by_component.setdefault(patchset.component, {}).setdefault(patchset.version, patchset)
    return {
        component: {
            "versions": list(versions),
            "patches": _fates(list(versions.values())),
        }
        for component, versions in by_component.items()
    }


def _fates(versions: Sequence[PatchsetAtPin]) -> dict[str, dict[str, PatchFate]]:
    slugs = dict.fromkeys(slug for version in versions for slug in version.patches)
    result: dict[str, dict[str, PatchFate]] = {}
    for slug in sorted(slugs):
        last: PatchsetAtPin | None = None
        fates: dict[str, PatchFate] = {}
        for version in versions:
            if slug in version.patches:
                last = version
                fates[version.version] = "present"
            elif last is not None and (last.date, last.folder) != (version.date, version.folder):
                fates[version.version] = _fate(last, slug, version)
        result[slug] = fates
    return result


def _fate(old: PatchsetAtPin, slug: str, new: PatchsetAtPin) -> PatchFate:
    patch, before = old.patches[slug]
    version = VersionFiles(new.trees, new.tree, new.folder)
    read = VersionFiles(old.trees, before, old.folder).read
    return _fate_of(port_patch(patch, read, version, None, MarkerNames(new.version, slug)))


def _fate_of(ported: PortedPatch) -> PatchFate:
    if ported.is_upstream:
        return "upstream"
    return "gone" if any(hunk.state == "target gone" for hunk in ported.hunks) else "retired"
