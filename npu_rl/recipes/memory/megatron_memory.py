"""Memory of a Megatron actor and its reference, by pipeline stage, as verl keeps and moves it.

Sources: verl/utils/megatron_utils.py@55e3c5b (offload_megatron_model_to_cpu: weights and gradients leave the die
together, with `offload.parameters`; nothing reads `grad_offload`), verl/workers/megatron_workers.py@55e3c5b (what is
loaded for which phase), megatron/core/optimizer/distrib_optimizer.py@core_v0.12.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.recipes.memory.activations import (
    MEGATRON_LOGITS,
    WorkSplit,
    forward_peak,
    kept_for_backward,
    working_set,
)
from npu_rl.recipes.memory.measured_runs import CPU_OFFLOAD
from npu_rl.recipes.memory.memory_parts import Part, Parts, present
from npu_rl.recipes.memory.training_memory import (
    StageMemory,
    Training,
    divided,
    has_entropy,
    has_reference,
    larger_of,
    megatron_recompute,
    uses_fused_kernels,
)
from npu_rl.recipes.sizing.micro_batches import MicroBatch, micro_batches_of_update
from npu_rl.recipes.sizing.model_config import ModelConfig
from npu_rl.recipes.sizing.parallelism import Parallelism
from npu_rl.recipes.sizing.plan_inputs import ACTOR, REFERENCE, PlanInputs
from npu_rl.recipes.sizing.process_groups import train_groups
from npu_rl.recipes.sizing.weight_sizes import EXPERTS, stage, training_share
from npu_rl.recipes.trainer_code.citations import Place

WEIGHT, GRADIENT, STATES = 2, 4, 12  # bytes a parameter: bf16; fp32; fp32 copy and Adam's two moments
_COPY = 4  # of the states: the fp32 copy, created at the start; the moments are created at the first update
_SWAP_TIMES = 16  # default of MindSpeed's --swap-optimizer-times

_ENGINE, _UTILS = "verl/workers/engine/megatron/transformer_impl.py", "verl/utils/megatron_utils.py"
# What sends the weights, by whether vLLM servers get them.
_SENDS = {
    True: (
        "export_weights",
        Place(_ENGINE, "self.bridge.export_weights(", ("v0.8.0", "7aed6b2", "8851219")),
    ),
    False: (
        "per_tensor_generator",
        Place(_UTILS, "def per_tensor_generator(", ("55e3c5b", "54c9b73", "verl==0.5.0", "796871d")),
    ),
}
# Megatron-core's HybridDeviceOptimizer computes a share of the update on the host. verl's engine leaves its states
# there; older workers moved them to the die for each update (load_megatron_optimizer, megatron_utils.py@55e3c5b).
_HYBRID = (
    Place(
        "megatron/core/optimizer/__init__.py",
        "optimizer = HybridDeviceOptimizer(",
        ("core_v0.16.1",),
    ),
    Place(_UTILS, "_opt.optimizer._move_new_state_to_right_device()", ("v0.8.0", "7aed6b2", "8851219")),
)
# Workers that make a new pinned copy of the weights at each offload;
# verl 0.8 keeps one buffer for them (offload_megatron_model_to_cpu, verl/utils/megatron_utils.py:487@7aed6b2).
_NEW_COPIES = Place(
    _UTILS,
    "cpu_data = buffer.param_data.data.cpu().pin_memory()",
    ("55e3c5b", "54c9b73", "verl==0.5.0", "796871d", "cccc2ef"),
)
_OWN_OPTIMIZER = f"{ACTOR}.optim.override_optimizer_config"


def megatron_training(
    facts: PlanInputs, layout: Parallelism, shape: ModelConfig, ranges: list[range]
) -> Training:
    """Return the memory of the actor and the reference on each stage."""
    memory = _MegatronMemory(facts, layout, shape, ranges)
    return Training(
        stages=memory.stages,
        update=memory.update,
        old_log_prob=memory.old_log_prob,
        reference=memory.reference if has_reference(facts) else None,
        gathered=_largest_gathered(shape, layout),
        assumed=(
            f"weights bf16 (2 bytes), gradients {'fp32 (4)' if memory.gradient == 4 else 'bf16 (2)'}, optimizer fp32 "
            "copy and two moments (12)",
            "Megatron's distributed optimizer: states of experts over the expert data ranks, of all else over the data "
            "ranks; gradients are whole on every die"
            if memory.distributed
            else "no distributed optimizer: its states are whole on every die",
            *memory.hybrid.notes(facts),
            memory.activations_note,
            "weights go to the engine tensor by tensor, an expert's gathered from all expert ranks "
            + facts.upstream.cite(*_SENDS[facts.server_mode]),
        ),
    )


class _MegatronMemory:
    def __init__(
        self, facts: PlanInputs, layout: Parallelism, shape: ModelConfig, ranges: list[range]
    ) -> None:
        self._facts, self._layout, self._shape = facts, layout, shape
        part = f"{ACTOR}.megatron"
        self._offload, self._offload_optimizer = (
            facts.on(f"{part}.{name}_offload") for name in ("param", "optimizer")
        )
        self._reference_offload = facts.on(f"{REFERENCE}.megatron.param_offload")
        self._swaps_optimizer = bool(facts.transformer("swap_optimizer"))
        self.hybrid = _HybridOptimizer.of(facts)
        self.distributed = facts.values.value(f"{part}.use_distributed_optimizer") is not False
        in_fp32 = facts.values.value(f"{part}.override_ddp_config.grad_reduce_in_fp32") is not False
        self.gradient = GRADIENT if in_fp32 else WEIGHT
        self._recompute = megatron_recompute(facts, shape, layout.train.pipeline)
        train = layout.train
        parallel = facts.values.value(facts.sequence_parallel_key) is not False
        self._split = WorkSplit(
            train.tensor, 1 if _divides_whole_experts(facts) else layout.expert_tensor, parallel
        )
        end = len(ranges) - 1
        self.stages = tuple(self._stage(layers, i == 0, i == end) for i, layers in enumerate(ranges))

    @property
    def activations_note(self) -> str:
        """Notes on the activations that recomputation keeps."""
        recompute = self._recompute
        if recompute.granularity != "full":
            freed = ", but for what moe_zero_memory frees" if recompute.experts else ""
            return f"activations, an estimate: all layers keep theirs for the backward pass{freed}"
        if recompute.method == "block":
            return (
                f"activations, an estimate: the first {recompute.layers or 'all'} layers of a stage keep their input "
                "(block recompute), the others all of theirs"
            )
        chunk = recompute.layers or 1
        return f"activations, an estimate: each chunk of {chunk} layers keeps its input (full recompute)"

    def _stage(self, layers: range, first: bool, last: bool) -> StageMemory:
        layout, train = self._layout, self._layout.train
        share = training_share(train.tensor, train.expert, layout.expert_tensor)
        counts = stage(self._shape, layers, share, first=first, last=last)
        whole, experts = sum(counts.values()), counts[EXPERTS]
        groups = train_groups(layout)
        ranks, expert_ranks = (groups["data_context"], groups["expert_data"]) if self.distributed else (1, 1)
        states = divided(STATES * (whole - experts), ranks) + divided(STATES * experts, expert_ranks)
        weights, gradients = WEIGHT * whole, self.gradient * whole
        on_die = self.hybrid.on_die(states)
        has_ref = has_reference(self._facts)
        again = self._offload and self._facts.upstream.has(_NEW_COPIES)
        copies = weights + _largest_buffer(whole, experts) if again else 0
        away = self._swaps_optimizer or self._offload_optimizer
        return StageMemory(
            layers,
            counts,
            weights,
            gradients,
            states,
            on_host=present(
                [
                    (Part.ACTOR_WEIGHTS, weights if self._offload else 0),
                    (Part.PINNED_COPIES, copies),
                    (Part.REFERENCE_WEIGHTS, weights if has_ref and self._reference_offload else 0),
                    (Part.OPTIMIZER, self.hybrid.on_host(states) + (on_die if away else 0)),
                ]
            ),
            resident=present(
                [
                    (Part.ACTOR_WEIGHTS, 0 if self._offload else weights),
                    (Part.ACTOR_GRADIENTS, 0 if self._offload else gradients),
                    (Part.REFERENCE_WEIGHTS, weights if has_ref and not self._reference_offload else 0),
                    (Part.OPTIMIZER, 0 if away else on_die * _COPY // STATES),
                ]
            ),
            resident_late=present([(Part.OPTIMIZER, 0 if away else on_die - on_die * _COPY // STATES)]),
        )

    def update(self, number: int, micro: MicroBatch) -> Parts:
        """Return weights, gradients and optimizer, and the activations of the micro batches in flight."""
        one, shape, recompute = self.stages[number], self._shape, self._recompute
        stages = len(self.stages)
        flight = max(1, stages - number)
        batches = micro_batches_of_update(self._facts, micro)
        flight = min(flight, batches) if batches else flight
        kept = flight * kept_for_backward(shape, one.layers, micro.tokens, self._split, recompute)
        work = working_set(shape, one.layers, micro.tokens, self._split, recompute)
        kind = "entropy-backward" if has_entropy(self._facts) else "plain"
        most = larger_of(work, self._logits(number, micro, kind))
        return present(
            [
                (Part.ACTOR_WEIGHTS, one.weights),
                (Part.ACTOR_GRADIENTS, one.gradients),
                (Part.SWAPPED, one.states // _SWAP_TIMES)
                if self._swaps_optimizer
                else (Part.OPTIMIZER, self.hybrid.on_die(one.states)),
                (Part.ACTIVATIONS, kept),
                *most.items(),
            ]
        )

    def old_log_prob(self, number: int, micro: MicroBatch) -> Parts:
        """Return the actor's weights, and the logits with the copies for the entropy."""
        return self._log_prob(number, micro, Part.ACTOR_WEIGHTS, "entropy")

    def reference(self, number: int, micro: MicroBatch) -> Parts:
        """Return the reference's weights and logits."""
        return self._log_prob(number, micro, Part.REFERENCE_WEIGHTS, "plain")

    def _log_prob(self, number: int, micro: MicroBatch, weights: Part, kind: str) -> Parts:
        work = forward_peak(self._shape, micro.tokens, self._split)
        most = larger_of(work, self._logits(number, micro, kind))
        return present([(weights, self.stages[number].weights), *most.items()])

    def _logits(self, number: int, micro: MicroBatch, kind: str) -> int:
        """Return the bytes of the last stage's logits; 0 with fused kernels."""
        if number != len(self.stages) - 1 or uses_fused_kernels(self._facts):
            return 0
        words = self._shape.vocabulary // self._layout.train.tensor
        return MEGATRON_LOGITS[kind] * micro.tokens * words


@dataclass(frozen=True)
class _HybridOptimizer:
    """The optimizer's states that optimizer_cpu_offload keeps on the host even during the update.

    With verl's own optimizer_offload besides, a published run whose fraction is 0.4 had none on its dies: its peak was
    that of weights and gradients (measured_runs.py), where Megatron-core's code alone leaves 60 % there.

    Attributes:
        fraction: optimizer_offload_fraction; 0 without optimizer_cpu_offload.
        share: The share of the states that is never on the die.
        copies: Whether the die still keeps an fp32 copy of that share: without use_precision_aware_optimizer
            the distributed optimizer makes it (megatron/core/optimizer/distrib_optimizer.py:378@core_v0.16.1).
    """

    fraction: float = 0.0
    share: float = 0.0
    copies: bool = False

    @classmethod
    def of(cls, facts: PlanInputs) -> _HybridOptimizer:
        """Return the configured share; zero in trees where verl moves all states to the die."""
        if not (facts.on(CPU_OFFLOAD) and all(map(facts.upstream.has, _HYBRID))):
            return cls()
        given = facts.values.value(f"{_OWN_OPTIMIZER}.optimizer_offload_fraction")
        number = isinstance(given, int | float) and not isinstance(given, bool)
        fraction = min(1.0, max(0.0, float(given))) if number else 0.0
        offloads = facts.on(f"{ACTOR}.megatron.optimizer_offload")
        aware = (
            f"{ACTOR}.optim.use_precision_aware_optimizer",
            f"{_OWN_OPTIMIZER}.use_precision_aware_optimizer",
        )
        return cls(fraction, 1.0 if fraction and offloads else fraction, not any(map(facts.on, aware)))

    def notes(self, facts: PlanInputs) -> tuple[str, ...]:
        """Return notes on the assumptions about the share."""
        if not self.share:
            return ()
        where = facts.upstream.cite("HybridDeviceOptimizer", _HYBRID[0])
        if self.share > self.fraction:
            return (
                f"no optimizer states on a die during the update, as a published run measured it; by the code "
                f"{1 - self.fraction:.0%} of them are there {where}",
            )
        return (
            f"{self.share:.0%} of the optimizer's states stay on the host, with gradients in fp32 {where}",
        )

    def on_die(self, states: int) -> int:
        """Return the part of `states` bytes that the die needs during the update."""
        offloaded = int(states * self.share)
        return states - offloaded + (offloaded * _COPY // STATES if self.copies else 0)

    def on_host(self, states: int) -> int:
        """Return the bytes that are always on the host: states, and pinned fp32 gradients of the configured part."""
        return int(states * self.share) + int(states * self.fraction) * GRADIENT // STATES


def _divides_whole_experts(facts: PlanInputs) -> bool:
    """Return whether tensor ranks divide the set of experts, not each expert (MindSpeed's moe_tp_extend_ep).

    cann-recipes-train's trainer sets it (verl_patches/train_engine/initialize_training.py:183@bcd3be7).
    """
    return facts.transformer("moe_tp_extend_ep") is True or facts.is_cann_trainer


def _largest_buffer(whole: int, experts: int) -> int:
    """Return the bytes of the larger of DDP's two buffers, for experts and for all other parameters."""
    return WEIGHT * max(experts, whole - experts)


def _largest_gathered(shape: ModelConfig, layout: Parallelism) -> int:
    """Return the bytes of the largest tensor sent to the engine: every rank's expert and its copy, or the embedding."""
    ranks, tensor = layout.train.expert, layout.train.tensor
    words = shape.vocabulary * shape.hidden * (2 if tensor > 1 else 1)
    expert = 2 * shape.expert_width * shape.hidden * (ranks + 1) if shape.experts and ranks > 1 else 0
    return WEIGHT * max(expert, words)
