"""The recipe's schema, version 1: everything a person may say about one run, typed.

A value that is left out is the trainer's own default. Each field names the trainer's keys it is written to
(`fields.key`), so this file is also the table of what a recipe can steer. Keys are those of verl 0.5.0
(`verl/trainer/config/`); `check` compares them with the tree that is set up.
"""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of 126 annotations, a tenth of
# this module's import.

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from npu_rl.config import scalar_types
from npu_rl.config.strict_model import Fault, Strict
from npu_rl.recipes import recipe_fields as f
from npu_rl.recipes.recipe_fields import key

_A, _R, _F = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
_M = "actor_rollout_ref.model"
_DIES_PER_CARD = 2  # an Atlas A3 card; the older ones have one


# What the `rules` of these two say, in the words of JSON Schema.
_ONE_MODEL: dict[str, Any] = {"oneOf": [{"required": ["path"]}, {"required": ["make"]}]}
_ONE_SOURCE: dict[str, Any] = {
    "oneOf": [{"required": ["train"]}, {"required": ["make"]}],
    "dependentRequired": {"train": ["test"]},
}


class Trainer(Strict):
    """The program that is run, and which of its Hydra configurations it starts from."""

    module: f.Text = Field(default="verl.trainer.main_ppo", description="Module with the entry point.")
    config: f.Text | None = Field(
        default=None,
        description="Its Hydra configuration; ppo_trainer or ppo_megatron_trainer if left out.",
    )


class Model(Strict):
    """The model that is trained: a folder in Hugging Face's layout, or one made up for rehearsals."""

    model_config = ConfigDict(json_schema_extra=_ONE_MODEL)

    path: Annotated[f.Text | None, key(f"{_M}.path")] = Field(
        default=None,
        description="Folder of the model, from the recipe's folder if it begins with ./; or a name on a hub.",
    )
    make: Literal["tiny-deepseek-v3", "tiny-deepseek-v3-sums"] | None = Field(
        default=None,
        description="Make a tiny model instead (needs no download): random, or with YaRN and half taught small sums.",
    )
    architecture: Literal["deepseek-v3"] | None = Field(
        default=None, description="The published model it is, where its config.json is not at hand."
    )
    trust_remote_code: Annotated[f.Switch | None, key(f"{_M}.trust_remote_code")] = Field(
        default=None, description="Run code that comes with the model."
    )
    remove_padding: Annotated[f.Switch | None, key(f"{_M}.use_remove_padding")] = Field(
        default=None, description="Pack sequences without padding (needs flash attention)."
    )
    recompute: Annotated[f.Switch | None, key(fsdp=f"{_M}.enable_gradient_checkpointing")] = Field(
        default=None, description="Recompute activations in the backward pass (fsdp)."
    )
    load_weights: Annotated[f.Switch | None, key(megatron=(f"{_A}.load_weight", f"{_F}.load_weight"))] = (
        Field(default=None, description="Load the model's weights; false keeps random ones (megatron).")
    )
    checkpoint: Annotated[
        f.Text | None,
        key(megatron=(f"{_A}.megatron.dist_checkpointing_path", f"{_F}.megatron.dist_checkpointing_path")),
    ] = Field(default=None, description="Folder of a Megatron dist checkpoint to load (megatron).")
    config: Annotated[
        dict[f.Text, f.Scalar],
        # Megatron's workers read nothing else of it (verl/workers/megatron_workers.py at 0.5.0)
        key(fsdp=f"{_M}.override_config", megatron=f"{_M}.override_config.model_config"),
    ] = Field(default={}, description="Values of the model's config.json to override.")

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        yield from _one_of(data, "path", "make", "a model")


class Data(Strict):
    """The prompts: Parquet files as verl reads them, or questions made up for rehearsals."""

    model_config = ConfigDict(json_schema_extra=_ONE_SOURCE)

    train: Annotated[f.OneOrMore[f.Text] | None, key("data.train_files")] = Field(
        default=None, description="Parquet files to train on; relative to the recipe if they begin with ./"
    )
    test: Annotated[f.OneOrMore[f.Text] | None, key("data.val_files")] = Field(
        default=None, description="Parquet files to validate on."
    )
    make: Literal["digit-questions", "boxed-sums"] | None = Field(
        default=None,
        description="Make up small sums instead (needs no download); boxed-sums are scored as deepscaler's.",
    )
    rows: f.Positive = Field(default=512, description="How many questions to make up.")
    batch: Annotated[f.Positive | None, key("data.train_batch_size")] = Field(
        default=None, description="Prompts per step, over all devices."
    )
    prompt_length: Annotated[f.Positive | None, key("data.max_prompt_length")] = Field(
        default=None, description="Longest prompt, in tokens."
    )
    response_length: Annotated[f.Positive | None, key("data.max_response_length")] = Field(
        default=None, description="Longest response, in tokens."
    )
    overlong: Annotated[Literal["error", "left", "right", "middle"] | None, key("data.truncation")] = Field(
        default=None, description="What is done with a longer prompt: an error, or where it is cut."
    )
    filter_overlong: Annotated[f.Switch | None, key("data.filter_overlong_prompts")] = Field(
        default=None, description="Leave longer prompts out before training."
    )
    shuffle: Annotated[f.Switch | None, key("data.shuffle")] = Field(
        default=None, description="Shuffle the prompts."
    )
    loader_workers: Annotated[f.Count | None, key("data.dataloader_num_workers")] = Field(
        default=None, description="Processes that read prompts."
    )

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        yield from _one_of(data, "train", "make", "data")
        if "train" in data and "test" not in data:
            yield (
                ("test",),
                "required key 'test' is missing: the trainer builds its validation set at the start",
            )


class Reward(Strict):
    """How a response is scored, and the mean score the run is for."""

    function: f.Text | None = Field(
        default=None,
        description="FILE.py:NAME. ./ is beside the recipe, else in the workspace's code. "
        "Left out: the trainer's own score for the data source.",
    )
    arguments: Annotated[dict[f.Text, f.Scalar], key("custom_reward_function.reward_kwargs")] = Field(
        default={}, description="Keyword arguments of the function."
    )
    manager: Annotated[f.Text | None, key("reward_model.reward_manager")] = Field(
        default=None, description="The trainer's reward manager."
    )
    goal: f.Number | None = Field(
        default=None, description="Mean reward the run has to reach; it fails if it doesn't."
    )


class Algorithm(Strict):
    """The policy-gradient algorithm."""

    estimator: Annotated[f.Text | None, key("algorithm.adv_estimator")] = Field(
        default="grpo", description="Advantage estimator."
    )
    divide_by_std: Annotated[f.Switch | None, key("algorithm.norm_adv_by_std_in_grpo")] = Field(
        default=None, description="Divide a group's advantages by their standard deviation."
    )
    kl_in_reward: Annotated[f.Switch | None, key("algorithm.use_kl_in_reward")] = Field(
        default=None, description="Take the KL penalty off the reward."
    )
    kl_coefficient: Annotated[f.NotNegative | None, key("algorithm.kl_ctrl.kl_coef")] = Field(
        default=None, description="Weight of that penalty."
    )


class Validation(Strict):
    """How answers are sampled for validation."""

    answers: Annotated[f.Positive | None, key(f"{_R}.val_kwargs.n")] = Field(
        default=None, description="Responses per prompt."
    )
    sample: Annotated[f.Switch | None, key(f"{_R}.val_kwargs.do_sample")] = Field(
        default=None, description="Sample instead of taking the likeliest token."
    )
    temperature: Annotated[f.NotNegative | None, key(f"{_R}.val_kwargs.temperature")] = Field(
        default=None, description="Sampling temperature."
    )
    top_p: Annotated[f.Share | None, key(f"{_R}.val_kwargs.top_p")] = Field(
        default=None, description="Nucleus sampling."
    )
    top_k: Annotated[f.OrAll | None, key(f"{_R}.val_kwargs.top_k")] = Field(
        default=None, description="Likeliest tokens to sample from; -1 is all."
    )


class Rollout(Strict):
    """How responses are generated."""

    engine: Annotated[Literal["hf", "vllm"], key(f"{_R}.name")] = Field(
        description="hf: transformers, in the training process. vllm: vLLM's engine."
    )
    answers: Annotated[f.Positive, key(f"{_R}.n")] = Field(
        description="Responses per prompt (the group's size)."
    )
    temperature: Annotated[f.NotNegative | None, key(f"{_R}.temperature")] = Field(
        default=None, description="Sampling temperature."
    )
    top_p: Annotated[f.Share | None, key(f"{_R}.top_p")] = Field(
        default=None, description="Nucleus sampling."
    )
    top_k: Annotated[f.OrAll | None, key(f"{_R}.top_k")] = Field(
        default=None, description="Likeliest tokens to sample from; -1 is all (vllm), 0 is all (hf)."
    )
    tensor_parallel: Annotated[f.Positive | None, key(f"{_R}.tensor_model_parallel_size")] = Field(
        default=None, description="Devices that share one copy of the weights."
    )
    micro_batch: Annotated[f.Positive | None, key(f"{_R}.micro_batch_size")] = Field(
        default=None, description="Responses generated at once (hf)."
    )
    log_prob_micro_batch: Annotated[f.Positive | None, key(f"{_R}.log_prob_micro_batch_size_per_gpu")] = (
        Field(default=None, description="Responses per device whose log probabilities are computed at once.")
    )
    memory_share: Annotated[f.Share | None, key(f"{_R}.gpu_memory_utilization")] = Field(
        default=None, description="Share of a die's memory for the engine."
    )
    max_sequences: Annotated[f.Positive | None, key(f"{_R}.max_num_seqs")] = Field(
        default=None, description="Sequences the engine decodes at once."
    )
    max_batched_tokens: Annotated[f.Positive | None, key(f"{_R}.max_num_batched_tokens")] = Field(
        default=None, description="Tokens of one forward pass of the engine."
    )
    max_length: Annotated[f.Positive | None, key(f"{_R}.max_model_len")] = Field(
        default=None, description="Longest sequence, prompt and response."
    )
    chunked_prefill: Annotated[f.Switch | None, key(f"{_R}.enable_chunked_prefill")] = Field(
        default=None, description="Prefill long prompts in chunks."
    )
    eager: Annotated[f.Switch | None, key(f"{_R}.enforce_eager")] = Field(
        default=None, description="No graphs."
    )
    free_cache: Annotated[f.Switch | None, key(f"{_R}.free_cache_engine")] = Field(
        default=None, description="Give the engine's memory back while the actor trains."
    )
    ignore_end: Annotated[f.Switch | None, key(f"{_R}.ignore_eos")] = Field(
        default=None, description="Generate to the full length (benchmarks only)."
    )
    log_probs: Annotated[f.Switch | None, key(f"{_R}.calculate_log_probs")] = Field(
        default=None, description="Report the rollout's log probabilities, to compare with the actor's."
    )
    load_format: Annotated[f.Text | None, key(f"{_R}.load_format")] = Field(
        default=None, description="How the engine gets its first weights."
    )
    dtype: Annotated[f.Text | None, key(f"{_R}.dtype")] = Field(
        default=None, description="Its number format."
    )
    engine_arguments: Annotated[dict[f.Text, f.Scalar], key(f"{_R}.engine_kwargs.vllm")] = Field(
        default={}, description="More arguments of vLLM's engine."
    )
    validation: Validation = Field(default=Validation(), description="Sampling for validation.")


class Parallel(Strict):
    """How the actor and the reference are spread over the dies."""

    tensor: Annotated[
        f.Positive | None,
        key(
            megatron=(
                f"{_A}.megatron.tensor_model_parallel_size",
                f"{_F}.megatron.tensor_model_parallel_size",
            )
        ),
    ] = Field(default=None, description="Tensor parallel size (megatron).")
    pipeline: Annotated[
        f.Positive | None,
        key(
            megatron=(
                f"{_A}.megatron.pipeline_model_parallel_size",
                f"{_F}.megatron.pipeline_model_parallel_size",
            )
        ),
    ] = Field(default=None, description="Pipeline parallel size (megatron).")
    context: Annotated[
        f.Positive | None,
        key(megatron=(f"{_A}.megatron.context_parallel_size", f"{_F}.megatron.context_parallel_size")),
    ] = Field(default=None, description="Context parallel size (megatron).")
    expert: Annotated[
        f.Positive | None,
        key(
            megatron=(
                f"{_A}.megatron.expert_model_parallel_size",
                f"{_F}.megatron.expert_model_parallel_size",
            )
        ),
    ] = Field(default=None, description="Expert parallel size (megatron).")
    expert_tensor: Annotated[
        f.Positive | None,
        key(
            megatron=(
                f"{_A}.megatron.expert_tensor_parallel_size",
                f"{_F}.megatron.expert_tensor_parallel_size",
            )
        ),
    ] = Field(default=None, description="Tensor parallel size of the experts (megatron).")
    shard: Annotated[f.OrMinusOne | None, key(fsdp=f"{_A}.fsdp_config.fsdp_size")] = Field(
        default=None, description="Devices that one copy of the weights is sharded over; -1 is all (fsdp)."
    )
    sequence: Annotated[f.Positive | None, key(fsdp=f"{_A}.ulysses_sequence_parallel_size")] = Field(
        default=None, description="Ulysses sequence parallel size (fsdp)."
    )


class KlLoss(Strict):
    """The KL term of the actor's loss."""

    use: Annotated[f.Switch, key(f"{_A}.use_kl_loss")] = Field(
        default=True, description="Whether there is one."
    )
    coefficient: Annotated[f.NotNegative | None, key(f"{_A}.kl_loss_coef")] = Field(
        default=None, description="Its weight."
    )
    kind: Annotated[f.Text | None, key(f"{_A}.kl_loss_type")] = Field(
        default=None, description="How it is estimated, such as low_var_kl."
    )


class Actor(Strict):
    """The policy that is trained."""

    strategy: Annotated[Literal["fsdp", "fsdp2", "megatron"], key(f"{_A}.strategy")] = Field(
        description="The training backend."
    )
    mini_batch: Annotated[f.Positive | None, key(f"{_A}.ppo_mini_batch_size")] = Field(
        default=None, description="Prompts per update, over all devices."
    )
    micro_batch: Annotated[f.Positive | None, key(f"{_A}.ppo_micro_batch_size_per_gpu")] = Field(
        default=None, description="Responses per device in one forward and backward pass."
    )
    epochs: Annotated[f.Positive | None, key(f"{_A}.ppo_epochs")] = Field(
        default=None, description="Passes over one batch."
    )
    clip_ratio: Annotated[f.NotNegative | None, key(f"{_A}.clip_ratio")] = Field(
        default=None, description="PPO's clip range."
    )
    entropy: Annotated[f.NotNegative | None, key(f"{_A}.entropy_coeff")] = Field(
        default=None, description="Weight of the entropy bonus."
    )
    kl_loss: KlLoss | None = Field(default=None, description="The KL term of the loss.")
    compile: Annotated[f.Switch | None, key(f"{_A}.use_torch_compile")] = Field(
        default=None, description="Use torch.compile in training."
    )
    parallel: Parallel = Field(default=Parallel(), description="How it is spread over the devices.")
    transformer: Annotated[
        dict[f.Text, f.Scalar], key(megatron=f"{_A}.megatron.override_transformer_config")
    ] = Field(default={}, description="Values of Megatron's and MindSpeed's configuration (megatron).")


class Reference(Strict):
    """The frozen policy the KL term compares with."""

    micro_batch: Annotated[f.Positive | None, key(f"{_F}.log_prob_micro_batch_size_per_gpu")] = Field(
        default=None, description="Responses per device whose log probabilities are computed at once."
    )


class Optimizer(Strict):
    """The actor's optimizer."""

    lr: Annotated[f.AboveZero, key(f"{_A}.optim.lr")] = Field(description="Learning rate.")
    weight_decay: Annotated[f.NotNegative | None, key(f"{_A}.optim.weight_decay")] = Field(
        default=None, description="Weight decay."
    )
    clip: Annotated[f.NotNegative | None, key(fsdp=f"{_A}.grad_clip", megatron=f"{_A}.optim.clip_grad")] = (
        Field(default=None, description="Largest norm of the gradient.")
    )
    warmup_steps: Annotated[f.OrAll | None, key(f"{_A}.optim.lr_warmup_steps")] = Field(
        default=None, description="Steps until the learning rate is reached."
    )
    schedule: Annotated[
        f.Text | None, key(fsdp=f"{_A}.optim.warmup_style", megatron=f"{_A}.optim.lr_decay_style")
    ] = Field(default=None, description="What it does then, such as constant or cosine.")


class Offload(Strict):
    """What is kept in the host's memory while it isn't used."""

    parameters: Annotated[
        f.Switch | None,
        key(fsdp=f"{_A}.fsdp_config.param_offload", megatron=f"{_A}.megatron.param_offload"),
    ] = Field(default=None, description="The actor's weights.")
    gradients: Annotated[f.Switch | None, key(megatron=f"{_A}.megatron.grad_offload")] = Field(
        default=None,
        description="The actor's gradients (megatron). verl 55e3c5b reads the key nowhere: "
        "it frees them with the weights.",
    )
    optimizer: Annotated[
        f.Switch | None,
        key(fsdp=f"{_A}.fsdp_config.optimizer_offload", megatron=f"{_A}.megatron.optimizer_offload"),
    ] = Field(default=None, description="The optimizer's state.")
    reference: Annotated[
        f.Switch | None,
        key(fsdp=f"{_F}.fsdp_config.param_offload", megatron=f"{_F}.megatron.param_offload"),
    ] = Field(default=None, description="The reference's weights.")


class Cluster(Strict):
    """The machines. A die is what the trainer calls a GPU; an Atlas A3 card has two."""

    nodes: Annotated[f.Positive, key("trainer.nnodes")] = Field(default=1, description="Machines.")
    dies: Annotated[f.Positive, key("trainer.n_gpus_per_node")] = Field(description="Dies per machine.")
    dies_per_card: f.Positive = Field(default=1, description="2 on Atlas A3; for tokens per second and card.")
    die_memory_gb: f.AboveZero = Field(
        default=64.0, description="Memory of a die, in 10^9 bytes, by which the recipe is judged."
    )
    address: f.Address | None = Field(
        default=None, description="HOST:PORT of a running Ray head; left out, one machine starts its own."
    )
    interface: f.Text | None = Field(
        default=None, description="Network interface of HCCL, Gloo and Ray, such as enp67s0f5."
    )

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        dies, per_card = (_whole(data.get(name)) for name in ("dies", "dies_per_card"))
        if per_card and per_card > _DIES_PER_CARD:
            yield ("dies_per_card",), f"must be 1 or {_DIES_PER_CARD}: no Ascend card has {per_card} dies"
        elif dies and per_card and dies > per_card and dies % per_card:
            yield ("dies_per_card",), f"{dies} dies are not whole cards of {per_card} dies"

    @property
    def world(self) -> int:
        """Dies of all machines: the number of ranks."""
        return self.nodes * self.dies


class Logging(Strict):
    """What is written while the run goes on."""

    backends: Annotated[f.OneOrMore[f.Name], key("trainer.logger")] = Field(
        default=["console", "tensorboard"],
        min_length=1,
        description="The trainer's loggers; console is what npu-rl reads and is always on.",
    )
    project: Annotated[f.Text | None, key("trainer.project_name")] = Field(
        default="npu-rl", description="Name of the project in those that have projects."
    )
    samples: f.Samples = Field(
        default=True,
        description="Write prompts, responses and scores to samples/: true for those of every step and validation, "
        "validation for those of validations alone, which the trainer decodes anyway.",
    )
    validate_every: Annotated[f.Whole | None, key("trainer.test_freq")] = Field(
        default=-1, description="Steps between validations; -1 is never."
    )
    validate_first: Annotated[f.Switch | None, key("trainer.val_before_train")] = Field(
        default=False, description="Validate before the first step."
    )


class Checkpoint(Strict):
    """What a later `--resume` can go on from."""

    every: Annotated[f.Whole | None, key("trainer.save_freq")] = Field(
        default=-1, description="Steps between checkpoints; -1 is never: a crash then loses everything."
    )
    keep: Annotated[f.Positive | None, key("trainer.max_actor_ckpt_to_keep")] = Field(
        default=None, description="Checkpoints to keep; all if left out."
    )


class PlanExceptions(Strict):
    """Where a person knows better than a rule of `npu-rl plan`."""

    except_: dict[f.Slug, f.Text] = Field(
        alias="except",
        default={},
        description="Rules that don't hold and are overruled, by id, each with the reason; a certain crash can't be.",
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
    device: Literal["npu", "cpu"] = Field(description="What it runs on.")
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

    @property
    def megatron(self) -> bool:
        """Whether the Megatron backend trains it."""
        return self.actor.strategy == "megatron"


def _whole(value: object) -> int | None:
    """A whole number that may be malformed; None if it is."""
    try:
        return TypeAdapter(f.Whole).validate_python(value)
    except ValidationError:
        return None


def _one_of(data: Mapping[str, Any], first: str, second: str, what: str) -> Iterator[Fault]:
    if first in data and second in data:
        yield (second,), f"{what} has either {first} or {second}, not both"
    elif first not in data and second not in data:
        yield (), f"{what} needs {first} or {second}"
