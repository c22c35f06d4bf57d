"""Score one batch with verl's own reward managers, loaded as its trainer loads them, and print what came of it.

    python run_reward_managers.py < CASE

Runs with a code tree on PYTHONPATH. CASE is JSON: `responses`, `rights`, `sources` and `managers`, a list of
{manager, path, name, arguments}, the last three as `custom_reward_function` has them. Printed, as JSON, per manager,
the training's and the validation's: the rewards; the position of each response's reward less its length; the calls of
the reward function, as the number of responses in each; and the error if there was one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.reward import compute_reward, load_reward_manager

PROMPT = 4


class Letters:
    """A tokenizer of code points; 0 is padding."""

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return "".join(chr(int(i)) for i in ids if int(i))


def batch(case: dict[str, Any]) -> DataProto:
    """Prompts padded on the left, responses on the right, as a rollout returns them."""
    texts = case["responses"]
    width = max(map(len, texts))
    responses = torch.tensor([[*map(ord, text), *[0] * (width - len(text))] for text in texts])
    prompts = torch.full((len(texts), PROMPT), ord("?"))
    prompts[:, 0] = 0
    mask = torch.cat([prompts != 0, responses != 0], dim=1).long()
    return DataProto.from_dict(
        tensors={"prompts": prompts, "responses": responses, "attention_mask": mask},
        non_tensors={
            "data_source": np.array(case["sources"], dtype=object),
            "reward_model": np.array(
                [{"ground_truth": right, "style": "rule"} for right in case["rights"]], dtype=object
            ),
            "extra_info": np.array([{"answer": "worked out"} for _ in texts], dtype=object),
        },
    )


def scored(case: dict[str, Any], chosen: dict[str, Any], num_examine: int) -> dict[str, Any]:
    reward = {"path": chosen["path"], "name": chosen["name"], "reward_kwargs": chosen["arguments"]}
    config = OmegaConf.create(
        {
            "reward_model": {"reward_manager": chosen["manager"], "sandbox_fusion": {"url": None}},
            "custom_reward_function": reward,
            "data": {"reward_fn_key": "data_source"},
        }
    )
    manager = load_reward_manager(config, Letters(), num_examine=num_examine)
    calls: list[int] = []
    function = manager.compute_score

    def counted(**given: Any) -> Any:
        calls.append(len(given["solution_strs"]) if "solution_strs" in given else 1)
        return function(**given)

    manager.compute_score = counted
    try:
        rewards, _ = compute_reward(batch(case), manager)
    except (ValueError, NotImplementedError) as error:
        return {"error": f"{type(error).__name__}: {error}", "calls": calls}
    places = [int(row.nonzero().max()) if row.any() else None for row in rewards]
    return {
        "rewards": rewards.sum(-1).tolist(),
        "places": [
            p if p is None else p + 1 - len(t) for p, t in zip(places, case["responses"], strict=True)
        ],
        "calls": calls,
    }


if __name__ == "__main__":
    given = json.load(sys.stdin)
    found = [[scored(given, one, examine) for examine in (0, 1)] for one in given["managers"]]
    print("\n" + json.dumps(found))
