"""One rank of a trainer that loads a `torch_dist` checkpoint and saves it again, without a step.

    RANK=0 WORLD_SIZE=1 MASTER_ADDR=... MASTER_PORT=... python run_megatron_load.py MODEL CHECKPOINT OUTPUT SIZES

PYTHONPATH has the quickstart's code and `rehearsal/injected`. verl 0.5.0's own functions read config.json of MODEL,
load CHECKPOINT (`load_mcore_dist_weights`) and save OUTPUT (`MegatronCheckpointManager`); model and checkpointing
are Megatron-core 0.12.1's. SIZES: JSON of the parallel sizes.

Transformer Engine is not installed, so the layers are Megatron-core's local ones. Under its own mechanism,
`sharded_state_dict_keys_map`, their norms get the keys that Transformer Engine's fused layers have.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from npu_rl_rehearsal import cpu_cuda, gloo_sizes
from npu_rl_rehearsal.megatron import initialize, parallel_state
from npu_rl_rehearsal.tiny_megatron import _use_local_layers

LOCAL = {
    "use_cpu_initialization": True,
    "moe_grouped_gemm": False,
    "moe_shared_expert_overlap": False,
    "persist_layer_norm": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
}
# verl 0.5.0 drops these: check_and_disable_incompatible_configs asks TransformerConfig, which lacks them.
MLA = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}
FUSED = {
    "self_attention.q_layernorm.": "self_attention.linear_q_up_proj.layer_norm_",
    "self_attention.kv_layernorm.": "self_attention.linear_kv_up_proj.layer_norm_",
}
FUSED_DENSE = FUSED | {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}


def main() -> None:
    hf, checkpoint, output, sizes = Path(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
    cpu_cuda.install()
    gloo_sizes.install()
    without_triton()
    dist.init_process_group("gloo")
    initialize(parallel_state(), sizes)
    with cpu_cuda.OnCpu():
        hf_config, config, model = build(hf)
        load(model, checkpoint)
        save(model, hf, hf_config, config, output)
    dist.barrier()


def without_triton() -> None:
    """verl's package of models imports a triton kernel, which nothing here calls."""
    if importlib.util.find_spec("triton") is None:
        module: Any = ModuleType("verl.utils.kernel.linear_cross_entropy")
        module.linear_cross_entropy = None
        sys.modules[module.__name__] = module


def build(hf: Path) -> tuple[Any, Any, Any]:
    """The trainer's model of a folder, every value of it NaN: what is not loaded is seen."""
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from transformers import AutoConfig
    from verl.models.mcore import hf_to_mcore_config

    hf_config = AutoConfig.from_pretrained(hf)
    config = hf_to_mcore_config(hf_config, torch.bfloat16, **LOCAL)
    for ours, theirs in MLA.items():
        setattr(config, ours, getattr(hf_config, theirs))
    spec = gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    _use_local_layers(spec)
    for layer in spec.layer_specs:
        mlp = type(layer.submodules.mlp.submodules).__name__
        layer.submodules.sharded_state_dict_keys_map = FUSED if mlp == "MoESubmodules" else FUSED_DENSE
    state = parallel_state()
    model = GPTModel(
        config,
        spec,
        vocab_size=hf_config.vocab_size,
        max_sequence_length=64,
        pre_process=state.is_pipeline_first_stage(),
        post_process=state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
    model.bfloat16()
    for layer in model.decoder.layers:
        if hasattr(layer.mlp, "router"):
            layer.mlp.router._maintain_float32_expert_bias()  # as its forward pass and the bundled patch for verl do
    return hf_config, config, [model]


def load(model: Any, checkpoint: str) -> None:
    from verl.utils.model import load_mcore_dist_weights

    load_mcore_dist_weights(model, checkpoint)
    for name, weight in model[0].named_parameters():
        assert not weight.isnan().any(), f"{name} was not loaded"


def save(model: Any, hf: Path, hf_config: Any, config: Any, output: str) -> None:
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

    saved = {"save_contents": ["model"], "load_contents": ["model"], "async_save": False}
    manager = MegatronCheckpointManager(
        config=OmegaConf.create({"model": {"path": str(hf)}}),
        checkpoint_config=OmegaConf.create(saved),
        model_config=None,
        transformer_config=config,
        role="actor",
        model=model,
        arch=hf_config.architectures[0],
        hf_config=hf_config,
        param_dtype=torch.bfloat16,
        share_embeddings_and_output_weights=False,
        processing_class=AutoTokenizer.from_pretrained(hf),
        optimizer=None,
        optimizer_scheduler=None,
        use_distributed_optimizer=False,
    )
    with_newer_torch()
    manager.save_checkpoint(output)


def with_newer_torch() -> None:
    """Megatron-core 0.12.1 calls a function of torch's that has one argument more since torch 2.7."""
    writer: Any = importlib.import_module("megatron.core.dist_checkpointing.strategies.filesystem_async")
    formats: Any = importlib.import_module("torch.distributed.checkpoint.filesystem")
    if hasattr(formats, "SerializationFormat"):
        usual = formats.SerializationFormat.TORCH_SAVE
        writer._write_item = functools.partial(writer._write_item, serialization_format=usual)


main()
