"""One rank that loads a Megatron checkpoint with verl's own code out of its own tree.

    RANK=0 WORLD_SIZE=1 MASTER_ADDR=… MASTER_PORT=… python run_verl.py TREE JOBS RESULTS

TREE has `verl`, `megatron/core`, `mindspeed` and `npu_rl_runtime`; the stand-ins for torch_npu and for the
device are on PYTHONPATH. JOBS is a JSON list of [action, arguments by name]; RESULTS gets one of what each rank found.
Any error ends this. All tensors are compared bit for bit.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_ALWAYS = {"use_flash_attn": False, "multi_latent_attention": True}
Names = dict[str, str]


def come_back(hf: str, checkpoint: str, pipeline: int, expert: int, layers: list[int] | None = None) -> Names:
    """verl loads the checkpoint at this layout and turns it into Hugging Face tensors, as for its rollout.

    Gives, for each tensor, "same" if every bit is that of `hf`, or what it is.
    """
    from verl.models.mcore import get_mcore_weight_converter
    from verl.utils.megatron_utils import per_tensor_generator

    config, model = _loaded(hf, checkpoint, pipeline, expert, layers, torch.bfloat16, grouped=True)
    hf_config = _hf_config(hf)
    names = {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."}
    converter = get_mcore_weight_converter(hf_config, torch.bfloat16)
    converter.mcore_config = config
    original, found = _tensors(hf), {}
    for name, tensor in per_tensor_generator(model, hf_config, converter, config, names):
        found[name] = _compared(tensor, original[name])
    return found | dict.fromkeys(original.keys() - found.keys(), "lost")


def merge(hf: str, checkpoint: str) -> Names:
    """verl's model merger makes Hugging Face tensors of the checkpoint; compared as in `come_back`."""
    from megatron.core import parallel_state

    merger: Any = importlib.import_module("verl.model_merger.megatron_model_merger")
    base: Any = importlib.import_module("verl.model_merger.base_model_merger")
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()  # it makes its own
    made = merger.MegatronModelMerger(
        base.ModelMergerConfig(
            operation="merge", backend="megatron", hf_model_config_path=hf, use_cpu_initialization=True
        )
    )
    original, found = _tensors(hf), made._merge_state_dicts(made._load_state_dicts(checkpoint))
    return {
        name: _compared(found[name], original[name]) if name in found else "lost"
        for name in original.keys() | found.keys()
    }


def logits(hf: str, checkpoint: str) -> dict[str, float]:
    """transformers' model and Megatron-core's, in float32, on the same tokens: largest difference and value."""
    from transformers import AutoModelForCausalLM

    tokens = torch.randint(0, 96, (2, 24), generator=torch.Generator().manual_seed(1))
    theirs = AutoModelForCausalLM.from_pretrained(
        hf, torch_dtype=torch.float32, attn_implementation="eager"
    ).eval()
    _, (model,) = _loaded(hf, checkpoint, 1, 1, None, torch.float32, grouped=True)
    positions, mask = torch.arange(24).expand(2, 24), torch.ones(1, 1, 24, 24, dtype=torch.bool).triu(1)
    with torch.no_grad():
        want, got = theirs(tokens).logits, model.eval()(tokens, positions, mask)
    model.decoder.layers[1].mlp.router.expert_bias.zero_()
    with torch.no_grad():
        without = model(tokens, positions, mask)
    return {
        "difference": float((want - got).abs().max()),
        "scale": float(want.abs().max()),
        "without_bias": float((want - without).abs().max()),
    }


def forms(hf: str, checkpoint: str) -> dict[str, Any]:
    """Load with and without `moe_grouped_gemm`: the same experts; and the router's bias in float32, exactly."""
    _, (grouped,) = _loaded(hf, checkpoint, 1, 1, None, torch.float32, grouped=True)
    _, (apart,) = _loaded(hf, checkpoint, 1, 1, None, torch.float32, grouped=False)
    original, same, kinds = _tensors(hf), [], set()
    for number in range(1, 4):
        first, second = grouped.decoder.layers[number].mlp, apart.decoder.layers[number].mlp
        kinds |= {type(first.experts).__name__, type(second.experts).__name__}
        bias = original[f"model.layers.{number}.mlp.gate.e_score_correction_bias"]
        for router in (first.router, second.router):
            same.append(router.expert_bias.dtype == torch.float32 and torch.equal(router.expert_bias, bias))
        for index, expert in enumerate(second.experts.local_experts):
            for linear in ("linear_fc1", "linear_fc2"):
                one = getattr(getattr(first.experts, linear), f"weight{index}")
                same.append(torch.equal(one, getattr(expert, linear).weight) and bool(one.any()))
    return {"same": all(same), "compared": len(same), "kinds": sorted(kinds)}


def asked(hf: str, pipeline: int, expert: int, layers: list[int] | None = None) -> dict[str, Any]:
    """What Megatron-core's own model asks a checkpoint for, over all ranks: keys of objects, shapes of tensors."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedObject, apply_factories

    _, (model,) = _model(hf, pipeline, expert, layers, torch.bfloat16, grouped=False)
    state = model.sharded_state_dict()
    apply_factories(state)
    own = [
        (one.unique_key, None) if isinstance(one, ShardedObject) else (one.key, list(one.global_shape))
        for one in nested_values(state)
    ]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return dict(sorted({key: shape for rank in everyone for key, shape in rank}.items()))


def _loaded(hf: str, checkpoint: str, *layout: Any, grouped: bool) -> tuple[Any, list[Any]]:
    from verl.utils.model import load_mcore_dist_weights

    config, model = _model(hf, *layout, grouped=grouped)
    load_mcore_dist_weights(model, checkpoint)
    return config, model


def _model(
    hf: str, pipeline: int, expert: int, layers: list[int] | None, dtype: Any, *, grouped: bool
) -> tuple[Any, list[Any]]:
    """As verl's Megatron worker makes it: its configuration, its model, in its wrapper where it is bfloat16."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from verl.models.mcore import hf_to_mcore_config, init_mcore_model
    from verl.utils.megatron_utils import get_model

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=pipeline,
        expert_model_parallel_size=expert,
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(0)
    uneven = {}
    if layers:
        uneven = {"num_layers_in_first_pipeline_stage": layers[0]}
        if len(layers) > 2:
            uneven["num_layers_in_last_pipeline_stage"] = layers[-1]
    hf_config = _hf_config(hf)
    config = hf_to_mcore_config(
        hf_config,
        dtype,
        moe_grouped_gemm=grouped,
        use_cpu_initialization=True,
        moe_shared_expert_overlap=False,
        **uneven,
    )

    def provide(pre_process: bool, post_process: bool) -> Any:
        return init_mcore_model(config, hf_config, pre_process, post_process)

    return config, get_model(provide, wrap_with_ddp=False, transformer_config=config)


def _hf_config(hf: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(hf)


def _tensors(folder: str) -> dict[str, Any]:
    """All tensors of a Hugging Face folder, by safetensors' own reader."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        found |= load_file(path)
    return found


def _compared(got: Any, want: Any) -> str:
    if torch.equal(got, want) and got.dtype == want.dtype:
        return "same"
    if torch.equal(got, want.to(got.dtype)):
        return f"rounded to {got.dtype}"
    return f"{got.dtype} {tuple(got.shape)}, differs"


def main(tree: str, jobs: str, results: str) -> None:
    sys.path.insert(0, tree)
    adaptor: Any = importlib.import_module("mindspeed.megatron_adaptor")
    adaptor.repatch(dict(_ALWAYS))
    # Before there is a group: they would keep it, and its threads, which now and then abort the process at its end.
    importlib.import_module("torch.distributed.checkpoint")
    importlib.import_module("megatron.core.dist_checkpointing.strategies.torch")
    actions: dict[str, Callable[..., Any]] = {
        action.__name__: action for action in (come_back, merge, logits, forms, asked)
    }
    found = []
    for action, arguments in json.loads(Path(jobs).read_text()):
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        found.append(actions[action](**arguments))
    if dist.is_initialized():
        dist.destroy_process_group()
    Path(results, f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
