"""A package index with the metadata of real releases (metadata.json), as wheels without code."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.sources.package_index import PackageIndex

SNAPSHOT: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_name("metadata.json").read_text())


def wheel(name: str, version: str, requires: Sequence[str] = ()) -> tuple[str, bytes]:
    """The name and the bytes of a pure wheel."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
        archive.writestr(
            f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return f"{stem}-py3-none-any.whl", data.getvalue()


def add(index: PackageIndex, name: str, version: str, requires: Sequence[str] = ()) -> None:
    index.add(name, *wheel(name, version, requires))


def add_snapshot(index: PackageIndex) -> None:
    """Every release of the snapshot."""
    for name, versions in SNAPSHOT.items():
        for version, requires in versions.items():
            add(index, name, version, requires)
