"""The sections of a recipe about training: algorithm, actor, reference, optimizer and offload."""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from npu_rl.common.yaml_documents.strict_model import Strict
from npu_rl.recipes.recipe import recipe_fields as f
from npu_rl.recipes.recipe.recipe_fields import key

_A, _F = "actor_rollout_ref.actor", "actor_rollout_ref.ref"


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


class Parallel(Strict):
    """Placement of the actor and the reference on the dies."""

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
        default=True, description="Add a KL term to the actor's loss."
    )
    coefficient: Annotated[f.NotNegative | None, key(f"{_A}.kl_loss_coef")] = Field(
        default=None, description="Its weight."
    )
    kind: Annotated[f.Text | None, key(f"{_A}.kl_loss_type")] = Field(
        default=None, description="Its estimator, such as low_var_kl."
    )


_OTHER_STRATEGIES = ("mindspeed", "torchtitan", "veomni")  # verl/trainer/config/model_engine@v0.8.0


def _supported_strategy(value: object) -> object:
    """Return the strategy. Raises ValueError with the reason for one that verl has and a recipe has not."""
    if value in _OTHER_STRATEGIES:
        why = "recipes and plan know the keys and memory of these backends only"
        raise ValueError(
            f"must be 'fsdp', 'fsdp2' or 'megatron', not {value!r}, which is not supported: {why}"
        )
    return value


class Actor(Strict):
    """The policy that is trained."""

    strategy: Annotated[
        Literal["fsdp", "fsdp2", "megatron"], BeforeValidator(_supported_strategy), key(f"{_A}.strategy")
    ] = Field(description="The training backend.")
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
    parallel: Parallel = Field(default=Parallel(), description="Its distribution over the devices.")
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
    ] = Field(default=None, description="Its course after the warmup, such as constant or cosine.")


class Offload(Strict):
    """State that is kept in host memory while it isn't used."""

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
