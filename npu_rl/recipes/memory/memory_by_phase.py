"""Memory per die and per host, by phase of a step, in bytes. A GB is 10^9 bytes.

Puts together the memory of training, of the rollout's engine, and of HCCL and CANN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from npu_rl.recipes.memory.device_overhead import SNAPSHOT, Overhead, counts_only_itself, overhead_of
from npu_rl.recipes.memory.engine_memory import EngineMemory, engine_of
from npu_rl.recipes.memory.fsdp_memory import FsdpMemory
from npu_rl.recipes.memory.host_memory import host_parts
from npu_rl.recipes.memory.measured_runs import lora_rank
from npu_rl.recipes.memory.megatron_memory import MegatronMemory
from npu_rl.recipes.memory.memory_parts import BY_LENGTHS, Part, Parts, estimated, present, total
from npu_rl.recipes.memory.training_memory import StageMemory, has_reference, uses_fused_kernels
from npu_rl.recipes.sizing.micro_batches import (
    OLD_LOG_PROB,
    REFERENCE_LOG_PROB,
    UPDATE,
    MicroBatch,
    micro_batch,
)
from npu_rl.recipes.sizing.model_config import KNOWN_TYPES, ModelConfig
from npu_rl.recipes.sizing.parallelism import Parallelism
from npu_rl.recipes.sizing.plan_inputs import ACTOR, ROLLOUT, PlanInputs
from npu_rl.recipes.sizing.weight_sizes import stage_ranges
from npu_rl.recipes.trainer_code.citations import Place

Training = FsdpMemory | MegatronMemory
Batches = Mapping["PhaseName", MicroBatch | None]


class PhaseName(Enum):
    """A phase of a step.

    Attributes:
        rule: The id of its rule.
        label: Its name for people.
        micro_batch_key: The recipe's key of its micro batch.
    """

    WEIGHT_SYNC = "memory-weight-sync", "weight sync", ""
    GENERATE = "memory-generate", "generate", ""
    OLD_LOG_PROB = "memory-old-log-prob", "old log-probs", "rollout.log_prob_micro_batch"
    REFERENCE = "memory-reference", "reference log-probs", "reference.micro_batch"
    UPDATE = "memory-update", "update", "actor.micro_batch"

    def __init__(self, rule: str, label: str, micro_batch_key: str) -> None:
        self._value_ = label  # type: ignore[assignment]
        self.rule, self.label, self.micro_batch_key = rule, label, micro_batch_key


@dataclass(frozen=True)
class Phase:
    """Peak memory of one die of a stage in a phase.

    Attributes:
        name: The phase.
        stage: The pipeline stage, from 0.
        parts: All parts.
        settled: Parts within the engine's share, which is taken whole: if they are smaller, the cache is larger.
        total: The bytes of all parts.
        estimated: Uncertainty of the total in bytes.
        by_lengths: The bytes that shrink with shorter sequences, down to almost nothing.
        other_estimates: The bytes of the estimates that don't depend on sequence lengths.
        low: The lower end of the total's range: the bytes computed from sizes, without estimates.
    """

    name: PhaseName
    stage: int
    parts: Parts
    settled: Parts = field(default_factory=dict, repr=False)
    total: int = field(init=False)
    estimated: int = field(init=False)
    by_lengths: int = field(init=False)
    other_estimates: int = field(init=False)
    low: int = field(init=False)

    def __post_init__(self) -> None:
        unsettled = {part: size - self.settled.get(part, 0) for part, size in self.parts.items()}
        by_lengths = sum(size for part, size in unsettled.items() if part in BY_LENGTHS)
        others = (size for part, size in unsettled.items() if part.estimate and part not in BY_LENGTHS)
        figures = {
            "total": total(self.parts),
            "estimated": estimated(self.parts) - estimated(self.settled),
            "by_lengths": by_lengths,
            "other_estimates": sum(others),
        }
        figures["low"] = figures["total"] - by_lengths - figures["other_estimates"]
        for name, size in figures.items():
            object.__setattr__(self, name, size)


@dataclass(frozen=True)
class Memory:
    """Memory of a recipe on dies of one size.

    Attributes:
        die: Bytes of a die.
        stages: Training's memory by pipeline stage.
        engine: The engine with the smallest cache; None if the training process generates.
        phases: Each phase on each stage.
        host: Memory per node, of the fullest one.
        assumed: Assumptions, for people.
        missing: What could not be counted and why, for people.
    """

    die: int
    stages: tuple[StageMemory, ...]
    engine: EngineMemory | None
    phases: tuple[Phase, ...]
    host: Parts
    assumed: tuple[str, ...]
    missing: tuple[str, ...]

    def worst(self, name: PhaseName) -> Phase | None:
        """Return the given phase on the stage that needs the most memory, or None."""
        these = (phase for phase in self.phases if phase.name is name)
        return max(these, key=lambda phase: phase.total, default=None)


def memory_of(facts: PlanInputs, die: int = 64 * 10**9, *, expected: bool = False) -> Memory | None:
    """Return the memory of a recipe; None if the model's shape or the stages are unknown.

    Args:
        facts: The inputs of the plan.
        die: Bytes of a die.
        expected: Whether micro batches packed by tokens count with their expected size, not their largest.
    """
    layout, shape = facts.layout, facts.shape
    if layout is None or shape is None or not shape.layers:
        return None
    training = _training(facts, layout, shape)
    if training is None:
        return None
    overhead = overhead_of(facts, layout)
    engines = _engines(facts, shape, training.stages, overhead, die)
    engine = min(engines, key=lambda one: one.cache.size, default=None)
    batches = {name: micro_batch(facts, which) for name, which in MICRO_BATCHES.items()}
    if expected:
        batches = {name: one and replace(one, tokens=one.expected) for name, one in batches.items()}
    asleep = _asleep_on_host(facts, engine)
    dies = facts.recipe.cluster.dies
    return Memory(
        die=die,
        stages=training.stages,
        engine=engine,
        phases=tuple(_phases(facts, training, engines, overhead, batches)),
        host=host_parts(training.stages, facts.world, dies, asleep, overhead.processes),
        assumed=(*training.assumed, *_assumptions(facts, shape, engine, overhead)),
        missing=tuple(_not_counted(facts, batches)),
    )


MICRO_BATCHES = {
    PhaseName.UPDATE: UPDATE,
    PhaseName.OLD_LOG_PROB: OLD_LOG_PROB,
    PhaseName.REFERENCE: REFERENCE_LOG_PROB,
}


def _training(facts: PlanInputs, layout: Parallelism, shape: ModelConfig) -> Training | None:
    if not layout.megatron:
        return FsdpMemory(facts, layout, shape)
    ranges = stage_ranges(layout.stage_layers)
    if len(ranges) != layout.train.pipeline or sum(map(len, ranges)) != shape.layers:
        return None
    return MegatronMemory(facts, layout, shape, ranges)


def _engines(
    facts: PlanInputs, shape: ModelConfig, stages: Sequence[StageMemory], overhead: Overhead, die: int
) -> list[EngineMemory]:
    """Return the engine beside each stage. Training's resident memory reduces its cache if the engine measures it."""
    if facts.sizes.rollout is None:
        return []
    left = [0 if counts_only_itself(facts) else total(one.resident) for one in stages]
    engines = {size: engine_of(facts, shape, facts.sizes.rollout, die, size, overhead) for size in set(left)}
    return [engines[size] for size in left]


# On NPUs the servers sleep at level 1, which keeps a copy of the weights in pinned memory (vllm-ascend's camem.py).
_LEVEL_1 = Place(
    "verl/workers/rollout/vllm_rollout/vllm_async_server.py",
    "self.lora_as_adapter or is_torch_npu_available(check_device=False):\n            sleep_level = 1",
    ("v0.8.0", "7aed6b2", "8851219"),
)


def _asleep_on_host(facts: PlanInputs, engine: EngineMemory | None) -> int:
    """Return the bytes that a die's engine keeps in host memory while it sleeps."""
    switches = [
        facts.values.value(f"{ROLLOUT}.{name}") for name in ("free_cache_engine", "enable_sleep_mode")
    ]
    sleeps = facts.npu and all(switch is not False for switch in switches)
    return total(engine.own) if engine is not None and sleeps and facts.upstream.has(_LEVEL_1) else 0


# A buffer on the die that a rank fills with weights, and that its engine maps and loads from.
_BUCKET = Place(
    "verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py",
    "buffer = torch.empty(self.bucket_size, dtype=torch.uint8, device=",
    ("v0.8.0", "7aed6b2", "8851219"),
)
_CHECKPOINT_ENGINE = f"{ROLLOUT}.checkpoint_engine"
_BUCKET_MB = 2048  # verl/trainer/config/rollout/rollout.yaml:284@7aed6b2


def _bucket(facts: PlanInputs) -> int:
    """Return the size of the bucket that sends weights to a server on the same die; 0 for other transports."""
    backend = facts.values.value(f"{_CHECKPOINT_ENGINE}.backend")
    if not (facts.server_mode and backend in (None, "naive") and facts.upstream.has(_BUCKET)):
        return 0
    return (facts.whole(f"{_CHECKPOINT_ENGINE}.update_weights_bucket_megabytes") or _BUCKET_MB) * 2**20


def _phases(
    facts: PlanInputs,
    training: Training,
    engines: Sequence[EngineMemory],
    overhead: Overhead,
    batches: Batches,
) -> Iterator[Phase]:
    asleep = facts.values.value(f"{ROLLOUT}.free_cache_engine") is not False
    passes = [PhaseName.UPDATE]
    # verl/workers/actor/megatron_actor.py:205@55e3c5b; cann-recipes-train's trainer leaves them out
    if facts.values.value(f"{ACTOR}.recompute_old_log_prob") is not False:
        passes.insert(0, PhaseName.OLD_LOG_PROB)
    if has_reference(facts):
        passes.insert(-1, PhaseName.REFERENCE)
    for number, one in enumerate(training.stages):
        resident = present([*one.resident.items(), *one.resident_late.items()])
        engine_parts: Parts = {}
        if engines:
            engine = engines[number]
            if not asleep:
                engine_parts = present([*engine.own.items(), (Part.KV_CACHE, engine.cache.size)])
            moving = {
                Part.ACTOR_WEIGHTS: one.weights,
                Part.GATHERED: training.gathered,
                Part.BUCKET: _bucket(facts),
            }
            beside = (engine_parts or engine.own, overhead.parts)
            yield _phase(PhaseName.WEIGHT_SYNC, number, resident, moving, *beside)
            generate = _phase(PhaseName.GENERATE, number, resident, engine.parts(engine.cache.size))
            yield replace(generate, settled=engine.profiled if engine.share is not None else {})
        for name in passes:
            if (micro := batches[name]) is not None:
                needed = (
                    training.update(number, micro)
                    if name is PhaseName.UPDATE
                    else training.log_prob(number, micro, reference=name is PhaseName.REFERENCE)
                )
                yield _phase(name, number, resident, needed, engine_parts, overhead.parts)


def _phase(name: PhaseName, number: int, resident: Parts, *others: Parts) -> Phase:
    """Return a phase with the parts it needs and the resident ones. Parts in both are counted once."""
    needed = present(item for parts in others for item in parts.items())
    left = {part: size for part, size in resident.items() if part not in needed}
    largest = {part: max(size, resident.get(part, 0)) for part, size in needed.items()}
    return Phase(name, number, {**largest, **left})


def _assumptions(
    facts: PlanInputs, shape: ModelConfig, engine: EngineMemory | None, overhead: Overhead
) -> Iterator[str]:
    """Yield what a recipe or its tree decides; docs/plan.md has what is assumed for all."""
    cite = facts.upstream.cite
    if shape.kind and shape.kind not in KNOWN_TYPES:
        yield f"model_type {shape.kind!r} is unknown here: its parameters are counted as those of a Llama"
    if engine is not None:
        cache = engine.cache
        yield f"KV cache: {cache.per_token} bytes a token, in blocks of {cache.block} tokens, one of them vLLM's own"
        if counts_only_itself(facts):
            cited = cite("MemorySnapshot", SNAPSHOT[facts.recipe.device])
            yield f"the engine's share is its own process's: what its device had before is beside it {cited}"
    if _asleep_on_host(facts, engine):
        yield f"while the engine sleeps, its weights wait on the host {cite('level 1', _LEVEL_1)}"
    two = "; a die has two processes: training's and the engine's" if overhead.processes > 1 else ""
    if facts.npu:
        yield (
            f"HCCL, an estimate: {overhead.groups} groups of more than one rank, 2 x HCCL_BUFFSIZE "
            f"({overhead.buffer_mb} MB) each; CANN's context, an estimate: 1 GB a process{two}"
        )
    if _bucket(facts):
        yield f"weights reach the engine in a bucket on the die {cite('update_weights_bucket_megabytes', _BUCKET)}"
    if uses_fused_kernels(facts):
        yield "no logits: fused kernels are on"


def _not_counted(facts: PlanInputs, batches: Batches) -> Iterator[str]:
    for name, micro in batches.items():
        if micro is None and not (name is PhaseName.REFERENCE and not has_reference(facts)):
            lengths = "" if facts.length else " or the data's lengths"
            yield f"{name.label}: {name.micro_batch_key}{lengths} is not set"
    if facts.recipe.device == "cuda":
        yield "NCCL's buffers and CUDA's context"
    if facts.layout is not None and facts.layout.rollout is None:
        yield "generate: the trainer itself generates, which keeps no cache of a fixed size"
    if rank := lora_rank(facts):
        yield f"LoRA (rank {rank}): counted as if all weights were trained"
