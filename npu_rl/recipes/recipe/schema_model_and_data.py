"""The sections of a recipe about the model, the prompts and the reward."""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

from pydantic import Field

from npu_rl.common.yaml_documents.strict_model import Fault, Strict
from npu_rl.recipes.recipe import recipe_fields as f
from npu_rl.recipes.recipe.recipe_fields import setting

_model = partial(setting, "actor_rollout_ref.model.")
_data = partial(setting, "data.")


class Model(Strict):
    """The model that is trained: a folder in Hugging Face's layout, or one made up for rehearsals."""

    path: f.Text | None = _model(
        "Folder of the model, from the recipe's folder if it begins with ./; or a name on a hub.", "path"
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
    trust_remote_code: f.Switch | None = _model("Run code that comes with the model.", "trust_remote_code")
    remove_padding: f.Switch | None = _model(
        "Pack sequences without padding (needs flash attention).", "use_remove_padding"
    )
    recompute: f.Switch | None = _model(
        "Recompute activations in the backward pass (fsdp).", fsdp="enable_gradient_checkpointing"
    )
    load_weights: f.Switch | None = f.of_both(
        "Load the model's weights; false keeps random ones (megatron).", "load_weight"
    )
    checkpoint: f.Text | None = f.of_both(
        "Folder of a Megatron dist checkpoint to load (megatron).", "megatron.dist_checkpointing_path"
    )
    config: dict[f.Text, f.Scalar] = _model(
        "Values of the model's config.json to override.",
        fsdp="override_config",
        megatron="override_config.model_config",
        default={},
    )

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield an error unless there is either a path or a model to make."""
        yield from _one_of(data, "path", "make", "a model")


class Data(Strict):
    """The prompts: Parquet files as verl reads them, or questions made up for rehearsals."""

    train: f.OneOrMore[f.Text] | None = _data(
        "Parquet files to train on; relative to the recipe if they begin with ./", "train_files"
    )
    test: f.OneOrMore[f.Text] | None = _data("Parquet files to validate on.", "val_files")
    make: Literal["digit-questions", "boxed-sums"] | None = f.optional(
        "Make up small sums instead (needs no download); boxed-sums are scored as deepscaler's."
    )
    rows: f.Positive = Field(default=512, description="Number of questions to make up.")
    batch: f.Positive | None = _data("Prompts per step, over all devices.", "train_batch_size")
    prompt_length: f.Positive | None = _data("Longest prompt, in tokens.", "max_prompt_length")
    response_length: f.Positive | None = _data("Longest response, in tokens.", "max_response_length")
    overlong: Literal["error", "left", "right", "middle"] | None = _data(
        "Treatment of a longer prompt: an error, or cut at the left, right or middle.", "truncation"
    )
    filter_overlong: f.Switch | None = _data(
        "Leave longer prompts out before training.", "filter_overlong_prompts"
    )
    shuffle: f.Switch | None = _data("Shuffle the prompts.", "shuffle")
    loader_workers: f.Count | None = _data("Processes that read prompts.", "dataloader_num_workers")

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
    arguments: dict[f.Text, f.Scalar] = setting(
        "", "Keyword arguments of the function.", "custom_reward_function.reward_kwargs", default={}
    )
    manager: f.Text | None = setting("", "The trainer's reward manager.", "reward_model.reward_manager")
    goal: f.Number | None = f.optional("Mean reward the run has to reach; it fails if it doesn't.")


def _one_of(data: Mapping[str, Any], first: str, second: str, what: str) -> Iterator[Fault]:
    if first in data and second in data:
        yield (second,), f"{what} has either {first} or {second}, not both"
    elif first not in data and second not in data:
        yield (), f"{what} needs {first} or {second}"
