"""What the actor and the reference take of a die in training, whichever backend trains them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from npu_rl.memory.activations import Recompute
from npu_rl.memory.memory_parts import Part, Parts
from npu_rl.sizing.micro_batches import MicroBatch
from npu_rl.sizing.plan_inputs import ACTOR, Facts
from npu_rl.sizing.weight_sizes import Counts


@dataclass(frozen=True)
class StageMemory:
    """One pipeline stage: its layers and, on each of its dies, parameters by component and bytes by kind.

    states: of the optimizer, this die's share. on_host: what of this die lies in the host's memory. resident: what
    stays on the die between the phases; resident_late: what joins it at the first update.
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
    """A backend's stages and what each of its phases adds to what is resident there.

    update, old_log_prob, reference: the parts of the phase on stage N; a part that is resident, too, counts once.
    gathered: bytes of the largest tensor on its way to the engine. assumed: for people.
    """

    stages: tuple[StageMemory, ...]
    update: Callable[[int, MicroBatch], Parts]
    old_log_prob: Callable[[int, MicroBatch], Parts]
    reference: Callable[[int, MicroBatch], Parts] | None
    gathered: int
    assumed: tuple[str, ...]


def has_reference(facts: Facts) -> bool:
    """Whether there is a reference model (verl/trainer/main_ppo.py:194@55e3c5b)."""
    return facts.on(f"{ACTOR}.use_kl_loss") or facts.on("algorithm.use_kl_in_reward")


def has_entropy(facts: Facts) -> bool:
    """Whether the update computes the entropy."""
    value = facts.values.value(f"{ACTOR}.entropy_coeff")
    return isinstance(value, int | float) and value != 0


def fused(facts: Facts) -> bool:
    """Whether fused kernels take the place of the logits."""
    return facts.on("actor_rollout_ref.model.use_fused_kernels")


def megatron_recompute(facts: Facts) -> Recompute:
    """Megatron's recomputation, as the trainer's configuration has it."""
    granularity, method = facts.transformer("recompute_granularity"), facts.transformer("recompute_method")
    layers = facts.transformer("recompute_num_layers")
    modules = facts.transformer("recompute_modules")
    return Recompute(
        granularity if isinstance(granularity, str) else None,
        method if isinstance(method, str) else None,
        layers if isinstance(layers, int) and not isinstance(layers, bool) else None,
        tuple(map(str, modules)) if isinstance(modules, list | tuple) else ("core_attn",),
    )


def larger(working: int, logits: int) -> Mapping[Part, int]:
    """One layer's work or the logits: they are not there at once, where layers are computed again or not kept."""
    return {Part.LOGITS: logits} if logits > working else {Part.ACTIVATIONS: working}


def divided(size: int, by: int) -> int:
    """A share of it, rounded up."""
    return -(-size // max(1, by))
