"""The modules of a tree's packages, found by their files without importing them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from npu_rl.common.errors import NpuRlError


def modules_of(code: Path, packages: Sequence[str]) -> list[str]:
    """Return the dotted names of all Python modules in some packages, sorted.

    Folders without `__init__.py` count too, since Python imports them as namespace packages. Names that are not
    identifiers can't be imported and are left out.

    Raises:
        NpuRlError: If the tree lacks a package.
    """
    found: set[str] = set()
    for package in packages:
        base = code.joinpath(*package.split("."))
        if base.is_dir():
            found.update(_modules_below(base, package))
        elif base.with_suffix(".py").is_file():
            found.add(package)
        else:
            raise NpuRlError(
                f"The tree has no package {package}",
                where=str(code),
                hint="`npu-rl verify` shows whether the workspace equals its lock",
            )
    return sorted(found)


def _modules_below(base: Path, package: str) -> Iterator[str]:
    for folder, folders, files in os.walk(base):
        folders[:] = [name for name in folders if name.isidentifier() and name != "__pycache__"]
        inner = [package, *Path(folder).relative_to(base).parts]
        for file in files:
            stem, _, suffix = file.rpartition(".")
            if suffix == "py" and stem.isidentifier():
                yield ".".join(inner if stem == "__init__" else [*inner, stem])
