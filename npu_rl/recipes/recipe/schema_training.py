"""The sections of a recipe about training: algorithm, actor, reference, optimizer and offload."""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from npu_rl.common.yaml_documents.strict_model import Strict
from npu_rl.recipes.recipe import recipe_fields as f
from npu_rl.recipes.recipe.recipe_fields import Key, key

_A, _F = "actor_rollout_ref.actor", "actor_rollout_ref.ref"


def _of_both(name: str) -> Key:
    """Return the key of Megatron's part of the actor and of the reference."""
    return key(megatron=(f"{_A}.megatron.{name}", f"{_F}.megatron.{name}"))


class Algorithm(Strict):
    """The policy-gradient algorithm."""

    estimator: Annotated[f.Text | None, key("algorithm.adv_estimator")] = Field(
        default="grpo", description="Advantage estimator."
    )
    divide_by_std: Annotated[f.Switch | None, key("algorithm.norm_adv_by_std_in_grpo")] = f.optional(
        "Divide a group's advantages by their standard deviation."
    )
    kl_in_reward: Annotated[f.Switch | None, key("algorithm.use_kl_in_reward")] = f.optional(
        "Take the KL penalty off the reward."
    )
    kl_coefficient: Annotated[f.NotNegative | None, key("algorithm.kl_ctrl.kl_coef")] = f.optional(
        "Weight of that penalty."
    )


class Parallel(Strict):
    """Placement of the actor and the reference on the dies."""

    tensor: Annotated[f.Positive | None, _of_both("tensor_model_parallel_size")] = f.optional(
        "Tensor parallel size (megatron)."
    )
    pipeline: Annotated[f.Positive | None, _of_both("pipeline_model_parallel_size")] = f.optional(
        "Pipeline parallel size (megatron)."
    )
    context: Annotated[f.Positive | None, _of_both("context_parallel_size")] = f.optional(
        "Context parallel size (megatron)."
    )
    expert: Annotated[f.Positive | None, _of_both("expert_model_parallel_size")] = f.optional(
        "Expert parallel size (megatron)."
    )
    expert_tensor: Annotated[f.Positive | None, _of_both("expert_tensor_parallel_size")] = f.optional(
        "Tensor parallel size of the experts (megatron)."
    )
    shard: Annotated[f.OrMinusOne | None, key(fsdp=f"{_A}.fsdp_config.fsdp_size")] = f.optional(
        "Devices that one copy of the weights is sharded over; -1 is all (fsdp)."
    )
    sequence: Annotated[f.Positive | None, key(fsdp=f"{_A}.ulysses_sequence_parallel_size")] = f.optional(
        "Ulysses sequence parallel size (fsdp)."
    )


class KlLoss(Strict):
    """The KL term of the actor's loss."""

    use: Annotated[f.Switch, key(f"{_A}.use_kl_loss")] = Field(
        default=True, description="Add a KL term to the actor's loss."
    )
    coefficient: Annotated[f.NotNegative | None, key(f"{_A}.kl_loss_coef")] = f.optional("Its weight.")
    kind: Annotated[f.Text | None, key(f"{_A}.kl_loss_type")] = f.optional(
        "Its estimator, such as low_var_kl."
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
    mini_batch: Annotated[f.Positive | None, key(f"{_A}.ppo_mini_batch_size")] = f.optional(
        "Prompts per update, over all devices."
    )
    micro_batch: Annotated[f.Positive | None, key(f"{_A}.ppo_micro_batch_size_per_gpu")] = f.optional(
        "Responses per device in one forward and backward pass."
    )
    epochs: Annotated[f.Positive | None, key(f"{_A}.ppo_epochs")] = f.optional("Passes over one batch.")
    clip_ratio: Annotated[f.NotNegative | None, key(f"{_A}.clip_ratio")] = f.optional("PPO's clip range.")
    entropy: Annotated[f.NotNegative | None, key(f"{_A}.entropy_coeff")] = f.optional(
        "Weight of the entropy bonus."
    )
    kl_loss: KlLoss | None = f.optional("The KL term of the loss.")
    compile: Annotated[f.Switch | None, key(f"{_A}.use_torch_compile")] = f.optional(
        "Use torch.compile in training."
    )
    parallel: Parallel = Field(default=Parallel(), description="Its distribution over the devices.")
    transformer: Annotated[
        dict[f.Text, f.Scalar], key(megatron=f"{_A}.megatron.override_transformer_config")
    ] = Field(default={}, description="Values of Megatron's and MindSpeed's configuration (megatron).")


class Reference(Strict):
    """The frozen policy the KL term compares with."""

    micro_batch: Annotated[f.Positive | None, key(f"{_F}.log_prob_micro_batch_size_per_gpu")] = f.optional(
        "Responses per device whose log probabilities are computed at once."
    )


class Optimizer(Strict):
    """The actor's optimizer."""

    lr: Annotated[f.AboveZero, key(f"{_A}.optim.lr")] = Field(description="Learning rate.")
    weight_decay: Annotated[f.NotNegative | None, key(f"{_A}.optim.weight_decay")] = f.optional(
        "Weight decay."
    )
    clip: Annotated[f.NotNegative | None, key(fsdp=f"{_A}.grad_clip", megatron=f"{_A}.optim.clip_grad")] = (
        f.optional("Largest norm of the gradient.")
    )
    warmup_steps: Annotated[f.OrAll | None, key(f"{_A}.optim.lr_warmup_steps")] = f.optional(
        "Steps until the learning rate is reached."
    )
    schedule: Annotated[
        f.Text | None, key(fsdp=f"{_A}.optim.warmup_style", megatron=f"{_A}.optim.lr_decay_style")
    ] = f.optional("Its course after the warmup, such as constant or cosine.")


class Offload(Strict):
    """State that is kept in host memory while it isn't used."""

    parameters: Annotated[
        f.Switch | None,
        key(fsdp=f"{_A}.fsdp_config.param_offload", megatron=f"{_A}.megatron.param_offload"),
    ] = f.optional("The actor's weights.")
    gradients: Annotated[f.Switch | None, key(megatron=f"{_A}.megatron.grad_offload")] = f.optional(
        "The actor's gradients (megatron). verl 55e3c5b reads the key nowhere: "
        "it frees them with the weights."
    )
    optimizer: Annotated[
        f.Switch | None,
        key(fsdp=f"{_A}.fsdp_config.optimizer_offload", megatron=f"{_A}.megatron.optimizer_offload"),
    ] = f.optional("The optimizer's state.")
    reference: Annotated[
        f.Switch | None,
        key(fsdp=f"{_F}.fsdp_config.param_offload", megatron=f"{_F}.megatron.param_offload"),
    ] = f.optional("The reference's weights.")
