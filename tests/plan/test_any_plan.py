"""Whatever a recipe has, its plan is made: memory is counted, a fix names the largest part, less never needs more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npu_rl.common.plain_data import plain_data
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.judgement.plan_report import plan_report, plan_text
from npu_rl.recipes.memory.memory_by_phase import Memory
from npu_rl.recipes.sizing.machine import Machine
from tests.plan.helpers import FSDP, MODELS, RECIPE, loaded, plan
from tests.support import present

T = "actor.transformer"
SIZES = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 32, 64, 512])
KEYS = (
    *(f"actor.parallel.{kind}" for kind in ("tensor", "pipeline", "context", "expert", "expert_tensor")),
    *(
        f"rollout.{name}"
        for name in ("tensor_parallel", "max_sequences", "responses", "log_prob_micro_batch")
    ),
    *("data.batch", "actor.mini_batch", "actor.micro_batch", "reference.micro_batch"),
    *("cluster.nodes", "cluster.dies"),
)
SWITCHES = (
    *("rollout.free_cache", "offload.parameters", "offload.optimizer", "offload.reference"),
    *(f"{T}.swap_optimizer", "overrides.actor_rollout_ref.actor.use_dynamic_bsz"),
)
OTHERS: dict[str, list[Any]] = {
    "actor.strategy": ["fsdp", "megatron"],
    "actor.entropy": ["0", "0.01"],
    "rollout.engine": ["hf", "vllm"],
    "rollout.engine_arguments": ["~"],
    "rollout.memory_share": ["0.01", "0.5", "0.95", "1"],
    "data.response_length": ["~", "1"],
    "checkpoint.every": ["-1", "1", "7"],
    "env.VLLM_DP_SIZE": ["0", "1", "3", "64", "x", "4096"],
    "env.HCCL_BUFFSIZE": ['"1"', '"4000"', "MB"],
    f"{T}.pipeline_num_transformer_layers": ["~", "[[61]]", "text", "[[0],[61]]"],
    f"{T}.num_layers_in_first_pipeline_stage": ["~", "0", "61", "90"],
    f"{T}.recompute_granularity": ["full", "selective", "Full", "7"],
    f"{T}.recompute_method": ["block", "uniform", "blocks"],
    f"{T}.recompute_num_layers": ["0", "1", "3", "61", "text", "[1]"],
    f"{T}.recompute_modules": ["[moe]", "moe", "[[1]]"],
    **{key: ["true", "false"] for key in SWITCHES},
}
OF_FSDP: dict[str, list[Any]] = {
    "actor.strategy": ["fsdp", "fsdp2"],
    "actor.parallel.shard": ["-1", "1", "4", "16"],
    "actor.parallel.sequence": ["1", "4"],
    "model.recompute": ["true", "false"],
    "model.path": [str(path) for path in sorted(MODELS.iterdir())],
    **{key: ["true", "false"] for key in SWITCHES[:4]},
}


def some_of(values: dict[str, list[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={key: st.sampled_from(each) for key, each in values.items()})


def counted(memory: Memory) -> Memory:
    for phase in memory.phases:
        assert all(size >= 0 for size in phase.parts.values())
        assert 0 <= phase.estimated <= phase.total
    return memory


@pytest.mark.second
@settings(max_examples=80, deadline=None)
@given(sizes=st.dictionaries(st.sampled_from(KEYS), SIZES, max_size=5), others=some_of(OTHERS))
def test_any_plan_of_megatron(sizes: dict[str, int], others: dict[str, Any]) -> None:
    assume(sizes.get("cluster.nodes", 16) * sizes.get("cluster.dies", 16) <= 100_000)  # more are refused
    said = {**sizes, **others, "cluster.dies_per_card": 1}
    judgement = judge(loaded(*(f"{key}={value}" for key, value in said.items())))
    text, data = plan_text(judgement, 1e9), plain_data(plan_report(judgement, None))
    assert ("can't be run as it is" in text) is not judgement.ok
    assert not (text.startswith("fits:") and judgement.errors)
    assert data["ok"] is judgement.ok is not bool(judgement.errors)
    assert all(found.message and found.where for found in judgement.findings)
    made = present(judgement.plan)
    assert {rule.id for rule in made.rules if rule.refuses} <= {found.rule for found in judgement.errors}
    phases = {phase.name.rule for phase in counted(made.memory).phases} if made.memory else set()
    for rule in made.rules:
        if rule.id.removesuffix("-tight") in phases and rule.fix:
            assert rule.fix.startswith("the largest part is ")


@pytest.mark.second
@settings(max_examples=30, deadline=None)
@given(changes=some_of(OF_FSDP), die=st.sampled_from([8, 32, 64]))
def test_any_memory_of_fsdp(changes: dict[str, Any], die: int) -> None:
    words = [f"{key}={value}" for key, value in changes.items()]
    made = plan(*words, recipe=FSDP, machine=Machine(die * 10**9))
    assert made.memory is None or counted(made.memory)


@settings(max_examples=10, deadline=None)
@given(layers=st.integers(1, 8), micro=st.sampled_from([1, 2, 4, 8]), share=st.floats(0.5, 0.9))
def test_less_never_needs_more(layers: int, micro: int, share: float) -> None:
    """Fewer layers that keep theirs, a smaller micro batch, a smaller share: no phase grows."""
    keys = (f"{T}.recompute_num_layers", "actor.micro_batch", "rollout.memory_share")

    def totals(*sizes: float) -> dict[Any, int]:
        values = {f"{T}.recompute_method": "block", **dict(zip(keys, sizes, strict=True))}
        made = plan(*(f"{key}={value}" for key, value in values.items()), recipe=RECIPE)
        return {(phase.name, phase.stage): phase.total for phase in counted(present(made.memory)).phases}

    less, more = totals(8, 1, 0.5), totals(layers, micro, round(share, 3))
    assert less.keys() == more.keys()
    assert all(less[key] <= more[key] for key in less)
