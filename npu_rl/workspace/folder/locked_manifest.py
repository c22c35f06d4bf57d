"""Facts of the manifest that a workspace was set up from, as its lock and receipt have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from npu_rl.common.yaml_documents.file_digests import sha256
from npu_rl.stack.manifest.manifest_facts import ManifestFacts
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock


def stack_of(paths: WorkspacePaths) -> ManifestFacts:
    """Return the locked facts of the manifest that a workspace was set up from.

    Raises:
        LockError: If the lock is invalid.
        WorkspaceError: If the receipt, which has the texts of the patches, can't be read.
    """
    from npu_rl.workspace.folder.receipt import read_lock, read_receipt

    lock, _ = read_lock(paths)
    texts = read_receipt(paths).texts.values() if any(lock.patches()) else ()
    # By their bytes: a receipt's names of them are not proven.
    return locked_facts(lock, {sha256(text.encode("utf-8", "surrogateescape")): text for text in texts})


def locked_facts(lock: Lock, texts: Mapping[str, str]) -> ManifestFacts:
    """Return the facts of a locked manifest.

    Args:
        texts: The texts of its patches by SHA-256.
    """
    parts = lock.components.values()
    return ManifestFacts(
        path="",
        name=lock.manifest,
        env=lock.env,
        patches=(),
        pins=(
            *(part.ref for part in parts if part.ref),
            *(source.pypi for part in parts for source in part.sources if source.pypi),
        ),
        files=lock.manifest_files,
        # A patch that a component brings is COMPONENT:path, and says nothing of our switches.
        headers=tuple(
            texts.get(patch.sha256, "").partition("\ndiff --git")[0]
            for _, patch in lock.patches()
            if ":" not in patch.file
        ),
    )
