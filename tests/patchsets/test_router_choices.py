"""The adaptation router-bias on many biases: by no tree's own routing does one send tokens elsewhere than upstream."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patchsets.flagship_tree import run, tree

for needed in ("torch", "ray", "tensordict", "msgspec", "gguf", "blake3", "numba"):  # of verl and vLLM
    pytest.importorskip(needed)

from tests.patchsets.run_router_choices import require_none_worse  # noqa: E402

pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

SCRIPT = Path(__file__).with_name("run_router_choices.py")
CANN = ["cann-recipes", "verl", "vllm", "vllm-ascend", "Megatron-LM", "MindSpeed", "MindSpeed-LLM"]
FLAGSHIP = ["verl", "vllm", "Megatron-LM"]


@pytest.mark.parametrize(
    ("manifest", "components", "routing", "npu"),
    [
        ("deepseek-r1-zero", FLAGSHIP, "vllm", False),
        ("deepseek-r1-zero", FLAGSHIP, "megatron-core", False),
        ("deepseek-v3-cann", CANN, "mindspeed-llm", True),
        ("deepseek-v3-cann", CANN, "vllm", True),
        ("pai-megatron-deepseek-v3", ["Pai-Megatron-Patch"], "megatron-core", False),
        ("pai-megatron-deepseek-v3-mcore-250908", ["Pai-Megatron-Patch"], "megatron-core", False),
        # Its own selection, which it uses without its kernel: groups that are left out have the score 0.
        ("today", ["verl", "vllm", "vllm-ascend"], "vllm-ascend", True),
    ],
)
def test_no_biases_are_routed_worse_than_upstream(
    manifest: str, components: list[str], routing: str, npu: bool, upstreams: Path, tmp_path: Path
) -> None:
    code = tree(upstreams, tmp_path / "code", components, manifest=manifest)
    given = {"VLLM_USE_V1": "1", "VLLM_VERSION": "0.9.1", "VLLM_PLUGINS": "none"}
    require_none_worse(run(SCRIPT, code, routing, npu=npu, **({} if manifest == "today" else given)))
