r"""The three known datasets: the fields of a downloaded row, and those with the problem and the right answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from npu_rl.data.datasets.prompt_templates import BOXED, HASHES

# examples/data_preprocess/gsm8k.py:31@55e3c5b
_AFTER_HASHES = re.compile(r"#### (-?[0-9.,]+)")


@dataclass(frozen=True)
class Dataset:
    r"""A dataset and its rows.

    Attributes:
        data_source: The reward's key for its scoring rule.
        question, solution: Names of the fields with the problem, and with the worked solution.
        answer: Name of the field with the right answer; may be that of the solution, from which it is then taken.
        right_answer: Takes the right answer from the text of the field `answer`; None if there is none in it.
        looks_for: The form of answer that the reward looks for: BOXED or HASHES.
        template: Name of the default template, which asks for just that.
    """

    name: str
    data_source: str
    question: str
    answer: str
    solution: str
    right_answer: Callable[[str], str | None]
    looks_for: str
    template: str

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that a row must have; a worked solution is kept where there is one."""
        return tuple(dict.fromkeys((self.question, self.answer)))


def text_of(row: Mapping[str, Any], field: str) -> str | None:
    """Return a field's text without surrounding white space; None if it is absent, blank or not text."""
    value = row.get(field)
    return (value.strip() or None) if isinstance(value, str) else None


def after_hashes(solution: str) -> str | None:
    """Return the number after `####`, without its thousands separators, as GSM8K's reward compares it."""
    found = _AFTER_HASHES.search(solution)
    return (found[1].replace(",", "") or None) if found else None


def last_boxed(solution: str) -> str | None:
    r"""Return the content of the last `\boxed{}`, by the rules of the reward that compares it.

    verl/utils/reward_score/math.py:49-87@55e3c5b: `\boxed 5` ends at a dollar sign; what is in `\fbox{}` is no answer
    to it.
    """
    if r"\boxed " in solution:
        return solution.split(r"\boxed ")[-1].split("$")[0].strip() or None
    start = solution.rfind(r"\boxed{")
    if start < 0 or start != solution.rfind(r"\boxed"):
        return None
    depth = 0
    for at in range(start, len(solution)):
        depth += (solution[at] == "{") - (solution[at] == "}")
        if solution[at] == "}" and depth == 0:
            return solution[start + len(r"\boxed{") : at].strip() or None
    return None


_MATH = "DigitalLearningGmbH/MATH-lighteval"
_ALL = (
    Dataset("deepscaler", "deepscaler", "problem", "answer", "solution", str, BOXED, "boxed"),
    Dataset("gsm8k", "openai/gsm8k", "question", "answer", "answer", after_hashes, HASHES, "hashes"),
    Dataset("math-lighteval", _MATH, "problem", "solution", "solution", last_boxed, BOXED, "boxed"),
)
DATASETS = {one.name: one for one in _ALL}


def dataset_like(fields: set[str]) -> str:
    """Return the name of the dataset whose rows have these fields; "" for none."""
    fitting = [one for one in DATASETS.values() if {*one.fields, one.solution} <= fields]
    return max(fitting, key=lambda one: len({*one.fields, one.solution})).name if fitting else ""
