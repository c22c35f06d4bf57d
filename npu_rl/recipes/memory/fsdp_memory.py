"""Memory of an FSDP or FSDP2 actor and its reference, as verl shards and moves it.

Sources: verl/workers/fsdp_workers.py@55e3c5b (the actor in fp32 with bf16 mixed precision, the reference in bf16 and
always on the host), verl/workers/actor/dp_actor.py@55e3c5b, torch.distributed.fsdp.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.recipes.memory.activations import (
    FSDP_LOGITS,
    Recompute,
    WorkSplit,
    forward_peak,
    kept_for_backward,
    working_set,
)
from npu_rl.recipes.memory.memory_parts import Part, Parts, present
from npu_rl.recipes.memory.training_memory import (
    StageMemory,
    Training,
    divided,
    has_entropy,
    has_reference,
    larger_of,
    uses_fused_kernels,
)
from npu_rl.recipes.sizing.micro_batches import MicroBatch
from npu_rl.recipes.sizing.model_config import ModelConfig
from npu_rl.recipes.sizing.parallelism import Parallelism
from npu_rl.recipes.sizing.plan_inputs import ACTOR, PlanInputs
from npu_rl.recipes.sizing.weight_sizes import EMBEDDING, HEAD, count_parameters, layer

_BF16, _FP32 = 2, 4
_MODEL = "actor_rollout_ref.model"


def fsdp_training(facts: PlanInputs, layout: Parallelism, shape: ModelConfig) -> Training:
    """Return the memory of the actor and the reference on a die."""
    memory = _FsdpMemory(facts, layout, shape)
    ranks = memory.ranks
    return Training(
        stages=(memory.stage,),
        update=memory.update,
        old_log_prob=memory.old_log_prob,
        reference=memory.reference if has_reference(facts) else None,
        gathered=memory.size * max(shape.vocabulary * shape.hidden, shape.feed_forward * shape.hidden),
        assumed=(
            f"FSDP over {ranks} {'rank' if ranks == 1 else 'ranks'}: weights and gradients {memory.size} bytes, Adam's "
            f"two moments {2 * memory.size}, all sharded; the reference in bf16 on the host",
            "gathered: embedding and head, two layers, one unit's gradients in bf16 and fp32, at the fullest moment",
            "activations, an estimate: "
            + ("each layer keeps its input" if memory.recompute.granularity else "all layers keep theirs"),
            f"weights go to the engine tensor by tensor, each gathered in {'fp32' if memory.size == _FP32 else 'bf16'}",
        ),
    )


class _FsdpMemory:
    def __init__(self, facts: PlanInputs, layout: Parallelism, shape: ModelConfig) -> None:
        self._facts, self._shape = facts, shape
        shard = layout.train.shard
        self.ranks = shard if 0 < shard < layout.world else layout.world
        section = f"{ACTOR}.fsdp_config"
        named = facts.values.value(f"{section}.model_dtype")
        self.size = _BF16 if named in ("bf16", "bfloat16", "fp16", "float16") else _FP32
        self._all_on_host = layout.strategy == "fsdp2" and facts.on(f"{section}.offload_policy")
        self._offload, self._offload_optimizer = (
            self._all_on_host or facts.on(f"{section}.{name}_offload") for name in ("param", "optimizer")
        )
        # gradient checkpointing is on unless a value says otherwise (verl/trainer/config/model/hf_model.yaml)
        checkpointing = facts.values.value(f"{_MODEL}.enable_gradient_checkpointing") is not False
        self.recompute = Recompute("full", "uniform", 1) if checkpointing else Recompute()
        self._split = WorkSplit(sequence_parallel=False)
        self.stage = self._stage_memory()
        self._units = _units(shape, self.ranks, layout.strategy)

    def _stage_memory(self) -> StageMemory:
        counts = count_parameters(self._shape)
        sharded = divided(sum(counts.values()), self.ranks)
        weights, states = self.size * sharded, 2 * self.size * sharded
        optimizer = weights if self._all_on_host else 0
        return StageMemory(
            range(self._shape.layers),
            counts,
            weights,
            weights,
            states,
            on_host=present(
                [
                    (Part.ACTOR_WEIGHTS, weights if self._offload else 0),
                    (Part.ACTOR_GRADIENTS, optimizer),
                    (Part.REFERENCE_WEIGHTS, _BF16 * sharded if has_reference(self._facts) else 0),
                    (Part.OPTIMIZER, states if self._offload_optimizer else 0),
                ]
            ),
            resident=present([(Part.ACTOR_WEIGHTS, 0 if self._offload else weights)]),
            resident_late=present([(Part.OPTIMIZER, 0 if self._offload_optimizer else states)]),
        )

    def update(self, _stage: int, micro: MicroBatch) -> Parts:
        """Return the shards of weights, gradients and optimizer states, and the backward pass's peak."""
        one, shape = self.stage, self._shape
        activations = kept_for_backward(shape, one.layers, micro.tokens, self._split, self.recompute)
        work = working_set(shape, one.layers, micro.tokens, self._split, self.recompute)
        logits = self._logits(micro, "entropy-backward" if has_entropy(self._facts) else "backward")
        on_die = 0 if self._all_on_host else 1
        peaks = self._peaks(activations, work, logits)
        return present(
            [
                (Part.ACTOR_WEIGHTS, on_die * one.weights),
                (Part.ACTOR_GRADIENTS, on_die * one.gradients),
                (Part.OPTIMIZER, on_die * one.states),
                *max(peaks, key=lambda parts: sum(size for _, size in parts)),
            ]
        )

    def _peaks(self, activations: int, work: int, logits: int) -> list[list[tuple[Part, int]]]:
        """Return the candidates for the peak: at the loss, and in the backward pass of head, layer and embedding.

        A unit's gradients are there in bf16 and, to be reduced, in fp32. FSDP's root has embedding and head together
        and stays from the forward pass on; FSDP2 has a unit of each (apply_fsdp2, verl/utils/fsdp_utils.py@55e3c5b).
        """
        units, one, gradient = self._units, _BF16 * self._units.layer, _BF16 + _FP32
        root = _BF16 * units.root
        at_loss = max(root, _BF16 * units.head) + one
        of_head = root + (_BF16 + gradient) * units.head + one
        of_layer = 2 * root + 2 * one + gradient * units.layer
        of_embedding = (_BF16 + gradient) * max(units.root, units.embedding)
        kept = (Part.ACTIVATIONS, activations)
        return [
            [(Part.FSDP_UNITS, at_loss), kept, (Part.LOGITS, logits)],
            [(Part.FSDP_UNITS, of_head), kept],
            [(Part.FSDP_UNITS, of_layer), (Part.ACTIVATIONS, activations + work)],
            [(Part.FSDP_UNITS, of_embedding)],
        ]

    def old_log_prob(self, _stage: int, micro: MicroBatch) -> Parts:
        """Return the actor's shard, the gathered units, and the logits with the copies for the entropy."""
        return self._log_prob(micro, 0 if self._all_on_host else self.stage.weights, "entropy")

    def reference(self, _stage: int, micro: MicroBatch) -> Parts:
        """Return the units gathered from the host, and the logits."""
        return self._log_prob(micro, 0, "plain")

    def _log_prob(self, micro: MicroBatch, weights: int, kind: str) -> Parts:
        work = forward_peak(self._shape, micro.tokens, self._split)
        return present(
            [
                (Part.ACTOR_WEIGHTS, weights),
                (Part.FSDP_UNITS, _BF16 * (self._units.largest + 2 * self._units.layer)),
                *larger_of(work, self._logits(micro, kind)).items(),
            ]
        )

    def _logits(self, micro: MicroBatch, kind: str) -> int:
        if uses_fused_kernels(self._facts):
            return 0
        chunked = kind.startswith("entropy") and self._facts.on(f"{ACTOR}.entropy_from_logits_with_chunking")
        return FSDP_LOGITS["backward" if chunked else kind] * micro.tokens * self._shape.vocabulary


@dataclass(frozen=True)
class _Units:
    """Parameters that are gathered at the same time.

    Attributes:
        root: FSDP's root unit with embedding and head; 0 if each is a unit.
        embedding: The embedding's unit, or 0.
        head: The head's unit, or 0.
        layer: The largest layer.
    """

    root: int
    embedding: int
    head: int
    layer: int

    @property
    def largest(self) -> int:
        """The largest unit outside of layers."""
        return max(self.root, self.embedding, self.head)


def _units(shape: ModelConfig, ranks: int, strategy: str) -> _Units:
    if ranks == 1:
        return _Units(0, 0, 0, 0)
    counts = count_parameters(shape)
    of_each_kind = (0, shape.layers - 1) if shape.layers else ()
    one = max(sum(layer(shape, number).values()) for number in of_each_kind)
    embedding, head = counts[EMBEDDING], counts[HEAD]
    if strategy == "fsdp2" and not shape.tied:
        return _Units(0, embedding, head, one)
    return _Units(embedding + head, 0, 0, one)
