"""Two data-parallel ranks that share one expert-parallel group, over gloo, against transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_rl.rehearsal.patch_hooks import read_usage
from tests.standins.vllm import models
from tests.standins.vllm.test_engine import EXACT, LENGTHS, PROMPTS

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]


def test_two_ranks_answer_as_one_would(
    run_engine: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Four prompts on one rank and one on the other, which ends long before and runs dummy batches until the end;
    then the other way round, in chunks, with the same engines' groups."""
    reference = models.deepseek(tmp_path / "model", 1, yarn=True)
    usage = tmp_path / "usage"
    usage.mkdir()
    parts = [[0, 1, 3, 4], [2]]
    few = {"max_num_batched_tokens": 16, "enable_chunked_prefill": True, "enable_prefix_caching": False}

    def scenarios(rank: int) -> list[dict[str, Any]]:
        made = []
        for name, mine, arguments in (("whole", parts[rank], {}), ("chunks", parts[1 - rank], few)):
            made.append(
                {
                    "name": name,
                    "model": str(tmp_path / "model"),
                    "prompts": [PROMPTS[index] for index in mine],
                    "max_tokens": [LENGTHS[index] for index in mine],
                    "arguments": {"enable_expert_parallel": True, **arguments},
                    "then": "experts_here",
                }
            )
        return made

    answers = run_engine(scenarios(0), scenarios(1), usage=usage)
    for name, order in (("whole", (0, 1)), ("chunks", (1, 0))):
        for rank, part in enumerate(order):
            assert answers[rank][name]["experts"] == [4, 2, 2]  # of 8, on 2 ranks of one group
            for index, answer in zip(parts[part], answers[rank][name]["answers"], strict=True):
                assert len(answer["tokens"]) == LENGTHS[index]
                expected, below_the_best = models.judged(reference, PROMPTS[index], answer["tokens"])
                assert answer["log_probs"] == pytest.approx(expected, abs=EXACT)
                assert max(below_the_best) < EXACT
    names = set(reference.state_dict())
    experts = {name for name in names if ".experts." in name}
    here, there = (set(answers[rank]["whole"]["held"]) for rank in (0, 1))
    assert here | there == names and here & there == names - experts  # each rank has half of the experts
    used = read_usage(usage)[1]
    assert used["vllm.dispatch"] == used["vllm.combine"] > 0
