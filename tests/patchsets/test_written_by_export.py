"""The shipped patchsets are as `patches export` writes them: exporting one changes not one byte."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.url_rewriting import load_rewrites
from tests.patchsets.rewritten_patchsets import SHARED, rewritten_patches
from tests.support import ROOT, rewrites

PATCHSETS = sorted(path.parent for path in (ROOT / "patchsets").glob("*/*/series"))
Texts = Mapping[str, set[bytes]]  # of each patch: what a writer makes of it in each of its manifests


@pytest.fixture(scope="session")
def texts(upstreams: Path) -> Texts:
    found: defaultdict[str, set[bytes]] = defaultdict(set)
    for name in bundled_manifests():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NPU_RL_REWRITE", rewrites(upstreams, name))
            network = Network.from_environment(load_rewrites())
            for file, _, text in rewritten_patches(name, network):
                found[file.relative_to(ROOT / "patchsets").as_posix()].add(text)
    return found


@pytest.mark.upstreams
@pytest.mark.parametrize("folder", PATCHSETS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_exporting_changes_not_one_byte(folder: Path, texts: Texts) -> None:
    for file in folder.glob("*.patch"):
        name = file.relative_to(ROOT / "patchsets").as_posix()
        if name in SHARED:
            assert len(texts[name]) == 2
        else:
            assert texts[name] == {file.read_bytes()}, name
