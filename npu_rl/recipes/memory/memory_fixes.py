"""Changes that make a phase fit. Each is applied to the recipe's own figures before it is suggested."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from npu_rl.recipes.memory.device_overhead import HCCL_MB, buffer_mb
from npu_rl.recipes.memory.engine_memory import SHARE
from npu_rl.recipes.memory.memory_by_phase import MICRO_BATCHES, Memory, Phase, PhaseName, memory_of
from npu_rl.recipes.memory.memory_parts import Part, gb
from npu_rl.recipes.sizing.batch_arithmetic import TrainerValues
from npu_rl.recipes.sizing.divisibility import check_sizes
from npu_rl.recipes.sizing.micro_batches import micro_batch
from npu_rl.recipes.sizing.plan_inputs import ACTOR, REFERENCE, ROLLOUT, TRANSFORMER, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place

BUFFER = "HCCL_BUFFSIZE"
_SEQUENCES = f"{ROLLOUT}.max_num_seqs"
BLOCKS = f"{ROLLOUT}.engine_kwargs.vllm.num_gpu_blocks_override"
_GRAPH_SIZES = f"{ROLLOUT}.engine_kwargs.vllm.additional_config.torchair_graph_config.graph_batch_sizes"
# It saves by dp_zero alone, and verl by other formats, which read tensors without storage
# (patchsets/MindSpeed/7ff818c/0002-swapped-states.patch).
_SWAP_LOST_IN_CHECKPOINTS = Place(
    "mindspeed/core/optimizer/swap_optimizer/swap_optimizer.py",
    "class SwapDistributedOptimizer(",
    ("7ff818c", "1cdd0ab", "e4772499"),
)
_SWAP_SAVED = "swapped-states"  # the adaptation that saves it
Key = tuple[str, str]  # the recipe's, the trainer's


@dataclass(frozen=True)
class MemoryChange:
    """New values for keys.

    Attributes:
        values: The value of each key, by the recipe's and the trainer's name; None removes the key.
        layout: New sizes of `actor.parallel`.
        env: New variables; each is among the values, too, as env.NAME.
    """

    values: Mapping[Key, Any]
    layout: Mapping[str, int] | None = None
    env: Mapping[str, str] | None = None

    def __str__(self) -> str:
        return " and ".join(f"{key} to {_value_text(value)}" for (key, _), value in self.values.items())

    @property
    def text(self) -> str:
        """The change as a sentence."""
        removed = [key for (key, _), value in self.values.items() if value is None]
        return f"remove {removed[0]}" if removed else f"set {self}"


@dataclass(frozen=True)
class Fix:
    """A fix to report; empty if nothing helps.

    Attributes:
        text: The changes.
        keys: The trainer's keys that they change.
        path: The recipe's key of the first one.
    """

    text: str
    keys: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


PhaseFixes = Mapping[str, tuple[MemoryChange, int]]
"""The changes that make one phase fit: each, and the bytes of the phase after it, by the change's text."""


class _ChangedValues(TrainerValues):
    """Values of the trainer with some of them replaced."""

    def __init__(self, base: TrainerValues, values: Mapping[str, Any]) -> None:
        super().__init__({}, None)
        self._base, self._values = base, values

    def value(self, key: str, depth: int = 0) -> Any:
        """Return the new value if there is one, else the old value."""
        return self._values[key] if key in self._values else self._base.value(key, depth)

    def known(self, key: str) -> bool:
        """Return whether the key has a new value or was known before."""
        return key in self._values or self._base.known(key)


def apply_changes(facts: PlanInputs, *changes: MemoryChange) -> PlanInputs:
    """Return the inputs of the plan with the changes applied."""
    values = {key: value for change in changes for (_, key), value in change.values.items()}
    sizes = {name: size for change in changes for name, size in (change.layout or {}).items()}
    layout = facts.layout
    if layout is not None and sizes:
        layout = replace(layout, train=replace(layout.train, **sizes))
    env = {name: value for change in changes for name, value in (change.env or {}).items()}
    changed = _ChangedValues(facts.values, values)
    return replace(facts, values=changed, layout=layout, env={**facts.env, **env})


def find_phase_fixes(
    facts: PlanInputs, memory: Memory, name: PhaseName, enough: Callable[[Phase], bool]
) -> PhaseFixes:
    """Find the changes after which the fullest stage satisfies `enough`.

    Returns:
        Each change that suffices alone; if there is none, all changes that help, if they suffice together.
    """
    phase = memory.worst(name)
    assert phase is not None
    helping, alone = list[MemoryChange](), dict[str, tuple[MemoryChange, int]]()
    for change in _changes(facts, memory, phase, enough):
        after = _phase_after(apply_changes(facts, change), memory, name)
        if after is None or after.total >= phase.total:
            continue
        helping.append(change)
        if enough(after):
            alone[str(change)] = (change, after.total)
    if alone or not helping:
        return alone
    after = _phase_after(apply_changes(facts, *helping), memory, name)
    if after is None or not enough(after):
        return {}
    every = MemoryChange(
        {key: value for change in helping for key, value in change.values.items()},
        env={name: value for change in helping for name, value in (change.env or {}).items()},
    )
    return {str(every): (every, after.total)}


def common_fix(fixes: Sequence[PhaseFixes]) -> Fix:
    """Return the changes that fix all given phases at once."""
    first, *others = fixes
    both = [change for text, (change, _) in first.items() if all(text in other for other in others)]
    if not both:
        return Fix("")
    most = [max(other[str(change)][1] for other in fixes) for change in both]
    texts = [f"set {change} ({gb(size)} then)" for change, size in zip(both, most, strict=True)]
    keys = [key for change in both for key in change.values]
    first_key = keys[0][0]
    path = first_key.split(".", 1 if first_key.startswith("overrides.") else 2)
    return Fix("; or ".join(texts[:3]), tuple(key for _, key in keys if key), tuple(path))


def find_cache_fixes(facts: PlanInputs, memory: Memory, blocks: int, reserved: int = 0) -> Iterator[str]:
    """Yield the changes that give the KV cache enough blocks, or reduce the number that it needs.

    Args:
        facts: The inputs of the plan.
        memory: Its memory.
        blocks: The blocks that are needed.
        reserved: Blocks of them that aren't the sequences' own.
    """
    for change, wanted in _cache_changes(facts, memory, blocks, reserved):
        after = memory_of(apply_changes(facts, change), memory.die)
        phase = after.worst(PhaseName.GENERATE) if after else None
        if after is None or after.engine is None or phase is None or phase.total > memory.die:
            continue
        needed = after.engine.cache.wanted if wanted is None else wanted
        if needed is not None and after.engine.cache.blocks >= needed + (reserved if wanted is None else 0):
            yield change.text


def _cache_changes(
    facts: PlanInputs, memory: Memory, blocks: int, reserved: int
) -> Iterator[tuple[MemoryChange, int | None]]:
    """Yield candidate changes with the blocks each must provide; None is what its sequences need."""
    engine = memory.engine
    assert engine is not None and engine.share is not None
    cache = engine.cache
    if facts.whole(BLOCKS) is not None:
        yield MemoryChange({(_recipe_key(facts, BLOCKS), BLOCKS): None}), blocks
    else:
        smaller = hccl_buffer(facts)
        if smaller is not None:
            yield smaller, blocks
        wanted = (blocks + 1) * cache.block * cache.per_token
        share = math.ceil((engine.share + (wanted - engine.free) / memory.die) * 100) / 100
        if engine.share < share <= 1:
            yield MemoryChange({("rollout.memory_share", SHARE): share}), blocks
    if facts.ascend_scheduler_forced:
        return  # the trainer computes the sequences itself, whatever rollout.max_sequences says
    tensor = facts.layout.rollout.tensor if facts.layout and facts.layout.rollout else 1
    fewer = (cache.blocks - reserved) // (cache.blocks_of_sequence or 1) // tensor * tensor
    if fewer > 0:
        values: dict[Key, Any] = {("rollout.max_sequences", _SEQUENCES): fewer}
        if facts.values.value(_GRAPH_SIZES):
            values[(_recipe_key(facts, _GRAPH_SIZES), _GRAPH_SIZES)] = [fewer]
        yield MemoryChange(values), None


def _recipe_key(facts: PlanInputs, trainer_key: str) -> str:
    """Return the key as written in a recipe."""
    return ".".join(map(str, facts.path(trainer_key))) or f"overrides.{trainer_key}"


def hccl_buffer(facts: PlanInputs) -> MemoryChange | None:
    """Return the change to a smaller HCCL_BUFFSIZE, the manifest's or the default, if the recipe enlarges it."""
    given = buffer_mb(facts)
    if BUFFER not in facts.recipe.env:
        return None
    default = facts.loaded.stack_facts.env.get(BUFFER, "")
    usual = [int(text) for text in (default, str(HCCL_MB)) if text.isascii() and text.isdigit()]
    less = next((size for size in usual if 0 < size < given), None)
    return MemoryChange({(f"env.{BUFFER}", ""): less}, env={BUFFER: str(less)}) if less else None


def _phase_after(facts: PlanInputs, memory: Memory, name: PhaseName) -> Phase | None:
    if facts.layout is not None and not all(check.ok for check in check_sizes(facts.layout)):
        return None
    memory_after = memory_of(facts, memory.die)
    return memory_after.worst(name) if memory_after else None


def _changes(
    facts: PlanInputs, memory: Memory, phase: Phase, enough: Callable[[Phase], bool]
) -> Iterator[MemoryChange]:
    """Yield the changes that may help, cheapest first."""
    backend = "megatron" if facts.recipe.megatron else "fsdp_config"
    parts = phase.parts
    if phase.name in MICRO_BATCHES:
        yield from _smaller_micro_batch(facts, memory, phase.name, enough)
    if phase.name is PhaseName.UPDATE:
        yield from _recompute_more(facts, memory)
    if Part.OPTIMIZER in parts:
        yield from _move_optimizer(facts, phase)
    if Part.REFERENCE_WEIGHTS in parts and phase.name is not PhaseName.REFERENCE:
        yield MemoryChange({("offload.reference", f"{REFERENCE}.{backend}.param_offload"): True})
    passes = (PhaseName.GENERATE, PhaseName.REFERENCE, PhaseName.OLD_LOG_PROB)
    if phase.name in passes or Part.ACTOR_GRADIENTS in parts:
        yield MemoryChange({("offload.parameters", f"{ACTOR}.{backend}.param_offload"): True})
    if phase.name is not PhaseName.GENERATE and Part.KV_CACHE in parts:
        yield MemoryChange({("rollout.free_cache", f"{ROLLOUT}.free_cache_engine"): True})
    if phase.name is PhaseName.GENERATE:
        yield from _smaller_share(memory, phase)
    if facts.recipe.megatron and facts.layout is not None and phase.name is not PhaseName.GENERATE:
        train = facts.layout.train
        if facts.layout.model.experts:
            yield _parallel("expert", "expert_model", 2 * train.expert)
        if not facts.layout.model.latent_attention:
            yield _parallel("tensor", "tensor_model", 2 * train.tensor)
    smaller = hccl_buffer(facts)
    if smaller is not None:
        yield smaller


def _move_optimizer(facts: PlanInputs, phase: Phase) -> Iterator[MemoryChange]:
    """Yield MindSpeed's optimizer swap where checkpoints support it, else optimizer offload.

    Only the swap keeps the states off the die during the update.
    """
    backend = "megatron" if facts.recipe.megatron else "fsdp_config"
    offload = ("offload.optimizer", f"{ACTOR}.{backend}.optimizer_offload")
    saved = _SWAP_SAVED in facts.switches or not facts.upstream.has(_SWAP_LOST_IN_CHECKPOINTS)
    if facts.recipe.megatron and facts.mindspeed and saved:
        swap, _ = _transformer_key(facts, "swap_optimizer")
        yield MemoryChange({swap: True, offload: False} if facts.on(offload[1]) else {swap: True})
    elif phase.name is not PhaseName.UPDATE:
        yield MemoryChange({offload: True})


def _parallel(name: str, long: str, size: int) -> MemoryChange:
    key = (f"actor.parallel.{name}", f"{ACTOR}.megatron.{long}_parallel_size")
    return MemoryChange({key: size}, {name: size})


def _smaller_micro_batch(
    facts: PlanInputs, memory: Memory, name: PhaseName, enough: Callable[[Phase], bool]
) -> Iterator[MemoryChange]:
    """Yield the largest divisor of the micro batch that fits; else a single sequence."""
    micro = micro_batch(facts, MICRO_BATCHES[name])
    if micro is None:
        return
    if micro.sequences is None:
        least = facts.length or 0
        tried = (micro.tokens // 2, micro.tokens // 4, least)
        sizes = [size for size in tried if least <= size < micro.tokens]
        key = (f"overrides.{micro.key}", micro.key)
    else:
        sizes = [size for size in range(micro.sequences // 2, 0, -1) if micro.sequences % size == 0]
        key = (name.micro_batch_key, micro.key)
    for size in sizes:
        change = MemoryChange({key: size})
        after = _phase_after(apply_changes(facts, change), memory, name)
        if size == sizes[-1] or (after is not None and enough(after)):
            yield change
            return


def _recompute_more(facts: PlanInputs, memory: Memory) -> Iterator[MemoryChange]:
    if not facts.recipe.megatron:
        key = ("model.recompute", "actor_rollout_ref.model.enable_gradient_checkpointing")
        if facts.values.value(key[1]) is False:
            yield MemoryChange({key: True})
        return
    method, layers = facts.transformer("recompute_method"), facts.transformer("recompute_num_layers")
    number, _ = _transformer_key(facts, "recompute_num_layers")
    most = max(len(one.layers) for one in memory.stages)
    if facts.transformer("recompute_granularity") != "full":
        yield MemoryChange(_full_recompute(facts))
    elif method == "block" and isinstance(layers, int) and layers < most:
        yield MemoryChange({number: most})
    elif isinstance(layers, int) and layers > 1 and method != "block":
        yield MemoryChange({number: 1})


def _full_recompute(facts: PlanInputs) -> dict[Key, Any]:
    wanted = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    values: dict[Key, Any] = {}
    for name, value in wanted.items():
        key, switch = _transformer_key(facts, name)
        if switch and not facts.on(switch):
            values[(f"overrides.{switch}", switch)] = True
        if facts.transformer(name) != value:
            values[key] = value
    return values


def _transformer_key(facts: PlanInputs, name: str) -> tuple[Key, str]:
    """Return the key in the recipe and in the trainer, and the switch that must be on for it."""
    key, switch = facts.transformer_keys(name)
    own = key == f"{TRANSFORMER}.{name}"
    return (f"actor.transformer.{name}" if own else f"overrides.{key}", key), switch


def _smaller_share(memory: Memory, phase: Phase) -> Iterator[MemoryChange]:
    """Yield the largest share, in hundredths, that leaves room for memory outside it, with estimates doubled."""
    engine = memory.engine
    if engine is None or engine.share is None:
        return
    outside = phase.total - engine.room + phase.estimated
    share = math.floor((memory.die - outside) / memory.die * 100) / 100
    if 0 < share < engine.share:
        yield MemoryChange({("rollout.memory_share", SHARE): share})


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
