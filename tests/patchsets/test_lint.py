"""Every bundled patchset is complete, and every bundled lock is the one of its manifest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests, data_root, witnesses_root
from npu_rl.stack.compose.assemble import write_runtime
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import parse_header
from npu_rl.stack.patches.series import SERIES, read_patchset

PATCHSETS = sorted(path.parent for path in (data_root() / "patchsets").glob("*/*/series"))
MANIFESTS = bundled_manifests()


@pytest.mark.parametrize("folder", PATCHSETS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_a_patchset_is_complete(folder: Path) -> None:
    """A series, whole headers, nothing besides; and each proof named there is a witness."""
    sources = read_patchset(folder, lint=True)
    assert sources
    assert {p.name for p in folder.iterdir()} == {SERIES, *(source.name for source in sources)}
    for source in sources:
        tests = parse_header(parse_patch(source.data, name=source.name).header).tests
        assert tests
        for test in tests:
            assert (data_root() / test).parent == witnesses_root(), f"{source.name}: {test}"
            assert (data_root() / test).is_file(), f"{source.name}: {test}"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_bundled_lock_is_the_one_of_its_manifest(name: str, tmp_path: Path) -> None:
    """What `lock --check` says without a network: the manifest, the runtime and the patches are the locked ones."""
    loaded = load_manifest(name)
    lock = lock_model.read(lock_model.lock_path(loaded.path))
    again = f"write it again: .ci/regenerate manifests/{name}.lock.json"
    assert lock.manifest == loaded.manifest.name == name
    assert lock.manifest_digest == loaded.digest, again
    assert lock.manifest_files == dict(loaded.files), again
    assert lock_model.dump(lock) == lock_model.lock_path(loaded.path).read_text(encoding="utf-8")
    init_bare(tmp_path / "git")
    trees = Trees(Git(tmp_path / "git"))
    assert lock.runtime == write_runtime(trees), again
    trees.close()
    for _, patch in lock.patches():
        if ":" in patch.file:  # of a component, whose pin proves it
            continue
        data = (data_root() / "patchsets" / patch.file).read_bytes()
        assert patch.sha256 == hashlib.sha256(data).hexdigest(), again
    locked = [patch.file for _, patch in lock.patches()]
    for folder in {file.rpartition("/")[0] for file in locked if ":" not in file}:
        if (data_root() / "patchsets" / folder / "series").is_file():
            listed = {f"{folder}/{one.name}" for one in (data_root() / "patchsets" / folder).glob("*.patch")}
            assert listed <= set(locked), again
