"""The sections of a recipe about the generation of responses, in training and for validation."""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from npu_rl.common.yaml_documents.strict_model import Strict
from npu_rl.recipes.recipe import recipe_fields as f
from npu_rl.recipes.recipe.recipe_fields import setting

_rollout = partial(setting, "actor_rollout_ref.rollout.")
_OTHER_ENGINES = ("sglang", "trtllm")  # verl/workers/rollout/replica.py@v0.8.0

Engine = Literal["hf", "vllm"]


def _supported(value: object) -> object:
    """Return the engine. Raises ValueError with the reason for one that verl has and a recipe has not."""
    if value in _OTHER_ENGINES:
        why = "recipes and plan know the keys and memory of vLLM's engine only"
        raise ValueError(f"must be 'hf' or 'vllm', not {value!r}, which is not supported: {why}")
    return value


class Validation(Strict):
    """Sampling of responses for validation."""

    responses: f.Positive | None = _rollout("Responses per prompt.", "val_kwargs.n")
    sample: f.Switch | None = _rollout(
        "Sample instead of taking the likeliest token.", "val_kwargs.do_sample"
    )
    temperature: f.NotNegative | None = _rollout("Sampling temperature.", "val_kwargs.temperature")
    top_p: f.Share | None = _rollout("Nucleus sampling.", "val_kwargs.top_p")
    top_k: f.OrAll | None = _rollout("Likeliest tokens to sample from; -1 is all.", "val_kwargs.top_k")


class Rollout(Strict):
    """Generation of responses."""

    engine: Annotated[Engine, BeforeValidator(_supported)] = _rollout(
        "hf: transformers, in the training process. vllm: vLLM's engine.", "name", default=...
    )
    responses: f.Positive = _rollout("Responses per prompt (the group's size).", "n", default=...)
    temperature: f.NotNegative | None = _rollout("Sampling temperature.", "temperature")
    top_p: f.Share | None = _rollout("Nucleus sampling.", "top_p")
    top_k: f.OrAll | None = _rollout(
        "Likeliest tokens to sample from; -1 is all (vllm), 0 is all (hf).", "top_k"
    )
    tensor_parallel: f.Positive | None = _rollout(
        "Devices that share one copy of the weights.", "tensor_model_parallel_size"
    )
    micro_batch: f.Positive | None = _rollout("Responses generated at once (hf).", "micro_batch_size")
    log_prob_micro_batch: f.Positive | None = _rollout(
        "Responses per device whose log probabilities are computed at once.",
        "log_prob_micro_batch_size_per_gpu",
    )
    memory_share: f.Share | None = _rollout(
        "Share of a die's memory for the engine.", "gpu_memory_utilization"
    )
    max_sequences: f.Positive | None = _rollout("Sequences the engine decodes at once.", "max_num_seqs")
    max_batched_tokens: f.Positive | None = _rollout(
        "Tokens of one forward pass of the engine.", "max_num_batched_tokens"
    )
    max_length: f.Positive | None = _rollout("Longest sequence, prompt and response.", "max_model_len")
    chunked_prefill: f.Switch | None = _rollout("Prefill long prompts in chunks.", "enable_chunked_prefill")
    eager: f.Switch | None = _rollout("No graphs.", "enforce_eager")
    free_cache: f.Switch | None = _rollout(
        "Give the engine's memory back while the actor trains.", "free_cache_engine"
    )
    ignore_end: f.Switch | None = _rollout("Generate to the full length (benchmarks only).", "ignore_eos")
    log_probs: f.Switch | None = _rollout(
        "Report the rollout's log probabilities, to compare with the actor's.", "calculate_log_probs"
    )
    load_format: f.Text | None = _rollout(
        "Source of the engine's first weights, such as auto or dummy.", "load_format"
    )
    dtype: f.Text | None = _rollout("Its number format.", "dtype")
    engine_arguments: dict[f.Text, f.Scalar] = _rollout(
        "More arguments of vLLM's engine.", "engine_kwargs.vllm", default={}
    )
    validation: Validation = Field(default=Validation(), description="Sampling for validation.")
