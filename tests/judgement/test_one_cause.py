"""One value that is wrong gives one finding, however many rules it breaks; and a finding is three lines."""

from __future__ import annotations

import pytest

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.environment.environment_check import name_with_digits
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.recipe.load_recipe import load_recipe

FLAGSHIP = "deepseek-r1-zero-256die"


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ("rollout.tensor_parallel=3", "rollout-tensor-parallel-divides-heads"),
        ("rollout.tensor_parallel=256", "rollout-tensor-parallel-divides-heads"),
        ("actor.parallel.tensor=3", "mla-tensor-parallel"),
        ("actor.parallel.pipeline=5", "model-parallel-divides-world"),
        ("actor.parallel.expert=5", "expert-parallel-divides-experts"),
    ],
)
def test_a_wrong_layout_is_one_error(wrong: str, rule: str) -> None:
    judgement = judge(load_recipe(FLAGSHIP, [wrong]))
    assert [one.rule for one in judgement.errors] == [rule]
    assert not [one for one in judgement.findings if one.severity is Severity.ADVICE]


def test_two_causes_are_two_errors() -> None:
    wrong = ["rollout.tensor_parallel=3", "actor.parallel.expert=5"]
    found = {one.rule for one in judge(load_recipe(FLAGSHIP, wrong)).errors}
    assert found == {"rollout-tensor-parallel-divides-heads", "expert-parallel-divides-experts"}


def test_an_overruled_rule_hides_no_other() -> None:
    """Who knows better than `expert-parallel-divides-experts` is told of the rest."""
    wrong = ["actor.parallel.expert=5", "plan.except.expert-parallel-divides-experts=a test"]
    found = {one.rule for one in judge(load_recipe(FLAGSHIP, wrong)).findings}
    assert "expert-parallel-divides-world" in found


def test_a_finding_is_its_id_and_key_its_place_and_its_fix() -> None:
    found = Finding(
        "a-rule", Severity.ERROR, ("data", "batch"), "", "7 is odd", "set data.batch to 8", "r.yaml:3"
    )
    assert found.lines() == (
        "error[a-rule] data.batch: 7 is odd",
        "  at r.yaml:3",
        "  fix: set data.batch to 8",
    )
    bare = Finding("a-rule", Severity.NOTE, (), "", "no file", "", "there")
    assert bare.lines() == ("note[a-rule] no file", "  at there")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("VLLM_USE_V", "VLLM_USE_V1"), ("VLLM_USE_V2", None), ("VLLM_PORT", None), ("VLLM_A", None)],
)
def test_a_name_without_its_digits_is_suggested(name: str, meant: str | None) -> None:
    assert name_with_digits(name, ["VLLM_USE_V1", "VLLM_PORT", "VLLM_A1", "VLLM_A2"]) == meant
