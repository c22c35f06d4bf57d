"""Summaries of a lock and a setup as lines and as the documented JSON, and whether its manifest has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.printable import counted
from npu_rl.common.yaml_documents.file_digests import unchanged
from npu_rl.stack.git.objects import short
from npu_rl.stack.lock.lock_model import Lock, LockedComponent, LockedPatch
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


@dataclass
class SetupOutcome:
    """The result of a setup."""

    changed: bool
    kept: Path | None = None
    received: int = 0
    sources: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def manifests_of(lock: Lock) -> list[str]:
    """Return the names of a lock's manifest and of those that it extends, for `bundled_recipe_for`."""
    return [lock.manifest, *(Path(name.removeprefix("bundled:")).stem for name in lock.manifest_files)]


def stack_lines(lock: Lock) -> Iterator[str]:
    """Yield a line for every component with its pin, every merge, and every patch, tree patches included."""
    for name, component in lock.components.items():
        pin = short(component.pin) if component.pin else component.sources[0].pypi
        named = component.ref if component.ref != component.pin else None
        yield f"  {name:<16} {pin:<14} {named or ''}".rstrip()
        yield from (f"    {m.how} {m.ref.removeprefix('refs/')} at {short(m.head)}" for m in component.merges)
        yield from (f"    {patch_line(patch)}" for patch in component.patches)
        for step in component.build:
            yield f"    build {' '.join(step.run)}{'' if step.proven else ' (never run)'}"
    if lock.tree_patches:
        yield "  tree"
        yield from (f"    {patch_line(patch)}" for patch in lock.tree_patches)


def patch_line(patch: LockedPatch) -> str:
    """Return one line with a patch's name, and number of hunks."""
    crlf = ", CRLF to LF" if patch.eol == "lf" else ""
    repaired = ", final newline added" if patch.repair == "final-newline" else ""
    replaces = f", replaces {patch.replaces}" if patch.replaces else ""
    return f"patch {patch.name}: {counted(patch.hunks, 'hunk')}{crlf}{repaired}{replaces}"


def stack_json(lock: Lock, sources: Mapping[str, str]) -> dict[str, Any]:
    """Return `components` and `tree_patches` for `setup --json` and `status --json`."""
    return {
        "components": {name: _component(c, sources.get(name)) for name, c in lock.components.items()},
        "tree_patches": [_patch(p) for p in lock.tree_patches],
    }


def setup_json(lock: Lock, digest: str, paths: WorkspacePaths, outcome: SetupOutcome) -> dict[str, Any]:
    """Return the output of `setup --json`.

    Args:
        digest: The lock's. Times in seconds, sizes in bytes.
    """
    return {
        "manifest": lock.manifest,
        "workspace": str(paths.root),
        "commit": lock.commit,
        "tree": lock.tree,
        "lock": digest,
        "changed": outcome.changed,
        **stack_json(lock, outcome.sources),
        "kept": str(outcome.kept) if outcome.kept else None,
        "bytes_received": outcome.received,
        "seconds": round(outcome.seconds, 3),
    }


def _component(component: LockedComponent, source: str | None) -> dict[str, Any]:
    return {
        "pin": component.shown_pin(),
        "ref": component.ref,
        "source": source or component.sources[0].shown(),
        "tree": component.result,
        "merges": [
            {"ref": m.ref, "how": m.how, "head": m.head, "commits": m.count, "drift": m.drift}
            for m in component.merges
        ],
        "patches": [_patch(p) for p in component.patches],
    }


def _patch(patch: LockedPatch) -> dict[str, Any]:
    return {"name": patch.name, "sha256": patch.sha256, "hunks": patch.hunks}


def manifest_changed(lock: Lock, manifest: Path) -> bool:
    """Return whether the manifest, or a file it extends, has changed since the lock was made.

    Raw bytes are compared first, so that the common case needs neither YAML nor pydantic. A manifest that is missing or
    invalid counts as changed.
    """
    if unchanged(lock.manifest_files, manifest):
        return False
    from npu_rl.common.errors import NpuRlError
    from npu_rl.stack.manifest.load_manifest import load_manifest

    try:
        return load_manifest(str(manifest)).digest != lock.manifest_digest
    except NpuRlError:
        return True
