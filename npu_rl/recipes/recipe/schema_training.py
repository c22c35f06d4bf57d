"""The sections of a recipe about training: algorithm, actor, reference, optimizer and offload."""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from npu_rl.common.yaml_documents.strict_model import Strict
from npu_rl.recipes.recipe import recipe_fields as f
from npu_rl.recipes.recipe.recipe_fields import setting

_algorithm = partial(setting, "algorithm.")
_actor = partial(setting, "actor_rollout_ref.actor.")
_reference = partial(setting, "actor_rollout_ref.ref.")


class Algorithm(Strict):
    """The policy-gradient algorithm."""

    estimator: f.Text | None = _algorithm("Advantage estimator.", "adv_estimator", default="grpo")
    divide_by_std: f.Switch | None = _algorithm(
        "Divide a group's advantages by their standard deviation.", "norm_adv_by_std_in_grpo"
    )
    kl_in_reward: f.Switch | None = _algorithm("Take the KL penalty off the reward.", "use_kl_in_reward")
    kl_coefficient: f.NotNegative | None = _algorithm("Weight of that penalty.", "kl_ctrl.kl_coef")


class Parallel(Strict):
    """Placement of the actor and the reference on the dies."""

    tensor: f.Positive | None = f.of_both(
        "Tensor parallel size (megatron).", "megatron.tensor_model_parallel_size"
    )
    pipeline: f.Positive | None = f.of_both(
        "Pipeline parallel size (megatron).", "megatron.pipeline_model_parallel_size"
    )
    context: f.Positive | None = f.of_both(
        "Context parallel size (megatron).", "megatron.context_parallel_size"
    )
    expert: f.Positive | None = f.of_both(
        "Expert parallel size (megatron).", "megatron.expert_model_parallel_size"
    )
    expert_tensor: f.Positive | None = f.of_both(
        "Tensor parallel size of the experts (megatron).", "megatron.expert_tensor_parallel_size"
    )
    shard: f.OrMinusOne | None = _actor(
        "Devices that one copy of the weights is sharded over; -1 is all (fsdp).",
        fsdp="fsdp_config.fsdp_size",
    )
    sequence: f.Positive | None = _actor(
        "Ulysses sequence parallel size (fsdp).", fsdp="ulysses_sequence_parallel_size"
    )


class KlLoss(Strict):
    """The KL term of the actor's loss."""

    use: f.Switch = _actor("Add a KL term to the actor's loss.", "use_kl_loss", default=True)
    coefficient: f.NotNegative | None = _actor("Its weight.", "kl_loss_coef")
    kind: f.Text | None = _actor("Its estimator, such as low_var_kl.", "kl_loss_type")


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

    strategy: Annotated[Literal["fsdp", "fsdp2", "megatron"], BeforeValidator(_supported_strategy)] = _actor(
        "The training backend.", "strategy", default=...
    )
    mini_batch: f.Positive | None = _actor("Prompts per update, over all devices.", "ppo_mini_batch_size")
    micro_batch: f.Positive | None = _actor(
        "Responses per device in one forward and backward pass.", "ppo_micro_batch_size_per_gpu"
    )
    epochs: f.Positive | None = _actor("Passes over one batch.", "ppo_epochs")
    clip_ratio: f.NotNegative | None = _actor("PPO's clip range.", "clip_ratio")
    entropy: f.NotNegative | None = _actor("Weight of the entropy bonus.", "entropy_coeff")
    kl_loss: KlLoss | None = f.optional("The KL term of the loss.")
    compile: f.Switch | None = _actor("Use torch.compile in training.", "use_torch_compile")
    parallel: Parallel = Field(default=Parallel(), description="Its distribution over the devices.")
    transformer: dict[f.Text, f.Scalar] = _actor(
        "Values of Megatron's and MindSpeed's configuration (megatron).",
        megatron="megatron.override_transformer_config",
        default={},
    )


class Reference(Strict):
    """The frozen policy the KL term compares with."""

    micro_batch: f.Positive | None = _reference(
        "Responses per device whose log probabilities are computed at once.",
        "log_prob_micro_batch_size_per_gpu",
    )


class Optimizer(Strict):
    """The actor's optimizer."""

    lr: f.AboveZero = _actor("Learning rate.", "optim.lr", default=...)
    weight_decay: f.NotNegative | None = _actor("Weight decay.", "optim.weight_decay")
    clip: f.NotNegative | None = _actor(
        "Largest norm of the gradient.", fsdp="grad_clip", megatron="optim.clip_grad"
    )
    warmup_steps: f.OrAll | None = _actor(
        "Steps until the learning rate is reached.", "optim.lr_warmup_steps"
    )
    schedule: f.Text | None = _actor(
        "Its course after the warmup, such as constant or cosine.",
        fsdp="optim.warmup_style",
        megatron="optim.lr_decay_style",
    )


class Offload(Strict):
    """State that is kept in host memory while it isn't used."""

    parameters: f.Switch | None = _actor(
        "The actor's weights.", fsdp="fsdp_config.param_offload", megatron="megatron.param_offload"
    )
    gradients: f.Switch | None = _actor(
        "The actor's gradients (megatron). verl 55e3c5b reads the key nowhere: "
        "it frees them with the weights.",
        megatron="megatron.grad_offload",
    )
    optimizer: f.Switch | None = _actor(
        "The optimizer's state.", fsdp="fsdp_config.optimizer_offload", megatron="megatron.optimizer_offload"
    )
    reference: f.Switch | None = _reference(
        "The reference's weights.", fsdp="fsdp_config.param_offload", megatron="megatron.param_offload"
    )
