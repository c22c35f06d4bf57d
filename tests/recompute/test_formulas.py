"""The recomputed formulas, by hand and against the trees' own functions; rounding passes, and a mistake is named."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npu_rl.common.python_roots import REHEARSAL

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal


@pytest.fixture
def recompute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The modules of the recomputation, which write to `tmp_path`."""
    monkeypatch.syspath_prepend(str(REHEARSAL))
    monkeypatch.setenv("NPU_RL_USAGE", str(tmp_path))
    counter = importlib.import_module("npu_rl_standins.used")._counter
    monkeypatch.setattr(counter, "_owner", 0)  # begins a new file
    names = ("difference", "group_advantages", "response_masks", "rewards", "batch_rows", "log_prob_checks")
    return SimpleNamespace(
        StepBatch=importlib.import_module("npu_rl_recompute.step_batch").StepBatch,
        **{name: importlib.import_module(f"npu_rl_recompute.{name}") for name in names},
    )


def upstream(scores: Any, groups: list[int], *, by_deviation: bool) -> Any:
    """The order of operations of verl's compute_grpo_outcome_advantage@v0.5.0, in float32."""
    values = []
    for row, group in enumerate(groups):
        own = [scores[other] for other in range(len(groups)) if groups[other] == group]
        mean, deviation = torch.tensor(0.0), torch.tensor(1.0)
        if len(own) > 1:
            mean, deviation = torch.mean(torch.tensor(own)), torch.std(torch.tensor([own]))
        values.append((scores[row] - mean) / (deviation + 1e-6) if by_deviation else scores[row] - mean)
    return torch.stack(values)


def test_the_papers_formula_by_hand(recompute: SimpleNamespace) -> None:
    scores = torch.tensor([1.0, 0.0, 0.0, 3.0, 5.0])
    found = recompute.group_advantages.group_advantages(scores, list("aaabb"), by_deviation=True).values
    third, half = math.sqrt(1 / 3), math.sqrt(2)
    want = [2 / 3 / third, -1 / 3 / third, -1 / 3 / third, -1 / half, 1 / half]
    assert found.tolist() == pytest.approx(want, rel=1e-5)
    found = recompute.group_advantages.group_advantages(scores, list("aaabc"), by_deviation=False).values
    assert found.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 3, 5])


@pytest.mark.parametrize("by_deviation", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 16, 33])
def test_roundings_of_float32_pass(recompute: SimpleNamespace, size: int, by_deviation: bool) -> None:
    """Groups of equal rewards among them: their deviation is not 0, and their advantages are not small."""
    groups = [row // size for row in range(20 * size)]
    random = torch.Generator().manual_seed(size)
    scores = torch.rand(len(groups), generator=random)
    scores[: 10 * size] = scores[torch.tensor(groups)[: 10 * size] * size]
    got = upstream(scores, groups, by_deviation=by_deviation)
    own = recompute.group_advantages.group_advantages(scores, groups, by_deviation=by_deviation)
    recompute.difference.require_equal("advantages", got, own.values, own.tolerances, dict)
    zero = torch.where(torch.arange(len(groups)) < 10 * size, 0.0, own.values) if size > 1 else own.values
    recompute.difference.require_equal("advantages", zero, own.values, own.tolerances, dict)


def test_each_mistake_differs_from_the_others(recompute: SimpleNamespace) -> None:
    groups, scores = (
        [row // 4 for row in range(12)],
        torch.rand(12, generator=torch.Generator().manual_seed(0)),
    )
    own = recompute.group_advantages.group_advantages(scores, groups, by_deviation=True)
    known = recompute.group_advantages.known_mistakes(scores, groups, by_deviation=True)
    for name, values in known.items():
        with pytest.raises(recompute.difference.RecomputedDifferenceError) as raised:
            recompute.difference.require_equal(
                "advantages", values, own.values, own.tolerances, lambda: known
            )
        assert str(raised.value).rpartition(": ")[2] == name or str(raised.value).endswith(f": {name}")


def test_a_mask_ends_with_the_first_end_of_sequence(recompute: SimpleNamespace) -> None:
    responses = torch.tensor([[5, 2, 2, 5], [5, 5, 5, 5], [9, 5, 2, 0], [2, 0, 0, 0]])
    mask = recompute.response_masks.response_mask(responses, {2, 9})
    assert mask.long().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]]


def batch(recompute: SimpleNamespace, uids: str, prompts: list[int], **labels: list[Any]) -> Any:
    rows = torch.tensor(prompts)[:, None]
    tensors = {
        "prompts": torch.cat([torch.zeros_like(rows), rows], 1),
        "responses": rows + 50,
        "attention_mask": torch.tensor([[0, 1, 1]] * len(rows)),
    }
    return recompute.StepBatch(tensors, {"uid": list(uids), **labels}, 1)


def test_groups_of_one_prompt_and_n_rows(recompute: SimpleNamespace) -> None:
    recompute.batch_rows.require_groups(batch(recompute, "aabb", [7, 7, 7, 7]), 2)  # two equal prompts
    for uids, prompts in {"aabb": [7, 8, 7, 8], "aaab": [7, 7, 7, 8]}.items():
        with pytest.raises(recompute.difference.RecomputedDifferenceError, match="groups, step 1, row"):
            recompute.batch_rows.require_groups(batch(recompute, uids, prompts), 2)


def test_groups_without_a_difference_are_not_kept(recompute: SimpleNamespace) -> None:
    rows = batch(recompute, "aabb", [7, 7, 8, 8], acc=[0, 1, 1, 1])
    require = recompute.batch_rows.require_unequal
    require(rows, "score", torch.tensor([1.0, 2, 3, 4]))
    for metric, scores in {"acc": [1.0, 2, 3, 4], "score": [1.0, 2, 3, 3]}.items():
        with pytest.raises(recompute.difference.RecomputedDifferenceError, match=r"row 2: .*was kept"):
            require(rows, metric, torch.tensor(scores))


def test_a_response_and_a_right_answer_of_another_prompt(recompute: SimpleNamespace) -> None:
    rows = batch(recompute, "ab", [7, 8], reward_model=[{"ground_truth": "x"}, {"ground_truth": 1}])
    recompute.batch_rows.require_generated(rows, {((7,), (57,)), ((8,), (58,))})
    with pytest.raises(recompute.difference.RecomputedDifferenceError, match="belongs to another prompt"):
        recompute.batch_rows.require_generated(rows, {((8,), (57,)), ((7,), (58,))})
    recompute.batch_rows.require_labels(rows, {(7,): {"x", "y"}, (8,): {"1"}})
    with pytest.raises(recompute.difference.RecomputedDifferenceError, match="row 1: 1, recomputed x"):
        recompute.batch_rows.require_labels(rows, {(7,): {"x"}, (8,): {"x"}})


def test_rewards_without_a_result_in_time_are_left_out(
    recompute: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = batch(recompute, "aa", [7, 7])
    rows.tensors["token_level_scores"] = torch.tensor([[1.0], [0.0]])
    monkeypatch.setattr(recompute.rewards, "_called_again", lambda *_: torch.ones(len(_[3]), 1))
    assert recompute.rewards.require_rewards(rows, len, (), late=1) == 1
    with pytest.raises(recompute.difference.RecomputedDifferenceError, match="rewards, step 1, row 1"):
        recompute.rewards.require_rewards(rows, len, (), late=0)


def test_equally_probable_tokens_show_no_position(recompute: SimpleNamespace, tmp_path: Path) -> None:
    rows, mask = batch(recompute, "aa", [7, 7]), torch.ones(2, 6, dtype=torch.bool)
    other = torch.rand(2, 6, generator=torch.Generator().manual_seed(0)) - 2
    for own in (other + 1e-4, torch.full_like(other, -2.0)):
        rows.tensors.update(old_log_probs=own, rollout_log_probs=other if own is not other else own)
        recompute.log_prob_checks.require_positions(rows, mask)
    counts = "".join(path.read_text() for path in tmp_path.glob("*.txt"))
    assert counts.split() == ["1", "recomputed:", "positions", "of", "log-probabilities"]
    for shift, name in {1: "late", -1: "early"}.items():
        rows.tensors.update(old_log_probs=other.roll(shift, 1))
        with pytest.raises(recompute.difference.RecomputedDifferenceError, match=f"one position {name}"):
            recompute.log_prob_checks.require_positions(rows, mask)
