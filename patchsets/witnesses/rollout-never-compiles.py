"""Under MindSpeed, verl's rollout compiles no graphs, since torch.compile returns its argument unchanged.

Called are ActorRolloutRefWorker._build_rollout and .generate_sequences (verl/workers/megatron_workers.py@55e3c5b). The
engine is made here, since vLLM's needs an NPU for this: it compiles as
vllm_ascend/worker/model_runner_v1.py@v0.9.1rc2 does, one graph per batch size, when it is built and lazily later.
"steps" has for each step whether torch.compile was the true function meanwhile and is MindSpeed's afterwards, and how
many graphs were compiled in it.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from witness_common import make_module, only_rank, show

TRUE = torch.compile
SCRIPT = torch.jit.script
RUNS = ["build", "known size", "new size", "MindSpeed patches again", "Megatron is imported"]
FAILS = {"an error": "RuntimeError", "an interrupt": "KeyboardInterrupt"}
SIZE = 2  # answers of the batch that is captured when the engine is built

import verl.workers.megatron_workers as workers  # noqa: E402  MindSpeed patches when this is imported
from mindspeed.core.megatron_basic.requirements_basic import dummy_compile  # noqa: E402
from mindspeed.patch_utils import MindSpeedPatchesManager  # noqa: E402
from verl import DataProto  # noqa: E402

STAND_INS = ("npu",)

seen: list[bool] = []
meanwhile: Callable[[], None] = lambda: None  # noqa: E731  what the engine does before it runs


def compiled() -> int:
    """Return the number of graphs that torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    return graph.forward


class Engine:
    """A rollout that captures one graph per batch size."""

    inference_engine = None

    def __init__(self, **given: Any) -> None:
        self.model = torch.nn.Linear(4, 4)
        self.compiled: dict[int, Any] = {}
        self.run(SIZE)

    def run(self, size: int) -> torch.Tensor:
        meanwhile()
        seen.append(torch.compile is TRUE)
        if size not in self.compiled:
            self.compiled[size] = torch.compile(self.model, dynamic=False, backend=backend)
        answers: torch.Tensor = self.compiled[size](torch.ones(size, 4)).detach()
        return answers

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"answers": self.run(len(prompts))})


class Manager(contextlib.nullcontext):  # type: ignore[type-arg]
    """A sharding manager without weights to send."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.timing: dict[str, float] = {}

    def preprocess_data(self, data: Any) -> Any:  # verl before 55e3c5b deals prompts to ranks here
        return data

    postprocess_data = preprocess_data


def main() -> dict[str, Any]:
    _rollout_modules()
    with tempfile.TemporaryDirectory() as folder, only_rank():
        from megatron.core import parallel_state

        parallel_state.initialize_model_parallel()
        workers.repatch({})  # as the worker's __init__ does
        steps = _steps(_worker(folder))
    compiles = [steps[name]["true"] for name in RUNS] == [[True]] * 5
    each_once = [steps[name]["graphs"] for name in RUNS] == [1, 0, 1, 1, 0]
    # A graph for a shape that comes while torch.compile is MindSpeed's, and none in training.
    outside = steps["outside, new shape"]["graphs"] == 1 and steps["training"]["graphs"] == 0
    # After each step, failed or interrupted ones too, MindSpeed's function is what torch, Megatron and verl have.
    assert steps.pop("before") and all(step["after"] for step in steps.values()), steps
    assert {name: step["error"] for name, step in steps.items() if step["error"]} == FAILS, steps
    return {"fault": not (compiles and each_once and outside), "steps": steps}


def _steps(worker: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"before": _training_is_safe()}
    built: list[Any] = []
    found["build"] = _step(lambda: built.append(worker._build_rollout()))
    assert built, found
    worker.rollout, worker.sharding_manager = built[0]
    found["known size"] = _step(lambda: _generate(worker, SIZE))
    found["new size"] = _step(lambda: _generate(worker, SIZE + 1))
    found["outside, new shape"] = _step(lambda: worker.rollout.compiled[SIZE](torch.ones(7, 4)))
    found["MindSpeed patches again"] = _step(
        lambda: _generate(worker, SIZE + 2), lambda: workers.repatch({"swap_optimizer": False})
    )
    found["Megatron is imported"] = _step(lambda: _generate(worker, SIZE), _reload_megatron)
    found["an error"] = _step(lambda: _generate(worker, SIZE + 3), _raises(RuntimeError))
    found["an interrupt"] = _step(lambda: _generate(worker, SIZE + 3), _raises(KeyboardInterrupt))
    found["training"] = _step(_entropy)
    return found


def _step(act: Callable[[], Any], before: Callable[[], None] = lambda: None) -> dict[str, Any]:
    global meanwhile
    meanwhile = before
    seen.clear()
    start, error = compiled(), ""
    try:
        act()
    except (RuntimeError, KeyboardInterrupt) as raised:
        error = f"{type(raised).__name__} {raised}".strip()
    meanwhile = lambda: None  # noqa: E731
    return {"true": list(seen), "graphs": compiled() - start, "error": error, "after": _training_is_safe()}


def _training_is_safe() -> bool:
    """Return whether training uses MindSpeed's replacements for compilation again."""
    from megatron.core import jit
    from megatron.core.fusions import fused_cross_entropy

    return (
        torch.compile is dummy_compile
        and torch.jit.script is dummy_compile
        and jit.jit_fuser is dummy_compile
        and fused_cross_entropy.calculate_logits_max.__qualname__.startswith("dummy_compile")
        and MindSpeedPatchesManager.patches_info["torch.compile"].orig_func is TRUE
    )


def _generate(worker: Any, size: int) -> None:
    prompts = DataProto.from_dict(tensors={"input_ids": torch.zeros(size, 3, dtype=torch.long)})
    output = worker.generate_sequences(prompts)
    assert output.batch["answers"].shape == (size, 4)


def _raises(kind: type[BaseException]) -> Callable[[], None]:
    def act() -> None:
        seen.append(torch.compile is TRUE)
        raise kind

    return act


def _reload_megatron() -> None:
    importlib.reload(sys.modules["megatron.core.fusions.fused_cross_entropy"])


def _entropy() -> None:
    """Stand-in for compute_log_prob, which calls torch.compile each time."""
    from verl.utils.megatron.tensor_parallel import vocab_parallel_entropy

    vocab_parallel_entropy(torch.randn(5, 11))


def _rollout_modules() -> None:
    make_module("verl.workers.rollout.vllm_rollout", vLLMRollout=Engine, vLLMAsyncRollout=Engine)
    make_module("verl.workers.sharding_manager.megatron_vllm", MegatronVLLMShardingManager=Manager)


def _worker(folder: str) -> Any:
    """Return a worker with the attributes from __init__ and init_model that the two methods use."""
    from omegaconf import OmegaConf
    from transformers import Qwen2Config

    model = Path(folder, "model")
    model.mkdir()
    worker = object.__new__(workers.ActorRolloutRefWorker)
    rollout = {
        "_target_": "verl.workers.config.RolloutConfig",
        "name": "vllm",
        "mode": "sync",
        "tensor_model_parallel_size": 1,
    }
    worker.config = OmegaConf.create({"rollout": rollout, "model": {"path": str(model)}})
    worker._Worker__dispatch_dp_rank, worker._Worker__collect_dp_rank = {}, {}
    worker._world_size, worker._rank = 1, 0
    worker.tokenizer = SimpleNamespace(eos_token_id=1, pad_token_id=0)
    worker.generation_config = worker.bridge = worker.tf_config = None
    worker.actor = SimpleNamespace(actor_module=[])
    worker.actor_model_config = Qwen2Config(architectures=["Qwen2ForCausalLM"], num_hidden_layers=1)
    worker.dtype = torch.float32
    worker._is_rollout, worker._is_offload_param, worker._is_offload_optimizer = True, False, False
    return worker


if __name__ == "__main__":
    show(main)
