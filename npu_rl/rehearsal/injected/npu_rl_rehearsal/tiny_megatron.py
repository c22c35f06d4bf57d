"""A tiny GPT over Megatron-core's own parallel layers and schedule, for one step on gloo ranks.

With MindSpeed in the tree, its adaptor is imported first and the layers are the trainer's ("Transformer Engine", which
MindSpeed replaces). Without it they are Megatron-core's local ones, with two changes that those need for DeepSeek-V3's
attention and for tensor parallelism (`_LocalAttention`, `_LocalNorm`).
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import cpu_cuda, gloo_sizes, missing_kernels, trainer_arguments
from .megatron import initialize, parallel_state

_HIDDEN, _HEADS, _VOCABULARY, _LENGTH, _SEQUENCES = 32, 4, 128, 16, 2
_LAYERS_PER_STAGE = 2
_EXPERTS_PER_RANK = 2
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads")

Step = Callable[[], dict[str, Any]]


def prepare(job: dict[str, Any]) -> tuple[Step, list[str]]:
    """Import the ranks' modules. Returns the function for one rank's step, and the replaced names."""
    if trainer_arguments.has_them(Path(job["code"])):
        raise NotImplementedError(
            "npu-rl has no tiny model with MindSpeed-LLM's layers, which this trainer has"
        )
    if job["mindspeed"]:
        adaptor: Any = importlib.import_module("mindspeed.megatron_adaptor")
        if job["transformer"]:  # as verl's Megatron workers do it
            adaptor.repatch(job["transformer"])
        stood_in = ["torch_npu and its transfer_to_npu: by what is importable under those names"]
    else:
        cpu_cuda.install()
        stood_in = [*cpu_cuda.STOOD_IN, "Transformer Engine's layers: Megatron-core's local ones"]
        stood_in += missing_kernels.install(Path(job["code"]))
    gloo_sizes.install()
    for name in ("models.gpt.gpt_layer_specs", "models.gpt.gpt_model", "distributed", "pipeline_parallel"):
        importlib.import_module(f"megatron.core.{name}")
    if not job["mindspeed"]:
        missing_kernels.without_te_gemm()

    def step() -> dict[str, Any]:
        with contextlib.nullcontext() if job["mindspeed"] else cpu_cuda.OnCpu():
            return _step(job)

    return step, [*stood_in, *gloo_sizes.STOOD_IN]


def _step(job: dict[str, Any]) -> dict[str, Any]:
    """Build groups and model, run one pipeline step, and reduce gradients. Returns this rank's figures."""
    state, sizes = parallel_state(), job["train"]
    initialize(state, sizes)
    importlib.import_module("megatron.core.tensor_parallel").model_parallel_cuda_manual_seed(1)
    config = _config(job)
    model = _model(job, config, state)
    losses = _forward_backward(model, config, sizes)
    # An expert without tokens rightly has no gradient.
    without_gradient = [
        name
        for name, weight in model.named_parameters()
        if ".experts." not in name and not _has_gradient(weight)
    ]
    return {
        "stage": state.get_pipeline_model_parallel_rank(),
        "layers": len(model.module.decoder.layers),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "experts": getattr(model.module.decoder.layers[-1].mlp, "num_local_experts", 0),
        "loss": losses[0] if losses else None,
        "expected_loss": math.log(_VOCABULARY),
        "without_gradient": without_gradient,
    }


def _config(job: dict[str, Any]) -> Any:
    shapes: Any = importlib.import_module("megatron.core.transformer.transformer_config")
    sizes, model = job["train"], job["model"]
    layers = _LAYERS_PER_STAGE * sizes["pipeline"]
    values: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": _HIDDEN,
        "num_attention_heads": _HEADS,
        "ffn_hidden_size": 2 * _HIDDEN,
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "use_cpu_initialization": True,
        "params_dtype": torch.float32,
        "pipeline_dtype": torch.float32,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "gradient_accumulation_fusion": False,
        "tensor_model_parallel_size": sizes["tensor"],
        "pipeline_model_parallel_size": sizes["pipeline"],
        "context_parallel_size": sizes["context"],
        "expert_model_parallel_size": sizes["expert"],
        "expert_tensor_parallel_size": sizes["expert_tensor"],
        "sequence_parallel": sizes["tensor"] > 1,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        "batch_p2p_comm": False,
    }
    if model["experts"]:
        values |= {
            "num_moe_experts": _EXPERTS_PER_RANK * sizes["expert"],
            "moe_ffn_hidden_size": _HIDDEN,
            "moe_router_topk": 2,
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_layer_freq": [0] + [1] * (layers - 1),
            "moe_shared_expert_intermediate_size": _HIDDEN,
            "moe_grouped_gemm": job["mindspeed"],
        }
    if not model["latent_attention"]:
        values["num_query_groups"] = min(model["kv_heads"], _HEADS)
        return _supported(shapes.TransformerConfig, values)
    values |= {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_head_dim": 8,
        "qk_pos_emb_head_dim": 8,
        "v_head_dim": 8,
        "rope_type": "rope",
        "qk_layernorm": True,
    }
    if not hasattr(shapes, "MLATransformerConfig"):
        raise NotImplementedError("this Megatron-core has no multi-head latent attention of its own")
    return _supported(shapes.MLATransformerConfig, values)


def _supported(kind: Any, values: dict[str, Any]) -> Any:
    """Return the configuration without values that this release lacks; verl drops them in the same way."""
    return kind(**{name: value for name, value in values.items() if hasattr(kind, name) or name in _REQUIRED})


def _model(job: dict[str, Any], config: Any, state: Any) -> Any:
    """Return this rank's stage, wrapped for data parallelism like in the trainer."""
    specs: Any = importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
    gpt: Any = importlib.import_module("megatron.core.models.gpt.gpt_model")
    parallel: Any = importlib.import_module("megatron.core.distributed")
    if not hasattr(specs, "get_gpt_decoder_block_spec"):
        raise NotImplementedError(
            "this Megatron-core has no specification of a block of layers (0.9 and later have)"
        )
    spec = specs.get_gpt_decoder_block_spec(config, use_transformer_engine=job["mindspeed"])
    if not job["mindspeed"]:
        _use_local_layers(spec)
    model = gpt.GPTModel(
        config,
        spec,
        vocab_size=_VOCABULARY,
        max_sequence_length=_LENGTH,
        pre_process=state.is_pipeline_first_stage(),
        post_process=state.is_pipeline_last_stage(),
        position_embedding_type="rope",
    )
    options = parallel.DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    return parallel.DistributedDataParallel(config, options, model)


def _forward_backward(model: Any, config: Any, sizes: dict[str, int]) -> list[float]:
    """Run one step of Megatron-core's schedule; return the losses on the last stage, [] elsewhere."""
    schedules: Any = importlib.import_module("megatron.core.pipeline_parallel")
    parallel: Any = importlib.import_module("megatron.core.distributed")
    config.finalize_model_grads_func = parallel.finalize_model_grads
    positions = torch.arange(_LENGTH).expand(_SEQUENCES, _LENGTH)
    mask = torch.ones(1, 1, _LENGTH, _LENGTH, dtype=torch.bool).triu(1)
    numbers = torch.Generator().manual_seed(1)

    def forward(_data: Any, module: Any) -> Any:
        tokens = torch.randint(0, _VOCABULARY, (_SEQUENCES, _LENGTH), generator=numbers)
        output = module(tokens, positions, mask, labels=tokens.roll(-1, 1))
        return output, lambda loss: (loss.mean(), {"loss": loss.mean().item()})

    micro_batches = max(2, sizes["pipeline"])
    reduced = schedules.get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iter(range(micro_batches)),
        model=[model],
        num_microbatches=micro_batches,
        seq_length=_LENGTH,
        micro_batch_size=_SEQUENCES,
        forward_only=False,
    )
    return [entry["loss"] for entry in reduced]


def _has_gradient(weight: torch.nn.Parameter) -> bool:
    gradient = getattr(weight, "main_grad", weight.grad)
    return gradient is not None and bool(torch.isfinite(gradient).all()) and bool((gradient != 0).any())


def _use_local_layers(spec: Any) -> None:
    """Apply the two changes of local layers to a block's specification."""
    attention: Any = importlib.import_module("megatron.core.transformer.dot_product_attention")
    norm: Any = importlib.import_module("megatron.core.transformer.torch_norm").WrappedTorchNorm

    class _LocalAttention(attention.DotProductAttention):  # type: ignore[misc]
        """Attention that supports DeepSeek-V3's head dims, unlike the local one of 0.12.1."""

        def __init__(self, *args: Any, v_channels: Any = None, **kwargs: Any) -> None:
            kwargs.pop("k_channels", None)
            super().__init__(*args, **kwargs)
            if v_channels:
                self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    def replace(submodules: Any) -> None:
        for name, value in vars(submodules).items():
            if value is attention.DotProductAttention:
                setattr(submodules, name, _LocalAttention)
            elif value is norm:
                setattr(submodules, name, _LocalNorm)
            elif getattr(value, "submodules", None) is not None:
                replace(value.submodules)

    for layer in spec.layer_specs:
        replace(layer.submodules)
    if spec.layer_norm is norm:
        spec.layer_norm = _LocalNorm


class _LocalNorm(torch.nn.RMSNorm):  # type: ignore[misc, unused-ignore]
    """torch's norm, marked for Megatron-core to sum its gradient over tensor ranks.

    The local one refuses sequence parallelism, without which mixtures of experts can't be trained on several tensor
    ranks.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_options: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010  a mark on a tensor
