"""A dry run of the reward: right, wrong and empty responses, scored by the recipe's own function."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common import python_roots
from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly
from npu_rl.data.data_check.child_environment import child_environment
from npu_rl.data.datasets.prompt_templates import ANSWER, BOXED, HASHES
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import function_file, split_function
from npu_rl.recipes.recipe.trainer_command import switch

_TIMEOUT = 300.0
_WRONG = "-987654321"
_THOUGHT = "<think> It follows from the problem. </think>"
FORMS = {
    BOXED: ("boxed", r"<answer> \boxed{{{}}} </answer>"),
    HASHES: ("hashes", "<answer> #### {} </answer>"),
    ANSWER: ("answer", "\nAnswer: {}"),
    "": ("plain", "<answer> {} </answer>"),
}
"""Form of answer -> its name and the response that gives an answer in it."""


@dataclass(frozen=True)
class Trial:
    """The scores of one row.

    Attributes:
        truth: The row's ground truth, as the reward gets it.
        scores: By response (right-boxed, wrong-boxed, ..., empty): a number, or the error that the function raised.
        missing: The package that the function could not import; "" if it raised no such error.
    """

    data_source: str
    truth: Any
    scores: Mapping[str, float | str]
    missing: str = ""

    @property
    def errors(self) -> dict[str, str]:
        """The errors by response."""
        return {name: score for name, score in self.scores.items() if isinstance(score, str)}

    def accepts(self, form: str) -> bool:
        """Return whether the right answer in this form scores higher than any wrong or empty response."""
        numbers = {name: score for name, score in self.scores.items() if not isinstance(score, str)}
        right = numbers.pop(f"right-{FORMS[form][0]}", None)
        wrong = [score for name, score in numbers.items() if not name.startswith("right-")]
        return right is not None and right > max(wrong, default=0.0)


def answer_of(truth: Any) -> str | None:
    """Return the text that answers a ground truth: of a list the first, of a mapping `target`; None for others."""
    if isinstance(truth, list) and truth:
        return answer_of(truth[0])
    if isinstance(truth, dict):
        return answer_of(truth.get("target"))
    return str(truth) if isinstance(truth, (str, int, float)) else None


def responses(truth: Any) -> dict[str, str]:
    """Return the responses that are tried; none is right if the ground truth answers no question."""
    answers = {"right": answer_of(truth), "wrong": _WRONG}
    return {
        f"{kind}-{name}": f"{_THOUGHT} {response.format(answer)}"
        for kind, answer in answers.items()
        if answer is not None
        for name, response in FORMS.values()
    } | {"empty": ""}


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
    recipe = loaded.recipe
    switches = {switch(slug): "1" if on else "0" for slug, on in recipe.adaptations.items()}
    environment = child_environment(
        [python_roots.INJECTED, code], code, {**manifest_env, **recipe.env, **switches}
    )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "job.json"
        place.write_text(json.dumps(job, default=str), encoding="utf-8")
        script = python_roots.INJECTED / "npu_rl_try_reward.py"
        finished = run_quietly([python, str(script), str(place)], environment, Path(folder), _TIMEOUT)
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
        Trial(case["data_source"], case["ground_truth"], one["scores"], one["missing"])
        for case, one in zip(cases, result["trials"], strict=True)
    ]
