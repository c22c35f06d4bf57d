"""Each rule against trees that have, and that lack, the code it rests on."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from npu_rl.recipes.plan.rules.rule import RULES, Rule, cited
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.citations import CitedCode
from tests.code_trees import lay
from tests.plan.helpers import plan, rule
from tests.plan.test_rules import BROKEN

RESTING = [row for row in BROKEN if row.name in RULES and RULES[row.name].places]


def tree_of(folder: Path, without: frozenset[str] = frozenset()) -> Path:
    """A tree with the text of every place, and the files named left out."""
    texts = defaultdict[str, str](str)
    for ground in RULES.values():
        for place in (place for places in ground.places for place in places):
            texts[place.file] += "" if place.absent else f"{place.text}\n"
    return lay(folder, {file: text for file, text in texts.items() if file not in without})


@pytest.fixture(scope="module")
def whole_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with the text of every place, which nobody may change."""
    return tree_of(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("name", "changes"), [row[:2] for row in RESTING], ids=[row[0] for row in RESTING])
def test_a_rule_holds_where_its_code_is_and_steps_aside_where_not(
    whole_tree: Path, tmp_path: Path, name: str, changes: list[str]
) -> None:
    there = rule(plan(*changes, code=whole_tree), name)
    first = frozenset(place.file for place in RULES[name].places[0])
    assert not there.ok and not there.skipped
    assert any(f"({file}:" in there.figures for file in first)
    without = plan(*changes, code=tree_of(tmp_path, first))
    for gone in (found for found in without.rules if found.id == name):
        assert gone.ok and any(f"not in this tree: {file}" in gone.skipped for file in first)


def test_a_rule_of_the_recipes_own_arguments_steps_aside_where_the_tree_passes_others(tmp_path: Path) -> None:
    code = tree_of(tmp_path)
    rollout = code / "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py"
    rollout.write_text(f"{rollout.read_text()}LLM(additional_config={{}})\n")
    found = rule(plan("rollout.eager=true", code=code), "graph-or-eager")
    assert found.ok and found.skipped.startswith("this tree has 'additional_config=' (verl/workers/rollout/")


def test_a_verl_that_reads_the_models_groups(tmp_path: Path) -> None:
    code = tree_of(tmp_path, frozenset({ONLY_BRIDGES.file}))
    converter = code / "verl/models/mcore/config_converter.py"
    converter.write_text(f"{converter.read_text()}moe_router_num_groups=hf_config.n_group\n")
    changes = ("actor.transformer.moe_router_num_groups=~", "actor.transformer.moe_router_group_topk=~")
    skipped = rule(plan(*changes, code=code), "router-groups").skipped
    assert skipped.startswith("this tree has 'moe_router")


def test_megatron_training_in_the_tree_is_enough_for_grouped_experts(tmp_path: Path) -> None:
    code = tree_of(tmp_path)
    name, change = "moe-grouped-gemm", "actor.transformer.moe_grouped_gemm=true"
    assert not rule(plan(change, code=code), name).ok
    lay(code, {"megatron/training/__init__.py": ""})
    assert rule(plan(change, code=code), name).ok


@pytest.mark.parametrize(
    ("name", "given", "certain"),
    [
        ("mla-tensor-parallel", Rule("", False, "f"), True),
        ("mla-tensor-parallel", Rule("", False, "f", advice=True), False),
        ("mla-tensor-parallel", Rule("", False, "f", certain=False), False),
        ("moe-grouped-gemm", Rule("", False, "f"), False),
        ("hccl-ports", Rule("", False, "f"), False),
    ],
)
def test_only_what_the_code_refuses_is_certain(tmp_path: Path, name: str, given: Rule, certain: bool) -> None:
    found = cited(given, RULES[name].places, RULES[name].certain, CitedCode(tree_of(tmp_path)))
    assert found.certain is certain
