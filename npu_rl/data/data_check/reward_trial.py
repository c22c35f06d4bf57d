"""A dry run of the reward: right, wrong and empty responses, scored by the recipe's own function."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common import python_roots
from npu_rl.common.callers_path import callers_path
from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly
from npu_rl.data.datasets.prompt_templates import BOXED, HASHES
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import function_file, split_function
from npu_rl.recipes.recipe.trainer_command import switch

_TIMEOUT = 300.0
_WRONG = "-987654321"
FORMS = {BOXED: "right-boxed", HASHES: "right-hashes", "": "right-plain"}
"""Form of answer -> the trial's response that gives the right answer in it."""

Score = float | str
"""A number, or the error that the function raised."""


@dataclass(frozen=True)
class Trial:
    """The scores of one row.

    Attributes:
        scores: By response: right-boxed, right-hashes, right-plain, wrong-boxed, wrong-hashes, empty.
    """

    data_source: str
    ground_truth: str
    scores: Mapping[str, Score]

    @property
    def best_wrong(self) -> float:
        """The highest score of a wrong or empty response."""
        wrong = [self.scores[name] for name in ("wrong-boxed", "wrong-hashes", "empty")]
        return max((score for score in wrong if isinstance(score, float)), default=0.0)

    def accepts(self, form: str) -> bool:
        """Return whether the right answer in this form scores higher than any wrong response."""
        score = self.scores[FORMS[form]]
        return isinstance(score, float) and score > self.best_wrong


def responses(ground_truth: Any) -> dict[str, str]:
    """Return the responses that are tried."""
    thought = "<think> It follows from the problem. </think>"
    return {
        "right-boxed": rf"{thought} <answer> \boxed{{{ground_truth}}} </answer>",
        "right-hashes": f"{thought} <answer> #### {ground_truth} </answer>",
        "right-plain": f"{thought} <answer> {ground_truth} </answer>",
        "wrong-boxed": rf"{thought} <answer> \boxed{{{_WRONG}}} </answer>",
        "wrong-hashes": f"{thought} <answer> #### {_WRONG} </answer>",
        "empty": "",
    }


def try_reward(
    loaded: LoadedRecipe,
    code: Path,
    python: str,
    manifest_env: Mapping[str, str],
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[Trial]:
    """Run the reward function of a recipe in the training interpreter.

    Args:
        samples: Rows by data source: ground_truth and extra_info.

    Raises:
        HostError: If the function can't be loaded there, with what it lacks.
    """
    cases = [
        {"data_source": source, **row, "responses": responses(row["ground_truth"])}
        for source, rows in samples.items()
        for row in rows
    ]
    path, name = None, ""
    if loaded.recipe.reward.function:
        file, name = split_function(loaded.recipe.reward.function)
        path = str(function_file(file, code, loaded.path.parent))
    job = {"path": path, "name": name, "arguments": dict(loaded.recipe.reward.arguments), "cases": cases}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "job.json"
        place.write_text(json.dumps(job, default=str), encoding="utf-8")
        script = python_roots.INJECTED / "npu_rl_try_reward.py"
        finished = run_quietly(
            [python, str(script), str(place)],
            _environment(loaded, code, manifest_env),
            Path(folder),
            _TIMEOUT,
        )
    try:
        result = json.loads(finished.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        result = {"error": (finished.stderr.strip()[-500:]) or f"exit status {finished.code}"}
    if "error" in result:
        raise HostError(
            "The reward function can't be run here",
            where=path or f"verl's default_compute_score in {code}",
            why=result["error"],
            hint="Name the training interpreter: --python PATH; it needs the manifest's requirements.",
        )
    return [
        Trial(
            str(case["data_source"]),
            str(case["ground_truth"]),
            {form: one if isinstance(one, float) else one["error"] for form, one in scores.items()},
        )
        for case, scores in zip(cases, result["scores"], strict=True)
    ]


def _environment(loaded: LoadedRecipe, code: Path, manifest_env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run as far as a reward needs it; nothing is written beside the locked sources."""
    roots = [str(python_roots.INJECTED), str(code)]
    return {
        **os.environ,
        **manifest_env,
        **loaded.recipe.env,
        **{switch(slug): "1" if on else "0" for slug, on in loaded.recipe.adaptations.items()},
        "PYTHONPATH": os.pathsep.join([*roots, *callers_path([code])]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "NPU_RL_STANDINS": "",
    }
