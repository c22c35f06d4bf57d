"""Addresses of weights in captured graphs: none may be fixed while weights are freed and allocated again.

torchair's `frozen_parameter` takes the addresses of a graph's Parameters as constant from the first run on, which
saves passing them at each launch; off, its default, they are inputs and read at each call (Ascend/torchair@26.0.0,
docs/zh/ascend_ir/features/advanced/frozen_parameter.md). vllm-ascend sets it to True
(vllm_ascend/worker/model_runner_v1.py:1885@v0.9.1rc2).

Of the three ways out, ours is to leave it off. Stable addresses would need memory that stays reserved, or virtual
addresses that are mapped again: that is the CaMem pool, which is what does not give its memory back. A capture after
each wake-up takes 0.5 to 1.5 minutes per batch size (model_runner_v1.py:2116) in every step, on every die. Passing
some hundred addresses at each launch is the cheapest of them; what it costs is to be measured on an NPU.
The Parameters themselves, which the graph's inputs are read from, are the same objects all along.
"""

from __future__ import annotations

from typing import Any

from ..switches import enabled
from ..used import count
from .slug import SLUG

PATCH = "graph-parameters"
"""Under this the hook is counted: it is a patch of its own, with the offload's switch."""

_called = False


def frozen_parameter() -> bool:
    """torchair's `experimental_config.frozen_parameter`: False while weights move, else upstream's True."""
    global _called
    _called = True
    if not enabled(SLUG):
        return True
    count(PATCH)
    return False


def refuse_fixed_addresses(runner: Any) -> None:
    """Raise RuntimeError if `runner` (a model runner of vLLM's) has captured a graph with addresses of weights in it.

    CUDA and ACL graphs always have them; torchair's has them unless `frozen_parameter` was called before.
    """
    if getattr(runner, "use_cuda_graph", False) or getattr(runner, "use_aclgraph", False):
        raise RuntimeError(
            "rollout-offload: the rollout has captured CUDA or ACL graphs, with fixed addresses of the "
            "weights, so it would use freed memory. Set rollout.eager to true, or on NPUs use torchair's graph."
        )
    compiled = getattr(runner, "torchair_compiled_model", None) or getattr(
        runner, "torchair_compiled_models", None
    )
    if compiled and not _called:
        raise RuntimeError(
            "rollout-offload: torchair compiled the rollout's model with frozen_parameter=True, so the graph would "
            "use freed memory. The patch vllm-ascend/0.9.1rc2/0001-graph-parameters is not in this tree: "
            "run `npu-rl verify`."
        )
