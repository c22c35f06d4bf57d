"""The sections of a recipe about the model, the prompts and the reward."""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from npu_rl.common.yaml_documents.strict_model import Fault, Strict
from npu_rl.recipes.recipe import recipe_fields as f
from npu_rl.recipes.recipe.recipe_fields import key

_A, _F = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
_M = "actor_rollout_ref.model"

# The `rules` of Model and Data as JSON Schema.
_ONE_MODEL: dict[str, Any] = {"oneOf": [{"required": ["path"]}, {"required": ["make"]}]}
_ONE_SOURCE: dict[str, Any] = {
    "oneOf": [{"required": ["train"]}, {"required": ["make"]}],
    "dependentRequired": {"train": ["test"]},
}


class Model(Strict):
    """The model that is trained: a folder in Hugging Face's layout, or one made up for rehearsals."""

    model_config = ConfigDict(json_schema_extra=_ONE_MODEL)

    path: Annotated[f.Text | None, key(f"{_M}.path")] = f.optional(
        "Folder of the model, from the recipe's folder if it begins with ./; or a name on a hub."
    )
    make: (
        Literal["tiny-deepseek-v3", "tiny-deepseek-v3-sums", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe"]
        | None
    ) = f.optional(
        "Make a tiny model instead (needs no download): random, or with YaRN and half taught small sums."
    )
    architecture: (
        Literal[
            "deepseek-v3",
            "moonlight-16b-a3b",
            "qwen2.5-32b",
            "qwen3-30b-a3b",
            "qwen3-32b",
            "qwen3-235b-a22b",
        ]
        | None
    ) = f.optional("The published model, if its config.json is not available.")
    trust_remote_code: Annotated[f.Switch | None, key(f"{_M}.trust_remote_code")] = f.optional(
        "Run code that comes with the model."
    )
    remove_padding: Annotated[f.Switch | None, key(f"{_M}.use_remove_padding")] = f.optional(
        "Pack sequences without padding (needs flash attention)."
    )
    recompute: Annotated[f.Switch | None, key(fsdp=f"{_M}.enable_gradient_checkpointing")] = f.optional(
        "Recompute activations in the backward pass (fsdp)."
    )
    load_weights: Annotated[f.Switch | None, key(megatron=(f"{_A}.load_weight", f"{_F}.load_weight"))] = (
        f.optional("Load the model's weights; false keeps random ones (megatron).")
    )
    checkpoint: Annotated[
        f.Text | None,
        key(megatron=(f"{_A}.megatron.dist_checkpointing_path", f"{_F}.megatron.dist_checkpointing_path")),
    ] = f.optional("Folder of a Megatron dist checkpoint to load (megatron).")
    config: Annotated[
        dict[f.Text, f.Scalar],
        # Megatron's workers read nothing else of it (verl/workers/megatron_workers.py at 0.5.0)
        key(fsdp=f"{_M}.override_config", megatron=f"{_M}.override_config.model_config"),
    ] = Field(default={}, description="Values of the model's config.json to override.")

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield an error unless there is either a path or a model to make."""
        yield from _one_of(data, "path", "make", "a model")


class Data(Strict):
    """The prompts: Parquet files as verl reads them, or questions made up for rehearsals."""

    model_config = ConfigDict(json_schema_extra=_ONE_SOURCE)

    train: Annotated[f.OneOrMore[f.Text] | None, key("data.train_files")] = f.optional(
        "Parquet files to train on; relative to the recipe if they begin with ./"
    )
    test: Annotated[f.OneOrMore[f.Text] | None, key("data.val_files")] = f.optional(
        "Parquet files to validate on."
    )
    make: Literal["digit-questions", "boxed-sums"] | None = f.optional(
        "Make up small sums instead (needs no download); boxed-sums are scored as deepscaler's."
    )
    rows: f.Positive = Field(default=512, description="Number of questions to make up.")
    batch: Annotated[f.Positive | None, key("data.train_batch_size")] = f.optional(
        "Prompts per step, over all devices."
    )
    prompt_length: Annotated[f.Positive | None, key("data.max_prompt_length")] = f.optional(
        "Longest prompt, in tokens."
    )
    response_length: Annotated[f.Positive | None, key("data.max_response_length")] = f.optional(
        "Longest response, in tokens."
    )
    overlong: Annotated[Literal["error", "left", "right", "middle"] | None, key("data.truncation")] = (
        f.optional("Treatment of a longer prompt: an error, or cut at the left, right or middle.")
    )
    filter_overlong: Annotated[f.Switch | None, key("data.filter_overlong_prompts")] = f.optional(
        "Leave longer prompts out before training."
    )
    shuffle: Annotated[f.Switch | None, key("data.shuffle")] = f.optional("Shuffle the prompts.")
    loader_workers: Annotated[f.Count | None, key("data.dataloader_num_workers")] = f.optional(
        "Processes that read prompts."
    )

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield an error unless there are either files, with some to validate on, or data to make."""
        yield from _one_of(data, "train", "make", "data")
        if "train" in data and "test" not in data:
            yield (
                ("test",),
                "required key 'test' is missing: the trainer builds its validation set at the start",
            )


class Reward(Strict):
    """Scoring of responses, and the target of the mean score."""

    function: f.Text | None = f.optional(
        "FILE.py:NAME. ./ is beside the recipe, else in the workspace's code. "
        "Left out: the trainer's own score for the data source."
    )
    arguments: Annotated[dict[f.Text, f.Scalar], key("custom_reward_function.reward_kwargs")] = Field(
        default={}, description="Keyword arguments of the function."
    )
    manager: Annotated[f.Text | None, key("reward_model.reward_manager")] = f.optional(
        "The trainer's reward manager."
    )
    goal: f.Number | None = f.optional("Mean reward the run has to reach; it fails if it doesn't.")


def _one_of(data: Mapping[str, Any], first: str, second: str, what: str) -> Iterator[Fault]:
    if first in data and second in data:
        yield (second,), f"{what} has either {first} or {second}, not both"
    elif first not in data and second not in data:
        yield (), f"{what} needs {first} or {second}"
