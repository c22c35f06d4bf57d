"""Memory of one pipeline stage in training, and the settings of the trainer that every backend reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from npu_rl.recipes.memory.activations import Recompute
from npu_rl.recipes.memory.memory_parts import Part, Parts
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


_ZERO_MEMORY = Place(
    "mindspeed/core/transformer/moe/moe_feature/overlap/moe_common.py",
    "moe_zero_memory = self.config.moe_zero_memory",
    ("e4772499", "7ff818c", "1cdd0ab"),
)


def megatron_recompute(facts: PlanInputs, layers: int, pipeline: int) -> Recompute:
    """Return Megatron's recomputation as configured, for a model with this many layers."""
    granularity, method = facts.transformer("recompute_granularity"), facts.transformer("recompute_method")
    modules = facts.transformer("recompute_modules")
    return Recompute(
        granularity if isinstance(granularity, str) else None,
        method if isinstance(method, str) else None,
        _whole(facts.transformer("recompute_num_layers")),
        tuple(map(str, modules)) if isinstance(modules, list | tuple) else ("core_attn",),
        _zero_memory(facts, layers, max(1, layers // max(1, pipeline))),
    )


def _zero_memory(facts: PlanInputs, layers: int, chunk: int) -> tuple[int, ...]:
    """Return MindSpeed's moe_zero_memory by layer; empty where it is off, or without the layers that read it.

    Those are the layers of moe_alltoall_overlap_comm; moe_fb_overlap's read it, too, and are not counted. Level 1 is
    for the first moe_zero_memory_num_layers of each chunk, which has num_layers // pipeline size layers whatever the
    stages have (moe_common.py:315@e4772499), or for all; level 0 for the others.
    """
    level = {"level0": 0, "level1": 1}.get(str(facts.transformer("moe_zero_memory")))
    overlaps = facts.transformer("moe_alltoall_overlap_comm") is True
    if level is None or not (overlaps and facts.npu and facts.upstream.has(_ZERO_MEMORY)):
        return ()
    first = _whole(facts.transformer("moe_zero_memory_num_layers")) or chunk
    return tuple(level if number % chunk < first else 0 for number in range(layers))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def larger_of(working: int, logits: int) -> Mapping[Part, int]:
    """Return a layer's activations or the logits, whichever are larger.

    They are not there at once: layers are recomputed, or nothing is kept.
    """
    return {Part.LOGITS: logits} if logits > working else {Part.ACTIVATIONS: working}


def divided(size: int, by: int) -> int:
    """Return a share, rounded up."""
    return -(-size // max(1, by))
