"""The sections of a recipe about the generation of responses, in training and for validation."""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from npu_rl.common.yaml_documents.strict_model import Strict
from npu_rl.recipes.recipe import recipe_fields as f
from npu_rl.recipes.recipe.recipe_fields import key

_R = "actor_rollout_ref.rollout"
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

    responses: Annotated[f.Positive | None, key(f"{_R}.val_kwargs.n")] = f.optional("Responses per prompt.")
    sample: Annotated[f.Switch | None, key(f"{_R}.val_kwargs.do_sample")] = f.optional(
        "Sample instead of taking the likeliest token."
    )
    temperature: Annotated[f.NotNegative | None, key(f"{_R}.val_kwargs.temperature")] = f.optional(
        "Sampling temperature."
    )
    top_p: Annotated[f.Share | None, key(f"{_R}.val_kwargs.top_p")] = f.optional("Nucleus sampling.")
    top_k: Annotated[f.OrAll | None, key(f"{_R}.val_kwargs.top_k")] = f.optional(
        "Likeliest tokens to sample from; -1 is all."
    )


class Rollout(Strict):
    """Generation of responses."""

    engine: Annotated[Engine, BeforeValidator(_supported), key(f"{_R}.name")] = Field(
        description="hf: transformers, in the training process. vllm: vLLM's engine."
    )
    responses: Annotated[f.Positive, key(f"{_R}.n")] = Field(
        description="Responses per prompt (the group's size)."
    )
    temperature: Annotated[f.NotNegative | None, key(f"{_R}.temperature")] = f.optional(
        "Sampling temperature."
    )
    top_p: Annotated[f.Share | None, key(f"{_R}.top_p")] = f.optional("Nucleus sampling.")
    top_k: Annotated[f.OrAll | None, key(f"{_R}.top_k")] = f.optional(
        "Likeliest tokens to sample from; -1 is all (vllm), 0 is all (hf)."
    )
    tensor_parallel: Annotated[f.Positive | None, key(f"{_R}.tensor_model_parallel_size")] = f.optional(
        "Devices that share one copy of the weights."
    )
    micro_batch: Annotated[f.Positive | None, key(f"{_R}.micro_batch_size")] = f.optional(
        "Responses generated at once (hf)."
    )
    log_prob_micro_batch: Annotated[f.Positive | None, key(f"{_R}.log_prob_micro_batch_size_per_gpu")] = (
        f.optional("Responses per device whose log probabilities are computed at once.")
    )
    memory_share: Annotated[f.Share | None, key(f"{_R}.gpu_memory_utilization")] = f.optional(
        "Share of a die's memory for the engine."
    )
    max_sequences: Annotated[f.Positive | None, key(f"{_R}.max_num_seqs")] = f.optional(
        "Sequences the engine decodes at once."
    )
    max_batched_tokens: Annotated[f.Positive | None, key(f"{_R}.max_num_batched_tokens")] = f.optional(
        "Tokens of one forward pass of the engine."
    )
    max_length: Annotated[f.Positive | None, key(f"{_R}.max_model_len")] = f.optional(
        "Longest sequence, prompt and response."
    )
    chunked_prefill: Annotated[f.Switch | None, key(f"{_R}.enable_chunked_prefill")] = f.optional(
        "Prefill long prompts in chunks."
    )
    eager: Annotated[f.Switch | None, key(f"{_R}.enforce_eager")] = f.optional("No graphs.")
    free_cache: Annotated[f.Switch | None, key(f"{_R}.free_cache_engine")] = f.optional(
        "Give the engine's memory back while the actor trains."
    )
    ignore_end: Annotated[f.Switch | None, key(f"{_R}.ignore_eos")] = f.optional(
        "Generate to the full length (benchmarks only)."
    )
    log_probs: Annotated[f.Switch | None, key(f"{_R}.calculate_log_probs")] = f.optional(
        "Report the rollout's log probabilities, to compare with the actor's."
    )
    load_format: Annotated[f.Text | None, key(f"{_R}.load_format")] = f.optional(
        "Source of the engine's first weights, such as auto or dummy."
    )
    dtype: Annotated[f.Text | None, key(f"{_R}.dtype")] = f.optional("Its number format.")
    engine_arguments: Annotated[dict[f.Text, f.Scalar], key(f"{_R}.engine_kwargs.vllm")] = Field(
        default={}, description="More arguments of vLLM's engine."
    )
    validation: Validation = Field(default=Validation(), description="Sampling for validation.")
