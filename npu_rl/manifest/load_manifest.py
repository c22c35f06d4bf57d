"""A manifest, from its name or path to typed, merged, checked data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from npu_rl.bundled import bundled_patchset
from npu_rl.config import text_checks
from npu_rl.config.extends_chain import read_chain, recorded_names
from npu_rl.config.layers import Layer, Lists, Origin, flatten, plain
from npu_rl.config.merged_file import checked, merge
from npu_rl.config.problems import KeyPath, Problem, dotted, shown
from npu_rl.config.validation_errors import expects_list
from npu_rl.config.yaml_reader import Plain
from npu_rl.manifest.manifest_kind import MANIFEST
from npu_rl.manifest.manifest_paths import rebase
from npu_rl.manifest.schema import Manifest


@dataclass(frozen=True)
class LoadedManifest:
    """A valid manifest and where it came from.

    path: the file, absolute. bundled: it was named, not given as a path.
    files: the manifest and each file it extends, portable name -> sha256 of the bytes (see `fingerprint`).
    digest: sha256 of the merged data; equal data in another order of keys or another file has the same.
    origins: key path -> the file and line that wrote it.
    dropped: a line for each list of a parent of which entries are gone, saying which and who dropped them.
    """

    manifest: Manifest
    path: Path
    bundled: bool
    files: Mapping[str, str]
    digest: str
    origins: Mapping[KeyPath, Origin] = field(repr=False)
    dropped: tuple[str, ...] = ()

    def where(self, *path: str | int) -> str:
        """`file:line` of a key, or of the nearest key above it that was written."""
        while path not in self.origins:
            path = path[:-1]
        return str(self.origins[path])

    def locate(self, path: str) -> Path:
        """The file or folder that a patch path (without `from`) or a bundle path names.

        Raises ManifestError for an unknown bundled patchset. A local path need not exist.
        """
        if text_checks.is_local(path):
            return self.path.parent / path
        return bundled_patchset(path)


def load_manifest(name_or_path: str) -> LoadedManifest:
    """Load a bundled manifest by name, or a file: a text with '/' or ending in .yaml or .yml is a path.

    Raises ManifestError: for a file that can't be read at once, for what is in it with every fault listed.
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
    """What a child's lists took away of a parent's, less what stands there again.

    Of a component that was removed as a whole only the patches are told: the rest went with it by name.
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
    """An item of a list, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_entry(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_entry, value)) + "]"
    return shown(value)[1:-1] if value is not None else "~"


def data_digest(data: Mapping[str, Plain]) -> str:
    """sha256 of a manifest's merged data. Keys are sorted; the order of lists and of components counts."""
    content = {key: value for key, value in data.items() if key != "extends"}
    components = content.get("components")
    if isinstance(components, dict):
        content["components"] = [[name, component] for name, component in components.items()]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
