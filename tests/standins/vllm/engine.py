"""Runs vLLM's engine in a process of its own: `engine.py SCENARIOS.json ANSWERS.json`, as a training process would.

A scenario is {"name", "model", "dtype", "prompts", "max_tokens", "arguments", "then"}; an answer is a list of
{"tokens", "log_probs"} per prompt. "then" names a function here that goes on with the same engine.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

DEFAULTS = {
    "enforce_eager": True,
    "max_model_len": 128,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 64,
    "block_size": 16,
}
Answers = list[dict[str, Any]]


def main() -> None:
    import torch
    from vllm.engine.arg_utils import EngineArgs

    # V1 refuses float32, for its attention kernels on GPUs. Here float32 tells rounding from errors.
    EngineArgs._is_v1_supported_oracle = lambda *_: True  # type: ignore[method-assign]
    torch.set_num_threads(1)
    if int(os.environ["WORLD_SIZE"]) > 1:
        torch.distributed.init_process_group("gloo")  # the trainer's, before the engine
    said = json.loads(Path(sys.argv[1]).read_text())
    answers = {scenario["name"]: run(scenario) for scenario in said}
    Path(sys.argv[2]).write_text(json.dumps(answers))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def run(scenario: dict[str, Any]) -> Any:
    from vllm import LLM

    llm = LLM(
        model=scenario["model"],
        dtype=scenario.get("dtype", "float32"),
        distributed_executor_backend="external_launcher",
        disable_log_stats=True,
        **{**DEFAULTS, **scenario.get("arguments", {})},
    )
    first = generate(llm, scenario)
    then = globals()[scenario["then"]](llm, scenario) if "then" in scenario else {}
    del llm
    gc.collect()
    return {"answers": first, **then}


def generate(llm: Any, scenario: dict[str, Any], temperature: float = 0.0) -> Answers:
    from vllm import SamplingParams

    sampling = [
        SamplingParams(
            temperature=temperature, max_tokens=length, logprobs=0, ignore_eos=True, detokenize=False
        )
        for length in scenario["max_tokens"]
    ]
    prompts = [{"prompt_token_ids": prompt} for prompt in scenario["prompts"]]
    done = llm.generate(prompts, sampling, use_tqdm=False)
    return [
        {
            "tokens": list(request.outputs[0].token_ids),
            "log_probs": [
                place[token].logprob
                for token, place in zip(
                    request.outputs[0].token_ids, request.outputs[0].logprobs, strict=True
                )
            ],
        }
        for request in done
    ]


def reload(llm: Any, scenario: dict[str, Any]) -> dict[str, Any]:
    """Other weights in place, as RL loads them; then every parameter on other memory, as an offload leaves it."""
    import torch
    from safetensors.torch import load_file

    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    other = load_file(f"{scenario['other']}/model.safetensors")
    model.load_weights(iter(other.items()))
    _process_again(model)
    llm.reset_prefix_cache()  # else the keys and values of the old weights are found again
    loaded = generate(llm, scenario)

    kept = {name: parameter.data.clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    for name, parameter in model.named_parameters():
        parameter.data = kept[name]
    llm.reset_prefix_cache()
    moved = generate(llm, scenario)

    fresh: dict[
        int, torch.nn.Parameter
    ] = {}  # the routing bias is one parameter in two modules, and stays one
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if id(old) not in fresh:
                fresh[id(old)] = torch.nn.Parameter(old.data.clone(), requires_grad=False)
                fresh[id(old)].__dict__.update(old.__dict__)  # vLLM's loaders are attributes of parameters
            setattr(module, name, fresh[id(old)])
    model.load_weights(iter(load_file(f"{scenario['model']}/model.safetensors").items()))
    _process_again(model)
    llm.reset_prefix_cache()
    return {"loaded": loaded, "moved": moved, "bound_again": generate(llm, scenario)}


def _process_again(model: Any) -> None:
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None and hasattr(method, "process_weights_after_loading"):
            method.process_weights_after_loading(module)


def experts_here(llm: Any, scenario: dict[str, Any]) -> dict[str, Any]:
    """How many experts this rank has, and the sizes of its expert- and data-parallel groups."""
    from vllm.distributed import parallel_state

    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    mine = {len(value) for name, value in model.named_parameters() if name.endswith("w13_weight")}
    groups = (parallel_state.get_ep_group(), parallel_state.get_dp_group())
    sizes = [*mine, *(group.world_size for group in groups)]
    return {"experts": sizes, "held": _equal_to_the_checkpoint(model, scenario["model"])}


def _equal_to_the_checkpoint(model: Any, folder: str) -> list[str]:
    """Names of the checkpoint's tensors that this rank holds, as the check of weight syncs reads them."""
    import torch
    from npu_rl_tensors.formats.boxes import slices
    from npu_rl_weight_sync.rollout_tensors import tensors_of
    from safetensors.torch import load_file

    saved = load_file(f"{folder}/model.safetensors")
    parts = list(tensors_of(model, {name: tuple(value.shape) for name, value in saved.items()}, 0))
    assert all(torch.equal(part.values, saved[part.name][slices(part.box)]) for part in parts)
    return sorted({part.name for part in parts})


def probe(llm: Any, scenario: dict[str, Any]) -> dict[str, Any]:
    """What code in the process is told of the platform, and of operators that there are none of."""
    import torch
    from vllm.platforms import current_platform

    def said(call: Any) -> list[str]:
        try:
            call()
        except NotImplementedError as error:
            return [type(error).__name__, str(error)]
        return []

    import intel_extension_for_pytorch.llm.modules as modules
    from vllm import _custom_ops

    return {
        "sampled": generate(llm, scenario, 0.7),
        "is_cpu": current_platform.is_cpu(),
        "engine": type(llm.llm_engine).__module__,
        "worker": type(llm.llm_engine.model_executor.driver_worker.worker).__module__,
        "shared memory": hasattr(torch.ops._C, "init_shm_manager"),
        "compiled": said(lambda: torch.ops._C.gptq_shuffle(torch.zeros(1), torch.zeros(1), 4)),
        "through vllm": said(lambda: _custom_ops.convert_fp8(torch.zeros(1), torch.zeros(1))),
        "extension": said(lambda: modules.GatedMLPMOE(torch.zeros(1), torch.zeros(1))),
        "plugins": sorted(name for name in sys.modules if name.startswith(("vllm_ascend", "torch_npu"))),
    }


if __name__ == "__main__":
    main()
