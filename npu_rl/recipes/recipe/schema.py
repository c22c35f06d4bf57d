"""The recipe's schema, version 1: one run, typed.

A value that is left out is the trainer's own default. Each field names the trainer's keys that it is written to
(`recipe_fields.key`), so the modules of the schema are also the table of what a recipe can steer. The keys are those of
verl 0.5.0 (`verl/trainer/config/`); a check compares them with the tree of the workspace.
"""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from npu_rl.common.errors import RecipeError
from npu_rl.common.yaml_documents import scalar_types
from npu_rl.common.yaml_documents.strict_model import Fault, Strict
from npu_rl.recipes.recipe import recipe_fields as f
from npu_rl.recipes.recipe.recipe_fields import setting
from npu_rl.recipes.recipe.schema_model_and_data import Data, Model, Reward
from npu_rl.recipes.recipe.schema_rollout import Rollout
from npu_rl.recipes.recipe.schema_run import (
    Checkpoint,
    Cluster,
    FaultExceptions,
    Logging,
    PhaseWatch,
    PlanExceptions,
)
from npu_rl.recipes.recipe.schema_trainer import Trainer
from npu_rl.recipes.recipe.schema_training import Actor, Algorithm, Offload, Optimizer, Reference

_trainer = partial(setting, "trainer.")
_NEEDED_OF_VERL = ("model", "data", "rollout", "actor", "optimizer")
SECTIONS_OF_VERL = (*_NEEDED_OF_VERL, "algorithm", "reference", "offload", "logging")
_OF_VERL = (
    *((name,) for name in SECTIONS_OF_VERL),
    *(("reward", name) for name in ("function", "arguments", "manager")),
    ("checkpoint", "keep"),
)
_ABSENT: Any = None  # required of verl's trainer, by `rules`, and dropped for one with keys of its own
_NO_MEANING = "has no meaning where the trainer's keys are its own (trainer.keys)"


class AbsentSection(RecipeError, AttributeError):
    """Access to a section that a recipe has not, since its trainer's keys are its own."""


class Recipe(Strict):
    """A recipe as written: one run, from the manifest to the last override."""

    schema_: scalar_types.SchemaVersion = Field(
        alias="schema", description="Version of the recipe's format: 1."
    )
    name: f.Name = Field(description="Name of the recipe and of its run.")
    title: f.Text = Field(description="One line for people.")
    extends: scalar_types.Extends | None = f.optional(
        "A bundled recipe or a relative path to start from; ~ removes a key of it."
    )
    manifest: f.Text = Field(description="The manifest whose tree this is for.")
    device: Literal["npu", "cuda", "cpu"] = Field(description="The kind of device that it runs on.")
    steps: f.Positive = _trainer("Steps to train.", "total_training_steps", default=...)
    seed: f.Whole = setting(
        "",
        "Seed for the data's order, sampling, and made-up models and data.",
        "data.seed",
        megatron="actor_rollout_ref.actor.megatron.seed",
        default=1,
    )
    benchmark: f.Switch = Field(
        default=False,
        description="It is for timing and trains nothing of use: random weights, responses without an end.",
    )
    trainer: Trainer = Field(default=Trainer(), description="The program that is run.")
    model: Model = Field(default=_ABSENT, description="The model that is trained.")
    data: Data = Field(default=_ABSENT, description="The prompts.")
    reward: Reward = Field(default=Reward(), description="The reward of a response.")
    algorithm: Algorithm = Field(default=Algorithm(), description="The algorithm.")
    rollout: Rollout = Field(default=_ABSENT, description="The generation of responses.")
    actor: Actor = Field(default=_ABSENT, description="The policy that is trained.")
    reference: Reference = Field(default=Reference(), description="The frozen policy.")
    optimizer: Optimizer = Field(default=_ABSENT, description="The actor's optimizer.")
    offload: Offload = Field(default=Offload(), description="Offloading to the host's memory.")
    cluster: Cluster = Field(description="The machines.")
    env: dict[f.Variable, f.AnyText] = Field(default={}, description="Environment of every node.")
    logging: Logging = Field(default=Logging(), description="Logs, metrics and samples.")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="Checkpoints to resume from.")
    watch: PhaseWatch = Field(default=PhaseWatch(), description="Limits after which a run counts as hanging.")
    adaptations: dict[f.Slug, f.Switch] = Field(
        default={}, description="Our adaptations of upstream, each on or off; off is upstream's behaviour."
    )
    plan: PlanExceptions = Field(
        default=PlanExceptions(), description="Exceptions to the rules of `npu-rl plan`."
    )
    faults: FaultExceptions = Field(
        default=FaultExceptions(),
        description="Known faults of the tree that the run accepts (`npu-rl faults`).",
    )
    overrides: dict[f.TrainerKey, f.Scalar] = Field(
        default={},
        description="Keys of the trainer itself, written last. For what this schema has no word for.",
    )

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield errors of a GPU cluster, and of sections that are missing or don't apply to the trainer."""
        yield from _faults_of_gpus(data)
        if _has(data, ("trainer", "keys")):
            yield from _faults_beside_own_keys(data, data["trainer"]["keys"])
        else:
            missing = [name for name in _NEEDED_OF_VERL if name not in data]
            yield from (((name,), f"required key {name!r} is missing") for name in missing)

    def model_post_init(self, context: Any, /) -> None:
        """Drop defaults of sections that don't apply to a trainer with its own keys."""
        del context
        if self.trainer.keys is not None:
            for name in SECTIONS_OF_VERL:
                self.__dict__.pop(name, None)
            if "checkpoint" not in self.model_fields_set:
                self.__dict__["checkpoint"] = Checkpoint(every=None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in SECTIONS_OF_VERL:
                raise AbsentSection(
                    f"recipe {self.name}: {name} {_NO_MEANING}",
                    why="Commands that need this section accept recipes for verl's trainers only.",
                )
            return super().__getattr__(name)

    @property
    def has_own_keys(self) -> bool:
        """Return whether its trainer is not verl's: the sections on verl's keys (SECTIONS_OF_VERL) are absent then."""
        return self.trainer.keys is not None

    @property
    def megatron(self) -> bool:
        """Return whether verl's Megatron backend trains it."""
        return not self.has_own_keys and self.actor.strategy == "megatron"


def _faults_of_gpus(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield errors of a cluster of GPUs: each is one device, and they differ in memory."""
    cluster = data.get("cluster")
    if data.get("device") != "cuda" or not isinstance(cluster, Mapping):
        return
    if cluster.get("dies_per_card", 1) not in (1, "1"):
        yield ("cluster", "dies_per_card"), "must be 1 where the device is cuda: a GPU is one device"
    if cluster.get("die_memory_gb") is None:
        yield ("cluster",), "die_memory_gb has to be given where the device is cuda: GPUs differ in memory"


def _faults_beside_own_keys(data: Mapping[str, Any], keys: object) -> Iterator[Fault]:
    """Yield errors of settings for verl's keys, and of words that the trainer has no key for."""
    for path in _OF_VERL:
        if _has(data, path):
            name = ".".join(path)
            yield path, f"{name} {_NO_MEANING}: set the trainer's own keys under overrides"
    for word in (("seed",), ("checkpoint", "every")):
        if _has(data, word) and not _has(keys, word):
            name = ".".join(word)
            yield word, f"the trainer has no key for it: set trainer.keys.{name} to the key it is written to"


def _has(data: object, path: tuple[str, ...]) -> bool:
    """Return whether raw data has a key path."""
    for name in path:
        if not isinstance(data, Mapping) or name not in data:
            return False
        data = data[name]
    return True
