"""The layout of a recipe: its sizes of parallelism in training and in the rollout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.sizing.model_config import ModelConfig, shape_of

DATA_KEY = "actor_rollout_ref.rollout.dp_model_parallel_size"
"""Data parallel size of the rollout in verl with the verl_npu plugin, which sets VLLM_DP_SIZE by it
(vLLMRollout._init_dp_env, verl_npu/patch/verl/796871d7d/vllm_rollout_spmd.patch of MindSpeed-RL@v2.3.0)."""
SERVER_DATA_KEY = "actor_rollout_ref.rollout.data_parallel_size"
SERVER_EXPERT_KEY = "actor_rollout_ref.rollout.expert_parallel_size"
"""Sizes of a rollout that is made of vLLM servers. One takes tensor x data devices and divides the experts over all of
them: whole ones if the expert size is above 1 (vllm_async_server.py:304@7aed6b2, which overwrites engine_kwargs)."""


@dataclass(frozen=True)
class TrainSizes:
    """Ranks per dimension of the actor's parallelism.

    The first five are Megatron's, `shard` and `sequence` FSDP's.

    Attributes:
        expert_tensor: None is `tensor`, Megatron's default.
        shard: Ranks that one copy of the weights is sharded over; -1 is all.
        sequence: Ulysses sequence parallel size.
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
    """Ranks per dimension of vLLM's parallelism.

    Attributes:
        tensor: Tensor parallel size.
        data: Engines that share the experts, by VLLM_DP_SIZE, DATA_KEY or SERVER_DATA_KEY; 1 is none.
    """

    tensor: int = 1
    data: int = 1


@dataclass(frozen=True)
class ModelDivisors:
    """Counts in the model's config.json that a layout must divide.

    Attributes:
        experts: 0 is none.
        stage_layers: Layers of each pipeline stage if the recipe gives them; else they are equal.
        shared_kv_heads: Whether tensor ranks of the training may share a KV head.
    """

    layers: int
    heads: int
    kv_heads: int
    experts: int = 0
    latent_attention: bool = False
    stage_layers: tuple[int, ...] = ()
    shared_kv_heads: bool = False


@dataclass(frozen=True)
class Parallelism:
    """The layout of one recipe.

    Attributes:
        world: All ranks.
        strategy: The training backend.
        train: Training's sizes.
        model: The model's counts.
        rollout: vLLM's sizes; None if the training process generates (hf).
        transformer: Values for Megatron's and MindSpeed's configuration (actor.transformer).
    """

    world: int
    strategy: Literal["fsdp", "fsdp2", "megatron"]
    train: TrainSizes
    model: ModelDivisors
    rollout: RolloutSizes | None = None
    transformer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def megatron(self) -> bool:
        """Return whether the Megatron backend trains it."""
        return self.strategy == "megatron"

    @property
    def expert_tensor(self) -> int:
        """Tensor parallel size of the experts, with Megatron's default."""
        return self.train.expert_tensor or self.train.tensor

    def training_sizes(self) -> dict[str, int]:
        """Return the training sizes as plain data for a child process."""
        return {**vars(self.train), "expert_tensor": self.expert_tensor}

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """The layers of each stage, as set or divided evenly; empty if that isn't possible."""
        if self.model.stage_layers:
            return self.model.stage_layers
        each, rest = divmod(self.model.layers, self.train.pipeline)
        return () if rest or not self.megatron else (each,) * self.train.pipeline


def layout_of(loaded: LoadedRecipe) -> Parallelism:
    """Return the layout of a recipe. Raises RecipeError if its model's size is unknown."""
    return layout_with(loaded.recipe, shape_of(loaded), loaded.recipe.env)


def layout_with(recipe: Recipe, shape: ModelConfig | None, env: Mapping[str, str]) -> Parallelism:
    """Return the layout of a recipe with a model of this shape, in the run's environment.

    Args:
        shape: None for a model of unknown size: its counts are 0, and only the other sizes mean anything.
    """
    parallel = recipe.actor.parallel
    return Parallelism(
        world=recipe.cluster.world,
        strategy=recipe.actor.strategy,
        train=TrainSizes(
            tensor=parallel.tensor or 1,
            pipeline=parallel.pipeline or 1,
            context=parallel.context or 1,
            expert=parallel.expert or 1,
            expert_tensor=parallel.expert_tensor,
            shard=-1 if parallel.shard is None else parallel.shard,
            sequence=parallel.sequence or 1,
        ),
        model=ModelDivisors(0, 0, 0)
        if shape is None
        else ModelDivisors(
            layers=shape.layers,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            experts=shape.experts,
            latent_attention=shape.latent is not None,
            stage_layers=_stage_layers(shape, recipe),
        ),
        rollout=_rollout(recipe, env),
        transformer=dict(recipe.actor.transformer),
    )


def _rollout(recipe: Recipe, env: Mapping[str, str]) -> RolloutSizes | None:
    if recipe.rollout.engine != "vllm":
        return None
    own, by_env = recipe.overrides.get(DATA_KEY), env.get("VLLM_DP_SIZE", "1")
    data = own if type(own) is int and own > 1 else int(by_env) if by_env.isdigit() else 1
    return RolloutSizes(tensor=recipe.rollout.tensor_parallel or 1, data=data)


def _stage_layers(shape: ModelConfig, recipe: Recipe) -> tuple[int, ...]:
    """Return the layers of uneven pipeline stages if the recipe sets them, else an empty tuple.

    `pipeline_num_transformer_layers` is MindSpeed's, a list of lists as text (7ff818c4,
    features_manager/pipeline_parallel/unaligned_pineline_feature.py); first and last are Megatron-core's.
    """
    transformer = recipe.actor.transformer
    given = transformer.get("pipeline_num_transformer_layers")
    if given:
        return tuple(map(int, re.findall(r"\d+", str(given))))
    stages = recipe.actor.parallel.pipeline or 1
    first, last = (transformer.get(f"num_layers_in_{end}_pipeline_stage") for end in ("first", "last"))
    ends = [count for count in (first, last) if isinstance(count, int)]
    if not ends or stages < len(ends):
        return ()
    if stages == len(ends):
        return tuple(ends)
    middle, rest = divmod(shape.layers - sum(ends), stages - len(ends))
    if rest:
        return ()
    inner = [middle] * (stages - len(ends))
    return (*ends[:1], *inner, *ends[1:]) if first is not None else (*inner, *ends)
