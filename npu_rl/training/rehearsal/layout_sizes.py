"""The sizes of a layout: what a recipe says, whether they fit each other, and the tiny layout they are tried on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from npu_rl.training.rehearsal.layout_report import Check

_TINY = 2  # the largest size of a dimension of the tiny layout


@dataclass(frozen=True)
class TrainSizes:
    """How the actor is spread over the ranks, in ranks per dimension.

    The first five are Megatron's; `expert_tensor` left out is `tensor`, as Megatron has it. `shard` (-1: all ranks)
    and `sequence` (Ulysses) are FSDP's.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    shard: int = -1
    sequence: int = 1


@dataclass(frozen=True)
class RolloutSizes:
    """How vLLM spreads the model. `data` is the ranks that share the experts, VLLM_DP_SIZE; 1 is none."""

    tensor: int = 1
    data: int = 1


@dataclass(frozen=True)
class ModelSizes:
    """What of the model has to fit: counts from its config.json. No experts is 0.

    `stage_layers` are the layers of each pipeline stage, where the recipe gives them; else they are equal.
    """

    layers: int
    heads: int
    kv_heads: int
    experts: int = 0
    latent_attention: bool = False
    stage_layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layout:
    """One recipe's layout. `rollout` is None where answers are generated in the training process (hf).

    `transformer` is what the recipe hands to Megatron's and MindSpeed's configuration (actor.transformer).
    """

    world: int
    strategy: Literal["fsdp", "fsdp2", "megatron"]
    train: TrainSizes
    model: ModelSizes
    rollout: RolloutSizes | None = None
    transformer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def megatron(self) -> bool:
        """Whether the Megatron backend trains it."""
        return self.strategy == "megatron"

    @property
    def expert_tensor(self) -> int:
        """Tensor parallel size of the experts, with Megatron's default."""
        return self.train.expert_tensor or self.train.tensor

    def train_job(self) -> dict[str, int]:
        """The training sizes for a child."""
        return {**vars(self.train), "expert_tensor": self.expert_tensor}


def fit(layout: Layout) -> list[Check]:
    """Whether the sizes fit the world, each other and the model; one check a rule."""
    training = _fit_megatron(layout) if layout.megatron else _fit_fsdp(layout)
    return [*training, *_fit_rollout(layout)]


def _fit_megatron(layout: Layout) -> Iterator[Check]:
    train, model, world = layout.train, layout.model, layout.world
    yield _divides("training sizes", world, train.tensor * train.pipeline * train.context, "ranks", "data")
    yield _divides("heads over tensor ranks", model.heads, train.tensor, "heads", "per rank")
    if not model.latent_attention:
        yield _divides("key-value heads over tensor ranks", model.kv_heads, train.tensor, "heads", "per rank")
    if model.stage_layers:
        stages, layers = len(model.stage_layers), sum(model.stage_layers)
        yield Check(
            "layers over pipeline stages",
            stages == train.pipeline and layers == model.layers,
            {"layers": model.layers, "stages": train.pipeline, "given": list(model.stage_layers)},
            f"{layers} layers on {stages} stages, where there are {model.layers} and {train.pipeline}",
        )
    else:
        yield _divides("layers over pipeline stages", model.layers, train.pipeline, "layers", "per stage")
    if model.experts:
        ranks = layout.expert_tensor * train.expert * train.pipeline
        yield _divides("expert sizes", world, ranks, "ranks", "expert data")
        yield _divides("experts over ranks", model.experts, train.expert, "experts", "per rank")
    elif train.expert > 1:
        why = f"expert parallel over {train.expert} ranks, but the model has no experts"
        yield Check("experts over ranks", False, {"experts": 0, "by": train.expert}, why)


def _fit_fsdp(layout: Layout) -> Iterator[Check]:
    train = layout.train
    if 0 < train.shard < layout.world:
        yield _divides("training sizes", layout.world, train.shard, "ranks", "copies")
    yield _divides("sequence sizes", layout.world, train.sequence, "ranks", "data")
    yield _divides("heads over sequence ranks", layout.model.heads, train.sequence, "heads", "per rank")


def _fit_rollout(layout: Layout) -> Iterator[Check]:
    if layout.rollout is None:
        return
    tensor, data = layout.rollout.tensor, layout.rollout.data
    yield _divides("rollout sizes", layout.world, tensor * data, "ranks", "engines")
    yield _divides("heads over rollout ranks", layout.model.heads, tensor, "heads", "per rank")
    if layout.model.experts and data > 1:
        yield _divides(
            "experts over rollout ranks", layout.model.experts, tensor * data, "experts", "per rank"
        )


def _divides(name: str, whole: int, by: int, what: str, share: str) -> Check:
    if by < 1:
        return Check(name, False, {what: whole, "by": by}, f"{by} is no size")
    ok = whole % by == 0
    figures = {what: whole, "by": by, **({share: whole // by} if ok else {})}
    return Check(name, ok, figures, f"{whole} {what} can't be split evenly {by} ways")


def train_groups(layout: Layout) -> dict[str, int]:
    """Ranks per group of each kind the training backend forms, for a layout that fits."""
    train, world = layout.train, layout.world
    if not layout.megatron:
        sharded = 0 < train.shard < world
        sizes = {"ddp": world // train.shard, "fsdp": train.shard} if sharded else {"fsdp": world}
        if train.sequence > 1:
            sizes |= {"data": world // train.sequence, "sequence": train.sequence}
        if layout.rollout is not None:
            sizes["rollout_tensor"] = layout.rollout.tensor
        return sizes
    data = world // (train.tensor * train.pipeline * train.context)
    return {
        "tensor": train.tensor,
        "pipeline": train.pipeline,
        "context": train.context,
        "data": data,
        "data_context": data * train.context,
        "model": train.tensor * train.pipeline,
        "expert": train.expert,
        "expert_tensor": layout.expert_tensor,
        "expert_data": world // (layout.expert_tensor * train.expert * train.pipeline),
    }


def rollout_groups(rollout: RolloutSizes) -> dict[str, int]:
    """Ranks per group of each kind vLLM forms."""
    return {
        "rollout_tensor": rollout.tensor,
        "rollout_data": rollout.data,
        "rollout_expert": rollout.tensor * rollout.data,
    }


def tiny(layout: Layout) -> tuple[int, dict[str, int]]:
    """World and training sizes of the tiny layout: every dimension at most 2, and as many ranks as that takes."""
    given = layout.train
    if not layout.megatron:
        sharded = 0 < given.shard < layout.world
        shard = min(given.shard, _TINY) if sharded else -1
        world = shard * min(layout.world // given.shard, _TINY) if sharded else min(layout.world, _TINY)
        return world, {"shard": shard, "sequence": 1}
    sizes = {name: min(getattr(given, name), _TINY) for name in ("tensor", "pipeline", "context", "expert")}
    sizes["expert_tensor"] = min(layout.expert_tensor, _TINY)
    dense = sizes["tensor"] * sizes["pipeline"] * sizes["context"]
    return math.lcm(dense, sizes["expert_tensor"] * sizes["expert"] * sizes["pipeline"]), sizes
