"""verl has no reward for the data source deepscaler, so its first response ends the run.

Called is default_compute_score of verl/utils/reward_score/__init__.py@55e3c5b, with responses whose last box is right,
wrong, missing, and endless to compute; "others" are scores of sources that verl has.
"""

from __future__ import annotations

import importlib
from typing import Any

from witness_common import make_packages, show

RESPONSES = {
    r"so \boxed{\frac{1}{2}}": 1.0,
    r"so \boxed{0.5}, no, \boxed{\frac{1}{3}}": 0.0,
    "one of 1, 2, 3, 4, 5, 0.5": 0.0,
    r"\boxed{9^{9^{9^9}}} or 0.5": 0.0,
}
OTHERS = [
    ("openai/gsm8k", "it is #### 42", "42"),
    ("openai/gsm8k", "it is #### 41", "42"),
    ("math_dapo", "Answer: 7", "7"),
    ("aime2024", "Answer: 8", "7"),
]


def main() -> dict[str, Any]:
    make_packages("verl", "verl.utils")  # their own __init__ would import torch
    score = importlib.import_module("verl.utils.reward_score").default_compute_score
    others = [score(*one, extra_info={}) for one in OTHERS]
    shown = [one["score"] if isinstance(one, dict) else one for one in others]
    assert shown == [1.0, 0.0, 1.0, -1.0], shown
    try:
        scores = [score("deepscaler", response, "0.5", extra_info={}) for response in RESPONSES]
    except NotImplementedError as error:
        return {"fault": True, "error": str(error), "others": shown}
    return {"fault": scores != list(RESPONSES.values()), "scores": scores, "others": shown}


if __name__ == "__main__":
    show(main)
