"""A manifest, from its name or path to typed, merged, checked data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.data import bundled_patchset
from npu_rl.manifest import checks
from npu_rl.manifest.chain import read_chain, recorded_names
from npu_rl.manifest.kind import MANIFEST
from npu_rl.manifest.layers import Origin, flatten
from npu_rl.manifest.local_paths import rebase
from npu_rl.manifest.merge import checked, merge
from npu_rl.manifest.problems import KeyPath, Problem
from npu_rl.manifest.schema import Manifest
from npu_rl.manifest.yaml_text import Plain


@dataclass(frozen=True)
class LoadedManifest:
    """A valid manifest and where it came from.

    path: the file, absolute. bundled: it was named, not given as a path.
    files: the manifest and each file it extends, portable name -> sha256 of the bytes (see `fingerprint`).
    digest: sha256 of the merged data; equal data in another order of keys or another file has the same.
    origins: key path -> the file and line that wrote it.
    """

    manifest: Manifest
    path: Path
    bundled: bool
    files: Mapping[str, str]
    digest: str
    origins: Mapping[KeyPath, Origin] = field(repr=False)

    def where(self, *path: str | int) -> str:
        """`file:line` of a key, or of the nearest key above it that was written."""
        while path not in self.origins:
            path = path[:-1]
        return str(self.origins[path])

    def locate(self, path: str) -> Path:
        """The file or folder that a patch path (without `from`) or a bundle path names.

        Raises ManifestError for an unknown bundled patchset. A local path need not exist.
        """
        if checks.is_local(path):
            return self.path.parent / path
        return bundled_patchset(path)


def load_manifest(name_or_path: str) -> LoadedManifest:
    """Load a bundled manifest by name, or a file: a text with '/' or ending in .yaml or .yml is a path.

    Raises ManifestError: for a file that can't be read at once, for what is in it with every fault listed.
    """
    chain = read_chain(MANIFEST, name_or_path)
    problems: list[Problem] = []
    layer = flatten(merge(chain, rebase, problems))
    manifest = checked(Manifest, layer, problems, MANIFEST, [file.document.name for file in chain])
    return LoadedManifest(
        manifest=manifest,
        path=chain[0].path,
        bundled=chain[0].bundled,
        files=dict(recorded_names(MANIFEST, chain)),
        digest=data_digest(layer.data),
        origins=layer.origins,
    )


def data_digest(data: Mapping[str, Plain]) -> str:
    """sha256 of a manifest's merged data. Keys are sorted; the order of lists and of components counts."""
    content = {key: value for key, value in data.items() if key != "extends"}
    components = content.get("components")
    if isinstance(components, dict):
        content["components"] = [[name, component] for name, component in components.items()]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
