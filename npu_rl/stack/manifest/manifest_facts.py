"""The part of a manifest that recipes use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bundled import bundled_patchset
from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.file_digests import BUNDLED


@dataclass(frozen=True)
class ManifestFacts:
    """The part of a manifest that a recipe uses.

    Attributes:
        path: The absolute path of the file.
        name: The manifest's name.
        env: The environment variables that it sets for every run.
        patches: Paths of the patches of components and of the tree, without patches from a component's own files.
        pins: The ref or release of each component.
        files: SHA-256 of the file and of each that it extends, by portable name, its own first.
        headers: Texts of the patches' headers, where a workspace has the patches and not their files.
    """

    path: str
    name: str
    env: Mapping[str, str]
    patches: tuple[str, ...]
    pins: tuple[str, ...]
    files: Mapping[str, str]
    headers: tuple[str, ...] = ()

    def extends(self, other: ManifestFacts) -> bool:
        """Return whether another manifest is the parent: compared by its bundled name, else by its bytes."""
        name, digest = next(iter(other.files.items()))
        return name in self.files if name.startswith(BUNDLED) else digest in self.files.values()

    def patch_files(self) -> list[Path]:
        """Return the file or folder of each patch. Raises ManifestError for an unknown bundled patchset."""
        folder = Path(self.path).parent
        return [
            folder / path if text_checks.is_local(path) else bundled_patchset(path) for path in self.patches
        ]


def manifest_facts(name_or_path: str) -> ManifestFacts:
    """Return the facts of a manifest, from its name or path. Raises ManifestError if it is not valid."""
    from npu_rl.stack.manifest.load_manifest import load_manifest

    loaded = load_manifest(name_or_path)
    components = loaded.manifest.components.values()
    entries = [*(entry for part in components for entry in part.patches), *loaded.manifest.tree.patches]
    refs = [part.ref for part in components if part.ref]
    releases = [source.pypi for part in components for source in part.sources if source.pypi]
    return ManifestFacts(
        path=str(loaded.path),
        name=loaded.manifest.name,
        env=loaded.manifest.env,
        patches=tuple(entry.path for entry in entries if not entry.from_),
        pins=(*refs, *releases),
        files=loaded.files,
    )
