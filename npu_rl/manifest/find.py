"""Where a manifest is, without reading it: a bundled name, or a path."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from npu_rl.data import bundled_manifests
from npu_rl.errors import ManifestError


def find_manifest(name_or_path: str) -> tuple[Path, bool]:
    """The manifest's file, and whether it is a bundled one. Raises ManifestError if there is none."""
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path).expanduser().absolute()
        if path.is_file():
            return path, False
        raise ManifestError("There is no such manifest", where=str(path))
    known = bundled_manifests()
    if name_or_path in known:
        return known[name_or_path], True
    near = get_close_matches(name_or_path, known, 1)
    raise ManifestError(
        f"There is no bundled manifest {name_or_path!r}",
        why=f"Bundled: {', '.join(known) or 'none'}.",
        hint=f"Did you mean {near[0]}?"
        if near
        else "A manifest of your own is given by its path, such as ./my.yaml",
    )
