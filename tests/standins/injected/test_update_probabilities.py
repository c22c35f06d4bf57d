"""The comparison of an update's rows with what the engine sampled, in verl_patches' way of calling."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from npu_rl.common.python_roots import REHEARSAL

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]

PROMPTS = [(5, 6), (7, 8, 9)]
RESPONSES = [[(1, 2), (1, 3)], [(1, 2), (4,)]]  # two of each prompt
PAD, WIDE, LONG = 0, 3, 2  # the padding token, and the widths of prompts and responses


@pytest.fixture
def comparison() -> Iterator[Any]:
    sys.path.insert(0, str(REHEARSAL))
    try:
        module = importlib.import_module("npu_rl_standins.update_probabilities")
        yield module
        module._sampled.clear()
        module._times.clear()
    finally:
        sys.path.remove(str(REHEARSAL))


def generated(comparison: Any) -> None:
    """Let an engine generate all responses, each token with a probability of a half."""

    class LLM:
        def generate(self) -> list[Any]:
            half = float(torch.tensor(0.5).log())
            return [
                SimpleNamespace(
                    prompt_token_ids=list(prompt),
                    outputs=[
                        SimpleNamespace(
                            token_ids=list(response),
                            logprobs=[{token: SimpleNamespace(logprob=half)} for token in response],
                        )
                        for response in responses
                    ],
                )
                for prompt, responses in zip(PROMPTS, RESPONSES, strict=True)
            ]

    module = SimpleNamespace(LLM=LLM)
    comparison._keep_log_probs(module)
    assert len(module.LLM().generate()) == len(PROMPTS)


def batch(responses: list[tuple[int, ...]]) -> dict[str, Any]:
    """The update's rows: prompts padded on the left, responses on the right."""
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    rows, given = [], []
    for prompt, response in zip(prompts, responses, strict=True):
        left, right = WIDE - len(prompt), LONG - len(response)
        rows.append([PAD] * left + [*prompt, *response] + [PAD] * right)
        given.append([0] * left + [1] * (len(prompt) + len(response)) + [0] * right)
    rows, given = torch.tensor(rows), torch.tensor(given)
    return {"input_ids": rows, "attention_mask": given, "responses": rows[:, WIDE:]}


SAMPLED = [response for responses in RESPONSES for response in responses]


def test_the_rows_are_compared_with_the_engines_probabilities(comparison: Any) -> None:
    generated(comparison)
    mine = comparison._Comparison()
    rows = batch(SAMPLED)
    assert mine.begin(rows) and not mine.begin(rows)  # the first batch only
    mine.add(torch.full((4, LONG), 0.75).log(), rows["responses"])
    assert mine.report({"other": 1}) == {"other": 1, comparison.METRIC: [pytest.approx(0.25)]}


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([(1, 2), (4,), (1, 2), (1, 3)], 2),  # responses of two prompts are exchanged
        ([(1, 2), (1, 2), (1, 2), (4,)], 1),  # one that was sampled once is there twice
        ([(1, 3), (1, 2), (4,), (1, 2)], 0),  # another order
    ],
)
def test_a_response_of_another_prompt_ends_the_training(
    comparison: Any, rows: list[tuple[int, ...]], wrong: int
) -> None:
    generated(comparison)
    mine = comparison._Comparison()
    if not wrong:
        assert mine.begin(batch(rows))
        return
    with pytest.raises(
        comparison.UnsampledRowError, match=f"^{wrong} of the 4 rows of the update are not responses "
    ):
        mine.begin(batch(rows))
