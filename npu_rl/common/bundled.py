"""Locations of the bundled files: manifests, patchsets, recipes and the runtime.

A wheel carries them as `npu_rl/_data`; a checkout or an editable install has them beside the package.
Standard library only: every command pays for this import.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from npu_rl.common.errors import ManifestError, NpuRlError

_PACKAGE = Path(__file__).resolve().parent.parent
_PATCHSET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*/[A-Za-z0-9][A-Za-z0-9._+-]*")


def data_root() -> Path:
    """Return the folder with manifests/, patchsets/ and recipes/. Raises NpuRlError if it does not exist."""
    packed = _PACKAGE / "_data"
    if packed.is_dir():
        return packed
    checkout = _PACKAGE.parent
    if (checkout / "manifests").is_dir():
        return checkout
    raise NpuRlError(
        "The files shipped with npu-rl are missing",
        where=str(packed),
        why=f"Neither this folder nor {checkout / 'manifests'} exists.",
        hint="Reinstall npu-rl, from its wheel or from a full checkout.",
    )


def is_checkout() -> bool:
    """Return whether the shipped files are in a checkout, where files may be added."""
    return not (_PACKAGE / "_data").is_dir()


def bundled_manifests() -> dict[str, Path]:
    """Return the files of the bundled manifests by name, sorted."""
    found = sorted((data_root() / "manifests").glob("*.yaml"), key=lambda path: path.stem)
    return {path.stem: path for path in found}


def bundled_recipes() -> dict[str, Path]:
    """Return the files of the bundled recipes by name, sorted."""
    found = sorted(
        (data_root() / "recipes").glob("*.yaml"), key=lambda path: path.stem
    )  # a base before its variants
    return {path.stem: path for path in found}


def bundled_recipe_for(manifests: Sequence[str]) -> str | None:
    """Return the name of a bundled recipe for the first of these manifests that has one.

    The files are searched as text: `setup` of an up-to-date workspace imports no YAML parser.
    """
    texts = {name: path.read_text(encoding="utf-8") for name, path in bundled_recipes().items()}
    for manifest in manifests:
        line = re.compile(rf"^manifest: {re.escape(manifest)}$", re.MULTILINE)
        found = [name for name, text in texts.items() if line.search(text)]
        if found:
            return min(found, key=len)
    return None


def bundled_patchset(name: str) -> Path:
    """Return the folder of the bundled patchset `component/version`. Raises ManifestError if it does not exist."""
    root = data_root() / "patchsets"
    if not _PATCHSET.fullmatch(name):
        raise ManifestError(
            f"Invalid patchset name {name!r}",
            why="A bundled patchset is named component/version, such as verl/0.5.0.",
            hint="Write ./path for your own patches.",
        )
    folder = root / name
    if folder.is_dir():
        return folder
    known = sorted(path.parent.relative_to(root).as_posix() for path in root.glob("*/*/series"))
    raise ManifestError(
        f"Unknown bundled patchset {name!r}",
        why=f"Bundled patchsets: {', '.join(known) or 'none'}",
        hint="Use one of these names, or write ./path for your own patches.",
    )


def witnesses_root() -> Path:
    """Return the folder with one script per fault, ID.py."""
    return data_root() / "patchsets" / "witnesses"


def runtime_root() -> Path:
    """Return the folder that becomes the package `npu_rl_runtime` of a code tree."""
    return _PACKAGE / "runtime"
