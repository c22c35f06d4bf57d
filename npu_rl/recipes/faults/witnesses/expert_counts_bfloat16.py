"""Show whether the router counts its experts' tokens exactly over the micro batches of a step.

The counter is registered as float32 (megatron/core/transformer/moe/router.py:119@core_v0.12.1; MindSpeed-LLM v2.0.0,
core/transformer/moe/router.py:373), Float16Module makes it bfloat16, and nothing makes it float32 again. Above 256
bfloat16 doesn't hold every whole number, and a small count added to a large one is rounded. The update of the
bias compares each count with the mean.

Real: verl's get_model with Float16Module, and the tree's router with its routing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

MINDSPEED_LLM = importlib.util.find_spec("mindspeed_llm") is not None
if MINDSPEED_LLM:
    for name in ("", ".core", ".core.transformer", ".core.transformer.moe", ".tasks", ".tasks.models",
                 ".tasks.models.common"):  # without their __init__, which import everything  # fmt: skip
        package: Any = ModuleType(f"mindspeed_llm{name}")
        package.__path__ = [package.__name__.replace(".", "/")]
        sys.modules[package.__name__] = package

from megatron.core import parallel_state  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.module import MegatronModule  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.moe.router import TopKRouter  # noqa: E402
from verl.utils import megatron_utils  # noqa: E402

EXPERTS, TOKENS, MICRO_BATCHES = 8, 320, 256
ARGS = SimpleNamespace(
    n_group=None, expert_model_parallel_size=1, topk_group=None, norm_topk_prob=True, routed_scaling_factor=None,
    moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, moe_tp_extend_ep=False, seq_aux=False,
    fix_router=False, input_jitter=False, router_gating_in_fp32=False,
)  # fmt: skip


class Model(MegatronModule):  # type: ignore[misc]
    """A router and nothing else."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # From core 0.14 on the router takes its process groups, by the one name or the other.
        of_moe = ("get_default_model_comm_pgs", "get_default_pg_collection")
        groups = [getattr(moe_utils, name)() for name in of_moe if hasattr(moe_utils, name)]
        self.router = TopKRouter(config, *groups)


def main() -> dict[str, Any]:
    torch.cuda.current_device = lambda: torch.device("cpu")
    parallel_state.initialize_model_parallel()
    extra = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    if MINDSPEED_LLM:
        import megatron.training.global_vars as training
        from mindspeed_llm.core.transformer.moe import router

        histc = torch.histc  # on a CPU it takes no whole numbers
        torch.histc = lambda values, **named: histc(values.float(), **named).long()
        training._GLOBAL_ARGS, extra = ARGS, {}
        TopKRouter.__init__ = router.topk_router_init_wrapper(TopKRouter.__init__)
        TopKRouter.routing = router.topk_router_routing
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, bf16=True, params_dtype=torch.bfloat16,
        num_moe_experts=EXPERTS, moe_router_topk=2, moe_router_load_balancing_type="none",
        use_cpu_initialization=True, add_bias_linear=False, **extra,
    )  # fmt: skip
    model = megatron_utils.get_model(
        lambda **_: Model(config), wrap_with_ddp=False, transformer_config=config
    )
    router_of: Any = megatron_utils.unwrap_model(model[0]).router
    exact, numbers = torch.zeros(EXPERTS, dtype=torch.long), torch.Generator().manual_seed(0)
    for _ in range(MICRO_BATCHES):
        logits = torch.randn(TOKENS, EXPERTS, generator=numbers)
        exact += torch.bincount(logits.topk(2).indices.flatten(), minlength=EXPERTS)
        router_of.routing(logits)
    counted = router_of.local_tokens_per_expert
    wrong = ((exact.float().mean() - exact).sign() != (counted.float().mean() - counted.float()).sign()).sum()
    return {
        "fault": counted.long().tolist() != exact.tolist(),
        "type": str(counted.dtype),
        "tokens": exact.tolist(),
        "counted": counted.long().tolist(),
        "biases that step the wrong way": int(wrong),
    }


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print("\n" + json.dumps(result))
    dist.destroy_process_group()
