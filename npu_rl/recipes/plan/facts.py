"""What rules and figures are computed from: the trainer's values, the environment, the model's shape, the layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npu_rl.errors import NpuRlError, RecipeError
from npu_rl.manifest.problems import KeyPath
from npu_rl.recipes.batch_rules import Values
from npu_rl.recipes.hydra_files import ConfigTree
from npu_rl.recipes.known_switches import patched_switches
from npu_rl.recipes.load import LoadedRecipe
from npu_rl.recipes.plan.shape import Shape, shape_of
from npu_rl.recipes.plan.sizes import Layout, RolloutSizes, TrainSizes, layout_with
from npu_rl.recipes.schema import Recipe
from npu_rl.recipes.settings import Setting, flat, merged, settings

ACTOR, ROLLOUT, REFERENCE = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
TRANSFORMER = f"{ACTOR}.megatron.override_transformer_config"
# The trainer's defaults of its layout, for a recipe without a workspace.
_ONE = tuple(
    f"{ACTOR}.megatron.{name}_parallel_size"
    for name in ("tensor_model", "pipeline_model", "context", "expert_model")
)


@dataclass(frozen=True)
class Facts:
    """One recipe's. unknown: why there is no shape and no layout. given: what the recipe says to the trainer.

    switches: adaptations that the manifest's patches bring and that are on. mindspeed: whether MindSpeed is in the
    tree; on NPUs it is, unless a workspace shows otherwise. code: the workspace's code folder, if there is one.
    """

    recipe: Recipe
    values: Values
    env: Mapping[str, str]
    shape: Shape | None
    layout: Layout | None
    unknown: RecipeError | None
    switches: frozenset[str]
    given: Mapping[str, Setting]
    mindspeed: bool
    loaded: LoadedRecipe
    code: Path | None = None

    def path(self, key: str) -> KeyPath:
        """The recipe's key that says a key of the trainer; empty if none does."""
        return self.given[key].path if key in self.given else ()

    def whole(self, key: str) -> int | None:
        """A whole number the trainer will have; None if nothing says it."""
        return self.values.whole(key)

    def on(self, key: str) -> bool:
        """Whether a switch is on; off if nothing says it."""
        return self.values.value(key) is True

    def transformer(self, name: str) -> Any:
        """A value of Megatron's and MindSpeed's configuration."""
        return self.values.value(f"{TRANSFORMER}.{name}")

    @property
    def world(self) -> int:
        return self.recipe.cluster.world

    @property
    def npu(self) -> bool:
        return self.recipe.device == "npu"

    @property
    def vllm(self) -> bool:
        return bool(self.values.value(f"{ROLLOUT}.name") == "vllm")

    @property
    def answers(self) -> int | None:
        """Answers of one step."""
        prompts, each = self.whole("data.train_batch_size"), self.whole(f"{ROLLOUT}.n")
        return prompts * each if prompts and each else None

    @property
    def copies(self) -> int | None:
        """Copies of the model in training, the data parallel size."""
        if self.layout is None:
            return None
        train = self.layout.train
        return self.world // (train.tensor * train.pipeline * train.context * train.sequence) or None

    @property
    def engines(self) -> int | None:
        """Parts the answers of a step are divided into for generation."""
        if self.layout is None or self.layout.rollout is None:
            return None
        return self.world // self.layout.rollout.tensor or None

    @property
    def length(self) -> int | None:
        """Tokens of the longest sequence."""
        prompt, response = self.whole("data.max_prompt_length"), self.whole("data.max_response_length")
        return prompt + response if prompt and response else None

    @property
    def expert_parallel(self) -> bool:
        """Whether the engine divides whole experts over its dies."""
        return self.on(f"{ROLLOUT}.engine_kwargs.vllm.enable_expert_parallel") or bool(
            self.layout and self.layout.rollout and self.layout.rollout.data > 1
        )


def facts_of(loaded: LoadedRecipe, code: Path | None = None, tree: ConfigTree | None = None) -> Facts:
    """Return the facts of a recipe.

    Args:
        loaded: The recipe.
        code: The workspace's code folder, if there is one.
        tree: The trainer's configuration files composed, which fill what the recipe leaves out.
    """
    recipe = loaded.recipe
    given = merged(list(flat(settings(recipe))))
    known_without = {} if tree else dict.fromkeys(_ONE, 1)
    values = Values({**known_without, **{key: setting.value for key, setting in given.items()}}, tree)
    env, patched = _of_manifest(loaded)
    env = {**env, **recipe.env}
    shape, unknown = None, None
    try:
        shape = shape_of(loaded)
    except RecipeError as error:
        unknown = error
    return Facts(
        recipe=recipe,
        values=values,
        env=env,
        shape=shape,
        layout=None if shape is None else _as_set(layout_with(recipe, shape, env), values),
        unknown=unknown,
        switches=frozenset(slug for slug in patched if recipe.adaptations.get(slug, True)),
        given=given,
        mindspeed=recipe.device == "npu" if code is None else (code / "mindspeed").is_dir(),
        loaded=loaded,
        code=code,
    )


def _as_set(layout: Layout, values: Values) -> Layout:
    """The layout with what `overrides` and the configuration files say."""
    old, part = layout.train, f"{ACTOR}.megatron"
    train = TrainSizes(
        tensor=values.whole(f"{part}.tensor_model_parallel_size", old.tensor) or 1,
        pipeline=values.whole(f"{part}.pipeline_model_parallel_size", old.pipeline) or 1,
        context=values.whole(f"{part}.context_parallel_size", old.context) or 1,
        expert=values.whole(f"{part}.expert_model_parallel_size", old.expert) or 1,
        expert_tensor=values.whole(f"{part}.expert_tensor_parallel_size", old.expert_tensor),
    )
    if not layout.megatron:
        train = TrainSizes(
            shard=values.whole(f"{ACTOR}.fsdp_config.fsdp_size", old.shard) or -1,
            sequence=values.whole(f"{ACTOR}.ulysses_sequence_parallel_size", old.sequence) or 1,
        )
    rollout = layout.rollout
    if rollout is not None:
        tensor = values.whole(f"{ROLLOUT}.tensor_model_parallel_size", rollout.tensor) or 1
        rollout = RolloutSizes(tensor, rollout.data)
    return replace(layout, train=train, rollout=rollout)


def _of_manifest(loaded: LoadedRecipe) -> tuple[Mapping[str, str], frozenset[str]]:
    """The environment the manifest gives every run, and the adaptations its patches bring.

    Nothing if it can't be read, which setup tells.
    """
    from npu_rl.manifest.load import load_manifest

    try:
        found = load_manifest(loaded.manifest)
        entries = [entry for part in found.manifest.components.values() for entry in part.patches]
        places = [
            found.locate(entry.path) for entry in (*entries, *found.manifest.tree.patches) if not entry.from_
        ]
    except NpuRlError:
        return {}, frozenset()
    return found.manifest.env, frozenset().union(*map(patched_switches, places))
