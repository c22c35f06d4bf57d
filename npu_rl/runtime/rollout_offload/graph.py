"""Weight addresses in captured graphs: they must not be fixed, since weights are freed and allocated again.

With `frozen_parameter`, torchair treats the addresses of a graph's Parameters as constant from the first run on, which
saves passing them at each launch. It is off by default: they are inputs that each call reads (Ascend/torchair@26.0.0,
docs/zh/ascend_ir/features/advanced/frozen_parameter.md). vllm-ascend sets it to True
(vllm_ascend/worker/model_runner_v1.py:1885@v0.9.1rc2).

There are three ways out, and this adaptation leaves the option off. Stable addresses would need memory that stays
reserved, or virtual addresses that are mapped again, as in the CaMem pool, which doesn't release its memory. A capture
after each wake-up takes 0.5 to 1.5 minutes per batch size (model_runner_v1.py:2116) in every step, on every die.
Passing some hundred addresses at each launch is the cheapest way; its cost has not been measured on an NPU. The
Parameters that the graph's inputs are read from stay the same objects.
"""

from __future__ import annotations

from typing import Any

from ..switches import enabled
from ..used import count
from .slug import SLUG

PATCH = "graph-parameters"
"""Name under which the hook is counted: it is a separate patch with the offload's switch."""

_called = False


def frozen_parameter() -> bool:
    """Return torchair's `experimental_config.frozen_parameter`: False while the offload is on, else upstream's True."""
    global _called
    _called = True
    if not enabled(SLUG):
        return True
    count(PATCH)
    return False


def refuse_fixed_addresses(runner: Any) -> None:
    """Raise RuntimeError if `runner` (a vLLM model runner) has captured a graph with fixed weight addresses.

    CUDA and ACL graphs always have them; torchair's graph has them unless `frozen_parameter` was called before.
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
