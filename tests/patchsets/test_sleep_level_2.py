"""Sleep at level 2 in `today` and `newest`: what vllm-ascend loses there, and that verl asks for level 1 on NPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree

for needed in ("torch", "ray", "tensordict"):  # what verl's rollout imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

LOSES = WITNESSES / "sleep_loses_expert_map.py"
SLEEPS = Path(__file__).with_name("run_server_sleep.py")
LAYERS = {
    "today": "vllm_ascend/ops/fused_moe/fused_moe.py",
    "newest": "vllm_ascend/ops/fused_moe/fused_moe_0_23_0.py",
}
MADE = "        self.dynamic_eplb = eplb_config.dynamic_eplb and (self.log2phy is not None)\n"
# vllm-ascend 032b3f4a04, in another file
A_BUFFER = (
    '        log2phy = self.__dict__.pop("log2phy")\n        self.register_buffer("log2phy", log2phy)\n'
)


@pytest.mark.parametrize("manifest", LAYERS)
def test_level_2_loses_the_expert_map(upstreams: Path, tmp_path: Path, manifest: str) -> None:
    """As long as it is not a buffer."""
    code = tree(upstreams, tmp_path / "code", ["vllm-ascend"], manifest=manifest)
    assert run(LOSES, code) == {"fault": True, "kept at level 1": True, "kept at level 2": False}
    layer = code / LAYERS[manifest]
    text = layer.read_text()
    assert text.count(MADE) == 1
    layer.write_text(text.replace(MADE, A_BUFFER + MADE))
    assert run(LOSES, code) == {"fault": False, "kept at level 1": True, "kept at level 2": True}


@pytest.mark.parametrize("manifest", LAYERS)
def test_verl_sleeps_at_level_1_on_npus(upstreams: Path, tmp_path: Path, manifest: str) -> None:
    # Of vLLM its version is asked for, from its dist-info.
    code = tree(upstreams, tmp_path / "code", ["verl", "vllm"], manifest=manifest)
    assert run(SLEEPS, code) == [1]
    assert run(SLEEPS, code, npu=False) == [2]
