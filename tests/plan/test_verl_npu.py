"""What verl with the verl_npu plugin of MindSpeed-RL has keys of its own for."""

from __future__ import annotations

import pytest

from npu_rl.sizing.parallelism import DATA_KEY, layout_of
from tests.plan.helpers import loaded, plan, rule

DATA = f"overrides.{DATA_KEY}"
EXPERTS = "overrides.actor_rollout_ref.rollout.enable_expert_parallel"
NO_VARIABLE = "env.VLLM_DP_SIZE=~"


def test_the_rollouts_data_parallel_size() -> None:
    """It sets VLLM_DP_SIZE, unless it is 1; the engines need not be one group."""
    for changes, data in (
        ((f"{DATA}=32", NO_VARIABLE), 32),
        ((f"{DATA}=32",), 32),
        ((f"{DATA}=1",), 128),
        ((f"{DATA}=1", NO_VARIABLE), 1),
    ):
        rollout = layout_of(loaded(*changes)).rollout
        assert rollout is not None and rollout.data == data, changes
    made = plan(f"{DATA}=32")
    assert rule(made, "rollout-parallel-divides-world").figures == "256 ranks / 64 = 4 engines"
    assert [found.id for found in made.rules if found.id == "rollout-dp-size"] == []


@pytest.mark.parametrize(
    ("size", "name"), [(3, "rollout-parallel-divides-world"), (64, "rollout-experts-match-training")]
)
def test_a_size_that_does_not_fit_is_named_by_its_key(size: int, name: str) -> None:
    found = rule(plan(f"{DATA}={size}", "rollout.tensor_parallel=1", "actor.parallel.expert=128"), name)
    assert not found.ok and DATA in found.fix and "VLLM_DP_SIZE" not in found.fix


def test_its_key_of_expert_parallelism() -> None:
    off = "rollout.engine_arguments.enable_expert_parallel=false"
    assert not plan(off, NO_VARIABLE).facts.expert_parallel
    assert plan(off, NO_VARIABLE, f"{EXPERTS}=true").facts.expert_parallel
