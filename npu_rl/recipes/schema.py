"""The recipe's schema, version 1: one run, typed.

A value that is left out is the trainer's own default. Each field names the trainer's keys that it is written to
(`recipe_fields.key`), so the modules of the schema are also the table of what a recipe can steer. The keys are those of
verl 0.5.0 (`verl/trainer/config/`); a check compares them with the tree of the workspace.
"""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from npu_rl.config import scalar_types
from npu_rl.config.strict_model import Fault, Strict
from npu_rl.recipes import recipe_fields as f
from npu_rl.recipes.recipe_fields import key
from npu_rl.recipes.schema_model_and_data import Data, Model, Reward
from npu_rl.recipes.schema_rollout import Rollout
from npu_rl.recipes.schema_run import Checkpoint, Cluster, Logging, PlanExceptions
from npu_rl.recipes.schema_training import Actor, Algorithm, Offload, Optimizer, Reference

_A = "actor_rollout_ref.actor"


class Trainer(Strict):
    """The program that is run, and which of its Hydra configurations it starts from."""

    module: f.Text = Field(default="verl.trainer.main_ppo", description="Module with the entry point.")
    config: f.Text | None = Field(
        default=None,
        description="Its Hydra configuration; ppo_trainer or ppo_megatron_trainer if left out.",
    )
    config_path: scalar_types.RelativePath | None = Field(
        default=None,
        description="The folder of that configuration in the code tree, such as verl/trainer/config. "
        "Left out: the one that the module names.",
    )


class Recipe(Strict):
    """What a person writes: one run, from the manifest to the last override."""

    schema_: scalar_types.SchemaVersion = Field(
        alias="schema", description="Version of the recipe's format: 1."
    )
    name: f.Name = Field(description="Name of the recipe and of its run.")
    title: f.Text = Field(description="One line for people.")
    extends: scalar_types.Extends | None = Field(
        default=None, description="A bundled recipe or a relative path to start from; ~ removes a key of it."
    )
    manifest: f.Text = Field(description="The manifest whose tree this is for.")
    device: Literal["npu", "cuda", "cpu"] = Field(description="What it runs on.")
    steps: Annotated[f.Positive, key("trainer.total_training_steps")] = Field(description="Steps to train.")
    seed: Annotated[f.Whole, key("data.seed", megatron=f"{_A}.megatron.seed")] = Field(
        default=1, description="Seed of the data's order, of sampling and of made-up models and data."
    )
    benchmark: f.Switch = Field(
        default=False,
        description="It is for timing and trains nothing of use: random weights, responses without an end.",
    )
    trainer: Trainer = Field(default=Trainer(), description="The program that is run.")
    model: Model = Field(description="The model that is trained.")
    data: Data = Field(description="The prompts.")
    reward: Reward = Field(default=Reward(), description="How a response is scored.")
    algorithm: Algorithm = Field(default=Algorithm(), description="The algorithm.")
    rollout: Rollout = Field(description="How responses are generated.")
    actor: Actor = Field(description="The policy that is trained.")
    reference: Reference = Field(default=Reference(), description="The frozen policy.")
    optimizer: Optimizer = Field(description="The actor's optimizer.")
    offload: Offload = Field(default=Offload(), description="What is kept in the host's memory.")
    cluster: Cluster = Field(description="The machines.")
    env: dict[f.Variable, f.AnyText] = Field(default={}, description="Environment of every node.")
    logging: Logging = Field(default=Logging(), description="What is written while it runs.")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="What can be resumed.")
    adaptations: dict[f.Slug, f.Switch] = Field(
        default={}, description="Our adaptations of upstream, each on or off; off is upstream's behaviour."
    )
    plan: PlanExceptions = Field(
        default=PlanExceptions(), description="Exceptions to the rules of `npu-rl plan`."
    )
    overrides: dict[f.Text, f.Scalar] = Field(
        default={},
        description="Keys of the trainer itself, written last. For what this schema has no word for.",
    )

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield errors of a cluster of GPUs: each is one device, and they differ in memory."""
        cluster = data.get("cluster")
        if data.get("device") != "cuda" or not isinstance(cluster, Mapping):
            return
        if cluster.get("dies_per_card", 1) not in (1, "1"):
            yield ("cluster", "dies_per_card"), "must be 1 where the device is cuda: a GPU is one device"
        if cluster.get("die_memory_gb") is None:
            text = "die_memory_gb has to be given where the device is cuda: GPUs differ in memory"
            yield ("cluster",), text

    @property
    def megatron(self) -> bool:
        """Whether the Megatron backend trains it."""
        return self.actor.strategy == "megatron"
