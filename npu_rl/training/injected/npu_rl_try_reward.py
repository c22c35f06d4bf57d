"""Call a recipe's reward function on a few responses, in the training interpreter, and print the results.

    python npu_rl_try_reward.py JOB

JOB is a JSON file: `path` (null for verl's default function), `name`, `arguments`, and `cases`, a list of {data_source,
ground_truth, extra_info, responses: {FORM: TEXT}}. The last line printed is JSON: {"trials": [{"scores": {FORM: number,
or the text of an error}, "missing": the package that it lacks, or ""}]}, or {"error": text} if the function can't be
loaded. It is called as verl's reward managers call it: with lists by `batch`, else once per response
(verl/workers/reward_manager/{batch,naive}.py@55e3c5b).
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import Any


def load(job: dict[str, Any]) -> Any:
    """Load and return the reward function."""
    if job["path"] is None:
        from verl.utils.reward_score import default_compute_score

        return default_compute_score
    spec = importlib.util.spec_from_file_location("custom_module", job["path"])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["custom_module"] = module
    spec.loader.exec_module(module)
    return getattr(module, job["name"])


def score(function: Any, case: dict[str, Any], text: str, arguments: dict[str, Any]) -> float:
    """Return the score of one response. Raises the function's errors."""
    batch = "solution_strs" in inspect.signature(function).parameters
    one = {
        "data_source": case["data_source"],
        "solution_str": text,
        "ground_truth": case["ground_truth"],
        "extra_info": case["extra_info"],
    }
    given = {f"{name}s": [value] for name, value in one.items()} if batch else one
    result = function(**{**given, **arguments})
    result = result[0] if batch else result
    return float(result["score"] if isinstance(result, dict) else result)


def trial(function: Any, case: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of all responses of a case."""
    scores: dict[str, float | str] = {}
    missing = ""
    for form, text in case["responses"].items():
        try:
            scores[form] = score(function, case, text, arguments)
        except Exception as error:  # noqa: BLE001 - whatever the function raises is the result
            scores[form] = described(error)
            missing = missing or missing_package(error)
    return {"scores": scores, "missing": missing}


def described(error: BaseException) -> str:
    """Return an error's class and text."""
    return f"{type(error).__name__}: {error}"[:500]


def missing_package(error: BaseException | None) -> str:
    """Return the package whose import failed before this error; "" for none."""
    while error is not None and not isinstance(error, ImportError):
        error = error.__cause__ or error.__context__
    return (error.name or str(error)) if isinstance(error, ImportError) else ""


def main() -> None:
    """Score the job's responses."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        function = load(job)
    except Exception as error:  # noqa: BLE001
        result: dict[str, Any] = {"error": described(error)}
    else:
        result = {"trials": [trial(function, case, job["arguments"]) for case in job["cases"]]}
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
