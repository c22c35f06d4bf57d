"""The result of a setup, a lock as lines, and whether its manifest has changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.printable import counted
from npu_rl.common.yaml_documents.file_digests import unchanged
from npu_rl.stack.git.objects import short
from npu_rl.stack.lock.lock_model import Lock, LockedPatch

if TYPE_CHECKING:
    from npu_rl.stack.installation.install_plan import PackageChanges
    from npu_rl.workspace.folder.built_products import BuildOutcome


@dataclass
class SetupOutcome:
    """What a setup did.

    Attributes:
        kept: The folder to which local edits were moved.
        received: Bytes of the packs and sdists that were downloaded.
        sources: The source that each component was taken from.
    """

    changed: bool
    kept: Path | None = None
    received: int = 0
    sources: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class SetupReport:
    """The result of `setup`.

    Attributes:
        outcome: What was done.
        built: The products of --build, by component.
        packages: What --install installed.
    """

    workspace: Path
    lock: Lock
    lock_digest: str
    outcome: SetupOutcome
    built: list[BuildOutcome] | None
    packages: PackageChanges | None


@dataclass(frozen=True)
class ShownLock:
    """The result of `manifests show`. `path` is the manifest's."""

    path: Path
    lock: Lock
    lock_digest: str


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
