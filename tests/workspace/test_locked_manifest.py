"""The facts of the manifest are remembered for a lock of exactly these bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.bundled import bundled_manifests, data_root
from npu_rl.common.errors import LockError
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import lock_path
from npu_rl.workspace.folder import receipt
from npu_rl.workspace.folder.locked_manifest import stack_of
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WorkspacePaths:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    inner = receipt.read_lock

    def counted(paths: WorkspacePaths) -> Any:
        calls.append(paths)
        return inner(paths)

    monkeypatch.setattr(receipt, "read_lock", counted)
    return calls


def test_a_lock_is_checked_once(paths: WorkspacePaths, parsed: list[Any]) -> None:
    assert [stack_of(paths).name for _ in range(3)] == ["quickstart"] * 3
    assert len(parsed) == 1


def test_another_lock_is_checked(paths: WorkspacePaths, parsed: list[Any]) -> None:
    stack_of(paths)
    lay(paths, "deepseek-v3-cann")
    assert stack_of(paths).name == "deepseek-v3-cann"
    assert len(parsed) == 2


def test_an_invalid_lock_is_refused_each_time(paths: WorkspacePaths) -> None:
    stack_of(paths)
    paths.lock.write_text(paths.lock.read_text().replace('"quickstart"', '"quickstop"', 1))
    for _ in range(2):
        with pytest.raises(LockError, match="edited by hand or damaged"):
            stack_of(paths)
    paths.lock.unlink()
    with pytest.raises(LockError, match="can't be read"):
        stack_of(paths)


def test_a_text_that_is_not_the_locks_patch_is_not_believed(paths: WorkspacePaths) -> None:
    """What is kept holds for each workspace of this lock, so a stranger's receipt must not decide it."""
    honest = stack_of(paths).headers
    forged = WorkspacePaths(paths.root.with_name("forged"))
    forged.lock.parent.mkdir(parents=True)
    for manifest in ("quickstart", "today"):
        lay(forged, manifest, forged="Subject: mine\n")
        found = stack_of(forged).headers
        assert not any("mine" in header for header in found)
    assert stack_of(paths).headers == honest and all(honest)
    lay(paths, "today")
    assert all(stack_of(paths).headers)
