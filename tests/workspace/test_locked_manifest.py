"""The facts of a workspace's manifest, from its lock and receipt."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests, data_root
from npu_rl.common.errors import LockError
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import lock_path
from npu_rl.workspace.folder import receipt
from npu_rl.workspace.folder.locked_manifest import stack_of
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


@pytest.fixture
def paths(tmp_path: Path) -> WorkspacePaths:
    made = WorkspacePaths(tmp_path / "ws")
    made.lock.parent.mkdir(parents=True)
    lay(made, "quickstart")
    return made


def lay(paths: WorkspacePaths, manifest: str, *, forged: str = "") -> None:
    """A lock, and a receipt with the texts of its patches; `forged` goes before each."""
    path = lock_path(bundled_manifests()[manifest])
    paths.lock.write_bytes(path.read_bytes())
    patches = [patch for _, patch in lock_model.read(path).patches() if ":" not in patch.file]
    texts = {one.sha256: forged + (data_root() / "patchsets" / one.file).read_text() for one in patches}
    paths.receipt.write_text(
        receipt.Receipt({"code": {}}, {"code": "0" * 40}, {"code": "0" * 40}, [], texts, {}).dump()
    )


def test_an_invalid_lock_is_refused(paths: WorkspacePaths) -> None:
    assert stack_of(paths).name == "quickstart"
    paths.lock.write_text(paths.lock.read_text().replace('"quickstart"', '"quickstop"', 1))
    with pytest.raises(LockError, match="edited by hand or damaged"):
        stack_of(paths)
    paths.lock.unlink()
    with pytest.raises(LockError, match="can't be read"):
        stack_of(paths)


def test_a_text_that_is_not_the_locks_patch_is_not_believed(paths: WorkspacePaths) -> None:
    lay(paths, "today", forged="Subject: mine\n")
    assert not any(stack_of(paths).headers)
    lay(paths, "today")
    assert all(stack_of(paths).headers)
