"""Memory per die and per host, by component, stage and phase of a step. Bytes; GB is 10^9 of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from npu_rl.recipes.plan.facts import ACTOR, REFERENCE, ROLLOUT, Facts
from npu_rl.recipes.plan.groups import rollout_groups, train_groups
from npu_rl.recipes.plan.shape import Shape
from npu_rl.recipes.plan.sizes import Layout
from npu_rl.recipes.plan.weights import (
    EXPERTS,
    Counts,
    cache_per_token,
    derived_of_latent,
    rollout_share,
    stage,
    stage_ranges,
    training_share,
)

WEIGHT, GRADIENT, STATES = 2, 4, 12  # bytes a parameter: bf16; fp32; fp32 copy and Adam's two moments
_SWAP_TIMES = 16  # default of MindSpeed's --swap-optimizer-times
_HCCL_MB = 200  # CANN's default of HCCL_BUFFSIZE, per communicator and direction
_ADAM = "the actor's optimizer states"

Parts = dict[str, int]  # what -> bytes


@dataclass(frozen=True)
class Phase:
    """What lies on one die at one moment of a step. where: the stage, or "" for all."""

    name: str
    stage: int
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class StageMemory:
    """One pipeline stage: its layers and, on each of its dies, parameters by component and bytes by kind.

    states: of the optimizer, this die's share. on_host: what of this die lies in the host's memory.
    """

    layers: range
    counts: Counts
    weights: int
    gradients: int
    states: int
    on_host: Mapping[str, int]


@dataclass(frozen=True)
class Memory:
    """The whole of it. engine: the rollout's parts, weights and cache. cache_tokens: what the cache is to hold.

    host: per node, of the node that needs most. assumed: what was taken for granted, for people.
    """

    stages: tuple[StageMemory, ...]
    rollout_counts: Counts
    engine: Mapping[str, int]
    phases: tuple[Phase, ...]
    host: Mapping[str, int]
    assumed: tuple[str, ...]

    def worst(self, name: str) -> Phase | None:
        """The phase of this name on the stage that needs most."""
        return max(
            (phase for phase in self.phases if phase.name == name), key=lambda p: p.total, default=None
        )


UPDATE, HANDOVER, GENERATE = "update", "hand-over", "generate"


def memory_of(facts: Facts) -> Memory | None:
    """The memory of a Megatron recipe with vLLM; None where shape or stages are unknown or the sizes don't fit."""
    layout, shape = facts.layout, facts.shape
    if layout is None or shape is None or not layout.megatron:
        return None
    ranges = stage_ranges(layout.stage_layers)
    if len(ranges) != layout.train.pipeline or sum(map(len, ranges)) != shape.layers:
        return None
    return _Memory(facts, layout, shape).whole(ranges)


class _Memory:
    def __init__(self, facts: Facts, layout: Layout, shape: Shape) -> None:
        self._facts, self._layout, self._shape = facts, layout, shape
        self._groups = train_groups(layout)
        self._swapped = bool(facts.transformer("swap_optimizer"))
        part = f"{ACTOR}.megatron"
        self._offload = {name: facts.on(f"{part}.{name}_offload") for name in ("param", "grad", "optimizer")}
        self._reference = _has_reference(facts)
        self._reference_offload = facts.on(f"{REFERENCE}.megatron.param_offload")
        self._assumed = [
            "weights bf16 (2 bytes), gradients fp32 (4), optimizer fp32 copy and two moments (12)",
            "Megatron's distributed optimizer: states of experts over the expert data ranks, of all else over the data "
            "ranks; gradients are whole on every die",
        ]

    def whole(self, ranges: list[range]) -> Memory:
        end = len(ranges) - 1
        stages = tuple(self._stage(layers, i == 0, i == end) for i, layers in enumerate(ranges))
        counts, engine = self._engine()
        phases = [phase for number, one in enumerate(stages) for phase in self._phases(number, one, engine)]
        return Memory(stages, counts, engine, tuple(phases), self._host(stages), tuple(self._assumed))

    def _stage(self, layers: range, first: bool, last: bool) -> StageMemory:
        train = self._layout.train
        share = training_share(train.tensor, train.expert, self._layout.expert_tensor)
        counts = stage(self._shape, layers, share, first=first, last=last)
        total, experts = sum(counts.values()), counts[EXPERTS]
        copies, expert_copies = self._groups["data_context"], self._groups["expert_data"]
        states = _divided(STATES * (total - experts), copies) + _divided(STATES * experts, expert_copies)
        on_host: Parts = {}
        if self._offload["param"]:
            on_host["the actor's weights"] = WEIGHT * total
        if self._reference and self._reference_offload:
            on_host["the reference's weights"] = WEIGHT * total
        if self._swapped or self._offload["optimizer"]:
            on_host[_ADAM] = states
        return StageMemory(layers, counts, WEIGHT * total, GRADIENT * total, states, on_host)

    def _engine(self) -> tuple[Counts, Parts]:
        rollout, facts = self._layout.rollout, self._facts
        if rollout is None:
            return Counts(), {}
        together = rollout.tensor * rollout.data if facts.expert_parallel else 1
        counts = stage(self._shape, range(self._shape.layers), rollout_share(rollout.tensor, together))
        parts: Parts = {"the engine's weights": WEIGHT * sum(counts.values())}
        derived = WEIGHT * derived_of_latent(self._shape, rollout.tensor)
        if derived:
            parts["what the engine derives from kv_b_proj"] = derived
            self._assume("vllm-ascend keeps W_UV and W_UK_T beside kv_b_proj (attention/mla_v1.py@v0.9.1rc2)")
        sequences, length = self._sequences(), facts.whole(f"{ROLLOUT}.max_model_len") or facts.length
        if sequences and length:
            each = cache_per_token(self._shape, rollout.tensor)
            parts["the KV cache"] = sequences * length * each
            self._assume(f"KV cache bf16, {each} bytes a token, for {sequences} sequences of {length} tokens")
        self._assume(
            "experts are spread evenly; tokens to them too (an imbalance needs more than is counted here)"
        )
        return counts, parts

    def _sequences(self) -> int | None:
        """Sequences that one engine decodes at once: no more than it gets."""
        facts = self._facts
        share = -(-facts.answers // facts.engines) if facts.answers and facts.engines else None
        given = facts.whole(f"{ROLLOUT}.max_num_seqs")
        return min(given, share) if given and share else given or share

    def _phases(self, number: int, one: StageMemory, engine: Parts) -> Iterator[Phase]:
        """The three moments that need most: the update, handing the weights over, generating."""
        freed = not engine or self._facts.values.value(f"{ROLLOUT}.free_cache_engine") is not False
        common = self._communicators()
        reference: Parts = {}
        if self._reference and not self._reference_offload:
            reference = {"the reference's weights": one.weights}
        update = {"the actor's weights": one.weights, "the actor's gradients": one.gradients}
        if self._swapped:
            update["optimizer states on their way"] = one.states // _SWAP_TIMES
        else:
            update[_ADAM] = one.states
        yield Phase(
            UPDATE,
            number,
            {**update, **self._activations(number), **reference, **common, **({} if freed else engine)},
        )
        if not engine:
            return
        left = dict(reference)
        if not self._offload["grad"]:
            left["the actor's gradients"] = one.gradients
        if not (self._swapped or self._offload["optimizer"]):
            left[_ADAM] = one.states
        weights = {name: size for name, size in engine.items() if name != "the KV cache"}
        actor = {"the actor's weights": one.weights}
        gather = {"one tensor of all experts, gathered": self._gathered()}
        held = weights if freed else engine
        yield Phase(HANDOVER, number, {**actor, **held, **gather, **left, **common})
        yield Phase(
            GENERATE, number, {**engine, **({} if self._offload["param"] else actor), **left, **common}
        )

    def _gathered(self) -> int:
        """The largest tensor that goes to the engine: an expert's of every rank and its copy, or the embedding."""
        shape, ranks = self._shape, self._layout.train.expert
        self._assume(
            "weights go to the engine tensor by tensor, an expert's gathered from all expert ranks "
            "(per_tensor_generator, verl/utils/megatron_utils.py@55e3c5b)"
        )
        expert = 2 * shape.expert_width * shape.hidden * (ranks + 1) if shape.experts and ranks > 1 else 0
        return WEIGHT * max(expert, shape.vocabulary * shape.hidden)

    def _activations(self, number: int) -> Parts:
        """An estimate; the rest of the plan is counted, this isn't."""
        facts, shape, train = self._facts, self._shape, self._layout.train
        length, micro = facts.length, facts.whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu") or 1
        if length is None:
            return {}
        tokens = length * micro // (train.tensor * train.context)
        layers = self._layout.stage_layers[number]
        recomputed = facts.transformer("recompute_granularity") == "full"
        flight = max(1, train.pipeline - number)
        working = 2 * tokens * (4 * shape.hidden + 4 * shape.heads * shape.head)
        working += 2 * tokens * shape.experts_per_token * (2 * shape.hidden + 3 * shape.expert_width)
        stored = 2 * tokens * shape.hidden if recomputed else working
        kept = "the input of each layer (full recompute)" if recomputed else "all of each layer"
        self._assume(
            f"activations, an estimate: {kept} for up to {train.pipeline} micro batches of {micro} x {length} tokens, "
            "one layer's own, and the logits in bf16 and twice in fp32 on the last stage"
        )
        parts = {"activations (estimate)": stored * layers * flight + working}
        if number == train.pipeline - 1:
            parts["logits (estimate)"] = (
                10 * length * micro // train.context * shape.vocabulary // train.tensor
            )
        return parts

    def _communicators(self) -> Parts:
        rollout = self._layout.rollout
        sizes = [*self._groups.values(), *(rollout_groups(rollout).values() if rollout else ())]
        count = 1 + sum(size > 1 for size in sizes)
        given = self._facts.env.get("HCCL_BUFFSIZE", "")
        size = int(given) if given.isdigit() else _HCCL_MB
        self._assume(f"HCCL: {count} groups of more than one rank, 2 x HCCL_BUFFSIZE ({size} MB) each")
        return {"HCCL's buffers": count * 2 * size * 10**6} if self._facts.npu else {}

    def _host(self, stages: tuple[StageMemory, ...]) -> Parts:
        """Of the node whose dies leave most with it."""
        dies, per_stage = self._facts.recipe.cluster.dies, self._facts.world // len(stages)
        nodes = []
        for begin in range(0, self._facts.world, dies):
            parts: Parts = {}
            for rank in range(begin, begin + dies):
                for name, size in stages[rank // per_stage].on_host.items():
                    parts[name] = parts.get(name, 0) + size
            nodes.append(parts)
        self._assume(
            "host: what is offloaded or swapped; besides it the system, Ray's object store (30% of the memory unless "
            "said otherwise) and one process a die"
        )
        return max(nodes, key=lambda parts: sum(parts.values()), default={})

    def _assume(self, text: str) -> None:
        if text not in self._assumed:
            self._assumed.append(text)


def _divided(size: int, by: int) -> int:
    return -(-size // max(1, by))


def _has_reference(facts: Facts) -> bool:
    return facts.on(f"{ACTOR}.use_kl_loss") or facts.on("algorithm.use_kl_in_reward")
