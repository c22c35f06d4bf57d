r"""Score responses, with verl's signatures for one response and for a batch.

accuracy: 1.0 if the last balanced `\boxed{}` equals the right answer (see `equality`), else 0.0.
format: 0.33 for <think>, <answer> and a box inside it, and 0.67 for accuracy, as in the published recipe
(recipe/r1_ascend/deepscaler.py of verl 448c6c3).

A right answer elsewhere in the text scores nothing: a model would learn to list guesses.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from ..used import count
from . import pool
from .boxed import keeps_format, last_boxed
from .equality import same_without_algebra, spelled

SLUG = "deepscaler-reward"
DATA_SOURCE = "deepscaler"
VARIANTS = ("accuracy", "format")
FORMAT_SHARE, ACCURACY_SHARE = 0.33, 0.67
LIMIT_S = 0.5  # CPU seconds of algebra for one answer; ordinary ones take a few milliseconds

Score = float | dict[str, float]


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    variant: str | None = None,
    limit_s: float = LIMIT_S,
    details: bool = False,
    any_source: bool = False,
) -> Score:
    """Return the score of one response, with the arguments and errors of `compute_scores`."""
    return compute_scores(
        [data_source],
        [solution_str],
        [ground_truth],
        [extra_info],
        variant=variant,
        limit_s=limit_s,
        details=details,
        any_source=any_source,
    )[0]


def compute_scores(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Any] | None = None,
    *,
    variant: str | None = None,
    limit_s: float = LIMIT_S,
    details: bool = False,
    any_source: bool = False,
) -> list[Score]:
    """Return a score per response. Responses that need algebra are compared on all cores.

    The signature is that of verl's reward manager `batch`
    (verl/workers/reward_manager/batch.py:67@55e3c5b); the arguments after `*` are a recipe's `reward.arguments`.

    Args:
        data_sources: the data set of each response: `deepscaler`, as in verl's default function.
        solution_strs: the decoded responses.
        ground_truths: a text or number per response, or a list of accepted ones.
        extra_infos: ignored.
        variant: `accuracy` or `format`; by default the value of NPU_RL_DEEPSCALER_VARIANT, or accuracy.
        limit_s: CPU seconds of algebra per pair; a pair that takes longer counts as not equal.
        details: return a dictionary per response: score, accuracy, format, and limit (1.0 if time was up).
        any_source: score responses of other data sources the same way.

    Raises:
        ValueError: an unknown variant or data source, or lengths that differ.
        ModuleNotFoundError: math-verify is not installed.
        RuntimeError: the processes that compare responses ended several times.
    """
    del extra_infos
    if not any_source:
        _known(data_sources)
    if len(solution_strs) != len(ground_truths):
        raise ValueError(f"{len(solution_strs)} responses, but {len(ground_truths)} ground truths")
    with_format = _variant(variant) == "format"
    if not limit_s > 0:
        raise ValueError(f"limit_s={limit_s!r}: write a number of seconds above 0")
    for _ in solution_strs:
        count(SLUG)
    accuracies, late = _accuracies(solution_strs, ground_truths, limit_s)
    result: list[Score] = []
    for text, accuracy, out_of_time in zip(solution_strs, accuracies, late, strict=True):
        formatted = float(with_format and keeps_format(text))
        score = FORMAT_SHARE * formatted + ACCURACY_SHARE * accuracy if with_format else accuracy
        parts = {"score": score, "accuracy": accuracy, "format": formatted, "limit": float(out_of_time)}
        result.append(parts if details else score)
    return result


def _known(data_sources: Iterable[str]) -> None:
    others = sorted({str(source) for source in data_sources} - {DATA_SOURCE})
    if others:
        more = f" and {len(others) - 5} more" if others[5:] else ""
        raise ValueError(
            f"the reward of {DATA_SOURCE} was called for data source {', '.join(others[:5])}{more}: "
            f"write {DATA_SOURCE} into the column data_source of the data, or have the others scored by their last "
            "\\boxed{} too, with `reward: {arguments: {any_source: true}}` in the recipe"
        )


def _variant(named: str | None) -> str:
    variant = named or os.environ.get("NPU_RL_DEEPSCALER_VARIANT", "").strip() or VARIANTS[0]
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r}: write one of {', '.join(VARIANTS)}")
    return variant


def _accuracies(
    texts: Sequence[str], ground_truths: Sequence[Any], limit_s: float
) -> tuple[list[float], list[bool]]:
    """Return accuracy (1.0 or 0.0) and whether time was up, per response. A repeated pair is compared once."""
    wanted = [[(right, given) for right in rights] for rights, given in zip(
        map(_rights, ground_truths), map(_given, texts), strict=True
    )]  # fmt: skip
    known: dict[tuple[str, str], bool | None] = {}
    for pair in (pair for pairs in wanted for pair in pairs):
        if pair not in known:
            known[pair] = same_without_algebra(*pair)
    solved = {pair for pairs in wanted if any(known[p] for p in pairs) for pair in pairs}
    hard = [pair for pair, same in known.items() if same is None and pair not in solved]
    verdicts = dict(zip(hard, pool.verdicts(hard, limit_s), strict=True)) if hard else {}
    accuracies = [float(any(known[p] or verdicts.get(p) == pool.EQUAL for p in pairs)) for pairs in wanted]
    late = [
        not a and any(verdicts.get(p) == pool.LIMIT for p in pairs)
        for a, pairs in zip(accuracies, wanted, strict=True)
    ]
    return accuracies, late


def _given(text: str) -> str:
    box = last_boxed(text)
    return "" if box is None else spelled(box)


def _rights(ground_truth: Any) -> list[str]:
    r"""Return the right answers in one spelling. A data set may give them in a `\boxed{}`, a list or an array."""
    if hasattr(ground_truth, "tolist"):  # numpy and torch
        ground_truth = ground_truth.tolist()
    several: Iterable[Any] = ground_truth if isinstance(ground_truth, (list, tuple)) else [ground_truth]
    return [spelled(text) for text in several if text is not None]
