"""Sync a router's correction bias to the rollout, and select experts as in vllm-ascend and in float32.

The tree's own: the gate (vllm_ascend/ops/fused_moe/gate_linear.py where vllm-ascend has one, else vLLM's GateLinear
with the bfloat16 that DeepseekV2MoE sets, vllm/model_executor/models/deepseek_v2.py:341 of 0.18.0),
select_experts (vllm_ascend/ops/fused_moe/experts_selector.py:218@v0.18.0) and the weight sync of verl's
vLLMColocateWorkerExtension, in which a patch may change what is loaded.

Not the tree's: the kernel that scores and selects (here in float32 on the values that it is given, in one group), the
linear layer below the gate, and all else of vLLM, whose modules are names.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from npu_rl_standins.named_modules import NamedModules
from witness_common import show

TOKENS, EXPERTS, TOP_K, HIDDEN = 512, 256, 8, 1024
BIAS = "model.layers.3.mlp.gate.e_score_correction_bias"
GATES = (
    "vllm_ascend/ops/fused_moe/gate_linear.py",
    "vllm/model_executor/layers/fused_moe/router/gate_linear.py",
)
SELECTOR = "vllm_ascend/ops/fused_moe/experts_selector.py"


sys.meta_path.insert(0, NamedModules("vllm", "vllm_ascend"))

from verl.workers.rollout.vllm_rollout import utils as rollout  # noqa: E402

STAND_INS = ("npu",)


class Linear(torch.nn.Module):
    """Stand-in for the parts of vLLM's ReplicatedLinear that a gate uses."""

    def __init__(
        self, input_size: int, output_size: int, params_dtype: torch.dtype | None = None, **_: Any
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.empty(output_size, input_size, dtype=params_dtype or torch.bfloat16)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.nn.functional.linear(x, self.weight), None


def load(file: str) -> ModuleType:
    """Import one file of the tree, without the packages above it."""
    spec = importlib.util.spec_from_file_location(file.replace("/", ".").removesuffix(".py"), file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make_gate() -> torch.nn.Module:
    import vllm.model_executor.custom_op as custom_op
    import vllm.model_executor.layers.linear as linear
    import vllm.platforms as platforms

    custom_op.PluggableLayer = SimpleNamespace(register=lambda name: lambda layer: layer)
    linear.ReplicatedLinear = Linear
    no = SimpleNamespace(
        is_device_capability=lambda *_: False,
        is_device_capability_family=lambda *_: False,
        is_cuda=lambda: False,
    )
    platforms.current_platform = no
    upstream = load(GATES[1])
    if not Path(GATES[0]).is_file():
        gate: torch.nn.Module = upstream.GateLinear(HIDDEN, EXPERTS)
        gate.set_out_dtype(torch.bfloat16)
        return gate
    import vllm.model_executor.layers.fused_moe.router.gate_linear as known

    known.GateLinear = upstream.GateLinear
    own: torch.nn.Module = load(GATES[0]).AscendGateLinear(HIDDEN, EXPERTS)
    return own


def select(logits: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = logits.float().sigmoid() + bias.float()
    return scores.topk(TOP_K, dim=-1).indices.sort(dim=-1).values


def synced(bias: torch.Tensor) -> torch.Tensor:
    """Return the rollout's parameter after a weight sync."""
    model = torch.nn.Module()
    parameter = torch.nn.Parameter(torch.empty(EXPERTS))
    model.load_weights = lambda weights: [parameter.data.copy_(tensor) for _, tensor in weights]  # type: ignore[assignment]
    worker = object.__new__(rollout.vLLMColocateWorkerExtension)
    worker.model_runner = SimpleNamespace(model=model, vllm_config=None)
    worker._iter_all_models = lambda: [model]
    rollout.is_fp8_model = lambda *_: False
    worker._update_weights([(BIAS, bias)], peft_config=None, base_sync_done=False)
    return parameter.data


def main() -> dict[str, Any]:
    import vllm_ascend.device.device_op as device_op
    import vllm_ascend.utils as utils

    device_op.DeviceOperator = SimpleNamespace(
        moe_gating_top_k=lambda logits, bias_opt, **_: (None, select(logits, bias_opt), None)
    )
    prefetch = SimpleNamespace(maybe_prefetch_moe_weight_preprocess=lambda *_: None)
    utils.get_weight_prefetch_method = lambda: prefetch
    selector = load(SELECTOR)
    torch.manual_seed(0)
    gate = make_gate()
    torch.nn.init.normal_(gate.weight, std=HIDDEN**-0.5)
    tokens, bias = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16), 4 + 0.1 * torch.rand(EXPERTS)
    with torch.no_grad():
        logits, _ = gate(tokens)
    _, chosen = selector.select_experts(
        tokens, logits, TOP_K, use_grouped_topk=True, renormalize=True, scoring_func="sigmoid",
        e_score_correction_bias=synced(bias),
    )  # fmt: skip
    wanted = select(logits, bias)
    others = (chosen != wanted).any(dim=-1).float().mean().item()
    return {"fault": others > 0.1, "logits": str(logits.dtype), "tokens with other experts": round(others, 3)}


if __name__ == "__main__":
    show(main)
