"""One value that is wrong gives one finding, however many rules it breaks; and a finding is three lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.bundled import data_root
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.judgement.recipe_changes import recipe_changes
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


@pytest.mark.parametrize(
    ("wrong", "rule", "also"),
    [
        (
            "data.batch=7",
            "batch-divisible-by-dp",
            "mini-batch-within-batch and batch-divisible-by-rollout-dp",
        ),
        ("cluster.nodes=7", "expert-parallel-divides-world", "rollout-dp-size, batch-divisible-by-dp and"),
        ("data.prompt_length=1000000", "model-positions", "prompt-exceeds-prefill-step"),
        ("rollout.max_batched_tokens=7", "prompt-exceeds-prefill-step", "sequences-within-step and"),
    ],
)
def test_a_value_that_breaks_several_rules_is_one_error_that_names_them(
    wrong: str, rule: str, also: str
) -> None:
    base, judgement = judge(load_recipe(FLAGSHIP)), judge(load_recipe(FLAGSHIP, [wrong]))
    (error,) = judgement.errors
    key, _, _ = wrong.partition("=")
    assert (error.rule, error.key, error.where) == (rule, key, f"command line: {wrong}")
    assert f"{key} also breaks {also}" in error.message
    assert error.fix.startswith(f"set {key} back to ")
    known = {one.rule for one in base.findings}
    assert not [
        one for one in judgement.findings if one.severity is Severity.ADVICE and one.rule not in known
    ]


def test_a_value_that_other_keys_can_follow_may_be_kept() -> None:
    (error,) = judge(load_recipe(FLAGSHIP, ["cluster.nodes=7"])).errors
    assert error.fix.startswith("set cluster.nodes back to 16; or keep it and set actor.parallel.expert")
    assert "set env.VLLM_DP_SIZE to 56" in error.fix


def test_what_a_value_does_not_break_stays_beside_it() -> None:
    wrong = ["data.batch=7", "rollout.tensor_parallel=3"]
    found = {one.rule for one in judge(load_recipe(FLAGSHIP, wrong)).errors}
    assert found == {"batch-divisible-by-dp", "rollout-tensor-parallel-divides-heads"}


@pytest.mark.parametrize("text", ["extends: quickstart\nname: mine\ncluster: {nodes: 3}\n", ""])
def test_a_file_is_compared_with_what_it_extends_or_copies(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    bundled = (data_root() / "recipes" / "quickstart.yaml").read_text(encoding="utf-8")
    path.write_text(text or bundled.replace("nodes: 1\n", "nodes: 3\n"), encoding="utf-8")
    loaded = load_recipe(str(path))
    assert [change.fix for change in recipe_changes(loaded)] == ["set cluster.nodes back to 1"]
    assert [one.key for one in judge(loaded).errors] == ["cluster.nodes"]


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
