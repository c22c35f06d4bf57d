"""Compare MindSpeed-LLM's auxiliary loss with that of DeepSeek-V3's report, by the gradients that each gives.

In the report's balance loss (arXiv:2412.19437, equations 17 to 20) f_i counts the tokens for which an expert's score is
among the K highest, and P_i is the mean of the normalized scores; the bias is in neither. MindSpeed-LLM v2.0.0 counts
the experts that bias and groups chose, and adds the bias to the scores (apply_seq_aux_loss,
mindspeed_llm/core/transformer/moe/router.py:404). The router is Megatron-core's with MindSpeed-LLM's routing and
DeepSeek-V3's options; its logits are those of random tokens, and what is compared is their gradient.
"""

from __future__ import annotations

import contextlib
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

for name in ("", ".core", ".core.transformer", ".core.transformer.moe", ".tasks", ".tasks.models",
             ".tasks.models.common"):  # without their __init__, which import everything  # fmt: skip
    package: Any = ModuleType(f"mindspeed_llm{name}")
    package.__path__ = [package.__name__.replace(".", "/")]
    sys.modules[package.__name__] = package

import megatron.training.global_vars as training  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.moe.router import TopKRouter  # noqa: E402
from mindspeed_llm.core.transformer.moe import router as mindspeed  # noqa: E402

EXPERTS, TOP, TOKENS, COEFFICIENT = 256, 8, 2048, 0.001
ARGS = SimpleNamespace(
    n_group=8, topk_group=4, norm_topk_prob=True, routed_scaling_factor=2.5, moe_router_score_function="sigmoid",
    moe_router_enable_expert_bias=True, moe_tp_extend_ep=False, seq_aux=True, fix_router=False, input_jitter=False,
    router_gating_in_fp32=False, micro_batch_size=1, num_experts=EXPERTS, moe_router_topk=TOP,
)  # fmt: skip
BIASES = {"spread 0": (0.0, 0.0), "spread 0.02": (0.0, 0.02), "spread 0.02 around 4": (4.0, 0.02)}


def expected(logits: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the report's loss."""
    logits = logits.clone().requires_grad_()
    affinity = torch.sigmoid(logits)
    highest = torch.zeros_like(affinity).scatter(1, affinity.topk(TOP, dim=1).indices, 1.0)
    f = highest.sum(0) * EXPERTS / (TOP * TOKENS)
    p = (affinity / affinity.sum(-1, keepdim=True)).mean(0)
    (COEFFICIENT * (f * p).sum()).backward()
    return logits.grad


def found(router: Any, logits: torch.Tensor) -> torch.Tensor:
    """Return the gradient that the router's own loss adds."""
    logits = logits.clone().requires_grad_()
    scores, _ = router.routing(logits)
    (scores * 0).sum().backward()
    return logits.grad


def main() -> dict[str, Any]:
    torch.cuda.current_device = lambda: torch.device("cpu")
    parallel_state.initialize_model_parallel()
    histc = torch.histc  # on a CPU it takes no whole numbers
    torch.histc = lambda values, **named: histc(values.float(), **named).long()
    training._GLOBAL_ARGS = ARGS
    TopKRouter.__init__ = mindspeed.topk_router_init_wrapper(TopKRouter.__init__)
    TopKRouter.routing = mindspeed.topk_router_routing
    router = TopKRouter(TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, num_moe_experts=EXPERTS, moe_router_topk=TOP,
        moe_router_load_balancing_type="noaux_tc", moe_aux_loss_coeff=COEFFICIENT, use_cpu_initialization=True,
        add_bias_linear=False,
    ))  # fmt: skip
    numbers = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, EXPERTS, generator=numbers)
    biases = torch.randn(EXPERTS, generator=numbers)
    right, figures, fault = expected(logits), {}, False
    for name, (offset, spread) in BIASES.items():
        router.expert_bias = offset + biases * spread
        gradient = found(router, logits)
        cosine = torch.cosine_similarity(gradient.flatten(), right.flatten(), dim=0).item()
        size = (gradient.norm() / right.norm()).item()
        fault |= cosine < 0.999 or not 0.999 < size < 1.001
        figures[name] = {"cosine": round(cosine, 4), "size": round(size, 4)}
    return {"fault": fault, "the gradient and the report's": figures}


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print("\n" + json.dumps(result))
    dist.destroy_process_group()
