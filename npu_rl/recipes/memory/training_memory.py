"""Memory of the actor and the reference on a die in training, with any backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from npu_rl.recipes.memory.activations import Recompute, ZeroMemory
from npu_rl.recipes.memory.memory_parts import Part, Parts
from npu_rl.recipes.sizing.micro_batches import MicroBatch
from npu_rl.recipes.sizing.model_config import ModelConfig
from npu_rl.recipes.sizing.plan_inputs import ACTOR, PlanInputs
from npu_rl.recipes.sizing.weight_sizes import Counts
from npu_rl.recipes.trainer_code.citations import Place


@dataclass(frozen=True)
class StageMemory:
    """Memory of one pipeline stage on each of its dies.

    Attributes:
        layers: Its layers.
        counts: Parameters by component.
        weights: Bytes of the actor's weights.
        gradients: Bytes of the gradients.
        states: Bytes of this die's share of the optimizer's states.
        on_host: This die's parts in the host's memory.
        resident: Parts that stay on the die between the phases.
        resident_late: Parts that are resident from the first update on.
    """

    layers: range
    counts: Counts
    weights: int
    gradients: int
    states: int
    on_host: Parts = field(default_factory=dict)
    resident: Parts = field(default_factory=dict)
    resident_late: Parts = field(default_factory=dict)


@dataclass(frozen=True)
class Training:
    """The stages of a backend, and the parts that each phase needs.

    A part that is resident, too, counts once.

    Attributes:
        stages: Memory by pipeline stage.
        update: Returns the parts of the update on stage N.
        old_log_prob: Returns the parts of the old log-probs on stage N.
        reference: Returns the parts of the reference's log-probs on stage N; None without a reference.
        gathered: Bytes of the largest tensor on its way to the engine.
        assumed: Assumptions, for people.
    """

    stages: tuple[StageMemory, ...]
    update: Callable[[int, MicroBatch], Parts]
    old_log_prob: Callable[[int, MicroBatch], Parts]
    reference: Callable[[int, MicroBatch], Parts] | None
    gathered: int
    assumed: tuple[str, ...]


def has_reference(facts: PlanInputs) -> bool:
    """Return whether there is a reference model (verl/trainer/main_ppo.py:194@55e3c5b)."""
    return facts.on(f"{ACTOR}.use_kl_loss") or facts.on("algorithm.use_kl_in_reward")


def has_entropy(facts: PlanInputs) -> bool:
    """Return whether the update computes the entropy."""
    value = facts.values.value(f"{ACTOR}.entropy_coeff")
    return isinstance(value, int | float) and value != 0


def uses_fused_kernels(facts: PlanInputs) -> bool:
    """Return whether fused kernels replace the logits."""
    return facts.on("actor_rollout_ref.model.use_fused_kernels")


def megatron_recompute(facts: PlanInputs, shape: ModelConfig, pipeline: int) -> Recompute:
    """Return Megatron's recomputation as configured."""
    granularity, method = facts.transformer("recompute_granularity"), facts.transformer("recompute_method")
    layers = facts.transformer("recompute_num_layers")
    modules = facts.transformer("recompute_modules")
    return Recompute(
        granularity if isinstance(granularity, str) else None,
        method if isinstance(method, str) else None,
        layers if isinstance(layers, int) and not isinstance(layers, bool) else None,
        tuple(map(str, modules)) if isinstance(modules, list | tuple) else ("core_attn",),
        _zero_memory(facts, shape, pipeline),
    )


_ZERO_MEMORY = Place(
    "mindspeed/core/transformer/moe/moe_feature/overlap/moe_common.py",
    "moe_zero_memory = self.config.moe_zero_memory",
    ("e4772499", "7ff818c", "1cdd0ab"),
)


def _zero_memory(facts: PlanInputs, shape: ModelConfig, pipeline: int) -> ZeroMemory | None:
    """Return MindSpeed's moe_zero_memory; None where it is off, or without the layers that read it.

    Those are the layers of moe_alltoall_overlap_comm; moe_fb_overlap's read it, too, and are not counted.
    """
    level = {"level0": 0, "level1": 1}.get(str(facts.transformer("moe_zero_memory")))
    overlaps = facts.transformer("moe_alltoall_overlap_comm") is True
    if level is None or not (overlaps and facts.npu and facts.upstream.has(_ZERO_MEMORY)):
        return None
    layers = facts.transformer("moe_zero_memory_num_layers")
    number = layers if isinstance(layers, int) and not isinstance(layers, bool) else None
    return ZeroMemory(level, number, shape.layers // max(1, pipeline))


def larger_of(working: int, logits: int) -> Mapping[Part, int]:
    """Return a layer's activations or the logits, whichever are larger.

    They are not there at once: layers are recomputed, or nothing is kept.
    """
    return {Part.LOGITS: logits} if logits > working else {Part.ACTIVATIONS: working}


def divided(size: int, by: int) -> int:
    """Return a share, rounded up."""
    return -(-size // max(1, by))
