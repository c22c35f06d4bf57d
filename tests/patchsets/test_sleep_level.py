"""Sleep in `today` and `newest`: verl asks for level 1 on NPUs, since vllm-ascend loses its expert map at level 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patchsets.flagship_tree import run, tree

for needed in ("torch", "ray", "tensordict"):  # what verl's rollout imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

SLEEPS = Path(__file__).with_name("run_server_sleep.py")


@pytest.mark.parametrize("manifest", ["today", "newest"])
def test_verl_sleeps_at_level_1_on_npus(upstreams: Path, tmp_path: Path, manifest: str) -> None:
    # Of vLLM its version is asked for, from its dist-info.
    code = tree(upstreams, tmp_path / "code", ["verl", "vllm"], manifest=manifest)
    assert run(SLEEPS, code) == [1]
    assert run(SLEEPS, code, npu=False) == [2]
