"""A component's versions as columns, with the state of each bundled patch in them, from patchsets/versions.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.stack.patches.patch_names import slug_of_file

if TYPE_CHECKING:
    from npu_rl.stack.patches.patch_table import PatchRow

FILE = "versions.json"
_WIDTH = 9  # of a column


@dataclass(frozen=True)
class ComponentVersions:
    """A component's patchsets.

    Attributes:
        versions: Their names, in the order of their commits.
        patches: By slug, the state of a patch in a version: `present`, `upstream`, `gone` or `retired`; versions
            before the first one with the patch are left out.
    """

    versions: tuple[str, ...]
    patches: Mapping[str, Mapping[str, str]]


def read_versions(patchsets: Path) -> dict[str, ComponentVersions]:
    """Return the recorded versions by component."""
    read = json.loads((patchsets / FILE).read_text(encoding="utf-8"))
    return {name: ComponentVersions(tuple(one["versions"]), one["patches"]) for name, one in read.items()}


def versions_text(versions: Mapping[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps(versions, indent=1) + "\n"


def version_lines(rows: Sequence[PatchRow], versions: Mapping[str, ComponentVersions]) -> Iterator[str]:
    """Yield a line for each component with its versions, and one for each of its patches."""
    subjects = {(row.component, slug_of_file(row.patch)): row.subject for row in rows}
    width = max((len(slug) for _, slug in subjects), default=0) + 2
    for name, one in versions.items():
        yield f"{name:<{width + 2}}" + "".join(_cell(version) for version in one.versions).rstrip()
        for slug, fates in one.patches.items():
            cells = "".join(_cell(fates.get(version, "")) for version in one.versions)
            yield f"  {slug:<{width}}{cells} {subjects.get((name, slug), '')}".rstrip()


def _cell(text: str) -> str:
    return f"{text:<{_WIDTH}}" if len(text) < _WIDTH else f"{text} "
