"""Reward of the rehearsal: the share of one digit in the response.

A random model scores about 1 / vocabulary, a trained one close to 1, and nothing has to be downloaded. verl
loads this file by its path (`custom_reward_function.path`), so it imports nothing from its package.
"""

from __future__ import annotations

from typing import Any


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    digit: str | int = "7",
) -> float:
    """Return the share of the response's non-space characters that are `digit`, from 0 to 1; 0 for an empty response.

    The other arguments are what verl passes to every reward function.
    """
    del data_source, ground_truth, extra_info
    answer = solution_str.replace(" ", "")
    return answer.count(str(digit)) / len(answer) if answer else 0.0
