"""A package index with the metadata of real releases (metadata.json), as wheels without code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.installation.made_packages import wheel
from tests.sources.package_index import PackageIndex

SNAPSHOT: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_name("metadata.json").read_text())


def add(index: PackageIndex, name: str, version: str, requires: Sequence[str] = ()) -> None:
    index.add(name, *wheel(name, version, {}, requires=requires))


def add_snapshot(index: PackageIndex) -> None:
    """Every release of the snapshot."""
    for name, versions in SNAPSHOT.items():
        for version, requires in versions.items():
            add(index, name, version, requires)
