"""Whatever sizes a recipe has, its plan is made, and says why where it does not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.judgement.plan_report import plan_json, plan_text
from tests.plan.helpers import loaded

SIZES = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 32, 64, 512])
KEYS = (
    "actor.parallel.tensor",
    "actor.parallel.pipeline",
    "actor.parallel.context",
    "actor.parallel.expert",
    "actor.parallel.expert_tensor",
    "rollout.tensor_parallel",
    "rollout.max_sequences",
    "rollout.responses",
    "data.batch",
    "actor.mini_batch",
    "actor.micro_batch",
    "cluster.nodes",
    "cluster.dies",
)
OTHERS = {
    "env.VLLM_DP_SIZE": st.sampled_from(["0", "1", "3", "64", "x", "4096"]),
    "actor.strategy": st.sampled_from(["fsdp", "megatron"]),
    "rollout.engine": st.sampled_from(["hf", "vllm"]),
    "rollout.engine_arguments": st.just("~"),
    "actor.transformer.pipeline_num_transformer_layers": st.sampled_from(
        ["~", "[[61]]", "text", "[[0],[61]]"]
    ),
    "actor.transformer.num_layers_in_first_pipeline_stage": st.sampled_from(["~", "0", "61", "90"]),
    "data.response_length": st.sampled_from(["~", "1"]),
}


@pytest.mark.second
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.dictionaries(st.sampled_from(KEYS), SIZES, max_size=5),
    others=st.fixed_dictionaries({}, optional=OTHERS),
)
def test_a_plan_of_any_sizes(sizes: dict[str, int], others: dict[str, Any]) -> None:
    assume(sizes.get("cluster.nodes", 16) * sizes.get("cluster.dies", 16) <= 100_000)  # more are refused
    said = {**sizes, **others, "cluster.dies_per_card": 1}
    judgement = judge(loaded(*(f"{key}={value}" for key, value in said.items())))
    made = judgement.plan
    text, data = plan_text(judgement, 1e9), json.loads(json.dumps(plan_json(judgement, None)))
    assert ("can't be run as it is" in text) is not judgement.ok
    assert not (text.startswith("fits:") and judgement.errors)
    assert data["ok"] is judgement.ok is not bool(judgement.errors)
    assert {rule.id for rule in made.rules if rule.refuses} <= {found.rule for found in judgement.errors}
    for found in judgement.findings:
        assert found.message and found.where
    for phase in made.memory.phases if made.memory else ():
        assert all(size >= 0 for size in phase.parts.values())
