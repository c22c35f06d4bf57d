"""The options of `npu-rl setup --bundle`."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.errors import UsageError

if TYPE_CHECKING:
    from npu_rl.stack.bundles.read_bundle import OpenBundle
    from npu_rl.stack.lock.lock_model import Lock
    from npu_rl.stack.store import Store
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


def opened_bundle(held: ExitStack, bundle: Path | None, verify_with: Path | None) -> OpenBundle | None:
    """Return the named bundle, open until `held` ends; None without a name."""
    if bundle is None and verify_with is not None:
        raise UsageError("--verify-with needs --bundle", hint="Name the bundle, too: --bundle FILE")
    if bundle is None:
        return None
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.bundles.read_bundle import open_bundle

    signers = user_path(verify_with, "--verify-with") if verify_with is not None else None
    return held.enter_context(open_bundle(user_path(bundle, "--bundle"), signers))


def require_bundled_lock(bundle: OpenBundle | None, lock: Lock) -> None:
    """Raise BundleError if a bundle is made for another lock."""
    if bundle is not None:
        from npu_rl.stack.bundles.bundled_store import require_lock

        require_lock(bundle, lock)


def store_of(held: ExitStack, bundle: OpenBundle | None, lock: Lock) -> Store:
    """Return the user's store, or until `held` ends a bundle's store."""
    if bundle is None:
        from npu_rl.stack.store import Store

        return Store()
    from npu_rl.stack.bundles.bundled_store import bundled_store

    found: AbstractContextManager[Store] = bundled_store(bundle, lock)
    return held.enter_context(found)


def wheels_of(held: ExitStack, bundle: OpenBundle | None) -> list[Path]:
    """Return the folder of the packages that a bundle has, which is there until `held` ends."""
    if bundle is None:
        return []
    from npu_rl.stack.bundles.bundled_store import bundled_wheels

    folder = held.enter_context(bundled_wheels(bundle))
    return [] if folder is None else [folder]


def note_bundle(bundle: Path | None, opened: OpenBundle | None, lock: Lock, paths: WorkspacePaths) -> None:
    """Note a bundle that has packages, for the hint where some are missing."""
    if bundle is None or opened is None:
        return
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.bundles.bundle_names import WHEELS, of_kind
    from npu_rl.stack.lock.lock_model import digest_of
    from npu_rl.workspace.packages.install_command import keep_bundle

    if of_kind(opened.facts.sizes, WHEELS):
        keep_bundle(paths, user_path(bundle, "--bundle"), digest_of(lock))


def manifest_file(manifest: str | None, bundle: OpenBundle | None) -> Path:
    """Return the file of the named manifest, or else of the bundle's."""
    from npu_rl.stack.manifest.manifest_kind import find_manifest

    if manifest is None and bundle is not None:
        from npu_rl.stack.bundles.bundled_store import shipped_manifest

        manifest = shipped_manifest(bundle)
    if manifest is None:
        raise UsageError(
            "Missing option '--manifest' / '-m'",
            hint="Name one that `npu-rl manifests list` prints: npu-rl setup --manifest quickstart",
        )
    return find_manifest(manifest)
