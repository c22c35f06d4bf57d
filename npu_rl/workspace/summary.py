"""The documented JSON of a setup, and whether a manifest has moved on since."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.manifest.fingerprint import unchanged
from npu_rl.manifest.lock import Component, Lock, Patch
from npu_rl.workspace.layout import Layout

if TYPE_CHECKING:
    from npu_rl.workspace.current import Outcome


def setup_json(lock: Lock, layout: Layout, outcome: Outcome) -> dict[str, Any]:
    """What `setup --json` prints. Times in seconds, sizes in bytes."""
    return {
        "manifest": lock.manifest,
        "workspace": str(layout.root),
        "commit": lock.commit,
        "tree": lock.tree,
        "changed": outcome.changed,
        "components": {
            name: _component(component, outcome.sources.get(name))
            for name, component in lock.components.items()
        },
        "tree_patches": [_patch(p) for p in lock.tree_patches],
        "kept": str(outcome.kept) if outcome.kept else None,
        "bytes_received": outcome.received,
        "seconds": round(outcome.seconds, 3),
    }


def _component(component: Component, source: str | None) -> dict[str, Any]:
    return {
        "pin": component.shown_pin(),
        "source": source or component.sources[0].shown(),
        "tree": component.result,
        "merges": [
            {"ref": m.ref, "how": m.how, "head": m.head, "commits": m.count, "drift": m.drift}
            for m in component.merges
        ],
        "patches": [_patch(p) for p in component.patches],
    }


def _patch(patch: Patch) -> dict[str, Any]:
    return {"name": patch.name, "sha256": patch.sha256, "hunks": patch.hunks, "offset": patch.offsets}


def manifest_changed(lock: Lock, manifest: Path) -> bool:
    """Whether the manifest, resolved with what it extends, is another than the lock was made from.

    Raw bytes are compared first, so that the common case needs neither YAML nor pydantic. A manifest
    that is gone or no longer valid counts as changed.
    """
    if unchanged(lock.manifest_files, manifest):
        return False
    from npu_rl.errors import NpuRlError
    from npu_rl.manifest.load import load_manifest

    try:
        return load_manifest(str(manifest)).digest != lock.manifest_digest
    except NpuRlError:
        return True
