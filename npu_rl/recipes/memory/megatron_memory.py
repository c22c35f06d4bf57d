"""Memory of a Megatron actor and its reference, by pipeline stage, as verl keeps and moves it.

Sources: verl/utils/megatron_utils.py@55e3c5b (offload_megatron_model_to_cpu: weights and gradients leave the die
together, with `offload.parameters`; nothing reads `grad_offload`), verl/workers/megatron_workers.py@55e3c5b (what is
loaded for which phase), megatron/core/optimizer/distrib_optimizer.py@core_v0.12.1.
"""

from __future__ import annotations

from npu_rl.recipes.memory.activations import Activations
from npu_rl.recipes.memory.measured_runs import CPU_OFFLOAD
from npu_rl.recipes.memory.memory_parts import Part, Parts, present
from npu_rl.recipes.memory.training_memory import (
    StageMemory,
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

# Bytes that one token takes for each word of a rank's vocabulary, as verl's code computes them (55e3c5b).
_LOGITS = {
    # output layer bf16 (2), Float16Module's float() of it (4); vocab_parallel_cross_entropy then works in place
    # (megatron/core/transformer/module.py:180, tensor_parallel/cross_entropy.py:31@core_v0.12.1)
    "plain": 6,
    # float (4), its clone (4), softmax (4) and a product (4) of vocab_parallel_entropy
    # (verl/workers/actor/megatron_actor.py:517, verl/utils/megatron/tensor_parallel.py:113@55e3c5b)
    "entropy": 16,
    # the same with the sum of both gradients, and its bf16 copy
    "entropy-backward": 18,
}

_UTILS = "verl/utils/megatron_utils.py"
# Megatron-core's HybridDeviceOptimizer computes a share of the update on the host. verl's engine leaves its states
# there; older workers moved them to the die for each update (load_megatron_optimizer, megatron_utils.py@55e3c5b).
_HYBRID = (
    Place("megatron/core/optimizer/__init__.py", "optimizer = HybridDeviceOptimizer(", ("core_v0.16.1",)),
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


class MegatronMemory:
    """Memory of the actor and the reference on each stage. A part that is resident, too, counts once.

    Attributes:
        stages: Memory by pipeline stage.
        gathered: Bytes of the largest tensor on its way to the engine: every rank's expert and its copy, or the
            embedding.
        assumed: Assumptions, for people.
    """

    def __init__(
        self, facts: PlanInputs, layout: Parallelism, shape: ModelConfig, ranges: list[range]
    ) -> None:
        """Read the settings, and count what stays on a die and on its host."""
        self._facts, self._layout, self._shape = facts, layout, shape
        train, part = layout.train, f"{ACTOR}.megatron"
        self._offload = facts.on(f"{part}.param_offload")
        self._offload_optimizer = facts.on(f"{part}.optimizer_offload")
        self._distributed = facts.values.value(f"{part}.use_distributed_optimizer") is not False
        in_fp32 = facts.values.value(f"{part}.override_ddp_config.grad_reduce_in_fp32") is not False
        self._gradient = GRADIENT if in_fp32 else WEIGHT
        self._set_host_share()
        self._activations = Activations(
            shape,
            train.tensor,
            1 if _divides_whole_experts(facts) else layout.expert_tensor,
            facts.values.value(facts.sequence_parallel_key) is not False,
            megatron_recompute(facts, shape.layers, train.pipeline),
        )
        end = len(ranges) - 1
        self.stages = tuple(self._stage(layers, i == 0, i == end) for i, layers in enumerate(ranges))
        words = shape.vocabulary * shape.hidden * (2 if train.tensor > 1 else 1)
        together = train.expert + 1 if shape.experts and train.expert > 1 else 0
        self.gathered = WEIGHT * max(2 * shape.expert_width * shape.hidden * together, words)

    def _set_host_share(self) -> None:
        """Read the share of the states that optimizer_cpu_offload keeps on the host even during the update.

        With verl's own optimizer_offload besides, a published run whose fraction is 0.4 had none on its dies: its peak
        was that of weights and gradients (measured_runs.py), where Megatron-core's code alone leaves 60 % there: verl
        has it bring those of the optimizer on the die back, since MindSpeed's AdamW is not the class of the one on the
        host (megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py:364@core_v0.16.1,
        mindspeed/core/optimizer/adamw.py@e4772499).
        """
        facts, fraction = self._facts, 0.0
        if facts.on(CPU_OFFLOAD) and all(map(facts.upstream.has, _HYBRID)):
            given = facts.values.value(f"{_OWN_OPTIMIZER}.optimizer_offload_fraction")
            number = isinstance(given, int | float) and not isinstance(given, bool)
            fraction = min(1.0, max(0.0, float(given))) if number else 0.0
        self._fraction, self._share = fraction, 1.0 if fraction and self._offload_optimizer else fraction
        # Without use_precision_aware_optimizer the distributed optimizer makes an fp32 copy of that share on the die
        # (megatron/core/optimizer/distrib_optimizer.py:378@core_v0.16.1).
        aware = (f"{where}.use_precision_aware_optimizer" for where in (f"{ACTOR}.optim", _OWN_OPTIMIZER))
        self._copies = not any(map(facts.on, aware))

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions, for people."""
        states = "divided over the data-parallel ranks" if self._distributed else "whole on every die"
        notes = [
            f"weights 2 bytes a parameter, gradients {self._gradient} and whole on every die, optimizer 12 and {states}"
        ]
        if self._share:
            where = self._facts.upstream.cite("HybridDeviceOptimizer", _HYBRID[0])
            host = f"{self._share:.0%} of the optimizer's states stay on the host, with gradients in fp32 {where}"
            measured = (
                f"no optimizer states on a die during the update, as a published run measured it; by the code "
                f"{1 - self._fraction:.0%} of them are there {where}"
            )
            notes.append(measured if self._share > self._fraction else host)
        return tuple(notes)

    def _stage(self, layers: range, first: bool, last: bool) -> StageMemory:
        facts, layout = self._facts, self._layout
        share = training_share(layout.train.tensor, layout.train.expert, layout.expert_tensor)
        counts = stage(self._shape, layers, share, first=first, last=last)
        whole, experts = sum(counts.values()), counts[EXPERTS]
        groups = train_groups(layout)
        ranks, expert_ranks = (groups["data_context"], groups["expert_data"]) if self._distributed else (1, 1)
        states = divided(STATES * (whole - experts), ranks) + divided(STATES * experts, expert_ranks)
        weights, gradients, on_die = WEIGHT * whole, self._gradient * whole, self._on_die(states)
        reference = weights if has_reference(facts) else 0
        reference_offload = facts.on(f"{REFERENCE}.megatron.param_offload")
        # a copy of the weights, and of the larger of DDP's two buffers, for experts and for all others
        copies = weights + WEIGHT * max(experts, whole - experts)
        away = facts.swaps or self._offload_optimizer
        # states on the host: the share, and pinned fp32 gradients of the configured part
        hybrid = int(states * self._share) + int(states * self._fraction) * GRADIENT // STATES
        early = on_die * _COPY // STATES
        return StageMemory(
            layers,
            counts,
            weights,
            gradients,
            states,
            on_host=present(
                [
                    (Part.ACTOR_WEIGHTS, weights if self._offload else 0),
                    (Part.PINNED_COPIES, copies if self._offload and facts.upstream.has(_NEW_COPIES) else 0),
                    (Part.REFERENCE_WEIGHTS, reference if reference_offload else 0),
                    (Part.OPTIMIZER, hybrid + (on_die if away else 0)),
                ]
            ),
            resident=present(
                [
                    (Part.ACTOR_WEIGHTS, 0 if self._offload else weights),
                    (Part.ACTOR_GRADIENTS, 0 if self._offload else gradients),
                    (Part.REFERENCE_WEIGHTS, 0 if reference_offload else reference),
                    (Part.OPTIMIZER, 0 if away else early),
                ]
            ),
            resident_late=present([(Part.OPTIMIZER, 0 if away else on_die - early)]),
        )

    def _on_die(self, states: int) -> int:
        """Return the part of `states` bytes that the die needs during the update."""
        offloaded = int(states * self._share)
        return states - offloaded + (offloaded * _COPY // STATES if self._copies else 0)

    def update(self, number: int, micro: MicroBatch) -> Parts:
        """Return weights, gradients and optimizer, and the activations of the micro batches in flight."""
        one = self.stages[number]
        flight = max(1, len(self.stages) - number)
        flight = min(flight, micro_batches_of_update(self._facts, micro) or flight)
        kept = flight * self._activations.kept(one.layers, micro.tokens)
        work = self._activations.working_set(one.layers, micro.tokens)
        kind = "entropy-backward" if has_entropy(self._facts) else "plain"
        return present(
            [
                (Part.ACTOR_WEIGHTS, one.weights),
                (Part.ACTOR_GRADIENTS, one.gradients),
                (Part.SWAPPED, one.states // _SWAP_TIMES)
                if self._facts.swaps
                else (Part.OPTIMIZER, self._on_die(one.states)),
                (Part.ACTIVATIONS, kept),
                *larger_of(work, self._logits(number, micro, kind)).items(),
            ]
        )

    def log_prob(self, number: int, micro: MicroBatch, *, reference: bool) -> Parts:
        """Return the weights of the actor or the reference, and logits, for old log-probs with the entropy's copies."""
        work = self._activations.forward_peak(micro.tokens)
        logits = self._logits(number, micro, "plain" if reference else "entropy")
        part = Part.REFERENCE_WEIGHTS if reference else Part.ACTOR_WEIGHTS
        return present([(part, self.stages[number].weights), *larger_of(work, logits).items()])

    def _logits(self, number: int, micro: MicroBatch, kind: str) -> int:
        """Return the bytes of the last stage's logits; 0 with fused kernels."""
        if number != len(self.stages) - 1 or uses_fused_kernels(self._facts):
            return 0
        return _LOGITS[kind] * micro.tokens * (self._shape.vocabulary // self._layout.train.tensor)


def _divides_whole_experts(facts: PlanInputs) -> bool:
    """Return whether tensor ranks divide the set of experts, not each expert (MindSpeed's moe_tp_extend_ep).

    cann-recipes-train's trainer sets it (verl_patches/train_engine/initialize_training.py:183@bcd3be7).
    """
    return facts.transformer("moe_tp_extend_ep") is True or facts.is_cann_trainer
