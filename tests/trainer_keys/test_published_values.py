"""Accepted values over five versions of verl: what upstream's own scripts set is right, and misspelt it is not.

`python -m tests.trainer_keys.test_published_values` prints the figures in docs/architecture.md. It needs the upstreams
in the folder that NPU_RL_UPSTREAMS names.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from npu_rl.recipes.judgement.key_check import read_trainer
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.reserved_keys import RESERVED
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver
from tests.code_trees import archive
from tests.plan.helpers import FSDP, RECIPE
from tests.support import ok, run_program

RECIPES = (RECIPE, FSDP)  # Megatron's and FSDP's keys
# What it refuses of each version's published values. That tree refuses them, too: collabllm is accepted with its
# script's reward function, which registers it (recipe/collabllm/reward_function.py:107).
REFUSED = {
    "v0.5.0": {"actor_rollout_ref.rollout.name": "hf"},  # verl/workers/megatron_workers.py:501
    "v0.6.1": {"reward_model.reward_manager": "collabllm"},
    "v0.7.1": {
        "actor_rollout_ref.rollout.name": "hf",  # verl/workers/rollout/base.py:100
        "reward.reward_manager.name": "prime",  # verl/experimental/reward_loop/reward_manager/registry.py:52
    },
    "v0.8.0": {},
    "v0.9.0": {},
}
_PAIR = re.compile(r"(?:^|[\s'\"+])\+*([a-z_]\w*(?:\.\w+)+)=('[^']*'|\"[^\"]*\"|[^\s\\'\"]+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z][\w.+-]{1,40}")
# Keys that no GRPO run reads, and those that recipes judge by a key of their own.
_ELSEWHERE = (*RESERVED, "critic", "reward_model", "reward.reward_model", "distillation", "engine",
              "actor_rollout_ref.actor.strategy", "actor_rollout_ref.rollout.name")  # fmt: skip


@pytest.mark.upstreams
@pytest.mark.parametrize("tag", REFUSED)
def test_published_values_are_accepted(upstreams: Path, tmp_path: Path, tag: str) -> None:
    repository = upstreams / "verl-project+verl/repo"
    code = archive(repository, tag, "verl", tmp_path)
    found = {}
    for resolver in (_resolver(recipe, code) for recipe in RECIPES):
        asked = list(_known(resolver, published(repository, tag)))
        assert len(asked) > 400
        found.update({key: value for key, value in asked if resolver.find_refused(key, value)})
    assert found == REFUSED[tag]


@pytest.mark.upstreams
def test_a_users_reward_function_may_register_its_manager(upstreams: Path, tmp_path: Path) -> None:
    """As recipe/collabllm/train_rl_collabllm.sh of verl 0.6.1 does."""
    code = archive(upstreams / "verl-project+verl/repo", "v0.6.1", "verl", tmp_path)
    key = "reward_model.reward_manager"
    for more, refused in (((), True), (("reward.function=/recipe/collabllm/reward_function.py:f",), False)):
        assert bool(_resolver(FSDP, code, *more).find_refused(key, "collabllm")) is refused


def published(repository: Path, tag: str) -> list[tuple[str, Any]]:
    """Each value that a script or workflow of upstream sets a key to."""
    words = ["grep", "-hE", r"[a-z_]+\.[a-z_.]+=", tag, "--", "*.sh", "*.yml"]
    text = ok(run_program(["git", "-C", repository, *words])).stdout
    found: dict[tuple[str, str], Any] = {}
    for key, given in _PAIR.findall(text):
        try:
            value = None if "$" in given else yaml.safe_load(given.strip("'\""))
        except yaml.YAMLError:
            continue
        if value is not None and not isinstance(value, dict):
            found[key, json.dumps(value)] = value
    return [(key, value) for (key, _), value in found.items()]


def misspelt(values: list[tuple[str, Any]], seed: str) -> Iterator[tuple[str, str]]:
    """Each name among the values with a letter twice, a letter less, or another ending."""
    draw = random.Random(seed)
    for key, value in values:
        if isinstance(value, str) and _NAME.fullmatch(value):
            at = draw.randrange(1, len(value))
            yield key, draw.choice([value[:at] + value[at - 1 :], value[:at] + value[at + 1 :], f"{value}s"])


def _resolver(recipe: str, code: Path, *changes: str) -> KeyResolver:
    resolver = read_trainer(load_recipe(recipe, changes).recipe, code)
    assert isinstance(resolver, KeyResolver), resolver
    return resolver


def _known(resolver: KeyResolver, values: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The values of keys that this trainer has, of the right type."""
    for key, value in values:
        resolution = resolver.resolve(key)
        if resolution.known and not resolution.section and not resolution.expected.mismatch(value):
            yield key, value


def _figures(repository: Path, code: Path, tag: str) -> dict[str, Any]:
    given = published(repository, tag)
    right, wrong, refused = set[tuple[str, str]](), set[tuple[str, str]](), set[tuple[str, str]]()
    for resolver in (_resolver(recipe, code) for recipe in RECIPES):
        own = [(key, entry.value) for key, entry in resolver.tree.entries.items() if not entry.interpolation]
        right |= {(key, json.dumps(value)) for key, value in _known(resolver, given)}
        for key, value in _known(resolver, list(misspelt(given + own, tag))):
            if any(key == one or key.startswith(f"{one}.") for one in _ELSEWHERE):
                continue
            wrong.add((key, value))
            if resolver.find_refused(key, value):
                refused.add((key, value))
    return {
        "published": len(right), "misspelt": len(wrong), "refused": len(refused),
        "keys": len({key for key, _ in refused}),
    }  # fmt: skip


if __name__ == "__main__":
    mirror = Path(os.environ["NPU_RL_UPSTREAMS"]) / "verl-project+verl/repo"
    for version in sys.argv[1:] or REFUSED:
        with tempfile.TemporaryDirectory() as name:
            code = archive(mirror, version, "verl", Path(name))
            print(version, _figures(mirror, code, version), flush=True)
