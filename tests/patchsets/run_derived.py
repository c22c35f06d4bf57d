"""Free and reload the weights of vllm-ascend's own attention and experts, and print whether they are right again.

    python run_derived.py

On PYTHONPATH: the stand-ins for a CPU and for torch_npu, and a tree with vLLM and vllm-ascend. What is called are
AscendMLAImpl.process_weights_after_loading, AscendUnquantizedFusedMoEMethod.create_weights and
.process_weights_after_loading, FusedMoE.weight_loader with a map of experts (this rank has the odd ones), and verl's
patch of that loader if it is needed. The output is one line of JSON.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
import torch_npu

# A type that vllm_ascend/utils.py names in a dataclass; the stand-in has no types of graphs.
torch_npu._C._NPUTaskGroupHandle = object
import vllm.platforms  # noqa: E402

vllm.platforms.current_platform.device_name  # noqa: B018  finds vllm-ascend's platform, as vLLM's first user does
from npu_rl_runtime.rollout_offload import derived  # noqa: E402
from npu_rl_runtime.rollout_offload.weights import Weights  # noqa: E402
from vllm.model_executor.layers.fused_moe.layer import FusedMoE  # noqa: E402
from vllm.model_executor.layers.linear import UnquantizedLinearMethod  # noqa: E402
from vllm_ascend.attention.mla_v1 import AscendMLAImpl  # noqa: E402
from vllm_ascend.ops.fused_moe import AscendUnquantizedFusedMoEMethod  # noqa: E402

HEADS, RANK, NOPE, V, HIDDEN, WIDE, EXPERTS = 2, 16, 8, 4, 12, 6, 4


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kv_b_proj = torch.nn.Linear(RANK, HEADS * (NOPE + V), bias=False)
        self.kv_b_proj.quant_method = UnquantizedLinearMethod()
        self.impl = AscendMLAImpl.__new__(AscendMLAImpl)
        vars(self.impl).update(
            kv_b_proj=self.kv_b_proj,
            kv_lora_rank=RANK,
            num_heads=HEADS,
            qk_nope_head_dim=NOPE,
            v_head_dim=V,
        )

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:  # vllm/attention/layer.py:273
        self.impl.process_weights_after_loading(dtype)


def experts() -> Any:
    """A layer of EXPERTS experts of which this rank has half, as FusedMoE sets it up."""
    layer = FusedMoE.__new__(FusedMoE)
    torch.nn.Module.__init__(layer)
    method = AscendUnquantizedFusedMoEMethod.__new__(AscendUnquantizedFusedMoEMethod)
    torch.nn.Module.__init__(method)
    layer.quant_method = method
    layer.expert_map = torch.tensor([-1, 0, -1, 1])
    layer.moe_parallel_config = SimpleNamespace(tp_size=1, tp_rank=0, ep_size=2, ep_rank=1)
    layer.quant_method.create_weights(
        layer,
        num_experts=EXPERTS // 2,
        hidden_size=HIDDEN,
        intermediate_size_per_partition=WIDE,
        params_dtype=torch.float32,
        weight_loader=layer.weight_loader,
    )
    return layer


def load(model: Any, seed: int) -> dict[str, torch.Tensor]:
    """All experts are sent, each in three parts; the loader is put on the Parameters as verl does before each load."""
    layer = model["experts"]
    generator = torch.Generator().manual_seed(seed)
    sent = {"kv_b_proj": torch.randn(HEADS * (NOPE + V), RANK, generator=generator)}
    model["attention"].kv_b_proj.weight.data.copy_(sent["kv_b_proj"])
    for parameter in (layer.w13_weight, layer.w2_weight):
        parameter.weight_loader = layer.weight_loader
    for expert in range(EXPERTS):
        for shard, parameter in (("w1", layer.w13_weight), ("w3", layer.w13_weight), ("w2", layer.w2_weight)):
            size = (HIDDEN, WIDE) if shard == "w2" else (WIDE, HIDDEN)
            part = sent[f"{shard}.{expert}"] = torch.randn(size, generator=generator)
            parameter.weight_loader(parameter, part, f"{shard}.weight", shard_id=shard, expert_id=expert)
    return sent


def right(model: Any, sent: dict[str, torch.Tensor]) -> dict[str, bool]:
    impl, layer = model["attention"].impl, model["experts"]
    halves = sent["kv_b_proj"].T.view(RANK, HEADS, NOPE + V)
    w13 = torch.stack([torch.cat([sent[f"w1.{n}"], sent[f"w3.{n}"]]) for n in (1, 3)])
    return {
        "W_UK_T": torch.equal(impl.W_UK_T, halves[..., :NOPE].permute(1, 2, 0)),
        "W_UV": torch.equal(impl.W_UV, halves[..., NOPE:].transpose(0, 1)),
        "w13": torch.equal(layer.w13_weight, w13),
        "w2": torch.equal(layer.w2_weight, torch.stack([sent[f"w2.{n}"] for n in (1, 3)])),
    }


def main() -> Any:
    model = torch.nn.ModuleDict({"attention": Attention(), "experts": experts()})
    weights = Weights(model)
    load(model, 0)
    first = dict(model.named_parameters())
    model["experts"].quant_method.process_weights_after_loading(model["experts"])
    found: dict[str, Any] = {
        "upstream replaces": [name for name, one in model.named_parameters() if one is not first[name]],
        "upstream loses": [
            name for name, one in model.named_parameters() if not hasattr(one, "weight_loader")
        ],
    }
    derived.rebuild(model, torch.float32)
    before = dict(model.named_parameters())
    found["rounds"] = []
    for seed in (1, 2, 1):
        derived.drop(model)
        freed = weights.free(keep=False)
        impl = model["attention"].impl
        asleep = [impl.W_UV is None, impl.W_UK_T is None, all(one.numel() == 0 for one in model.parameters())]
        weights.bring_back()
        unwritten = weights.unwritten()
        sent = load(model, seed)
        left = weights.unwritten()
        derived.rebuild(model, torch.float32)
        same = {name: one is before[name] for name, one in model.named_parameters()}
        found["rounds"].append(
            {"freed": freed, "asleep": asleep, "unwritten": unwritten, "left": left, "same": same}
            | right(model, sent)
        )
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
