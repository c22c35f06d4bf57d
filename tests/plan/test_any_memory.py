"""Whatever a recipe has, memory is counted; a fix brings its figure down, and less never needs more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.recipes.memory.memory_by_phase import Memory
from npu_rl.recipes.plan.plan import Plan
from npu_rl.recipes.sizing.machine import Machine
from tests.plan.helpers import FSDP, MODELS, RECIPE, plan
from tests.support import present

T = "actor.transformer"
SWITCH = st.sampled_from(["true", "false"])
MICRO = st.sampled_from(["1", "2", "4", "7", "512"])
OF_ALL = {
    "rollout.memory_share": st.sampled_from(["0.01", "0.5", "0.95", "1"]),
    "rollout.free_cache": SWITCH,
    "rollout.max_sequences": st.sampled_from(["1", "64", "4096"]),
    "rollout.log_prob_micro_batch": MICRO,
    "reference.micro_batch": MICRO,
    "actor.micro_batch": MICRO,
    "actor.entropy": st.sampled_from(["0", "0.01"]),
    "offload.parameters": SWITCH,
    "offload.optimizer": SWITCH,
    "offload.reference": SWITCH,
    "checkpoint.every": st.sampled_from(["-1", "1", "7"]),
    "overrides.actor_rollout_ref.actor.use_dynamic_bsz": SWITCH,
    "overrides.actor_rollout_ref.actor.ppo_max_token_len_per_gpu": st.sampled_from(["1", "4096", "100000"]),
    "env.HCCL_BUFFSIZE": st.sampled_from(['"1"', '"4000"', "MB"]),
}
OF_MEGATRON = {
    f"{T}.recompute_granularity": st.sampled_from(["full", "selective", "Full", "7"]),
    f"{T}.recompute_method": st.sampled_from(["block", "uniform", "blocks"]),
    f"{T}.recompute_num_layers": st.sampled_from(["0", "1", "3", "61", "text", "[1]"]),
    f"{T}.recompute_modules": st.sampled_from(["[moe]", "moe", "[[1]]"]),
    f"{T}.swap_optimizer": SWITCH,
}
OF_FSDP = {
    "actor.strategy": st.sampled_from(["fsdp", "fsdp2"]),
    "actor.parallel.shard": st.sampled_from(["-1", "1", "4", "16"]),
    "actor.parallel.sequence": st.sampled_from(["1", "4"]),
    "rollout.tensor_parallel": st.sampled_from(["1", "4", "8"]),
    "model.recompute": SWITCH,
    "model.path": st.sampled_from([str(path) for path in sorted(MODELS.iterdir())]),
}


def planned(recipe: str, changes: dict[str, Any], die: int) -> Plan:
    words = [f"{key}={value}" for key, value in changes.items()]
    return plan(*words, recipe=recipe, machine=Machine(die))


def counted(made: Plan) -> Memory:
    memory = present(made.memory)
    for phase in memory.phases:
        assert all(size > 0 for size in phase.parts.values())
        assert 0 <= phase.estimated <= phase.total
    return memory


def explained(recipe: str, changes: dict[str, Any], die: int) -> None:
    """Whatever is set, memory is counted, and a phase without room names its largest part."""
    made = planned(recipe, changes, die)
    if made.memory is None:  # the layout's sizes don't fit
        return
    phases = {phase.name.rule for phase in counted(made).phases}
    for rule in made.rules:
        if rule.id.removesuffix("-tight") in phases and rule.fix:
            assert rule.fix.startswith("the largest part is ")


@pytest.mark.second
@settings(max_examples=15, deadline=None)
@given(
    changes=st.fixed_dictionaries({}, optional={**OF_ALL, **OF_MEGATRON}), die=st.sampled_from([32, 64, 96])
)
def test_any_memory_of_megatron(changes: dict[str, Any], die: int) -> None:
    explained(RECIPE, changes, die * 10**9)


@pytest.mark.second
@settings(max_examples=30, deadline=None)
@given(changes=st.fixed_dictionaries({}, optional={**OF_ALL, **OF_FSDP}), die=st.sampled_from([8, 32, 64]))
def test_any_memory_of_fsdp(changes: dict[str, Any], die: int) -> None:
    explained(FSDP, changes, die * 10**9)


@settings(max_examples=10, deadline=None)
@given(layers=st.integers(1, 8), micro=st.sampled_from([1, 2, 4, 8]), share=st.floats(0.5, 0.9))
def test_less_never_needs_more(layers: int, micro: int, share: float) -> None:
    """Fewer layers that keep theirs, a smaller micro batch, a smaller share: no phase grows."""
    keys = (f"{T}.recompute_num_layers", "actor.micro_batch", "rollout.memory_share")

    def totals(*sizes: float) -> dict[Any, int]:
        values = {f"{T}.recompute_method": "block", **dict(zip(keys, sizes, strict=True))}
        memory = counted(planned(RECIPE, values, 64 * 10**9))
        return {(phase.name, phase.stage): phase.total for phase in memory.phases}

    less, more = totals(8, 1, 0.5), totals(layers, micro, round(share, 3))
    assert less.keys() == more.keys()
    assert all(less[key] <= more[key] for key in less)
