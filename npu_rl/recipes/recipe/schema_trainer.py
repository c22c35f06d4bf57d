"""The section of a recipe about the program that is run, and the words for a trainer whose keys are its own."""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from npu_rl.common.yaml_documents import scalar_types
from npu_rl.common.yaml_documents.strict_model import Fault, Strict
from npu_rl.recipes.recipe import recipe_fields as f

_OF_OWN_KEYS = ("arguments", "resume", "sections", "paths", "layout", "validate", "log", "metrics")


class ClusterKeys(Strict):
    """The trainer's keys for the sizes of the cluster."""

    nodes: f.OneOrMore[f.TrainerKey] | None = f.optional("Key of the number of machines.")
    dies: f.OneOrMore[f.TrainerKey] | None = f.optional("Key of the devices per machine.")
    world: f.OneOrMore[f.TrainerKey] | None = f.optional("Key of the devices of all machines.")


class CheckpointKeys(Strict):
    """The trainer's keys for checkpoints, in Megatron's layout: iter_0000010/ and the file with the newest step."""

    every: f.OneOrMore[f.TrainerKey] | None = f.optional("Key of the steps between checkpoints.")
    folder: f.OneOrMore[f.TrainerKey] | None = f.optional(
        "Key of the folder that checkpoints are written to; npu-rl sets it."
    )
    load: f.OneOrMore[f.TrainerKey] | None = f.optional(
        "Key of the folder that the weights are read from; --resume sets it to the run's checkpoints."
    )


class OwnKeys(Strict):
    """The trainer's keys for each word of the recipe; a list sets several."""

    steps: f.OneOrMore[f.TrainerKey] = Field(description="Key of the number of steps.")
    seed: f.OneOrMore[f.TrainerKey] | None = f.optional("Key of the seed.")
    cluster: ClusterKeys = Field(default=ClusterKeys(), description="Keys of the cluster's sizes.")
    checkpoint: CheckpointKeys = Field(default=CheckpointKeys(), description="Keys of checkpoints.")


class LayoutKeys(Strict):
    """The trainer's keys for the sizes of the model, Megatron's groups and vLLM's groups."""

    tensor: f.TrainerKey = Field(description="Key of the tensor parallel size of training.")
    pipeline: f.TrainerKey | None = f.optional("Key of its pipeline parallel size.")
    context: f.TrainerKey | None = f.optional("Key of its context parallel size.")
    expert: f.TrainerKey | None = f.optional("Key of its expert parallel size.")
    layers: f.TrainerKey = Field(description="Key of the number of layers.")
    heads: f.TrainerKey = Field(description="Key of the number of attention heads.")
    kv_heads: f.TrainerKey = Field(description="Key of the number of key and value heads.")
    experts: f.TrainerKey | None = f.optional("Key of the number of experts.")
    rollout_tensor: f.TrainerKey | None = f.optional("Key of vLLM's tensor parallel size.")


class Trainer(Strict):
    """The program that is run, and which of its Hydra configurations it starts from."""

    module: f.Text = Field(default="verl.trainer.main_ppo", description="Module with the entry point.")
    config: f.Text | None = f.optional(
        "Its Hydra configuration; ppo_trainer or ppo_megatron_trainer if left out."
    )
    config_path: scalar_types.RelativePath | None = f.optional(
        "The folder of that configuration in the code tree, such as verl/trainer/config. "
        "Left out: the one that the module names."
    )
    keys: OwnKeys | None = f.optional(
        "For a trainer that is not verl's, whose keys are its own: where the recipe's words are written. "
        "Its other keys are set under overrides, and the sections on verl's keys are left out."
    )
    arguments: list[f.Text] | None = f.optional(
        "Arguments of a trainer that does not read its configuration through Hydra. {config} is a YAML "
        "file that npu-rl writes: that of config, with the recipe's values over it."
    )
    resume: dict[f.TrainerKey, f.Scalar] = Field(
        default={}, description="Keys of the trainer that --resume sets, beside keys.checkpoint.load."
    )
    sections: dict[f.SectionKey, f.DottedName] = Field(
        default={},
        description="Class in the code whose attributes are the keys of a section, by section; * is any name. "
        "Keys of other sections are not checked.",
    )
    paths: list[f.TrainerKey] = Field(
        default=[],
        description="Keys whose values are files or folders: relative to the recipe if they begin with ./, "
        "and expected where train runs.",
    )
    layout: LayoutKeys | None = f.optional(
        "Keys whose values are the sizes of the layout, for --rehearse=layout."
    )
    validate_: f.DottedName | None = Field(
        default=None,
        alias="validate",
        description="Function in the code that takes the configuration and raises for an invalid one; check runs it.",
    )
    log: Literal["steps", "iterations"] = Field(
        default="steps",
        description="Form of a step in the log: step:5 - KEY:VALUE - ..., or iteration: 5 / 100 | KEY : VALUE | ...",
    )
    metrics: dict[f.Metric, f.Text] = Field(
        default={}, description="The trainer's metric for each metric that npu-rl shows and watches."
    )

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield errors of words that need `keys`, and of `keys` without a configuration."""
        if "keys" not in data:
            for word in _OF_OWN_KEYS:
                if word in data:
                    yield (word,), f"{word} is for a trainer whose keys are its own: set trainer.keys, too"
        elif "config" not in data:
            yield (
                ("config",),
                "required key 'config' is missing: trainer.keys are those of this configuration",
            )
        if "arguments" in data and "config_path" not in data:
            text = "required key 'config_path' is missing: without Hydra no module names the folder"
            yield ("config_path",), text
