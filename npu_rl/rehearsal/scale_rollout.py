"""A recipe scaled down for the level *rollout*: two ranks, vLLM's engine, a model that half knows small sums."""

from __future__ import annotations

from typing import Any, Literal

from npu_rl.recipes.schema import Recipe
from npu_rl.recipes.schema_model_and_data import Data, Model, Reward
from npu_rl.recipes.schema_run import Checkpoint, Cluster, Logging
from npu_rl.recipes.schema_training import Parallel
from npu_rl.rehearsal.model_size_keys import OF_THE_LAYERS
from npu_rl.rehearsal.scale_recipe import MEGATRON_ON_CPU

Case = Literal["expert", "pipeline"]
CASES: tuple[Case, ...] = ("expert", "pipeline")
"""How the two ranks train: experts over both of them, or one stage each. vLLM's experts are over both each time."""

RANKS = 2
STEPS = 16
_BATCH, _ANSWERS, _MICRO = 16, 8, 16
_PROMPT, _ANSWER = 32, 12  # tokens
_RATE, _WARMUP = 2e-3, 4  # steps; at full rate from the first on, Adam undoes what the model was taught
_CACHE = {
    "block_size": 16,
    "num_gpu_blocks_override": 256,
}  # 4096 tokens; else a CPU gets 1 GiB, made at every step
GOAL = 0.7
"""Mean accuracy of the last steps; the model begins near 0.5."""
_DEEPSCALER = "npu_rl_runtime/rewards/deepscaler.py"
ACCURACY_SHARE = 0.67
"""The most that a response of the sums gets where its format counts too: it is a box and nothing else."""


def scaled_rollout(recipe: Recipe, name: str, case: Case) -> tuple[Recipe, list[str]]:
    """The recipe to rehearse with, without its checkpoint, and what was changed, for people.

    Kept besides what the level *train* keeps: the engine and its arguments, freeing its memory, chunked prefill, the
    kinds of offloading, YaRN, the checkpoint's way into the actor, and the reward, if it is one of `deepscaler`.
    """
    steps = min(recipe.steps, STEPS)
    changes = {
        "name": name,
        "device": "cpu",
        "steps": steps,
        "model": Model(make="tiny-deepseek-v3-sums", remove_padding=False, load_weights=True),
        "data": Data(
            make="boxed-sums",
            rows=_BATCH,  # the same sums at each step: with others each time, their difficulty hid what was learned
            batch=_BATCH,
            prompt_length=_PROMPT,
            response_length=_ANSWER,
            filter_overlong=False,
            loader_workers=0,
            shuffle=recipe.data.shuffle,
        ),
        "reward": _reward(recipe, steps),
        "rollout": recipe.rollout.model_copy(
            update={
                "answers": _ANSWERS,
                "temperature": 1.0,  # vLLM 0.9.1 reports log probabilities without the temperature
                "tensor_parallel": 1,
                "log_prob_micro_batch": _MICRO,
                # Below the longest sequence, so that prompts come in pieces; and fewer at once than a rank has.
                "max_batched_tokens": _PROMPT,
                "max_sequences": _PROMPT,
                "max_length": None,
                "eager": True,  # a CPU has no graphs
                "log_probs": True,
                "engine_arguments": {**recipe.rollout.engine_arguments, **_CACHE},
            }
        ),
        "actor": recipe.actor.model_copy(
            update={
                "mini_batch": _BATCH,
                "micro_batch": _MICRO,
                "compile": False,
                "parallel": Parallel(**_sizes(case)),
                "transformer": _transformer(recipe),
            }
        ),
        "reference": recipe.reference.model_copy(update={"micro_batch": _MICRO}),
        "optimizer": recipe.optimizer.model_copy(
            update={"lr": _RATE, "warmup_steps": min(_WARMUP, steps // 2)}
        ),
        "cluster": Cluster(nodes=1, dies=RANKS, dies_per_card=recipe.cluster.dies_per_card),
        "env": {**recipe.env, "VLLM_DP_SIZE": str(RANKS)},
        "logging": Logging(samples=recipe.logging.samples),
        "checkpoint": Checkpoint(),
    }
    return recipe.model_copy(update=changes), _told(recipe, steps, case)


def _reward(recipe: Recipe, steps: int) -> Reward:
    """The recipe's own where it scores the data source of the sums; else the trainer's for that source."""
    reward = recipe.reward if _scores_the_sums(recipe.reward) else Reward()
    best = ACCURACY_SHARE if reward.arguments.get("variant") == "format" else 1.0
    return reward.model_copy(update={"goal": GOAL * best if steps >= STEPS else None})


def _scores_the_sums(reward: Reward) -> bool:
    return (reward.function or "").partition(":")[0] == _DEEPSCALER


def _sizes(case: Case) -> dict[str, int]:
    return {"tensor": 1, "expert_tensor": 1, case: RANKS}


def _transformer(recipe: Recipe) -> dict[str, Any]:
    kept = {name: value for name, value in recipe.actor.transformer.items() if name not in OF_THE_LAYERS}
    return {**kept, **MEGATRON_ON_CPU}


def _told(recipe: Recipe, steps: int, case: Case) -> list[str]:
    world = recipe.cluster.world
    return [
        f"model: a DeepSeek-V3 of 170,000 weights with YaRN, half taught small sums, for {recipe.model.path}",
        f"data: {_BATCH} sums up to five, the same at each step, {_ANSWERS} responses of at most {_ANSWER} tokens each",
        f"cluster: {RANKS} ranks for {world}: {case} parallel {RANKS} in training, vLLM's experts over both",
        f"steps: {steps} of {recipe.steps}, at a learning rate of {_RATE:g} for {recipe.optimizer.lr:g}",
        f"vLLM: {_PROMPT} tokens a pass, eager",
        *_other_reward(recipe.reward),
    ]


def _other_reward(reward: Reward) -> list[str]:
    if reward.function is None or _scores_the_sums(reward):
        return []
    return [f"reward: the trainer's own for deepscaler, for {reward.function}"]
