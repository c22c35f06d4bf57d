"""Facts from a workspace's manifest and lock, without the lock's model, whose import is slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from npu_rl.common.yaml_documents import reading_cache
from npu_rl.common.yaml_documents.file_digests import sha256
from npu_rl.stack.manifest.manifest_facts import ManifestFacts, from_json
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock

_LARGEST = 32 * 1024 * 1024


def stack_of(paths: WorkspacePaths) -> ManifestFacts:
    """Return the locked facts of the manifest that a workspace was set up from.

    The lock is read in full, and checked unless a lock of the same bytes has been before.

    Raises:
        LockError: If the lock is invalid.
        WorkspaceError: If the receipt, which has the texts of the patches, can't be read.
    """
    try:
        key = sha256(paths.inside.read(paths.lock, _LARGEST))
    except OSError:
        key = ""
    try:
        return from_json(reading_cache.recall("lock", key) if key else None)
    except (TypeError, KeyError):
        pass  # nothing is kept, or it is damaged
    from npu_rl.workspace.folder.receipt import read_lock, read_receipt

    lock, _ = read_lock(paths)
    wanted = {patch.sha256 for _, patch in lock.patches()}
    texts = read_receipt(paths).texts.values() if wanted else ()
    # By their bytes: a receipt's names of them are not proven, and what is kept holds for every workspace of this lock.
    found = {sha256(text.encode("utf-8", "surrogateescape")): text for text in texts}
    facts = locked_facts(lock, found)
    if key and wanted <= found.keys():
        reading_cache.keep("lock", key, asdict(facts))
    return facts


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
