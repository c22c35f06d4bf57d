"""The disk space, loading time and tokens per step of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.recipes.memory.megatron_memory import STATES, WEIGHT
from npu_rl.recipes.memory.memory_by_phase import Memory
from npu_rl.recipes.memory.training_memory import has_reference
from npu_rl.recipes.sizing.model_config import ModelConfig
from npu_rl.recipes.sizing.plan_inputs import PlanInputs
from npu_rl.recipes.sizing.weight_sizes import (
    ATTENTION,
    DENSE,
    EXPERTS,
    SHARED,
    count_parameters,
    routing_biases,
)

_BLOCK = 128 * 128  # values that share one fp32 scale in DeepSeek's FP8 files
_FP8 = (ATTENTION, EXPERTS, SHARED, DENSE)


@dataclass(frozen=True)
class Disk:
    """Size of one checkpoint in each format, in bytes.

    Attributes:
        fp8: DeepSeek's published format without the prediction layers; None for other models.
        bf16: Hugging Face's folder.
        dist: Megatron's dist checkpoint, weights only.
        resume: Megatron's dist checkpoint with the optimizer's states.
    """

    fp8: int | None
    bf16: int
    dist: int
    resume: int


@dataclass(frozen=True)
class Loading:
    """Bytes that are read from storage to load the weights of the actor and the reference.

    Attributes:
        once: If each tensor is read once per role.
        by_die: If every rank reads its own shard.
    """

    once: int
    by_die: int

    def seconds(self, speed: float) -> tuple[float, float]:
        """Return the shortest and the longest loading time at a total of `speed` bytes per second."""
        return self.once / speed, self.by_die / speed


@dataclass(frozen=True)
class Tokens:
    """Sequences and tokens of one step.

    Attributes:
        sequences: Responses of a step.
        longest: Tokens if every prompt and response has its full length.
        per_engine: `longest` per rollout engine; None if their number is not known.
    """

    sequences: int
    longest: int
    per_engine: int | None


def disk_of(shape: ModelConfig) -> Disk:
    """Return the checkpoint sizes of a model, without the metadata of safetensors and Megatron."""
    counts = count_parameters(shape)
    total, small = sum(counts.values()), sum(counts[name] for name in _FP8)
    biases = 4 * routing_biases(shape)
    fp8 = (
        small + 4 * -(-small // _BLOCK) + WEIGHT * (total - small) + biases
        if shape.latent and shape.experts
        else None
    )
    return Disk(fp8, WEIGHT * total + biases, WEIGHT * total + biases, (WEIGHT + STATES) * total + biases)


def loading_of(facts: PlanInputs, memory: Memory | None) -> Loading | None:
    """Return the bytes that are read at the start of a run, or None if no weights are loaded."""
    if facts.shape is None or facts.recipe.model.load_weights is False:
        return None
    roles = 2 if has_reference(facts) else 1
    once = WEIGHT * sum(count_parameters(facts.shape).values()) * roles
    if memory is None or not facts.recipe.megatron:
        return Loading(once, once * facts.world)
    per_stage = facts.world // len(memory.stages)
    return Loading(once, sum(stage.weights for stage in memory.stages) * per_stage * roles)


def tokens_of(facts: PlanInputs) -> Tokens | None:
    """Return the tokens of a step, or None if the batch or the lengths are not set."""
    prompt, response = facts.whole("data.max_prompt_length"), facts.whole("data.max_response_length")
    if not (facts.generated and prompt and response):
        return None
    longest = facts.generated * (prompt + response)
    return Tokens(facts.generated, longest, longest // facts.engines if facts.engines else None)
