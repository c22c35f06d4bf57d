"""Choose experts by a tree's own routing function, with the router's bias as upstream sends it and as it is sent.

Run in a tree's folder with the name of its routing function. The last line is JSON: of each distribution of biases the
percentages of tokens whose experts are others than by the float32 bias: {model: {biases: [upstream, sent]}}.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WITNESSES = Path(__file__).parents[2] / "patchsets/witnesses"
NAME = "model.layers.3.mlp.gate.e_score_correction_bias"
MODELS = {"DeepSeek-V3": (256, 8, 4, 8), "Moonlight": (64, 1, 1, 6)}
"""Experts, groups, groups that are kept, experts of a token."""
TOKENS, SEEDS = 1000, 3

Biases = Callable[[int, Any], torch.Tensor]
Choose = Callable[[torch.Tensor, torch.Tensor, tuple[int, int, int, int]], torch.Tensor]
"""Of logits [tokens, experts], the bias and a model: the chosen experts, as bool or as [tokens, chosen] numbers."""


def between(low: float, high: float) -> Biases:
    return lambda experts, numbers: low + (high - low) * torch.rand(experts, generator=numbers)


def around(mean: float, deviation: float) -> Biases:
    return lambda experts, numbers: mean + deviation * torch.randn(experts, generator=numbers)


def with_others(most: Biases, others: Biases, share: float = 0.0) -> Biases:
    """Give a share of the experts, or one, biases of another distribution."""

    def mixed(experts: int, numbers: Any) -> torch.Tensor:
        bias, odd = most(experts, numbers), others(experts, numbers)
        where = torch.randperm(experts, generator=numbers)[: max(1, int(share * experts))]
        bias[where] = odd[where]
        return bias

    return mixed


def one_at(value: float, most: Biases) -> Biases:
    return with_others(most, between(value, value))


NEAR_4, NEAR_0 = between(4, 4.1), between(-0.05, 0.05)
KEPT = {
    "near 0": NEAR_0,
    "wider around 0": between(-0.5, 0.5),
    "normal around 0": around(0, 0.05),
    "from 0": between(0, 0.1),
    "near 0, one at -1": one_at(-1, NEAR_0),
    "near 0, one at -4": one_at(-4, NEAR_0),
    "near 0, one at -17": one_at(-17, NEAR_0),
    "near 0, one at 0.3": one_at(0.3, NEAR_0),
    "near 0, one at 1": one_at(1, NEAR_0),
    "near 0, 80 % near -4": with_others(NEAR_0, between(-4, -3.9), 0.8),
    "near 4, one at 17": one_at(17, NEAR_4),
    "near 0.6, 10 % at 0": with_others(between(0.6, 0.61), between(0, 0.01), 0.1),
    "near 4, 20 % at 0": with_others(NEAR_4, between(0, 0.01), 0.2),
}
"""Sent as they are: an offset would not make them twice as fine, or make experts that can be chosen coarser."""
MOVED = {
    "near 4": NEAR_4,
    "near 14": between(14, 14.1),
    "near -4": between(-4.1, -4),
    "normal around 4": around(4, 0.05),
    "wider around 4": between(3.5, 4.5),
    "0.5 to 1": between(0.5, 1),
    "near 4, one at 0": one_at(0, NEAR_4),
    "near 4, one at 2": one_at(2, NEAR_4),
    "near 4, one at -4": one_at(-4, NEAR_4),
    "near 4, one at 5": one_at(5, NEAR_4),
    "near 4, 10 % at 0": with_others(NEAR_4, between(0, 0.01), 0.1),
    "0.5 to 1, 10 % from -2": with_others(between(0.5, 1), between(-2, -1), 0.1),
}


def compare(choose: Choose) -> dict[str, dict[str, list[float]]]:
    from npu_rl_runtime.router_bias import without_offset

    found: dict[str, dict[str, list[float]]] = {}
    for model, sizes in MODELS.items():
        for name, biases in {**KEPT, **MOVED}.items():
            wrong = [0.0, 0.0]
            for seed in range(SEEDS):
                numbers = torch.Generator().manual_seed(seed)
                logits, bias = torch.randn(TOKENS, sizes[0], generator=numbers), biases(sizes[0], numbers)
                ((_, sent),) = without_offset([(NAME, bias)])
                # Where groups that are left out get the score 0, a negative float32 bias is not the truth.
                wanted = _mask(choose(logits, bias - bias.min(), sizes), sizes[0])
                for place, given in enumerate((bias, sent)):
                    chosen = _mask(choose(logits, given.bfloat16().float(), sizes), sizes[0])
                    wrong[place] += float((chosen != wanted).any(-1).float().mean()) * 100 / SEEDS
            found.setdefault(model, {})[name] = [round(share, 3) for share in wrong]
    return found


def require_none_worse(found: dict[str, dict[str, list[float]]]) -> None:
    """Assert that no distribution is routed worse than upstream routes it, and those that move clearly better."""
    for model, shares in found.items():
        for name, (upstream, sent) in shares.items():
            assert sent <= upstream, (model, name, upstream, sent)
            if name in KEPT:
                assert sent == upstream, (model, name, upstream, sent)
            else:
                assert sent < 0.7 * upstream, (model, name, upstream, sent)
    assert found["DeepSeek-V3"]["near 4"][0] > 45 > 2 > found["DeepSeek-V3"]["near 4"][1]
    assert found["DeepSeek-V3"]["near 0, one at -4"][1] < 2


def _mask(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    if chosen.dtype == torch.bool:
        return chosen
    return torch.zeros(len(chosen), experts, dtype=torch.bool).scatter(1, chosen.long(), True)


def of_vllm() -> Choose:
    from vllm.model_executor.layers.fused_moe.fused_moe import grouped_topk

    def choose(logits: torch.Tensor, bias: torch.Tensor, sizes: tuple[int, int, int, int]) -> torch.Tensor:
        _, groups, kept, top = sizes
        _, chosen = grouped_topk.__wrapped__(
            logits, logits, top, True, num_expert_group=groups, topk_group=kept, scoring_func="sigmoid",
            e_score_correction_bias=bias,
        )  # fmt: skip
        return chosen  # type: ignore[no-any-return]

    return choose


def of_vllm_ascend() -> Choose:
    """As it routes without its kernel."""
    from npu_rl_standins.named_modules import NamedModules

    sys.meta_path.insert(0, NamedModules("vllm", "vllm_ascend"))
    selector: dict[str, Any] = runpy.run_path("vllm_ascend/ops/fused_moe/experts_selector.py")

    def choose(logits: torch.Tensor, bias: torch.Tensor, sizes: tuple[int, int, int, int]) -> torch.Tensor:
        _, groups, kept, top = sizes
        _, chosen = selector["_native_select_experts"](
            logits, logits, top, True, True, topk_group=kept, num_expert_group=groups, scoring_func="sigmoid",
            e_score_correction_bias=bias,
        )  # fmt: skip
        return chosen  # type: ignore[no-any-return]

    return choose


def of_megatron(module: Any) -> Choose:
    route = getattr(module, "topk_softmax_with_capacity", None)
    route = route or module.topk_routing_with_score_function  # its name in Pai's Megatron-LM-250908

    def choose(logits: torch.Tensor, bias: torch.Tensor, sizes: tuple[int, int, int, int]) -> torch.Tensor:
        _, groups, kept, top = sizes
        _, chosen, *_ = route(
            logits, top, num_groups=groups, group_topk=kept, score_function="sigmoid", expert_bias=bias
        )
        return chosen  # type: ignore[no-any-return]

    return choose


def of_megatron_core() -> Choose:
    from npu_rl_rehearsal import missing_kernels

    missing_kernels.install(Path.cwd())
    from megatron.core.transformer.moe import moe_utils

    return of_megatron(moe_utils)


def of_mindspeed_llm() -> Choose:
    sys.path.insert(0, str(WITNESSES))
    from witness_common import use_mindspeed_llm_router

    use_mindspeed_llm_router()
    from mindspeed_llm.core.transformer.moe import moe_utils

    return of_megatron(moe_utils)


ROUTINGS = {
    "vllm": of_vllm,
    "vllm-ascend": of_vllm_ascend,
    "megatron-core": of_megatron_core,
    "mindspeed-llm": of_mindspeed_llm,
}

if __name__ == "__main__":
    print(json.dumps(compare(ROUTINGS[sys.argv[1]]())))
