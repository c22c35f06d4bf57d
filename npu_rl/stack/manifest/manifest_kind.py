"""Manifests as a kind of configuration file: error classes and bundled files."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.errors import ManifestError
from npu_rl.common.yaml_documents.document_kind import DocumentKind, find
from npu_rl.common.yaml_documents.problems import Invalid


class InvalidManifest(Invalid, ManifestError):
    """A manifest that does not follow the schema."""

    noun = "manifest"


MANIFEST = DocumentKind("manifest", bundled_manifests, ManifestError, InvalidManifest)


def find_manifest(name_or_path: str) -> Path:
    """Return the manifest's file. Raises ManifestError if it does not exist."""
    return find(MANIFEST, name_or_path)
