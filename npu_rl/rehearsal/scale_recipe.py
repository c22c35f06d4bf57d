"""A recipe scaled down to what a CPU trains in a minute: its trainer and its settings, on tiny sizes."""

from __future__ import annotations

from typing import Any

from npu_rl.recipes.schema import Recipe
from npu_rl.recipes.schema_model_and_data import Data, Model, Reward
from npu_rl.recipes.schema_rollout import Rollout
from npu_rl.recipes.schema_run import Checkpoint, Cluster, Logging
from npu_rl.recipes.schema_training import Parallel
from npu_rl.rehearsal.model_size_keys import OF_THE_LAYERS, OF_THE_SIZE, OF_YARN

STEPS = 60
_BATCH, _ANSWERS, _MICRO = 8, 8, 16
# Without the first, Megatron-core builds plain attention for MLA on this path (a `k_channels` TypeError); the
# second needs streams, which only an accelerator has.
MEGATRON_ON_CPU = {
    "multi_latent_attention": True,
    "moe_shared_expert_overlap": False,
    "use_flash_attn": True,
    # The tiny model's n_group and topk_group.
    "moe_router_num_groups": 2,
    "moe_router_group_topk": 1,
}
REWARD = "npu_rl_runtime/rewards/digit_share.py:compute_score"


def scaled(recipe: Recipe, name: str) -> tuple[Recipe, list[str]]:
    """The recipe to rehearse with, and what was changed, for people.

    Kept: the trainer, the backend, the algorithm, the losses, clipping, the optimizer's schedule, offloading,
    adaptations and overrides. Tiny: the model, the data, the batch and the cluster; the learning rate is the one
    the tiny model learns with. On one rank, since the sizes over ranks are what the level *layout* is for.
    """
    steps = min(recipe.steps, STEPS)
    changes = {
        "name": name,
        "device": "cpu",
        "steps": steps,
        "model": Model(
            make="tiny-deepseek-v3",
            remove_padding=False,
            recompute=None if recipe.megatron else recipe.model.recompute,
            load_weights=False if recipe.megatron else None,
            config={} if recipe.megatron else {"_attn_implementation": "eager"},
        ),
        "data": Data(
            make="digit-questions",
            batch=_BATCH,
            prompt_length=32,
            response_length=16,
            filter_overlong=False,
            loader_workers=0,
            shuffle=recipe.data.shuffle,
        ),
        "reward": Reward(function=REWARD, arguments={"digit": "7"}, goal=_goal(recipe, steps)),
        "rollout": Rollout(
            # The stand-in generates either way; Megatron's workers know no `hf`.
            engine="vllm" if recipe.megatron else "hf",
            answers=_ANSWERS,
            temperature=1.0,
            top_k=0,
            tensor_parallel=1,
            log_prob_micro_batch=_MICRO,
        ),
        "actor": recipe.actor.model_copy(
            update={
                "mini_batch": _BATCH,
                "micro_batch": _MICRO,
                "compile": False,
                "parallel": Parallel(),
                "transformer": _transformer(recipe),
            }
        ),
        "reference": recipe.reference.model_copy(update={"micro_batch": _MICRO}),
        "optimizer": recipe.optimizer.model_copy(update={"lr": 3e-3, "warmup_steps": None}),
        "cluster": Cluster(nodes=1, dies=1, dies_per_card=recipe.cluster.dies_per_card),
        "logging": Logging(samples=recipe.logging.samples),
        "checkpoint": Checkpoint(),
    }
    return recipe.model_copy(update=changes), _told(recipe, steps)


def _transformer(recipe: Recipe) -> dict[str, Any]:
    if not recipe.megatron:
        return {}
    kept = {name: value for name, value in recipe.actor.transformer.items() if name not in OF_THE_SIZE}
    return {**kept, **MEGATRON_ON_CPU}


def _goal(recipe: Recipe, steps: int) -> float | None:
    """A reward that a healthy stack has passed by then: 0.9 after 60 steps, none in a shorter rehearsal."""
    del recipe
    return 0.9 if steps >= STEPS else None


def _told(recipe: Recipe, steps: int) -> list[str]:
    said = [
        f"model: a random DeepSeek-V3 of 170,000 weights for {recipe.model.path or recipe.model.make}",
        f"data: {_BATCH} small sums a step, {_ANSWERS} responses of 16 tokens each",
        "reward: the share of one digit in the response, which a random model can learn",
        f"cluster: one rank for {recipe.cluster.world}",
        f"steps: {steps} of {recipe.steps}, at a learning rate of 0.003 for {recipe.optimizer.lr:g}",
    ]
    left_out = sorted((OF_THE_LAYERS | OF_YARN) & recipe.actor.transformer.keys())
    if left_out:
        said.append(f"left out, being about the real model's layers: {', '.join(left_out)}")
    if recipe.rollout.engine != "hf":
        said.append(f"rollout: transformers, with weights of its own, for {recipe.rollout.engine}")
    return said
