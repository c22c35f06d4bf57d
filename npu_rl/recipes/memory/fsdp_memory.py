"""Memory of an FSDP or FSDP2 actor and its reference, as verl shards and moves it.

Sources: verl/workers/fsdp_workers.py@55e3c5b (the actor in fp32 with bf16 mixed precision, the reference in bf16 and
always on the host), verl/workers/actor/dp_actor.py@55e3c5b, torch.distributed.fsdp.
"""

from __future__ import annotations

from npu_rl.recipes.memory.activations import Activations, Recompute
from npu_rl.recipes.memory.memory_parts import Part, Parts, present
from npu_rl.recipes.memory.training_memory import (
    StageMemory,
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
# Bytes that one token takes for each word of the vocabulary, as verl's code computes them (55e3c5b).
_LOGITS = {
    # bf16 logits and the log-softmax that npu_cross_entropy_loss returns (verl/utils/torch_functional.py:106@55e3c5b)
    "plain": 4,
    # and the gradient
    "backward": 6,
    # softmax, product and a copy in fp32 under autocast (entropy_from_logits, torch_functional.py:145@55e3c5b)
    "entropy": 16,
    "entropy-backward": 18,
}


class FsdpMemory:
    """Memory of the actor and the reference on a die. A part that is resident, too, counts once.

    Attributes:
        stages: The only pipeline stage.
        gathered: Bytes of the largest tensor on its way to the engine.
        assumed: Assumptions, for people.
    """

    def __init__(self, facts: PlanInputs, layout: Parallelism, shape: ModelConfig) -> None:
        """Read the settings, and count what stays on a die and on its host."""
        self._facts, self._shape = facts, shape
        section, shard = f"{ACTOR}.fsdp_config", layout.train.shard
        ranks = shard if 0 < shard < layout.world else layout.world
        half = facts.values.value(f"{section}.model_dtype") in ("bf16", "bfloat16", "fp16", "float16")
        size = _BF16 if half else _FP32
        self._all_on_host = layout.strategy == "fsdp2" and facts.on(f"{section}.offload_policy")
        offload, offload_optimizer = (
            self._all_on_host or facts.on(f"{section}.{name}_offload") for name in ("param", "optimizer")
        )
        # gradient checkpointing is on unless a value says otherwise (verl/trainer/config/model/hf_model.yaml)
        key = "actor_rollout_ref.model.enable_gradient_checkpointing"
        checkpointing = facts.values.value(key) is not False
        recompute = Recompute("full", "uniform", 1) if checkpointing else Recompute()
        self._activations = Activations(shape, recompute=recompute)
        self.gathered = size * max(shape.vocabulary, shape.feed_forward) * shape.hidden
        self.assumed = (
            f"FSDP over {ranks} {'rank' if ranks == 1 else 'ranks'}: weights and gradients {size} bytes, Adam's two "
            f"moments {2 * size}, all sharded; the reference in bf16 on the host",
        )
        counts = count_parameters(shape)
        sharded = divided(sum(counts.values()), ranks)
        weights, states = size * sharded, 2 * size * sharded
        self._stage = StageMemory(
            range(shape.layers),
            counts,
            weights,
            weights,
            states,
            on_host=present(
                [
                    (Part.ACTOR_WEIGHTS, weights if offload else 0),
                    (Part.ACTOR_GRADIENTS, weights if self._all_on_host else 0),
                    (Part.REFERENCE_WEIGHTS, _BF16 * sharded if has_reference(facts) else 0),
                    (Part.OPTIMIZER, states if offload_optimizer else 0),
                ]
            ),
            resident=present([(Part.ACTOR_WEIGHTS, 0 if offload else weights)]),
            resident_late=present([(Part.OPTIMIZER, 0 if offload_optimizer else states)]),
        )
        self.stages = (self._stage,)
        # Bytes in bf16 of what is gathered at once. FSDP's root has embedding and head together and stays from the
        # forward pass on; FSDP2 has a unit of each (apply_fsdp2, verl/utils/fsdp_utils.py@55e3c5b).
        apart = layout.strategy == "fsdp2" and not shape.tied
        embedding, head = (_BF16 * counts[part] if ranks > 1 else 0 for part in (EMBEDDING, HEAD))
        self._root, self._embedding, self._head = (0, embedding, head) if apart else (embedding + head, 0, 0)
        largest = max(sum(layer(shape, number).values()) for number in (0, shape.layers - 1))
        self._layer = _BF16 * largest if ranks > 1 else 0

    def update(self, _stage: int, micro: MicroBatch) -> Parts:
        """Return the shards of weights, gradients and optimizer states, and the backward pass's peak."""
        one, on_die = self._stage, 0 if self._all_on_host else 1
        activations = self._activations.kept(one.layers, micro.tokens)
        work = self._activations.working_set(one.layers, micro.tokens)
        logits = self._logits(micro, "entropy-backward" if has_entropy(self._facts) else "backward")
        return present(
            [
                (Part.ACTOR_WEIGHTS, on_die * one.weights),
                (Part.ACTOR_GRADIENTS, on_die * one.gradients),
                (Part.OPTIMIZER, on_die * one.states),
                *max(self._peaks(activations, work, logits), key=lambda parts: sum(parts.values())).items(),
            ]
        )

    def _peaks(self, activations: int, work: int, logits: int) -> list[dict[Part, int]]:
        """Return the candidates for the peak: at the loss, and in the backward pass of head, layer and embedding.

        A unit's gradients are there in bf16 and, to be reduced, in fp32: three times its bytes in bf16.
        """
        root, head, one = self._root, self._head, self._layer
        return [
            {Part.FSDP_UNITS: max(root, head) + one, Part.ACTIVATIONS: activations, Part.LOGITS: logits},
            {Part.FSDP_UNITS: root + 4 * head + one, Part.ACTIVATIONS: activations},
            {Part.FSDP_UNITS: 2 * root + 5 * one, Part.ACTIVATIONS: activations + work},
            {Part.FSDP_UNITS: 4 * max(root, self._embedding)},
        ]

    def log_prob(self, _stage: int, micro: MicroBatch, *, reference: bool) -> Parts:
        """Return the actor's shard or none of the reference, which is on the host, the gathered units, and the logits.

        Old log-probs have the copies for the entropy.
        """
        weights = 0 if reference or self._all_on_host else self._stage.weights
        work = self._activations.forward_peak(micro.tokens)
        logits = self._logits(micro, "plain" if reference else "entropy")
        largest = max(self._root, self._embedding, self._head)
        return present(
            [
                (Part.ACTOR_WEIGHTS, weights),
                (Part.FSDP_UNITS, largest + 2 * self._layer),
                *larger_of(work, logits).items(),
            ]
        )

    def _logits(self, micro: MicroBatch, kind: str) -> int:
        if uses_fused_kernels(self._facts):
            return 0
        chunked = kind.startswith("entropy") and self._facts.on(f"{ACTOR}.entropy_from_logits_with_chunking")
        return _LOGITS["backward" if chunked else kind] * micro.tokens * self._shape.vocabulary
