"""Loading of a manifest, from its name or path to validated, merged data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from npu_rl.common.bundled import bundled_patchset
from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.document import Plain
from npu_rl.common.yaml_documents.document_kind import MANIFEST
from npu_rl.common.yaml_documents.extends_chain import read_chain, recorded_names
from npu_rl.common.yaml_documents.layers import Layer, Lists, Origin, flatten, plain
from npu_rl.common.yaml_documents.merged_file import checked, merge
from npu_rl.common.yaml_documents.problems import KeyPath, Problem, dotted, shown
from npu_rl.common.yaml_documents.validation_errors import expects_list
from npu_rl.stack.manifest.manifest_paths import rebase
from npu_rl.stack.manifest.schema import Manifest


@dataclass(frozen=True)
class LoadedManifest:
    """A valid manifest and its source.

    Attributes:
        path: The absolute path of the file.
        bundled: Whether it was requested by its bundled name.
        files: SHA-256 of the manifest and each file it extends, by portable name.
        digest: SHA-256 of the merged data, which does not depend on the order of keys or on the files.
        origins: Key path to the file and line that set it.
        dropped: One line per list of a parent that lost entries, with these entries and where they were dropped.
    """

    manifest: Manifest
    path: Path
    bundled: bool
    files: Mapping[str, str]
    digest: str
    origins: Mapping[KeyPath, Origin] = field(repr=False)
    dropped: tuple[str, ...] = ()

    def where(self, *path: str | int) -> str:
        """Return `file:line` of a key, or of the closest parent key that a file sets."""
        while path not in self.origins:
            path = path[:-1]
        return str(self.origins[path])

    def is_inherited(self, *path: str | int) -> bool:
        """Return whether a key comes from a manifest that this one extends."""
        own = self.origins.get(("extends",))
        return own is not None and self.origins[path].file != own.file

    def locate(self, path: str) -> Path:
        """Return the file or folder of a patch path (without `from`).

        A local path need not exist.

        Raises:
            ManifestError: For an unknown bundled patchset.
        """
        if text_checks.is_local(path):
            return self.path.parent / path
        return bundled_patchset(path)


def load_manifest(name_or_path: str) -> LoadedManifest:
    """Load a bundled manifest by name, or a file: a text with '/' or ending in .yaml or .yml is a path.

    Raises:
        ManifestError: If a file can't be read, or with all errors in the content.
    """
    chain = read_chain(MANIFEST, name_or_path)
    problems: list[Problem] = []
    lists = Lists(partial(expects_list, model=Manifest))
    layer = flatten(merge(chain, rebase, problems, lists))
    manifest = checked(Manifest, layer, problems, MANIFEST, [file.document.name for file in chain])
    return LoadedManifest(
        manifest=manifest,
        path=chain[0].path,
        bundled=chain[0].bundled,
        files=dict(recorded_names(MANIFEST, chain)),
        digest=data_digest(layer.data),
        origins=layer.origins,
        dropped=tuple(_dropped(layer, lists)),
    )


def _dropped(layer: Layer, lists: Lists) -> Iterator[str]:
    """Yield a line per list of a parent whose items are missing from the merged manifest.

    Of a component that was removed entirely, only the patches are listed.
    """
    for dropped in lists.dropped:
        current: Plain = layer.data
        for part in dropped.path:
            holder, current = current, current.get(str(part)) if isinstance(current, dict) else None
        if not isinstance(holder, dict) and dropped.path[-1] != "patches":
            continue
        present = current if isinstance(current, list) else []
        removed = [item for item in dropped.items if plain(item) not in present]
        if not removed:
            continue
        entries = "".join(f"\n  {_entry(plain(item))} ({item.origin})" for item in removed)
        count = "1 entry" if len(removed) == 1 else f"{len(removed)} entries"
        ways = (
            f"; write `{dropped.path[-1]}: {{append: [...]}}` to add to its list instead" if present else ""
        )
        yield f"{dropped.at}: {dotted(dropped.path)} drops {count} of the parent{ways}:{entries}"


def _entry(value: Plain) -> str:
    """Return an item of a list on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_entry(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_entry, value)) + "]"
    return shown(value)[1:-1] if value is not None else "~"


def data_digest(data: Mapping[str, Plain]) -> str:
    """Return the SHA-256 of a manifest's merged data. Keys are sorted; the order of lists and components counts."""
    content = {key: value for key, value in data.items() if key != "extends"}
    components = content.get("components")
    if isinstance(components, dict):
        content["components"] = [[name, component] for name, component in components.items()]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
