"""A torchair graph of vllm-ascend keeps using the memory of weights that were freed and allocated elsewhere.

Called is NPUModelRunner._get_torchair_lazy_compiled_model (vllm_ascend/worker/model_runner_v1.py@v0.9.1rc2). torchair
is made here: torch.compile with a backend that does what torchair's option says, so that with frozen_parameter a
Parameter's memory is looked up only at the first run. "follows" has for each reload of the weights whether the graph's
output is the eager one; "graphs" is their number.
"""

from __future__ import annotations

import json
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

graphs: list[Any] = []


def get_npu_backend(compiler_config: Any) -> Any:
    def backend(module: Any, _: Any) -> Any:
        graphs.append(module)
        first: dict[int, Any] = {}

        def run(*inputs: Any) -> Any:
            if compiler_config.experimental_config.frozen_parameter:
                inputs = tuple(
                    first.setdefault(place, one.data) if isinstance(one, torch.nn.Parameter) else one
                    for place, one in enumerate(inputs)
                )
            return module(*inputs)

        return run

    return backend


torchair = ModuleType("torchair")
torchair.__dict__.update(
    CompilerConfig=lambda: SimpleNamespace(experimental_config=SimpleNamespace()),
    get_npu_backend=get_npu_backend,
    patch_for_hcom=lambda: None,
)

from witness_common import find_ascend  # noqa: E402

find_ascend()
import vllm_ascend.worker.model_runner_v1 as runners  # noqa: E402

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

# torch_npu has a property here; the stand-in for it has False, at which torch's tracer stops.
torch.Tensor.is_npu = property(lambda tensor: False)


def main() -> Any:
    from npu_rl_runtime.rollout_offload.weights import Weights

    runners.torchair = torchair
    runners.patch_for_hcom = lambda: None
    runners.get_ascend_config = lambda: SimpleNamespace(
        torchair_graph_config=SimpleNamespace(enable_view_optimize=True)
    )
    torch.npu.set_compile_mode = lambda **_: None
    torch.manual_seed(0)
    runner = runners.NPUModelRunner.__new__(runners.NPUModelRunner)
    runner.torchair_graph_batch_sizes = [4]
    runner.use_cached_npu_graph = False
    runner.torchair_compiled_model = None
    runner.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    x = torch.randn(4, 4)
    weights = Weights(runner.model)
    follows = []
    with torch.no_grad():
        runner._get_torchair_lazy_compiled_model(4)(x)
        for _ in range(2):
            weights.free(keep=False)
            weights.bring_back()
            for parameter in runner.model.parameters():
                parameter.data.copy_(torch.randn(parameter.shape))
            graph = runner._get_torchair_lazy_compiled_model(4)
            follows.append(torch.allclose(graph(x), runner.model(x)))
    return {"follows": follows, "graphs": len(graphs)}


if __name__ == "__main__":
    found = main()
    print(json.dumps({"fault": not all(found["follows"]), **found}))
