"""What a recipe needs beside memory: disk, the time to load the weights, tokens of a step."""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.memory.megatron_memory import STATES, WEIGHT
from npu_rl.memory.memory_by_phase import Memory
from npu_rl.memory.training_memory import has_reference
from npu_rl.sizing.model_config import ModelConfig
from npu_rl.sizing.plan_inputs import Facts
from npu_rl.sizing.weight_sizes import ATTENTION, DENSE, EXPERTS, SHARED, count_parameters, routing_biases

_BLOCK = 128 * 128  # values that share one fp32 scale in DeepSeek's FP8 files
_FP8 = (ATTENTION, EXPERTS, SHARED, DENSE)


@dataclass(frozen=True)
class Disk:
    """Bytes of one checkpoint each. fp8: as DeepSeek publishes it, without the prediction layers (None if it isn't
    that kind); bf16: the Hugging Face folder; dist: Megatron's, weights alone; resume: with the optimizer's states.
    """

    fp8: int | None
    bf16: int
    dist: int
    resume: int


@dataclass(frozen=True)
class Loading:
    """Reading the weights from storage, in bytes. once: each tensor once; by_die: every die reads its own share.

    Both count the actor and the reference.
    """

    once: int
    by_die: int

    def seconds(self, speed: float) -> tuple[float, float]:
        """At `speed` bytes a second of the whole storage: at least, at most."""
        return self.once / speed, self.by_die / speed


@dataclass(frozen=True)
class Tokens:
    """Of one step. longest: if every prompt and answer were as long as it may be."""

    sequences: int
    longest: int
    prompts: int
    answers: int
    per_engine: int | None


def disk_of(shape: ModelConfig) -> Disk:
    """Checkpoints of a model; safetensors' and Megatron's own bookkeeping is not counted."""
    counts = count_parameters(shape)
    total, small = sum(counts.values()), sum(counts[name] for name in _FP8)
    biases = 4 * routing_biases(shape)
    fp8 = (
        small + 4 * -(-small // _BLOCK) + WEIGHT * (total - small) + biases
        if shape.latent and shape.experts
        else None
    )
    return Disk(fp8, WEIGHT * total + biases, WEIGHT * total + biases, (WEIGHT + STATES) * total + biases)


def loading_of(facts: Facts, memory: Memory | None) -> Loading | None:
    """What is read at the start; None where no weights are loaded."""
    if facts.shape is None or facts.recipe.model.load_weights is False:
        return None
    roles = 2 if has_reference(facts) else 1
    once = WEIGHT * sum(count_parameters(facts.shape).values()) * roles
    if memory is None or not facts.recipe.megatron:
        return Loading(once, once * facts.world)
    per_stage = facts.world // len(memory.stages)
    return Loading(once, sum(stage.weights for stage in memory.stages) * per_stage * roles)


def tokens_of(facts: Facts) -> Tokens | None:
    """Tokens of a step; None if batch or lengths are not said."""
    prompt, response = facts.whole("data.max_prompt_length"), facts.whole("data.max_response_length")
    if not (facts.responses and prompt and response):
        return None
    longest = facts.responses * (prompt + response)
    engines = facts.engines
    return Tokens(
        facts.responses,
        longest,
        facts.responses * prompt,
        facts.responses * response,
        longest // engines if engines else None,
    )
