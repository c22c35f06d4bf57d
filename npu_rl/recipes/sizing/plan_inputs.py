"""The inputs of rules and figures: the trainer's values, the environment, the model's shape, the layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from npu_rl.common.errors import NpuRlError, RecipeError
from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import Setting
from npu_rl.recipes.sizing.batch_arithmetic import TrainerValues, sequence_parallel
from npu_rl.recipes.sizing.model_config import ModelConfig, shape_of
from npu_rl.recipes.sizing.parallelism import (
    DATA_KEY,
    SERVER_DATA_KEY,
    SERVER_EXPERT_KEY,
    Parallelism,
    RolloutSizes,
    TrainSizes,
    layout_with,
)
from npu_rl.recipes.trainer_code.adaptation_switches import given_switches, headers_of, patched_switches
from npu_rl.recipes.trainer_code.citations import CitedCode, Place
from npu_rl.recipes.trainer_code.config_tree import ConfigTree

ACTOR, ROLLOUT, REFERENCE = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
TRANSFORMER = f"{ACTOR}.megatron.override_transformer_config"
GENERATED = "data.gen_batch_size"
"""Prompts that responses are generated for at once; the data loader's batch in all of verl's trainers
(_create_dataloader, verl/trainer/ppo/ray_trainer.py@55e3c5b). Left out, it is data.train_batch_size."""
# The trainer's defaults of its layout, for a recipe without a workspace.
_DEFAULT_SIZES = tuple(
    f"{ACTOR}.megatron.{name}_parallel_size"
    for name in ("tensor_model", "pipeline_model", "context", "expert_model")
)
# Where the trainer of cann-recipes-train has them: a switch that has to be on, "" for none, and the key. Upstream
# verl has no such keys or, at 55e3c5b, doesn't read them.
_CANN = Place(
    "verl_patches/train_engine/initialize_training.py",
    "megatron.pipeline_parallel_num_layer_list",
    ("bcd3be7",),
)
# It divides whole experts over the tensor ranks, too, instead of each expert (MindSpeed's moe_tp_extend_ep).
_CANN_EXPERTS = Place(
    "verl_patches/train_engine/initialize_training.py", "config_dict['moe_tp_extend_ep'] = True", ("bcd3be7",)
)
# Its rollout turns vllm-ascend's scheduler on, whatever the recipe says, and computes how many sequences it decodes.
CANN_SCHEDULER = Place(
    "verl_patches/workers/vllm_rollout/vllm_rollout_spmd.py",
    '"ascend_scheduler_config": {\n                "enabled": True,',
    ("bcd3be7",),
)
# The rollout is made of vLLM servers. verl 0.6 has both kinds, by rollout.mode; from 0.7 on there are servers only.
_SERVERS = Place(
    "verl/workers/rollout/replica.py", "* self.config.data_parallel_size", ("v0.8.0", "7aed6b2", "8851219")
)
# Before f7dfb99795 (0.16) the tensor ranks had to divide the KV heads.
_SHARED_KV_HEADS = Place(
    "megatron/core/transformer/transformer_config.py", "must be a multiple or divisor of", ("core_v0.16.1",)
)
_ADDITIONAL = f"{ROLLOUT}.engine_kwargs.vllm.additional_config"
_LAYERS = f"{ACTOR}.megatron.pipeline_parallel_num_layer_list"
_CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
_CHECKPOINTING_KWARGS = "actor_rollout_ref.model.gradient_checkpointing_kwargs.activations_checkpoint"
_CANN_KEYS = {
    "swap_optimizer": ("", f"{ACTOR}.megatron.swap_optimizer"),
    "recompute_granularity": (_CHECKPOINTING, f"{_CHECKPOINTING_KWARGS}_granularity"),
    "recompute_method": (_CHECKPOINTING, f"{_CHECKPOINTING_KWARGS}_method"),
    "recompute_num_layers": (_CHECKPOINTING, f"{_CHECKPOINTING_KWARGS}_num_layers"),
}


@dataclass(frozen=True)
class PlanInputs:
    """The inputs for one recipe.

    Attributes:
        values: The trainer's values.
        env: The environment of the run.
        shape: The model's shape, if it is known.
        sizes: The layout, of whose model nothing is known if the shape isn't.
        layout: The layout, if the shape is known.
        unknown: Why there is no shape and no layout.
        switches: Adaptations of the manifest's patches that are on.
        given: The trainer's settings that the recipe makes, by key.
        mindspeed: Whether the tree has MindSpeed; without a workspace, whether the device is an NPU.
        upstream: The code that rules rest on, in the workspace or by the manifest's pins.
        off: Adaptations of the manifest's patches that are off.
        code: The workspace's code folder, if there is one.
    """

    recipe: Recipe
    values: TrainerValues
    env: Mapping[str, str]
    shape: ModelConfig | None
    sizes: Parallelism
    layout: Parallelism | None
    unknown: RecipeError | None
    switches: frozenset[str]
    given: Mapping[str, Setting]
    mindspeed: bool
    loaded: LoadedRecipe
    upstream: CitedCode
    off: frozenset[str] = frozenset()
    code: Path | None = None

    def path(self, key: str) -> KeyPath:
        """Return the recipe's key that sets a key of the trainer; empty if none does."""
        return self.given[key].path if key in self.given else ()

    def whole(self, key: str) -> int | None:
        """Return the trainer's value of a key if it is an integer, else None."""
        return self.values.whole(key)

    def on(self, key: str) -> bool:
        """Return whether a switch is on; off if it isn't set."""
        return self.values.value(key) is True

    def transformer(self, name: str) -> Any:
        """Return a value of Megatron's or MindSpeed's configuration, from the key that this trainer reads."""
        value = self.values.value(f"{TRANSFORMER}.{name}")
        if value is not None or name not in _CANN_KEYS or not self.is_cann_trainer:
            return value
        switch, key = _CANN_KEYS[name]
        return self.values.value(key) if not switch or self.on(switch) else None

    def transformer_keys(self, name: str) -> tuple[str, str]:
        """Return the trainer's key for such a value, and the switch that must be on for it ("" if none)."""
        if name in _CANN_KEYS and self.is_cann_trainer:
            switch, key = _CANN_KEYS[name]
            return key, switch
        return f"{TRANSFORMER}.{name}", ""

    @property
    def sequence_parallel_key(self) -> str:
        """The key whose value becomes Megatron's sequence parallelism.

        mbridge and verl's older converter derive it from the tensor parallel size, whatever the actor's own key is.
        """
        own, override = f"{ACTOR}.megatron.sequence_parallel", f"{TRANSFORMER}.sequence_parallel"
        bridge = self.values.value(f"{ACTOR}.megatron.vanilla_mbridge")
        return own if bridge is False and self.values.value(override) is None else override

    @property
    def is_cann_trainer(self) -> bool:
        """Return whether the trainer is cann-recipes-train's, which has its own keys for layers and recomputation."""
        return self.upstream.has(_CANN)

    @property
    def world(self) -> int:
        """All dies."""
        return self.recipe.cluster.world

    @property
    def megatron(self) -> bool:
        """Return whether Megatron trains."""
        return self.recipe.megatron

    @property
    def npu(self) -> bool:
        """Return whether the recipe runs on NPUs."""
        return self.recipe.device == "npu"

    @property
    def cpu(self) -> bool:
        """Return whether the recipe runs on a CPU, whose memory isn't judged."""
        return self.recipe.device == "cpu"

    @property
    def vllm(self) -> bool:
        """Return whether vLLM generates."""
        return bool(self.values.value(f"{ROLLOUT}.name") == "vllm")

    @property
    def swaps(self) -> bool:
        """Return whether MindSpeed swaps the optimizer's states."""
        return bool(self.transformer("swap_optimizer"))

    @property
    def batched(self) -> bool:
        """Return whether a step's responses and the replicas that share them are known."""
        return bool(
            self.whole("data.train_batch_size") and (self.whole(f"{ROLLOUT}.n") or 0) > 0 and self.replicas
        )

    @property
    def generated(self) -> int | None:
        """The number of responses generated at once.

        The trainer v1 of verl 0.9 reads GENERATED at a time until it has a batch (trainer_base.py:1341@8851219).
        """
        read = None if self.on("trainer.use_v1") else self.whole(GENERATED)
        return self._responses(read or self.whole("data.train_batch_size"))

    @property
    def responses(self) -> int | None:
        """The number of responses that a step trains on: all generated ones, unless DAPO's filter selects some."""
        chosen = self.on("algorithm.filter_groups.enable")
        return self._responses(self.whole("data.train_batch_size")) if chosen else self.generated

    def _responses(self, prompts: int | None) -> int | None:
        each = self.whole(f"{ROLLOUT}.n")
        return prompts * each if prompts and each else None

    @property
    def replicas(self) -> int | None:
        """The number of data-parallel replicas in training."""
        train = self.sizes.train
        return self.world // (train.tensor * train.pipeline * train.context * train.sequence) or None

    @property
    def engines(self) -> int | None:
        """The number of engines that share a step's responses."""
        rollout = self.sizes.rollout
        return None if rollout is None else self.world // rollout.tensor or None

    @property
    def length(self) -> int | None:
        """The length of the longest sequence in tokens."""
        prompt, response = self.whole("data.max_prompt_length"), self.whole("data.max_response_length")
        return prompt + response if prompt and response else None

    @property
    def expert_parallel(self) -> bool:
        """Return whether the engine divides whole experts over its dies."""
        if self.server_mode:
            return (self.whole(SERVER_EXPERT_KEY) or 1) > 1
        # the second is the verl_npu plugin's own key
        named = ("engine_kwargs.vllm.enable_expert_parallel", "enable_expert_parallel")
        return any(self.on(f"{ROLLOUT}.{name}") for name in named) or bool(
            self.layout and self.layout.rollout and self.layout.rollout.data > 1
        )

    @property
    def server_mode(self) -> bool:
        """Return whether vLLM servers generate, in processes of their own."""
        return self.vllm and _is_server_mode(self.values, self.upstream)

    @property
    def ascend_scheduler_forced(self) -> bool:
        """Return whether the trainer itself enables vllm-ascend's scheduler, as cann-recipes-train's does."""
        return self.upstream.has(CANN_SCHEDULER)

    @property
    def whole_prompts(self) -> bool:
        """Return whether prompts are prefilled whole: vllm-ascend's scheduler is on, without its chunked prefill."""
        if self.ascend_scheduler_forced:
            return True
        return self._scheduler("enabled") is True and self._scheduler("enable_chunked_prefill") is not True

    def _scheduler(self, name: str) -> Any:
        """Return a value of the Ascend scheduler's section, set by its own key or within a whole section."""
        value = self.values.value(f"{_ADDITIONAL}.ascend_scheduler_config.{name}")
        section = self.values.value(_ADDITIONAL)
        scheduler = section.get("ascend_scheduler_config") if isinstance(section, dict) else None
        return scheduler.get(name) if value is None and isinstance(scheduler, dict) else value

    @property
    def rollout_data_key(self) -> str:
        """The recipe's key for the rollout's data-parallel size."""
        if self.server_mode:
            return f"overrides.{SERVER_DATA_KEY}"
        own = self.whole(DATA_KEY)
        return f"overrides.{DATA_KEY}" if own is not None and own > 1 else "env.VLLM_DP_SIZE"


def facts_of(loaded: LoadedRecipe, code: Path | None = None, tree: ConfigTree | None = None) -> PlanInputs:
    """Return the inputs for a recipe.

    Args:
        loaded: The recipe.
        code: The workspace's code folder, if there is one.
        tree: The trainer's composed configuration, for keys that the recipe leaves out.
    """
    recipe = loaded.recipe
    given = loaded.settings
    known_without = {} if tree else dict.fromkeys(_DEFAULT_SIZES, 1)
    values = TrainerValues({**known_without, **{key: setting.value for key, setting in given.items()}}, tree)
    defaults = _manifest_defaults(loaded)
    env = {**defaults.env, **recipe.env}
    switches = given_switches(recipe.adaptations, env)
    on = {
        slug
        for slug, default in defaults.switches.items()
        if (default if slug not in switches else switches[slug].on)
    }
    upstream = CitedCode(code, defaults.pins, recipe.trainer.module)
    shape, unknown = None, None
    try:
        shape = shape_of(loaded)
    except RecipeError as error:
        unknown = error
    sizes = _with_settings(layout_with(recipe, shape, env), values, upstream)
    return PlanInputs(
        recipe=recipe,
        values=values,
        env=env,
        shape=shape,
        sizes=sizes,
        layout=None if shape is None else sizes,
        unknown=unknown,
        switches=frozenset(on),
        given=given,
        mindspeed=recipe.device == "npu" if code is None else (code / "mindspeed").is_dir(),
        loaded=loaded,
        upstream=upstream,
        off=frozenset(defaults.switches.keys() - on),
        code=code,
    )


def _with_settings(layout: Parallelism, values: TrainerValues, upstream: CitedCode) -> Parallelism:
    """Return the layout with values from `overrides` and the configuration files applied."""
    old, part = layout.train, f"{ACTOR}.megatron"
    train = TrainSizes(
        tensor=values.whole(f"{part}.tensor_model_parallel_size", old.tensor) or 1,
        pipeline=values.whole(f"{part}.pipeline_model_parallel_size", old.pipeline) or 1,
        context=values.whole(f"{part}.context_parallel_size", old.context) or 1,
        expert=values.whole(f"{part}.expert_model_parallel_size", old.expert) or 1,
        expert_tensor=values.whole(f"{part}.expert_tensor_parallel_size", old.expert_tensor),
    )
    if layout.megatron and upstream.has(_CANN_EXPERTS):
        train = replace(train, expert=train.expert * train.tensor, expert_tensor=1)
    if not layout.megatron:
        train = TrainSizes(
            shard=values.whole(f"{ACTOR}.fsdp_config.fsdp_size", old.shard) or -1,
            sequence=sequence_parallel(values, upstream)[0],
        )
    rollout = layout.rollout
    if rollout is not None:
        tensor = values.whole(f"{ROLLOUT}.tensor_model_parallel_size", rollout.tensor) or 1
        servers = _is_server_mode(values, upstream)
        rollout = RolloutSizes(tensor, values.whole(SERVER_DATA_KEY, 1) or 1 if servers else rollout.data)
    model, given = layout.model, values.value(_LAYERS)
    if layout.megatron:
        model = replace(model, shared_kv_heads=upstream.has(_SHARED_KV_HEADS))
    whole = isinstance(given, list) and bool(given) and all(type(one) is int for one in given)
    if layout.megatron and whole and upstream.has(_CANN):
        model = replace(model, stage_layers=tuple(given))
    return replace(layout, train=train, rollout=rollout, model=model)


def _is_server_mode(values: TrainerValues, upstream: CitedCode) -> bool:
    return upstream.has(_SERVERS) and values.value(f"{ROLLOUT}.mode") != "sync"


@dataclass(frozen=True)
class _ManifestDefaults:
    """Settings that a manifest applies to every run.

    Attributes:
        env: The environment.
        switches: The adaptations of its patches, and whether each is on by default.
        pins: Its refs and PyPI requirements.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, bool] = field(default_factory=dict)
    pins: tuple[str, ...] = ()


def run_environment(loaded: LoadedRecipe) -> dict[str, str]:
    """Return the environment of a run: the manifest's variables, overridden by the recipe's."""
    return {**_manifest_defaults(loaded).env, **loaded.recipe.env}


def _manifest_defaults(loaded: LoadedRecipe) -> _ManifestDefaults:
    """Return the settings of the recipe's manifest; empty if it can't be read, which `setup` reports."""
    try:
        found = loaded.stack_facts
        places = found.patch_files()
    except NpuRlError:
        return _ManifestDefaults()
    headers = [*found.headers, *(header for place in places for header in headers_of(place))]
    return _ManifestDefaults(found.env, patched_switches(headers), found.pins)
