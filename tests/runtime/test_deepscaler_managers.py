"""The reward in verl's own managers: all of a step's responses in one call, with the scores of one call each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.bundled import bundled_recipes
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.trainer_command import split_function
from tests.patchsets.flagship_tree import tree
from tests.support import byte_code

for needed in ("torch", "ray", "tensordict", "math_verify"):
    pytest.importorskip(needed)
pytestmark = [pytest.mark.upstreams, pytest.mark.rehearsal]

RUNNER = Path(__file__).with_name("run_reward_managers.py")
FORMATTED = r"<think>a</think><answer>\boxed{5}</answer>"
PAIRS = [  # response, right answer, accuracy, format and accuracy
    (r"so \boxed{5}", "5", 1.0, 0.67),
    (r"so \boxed{6}, not 5", "5", 0.0, 0.0),
    (r"\boxed{2\sqrt2}", r"\sqrt{8}", 1.0, 0.67),
    (r"\boxed{\frac{1}{2}}", "0.5", 1.0, 0.67),
    (r"\boxed{(x+1)^2}", "x^2+2x+1", 1.0, 0.67),
    (r"\boxed{9^{9^{9^9}}}", r"\sqrt{17}", 0.0, 0.0),
    (FORMATTED, "5", 1.0, 1.0),
    (FORMATTED, "6", 0.0, 0.33),
    ("no box: 5", "5", 0.0, 0.0),
]  # fmt: skip
RECIPES = sorted(name for name in bundled_recipes() if name.startswith("deepseek-r1-zero"))


@pytest.fixture(scope="module")
def code(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(upstreams, tmp_path_factory.mktemp("reward") / "code", ["verl"])


def run(code: Path, case: dict[str, Any], **environment: str) -> list[list[dict[str, Any]]]:
    given = {name: value for name, value in os.environ.items() if not name.startswith("NPU_RL_")}
    given |= {"PYTHONPATH": str(code), **byte_code(), "CUDA_VISIBLE_DEVICES": "", **environment}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(RUNNER)],
        input=json.dumps(case), env=given, capture_output=True, text=True, timeout=300, check=False, cwd=code,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: list[list[dict[str, Any]]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def case(*managers: dict[str, Any], source: str = "deepscaler") -> dict[str, Any]:
    return {
        "responses": [response for response, *_ in PAIRS],
        "rights": [right for _, right, *_ in PAIRS],
        "sources": [source] * len(PAIRS),
        "managers": managers,
    }


def of_recipe(code: Path, name: str) -> dict[str, Any]:
    """The recipe's reward as the trainer gets it."""
    reward = load_recipe(name).recipe.reward
    assert reward.function and reward.manager
    file, function = split_function(reward.function)
    assert (code / file).is_file(), "it has to lie in the assembled tree, which every node has"
    return {
        "manager": reward.manager,
        "path": str(code / file),
        "name": function,
        "arguments": dict(reward.arguments),
    }


DEFAULT = {"manager": "naive", "path": None, "name": None, "arguments": {}}


def test_one_call_scores_as_one_call_each(code: Path) -> None:
    """For training and validation: equal rewards, at the last token; one call in place of one per response.

    Each recipe names the manager `batch`, and the format counts where its arguments say so.
    """
    recipes = [of_recipe(code, name) for name in RECIPES]
    *batches, (naive, naive_validation) = run(code, case(*recipes, DEFAULT))
    assert naive["calls"] == [1] * len(PAIRS) and naive_validation == naive
    for recipe, (training, validation) in zip(recipes, batches, strict=True):
        with_format = recipe["arguments"].get("variant") == "format"
        assert training == validation and training["calls"] == [len(PAIRS)]
        assert training["rewards"] == pytest.approx([pair[3 if with_format else 2] for pair in PAIRS])
        assert {place for place in training["places"] if place is not None} == {0}
        assert with_format or training["rewards"] == naive["rewards"]


def test_another_data_source_is_refused_by_both(code: Path) -> None:
    """As verl's default function refuses one that it doesn't know; a recipe may ask for it."""
    ours = of_recipe(code, "deepseek-r1-zero-256die")
    asked = {**ours, "arguments": {"any_source": True}}
    found = run(code, case(ours, DEFAULT, asked, source="mine"))
    (batch, _), (naive, _), (any_source, _) = found
    assert batch["error"].startswith("ValueError") and "data source mine" in batch["error"]
    assert naive["error"].startswith("NotImplementedError") and "mine" in naive["error"]
    assert any_source["rewards"] == [accuracy for _, _, accuracy, _ in PAIRS]
