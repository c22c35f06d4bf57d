"""Where a manifest is, without reading it: a bundled name, or a path."""

from __future__ import annotations

from pathlib import Path

from npu_rl.data import bundled_manifests
from npu_rl.errors import ManifestError
from npu_rl.manifest.checks import is_manifest_path
from npu_rl.manifest.problems import closest, shown


def find_manifest(name_or_path: str) -> Path:
    """The manifest's file. Raises ManifestError if there is none."""
    if not is_manifest_path(name_or_path):
        return find_bundled(name_or_path)
    path = Path(name_or_path).expanduser().absolute()
    if not path.is_file():
        raise ManifestError("There is no such manifest", where=str(path), hint="check the path")
    return path


def find_bundled(name: str, where: str | None = None) -> Path:
    """The file of a bundled manifest. where: what names it, for the message. Raises ManifestError."""
    known = bundled_manifests()
    if name in known:
        return known[name]
    raise ManifestError(
        f"There is no bundled manifest {shown(name)}{closest(name, list(known))}",
        where=where,
        why=f"bundled manifests: {', '.join(known) or 'none'}",
        hint="name one of these, or give the path of a file: a path holds '/' or ends in .yaml",
    )
