"""What verl with the verl_npu plugin of MindSpeed-RL has keys of its own for."""

from __future__ import annotations

import pytest

from npu_rl.recipes.sizing.parallelism import DATA_KEY, layout_of
from tests.plan.helpers import broken, loaded, plan, rule
from tests.support import present

DATA = f"overrides.{DATA_KEY}"
NO_VARIABLE = "env.VLLM_DP_SIZE=~"


def test_the_rollouts_data_parallel_size() -> None:
    """It sets VLLM_DP_SIZE, unless it is 1; the engines need not be one group."""
    for changes, data in (
        ((f"{DATA}=32", NO_VARIABLE), 32),
        ((f"{DATA}=32",), 32),
        ((f"{DATA}=1",), 128),
        ((f"{DATA}=1", NO_VARIABLE), 1),
    ):
        assert present(layout_of(loaded(*changes)).rollout).data == data, changes
    made = plan(f"{DATA}=32")
    assert not {"rollout-parallel-divides-world", "rollout-dp-size"} & {*broken(made)}


@pytest.mark.parametrize(
    ("size", "name"), [(3, "rollout-parallel-divides-world"), (64, "rollout-experts-match-training")]
)
def test_a_size_that_does_not_fit_is_named_by_its_key(size: int, name: str) -> None:
    made = plan(f"{DATA}={size}", "rollout.tensor_parallel=1", "actor.parallel.expert=128")
    found = rule(made, name)
    assert DATA in found.fix and "VLLM_DP_SIZE" not in found.fix
    (finding,) = [one for one in made.findings() if one.rule == name]
    assert finding.path == ("overrides", DATA_KEY)


def test_the_filter_chooses_what_is_trained_on() -> None:
    """DAPO generates for more prompts than it trains on; without the filter it trains on all of them."""
    generated = "overrides.data.gen_batch_size=1536"
    chosen = plan(generated, "overrides.algorithm.filter_groups.enable=true")
    assert (chosen.facts.generated, chosen.facts.responses) == (1536 * 16, 512 * 16)
    assert broken(chosen) == {}
    assert present(chosen.tokens).sequences == 1536 * 16
    assert plan(generated).facts.responses == 1536 * 16


@pytest.mark.parametrize(("ranks", "limit"), [(1, 4096), (2, 2048), (4, 1024)])
def test_a_limit_of_tokens_is_that_of_a_rank(ranks: int, limit: int) -> None:
    """Both the trainer's and the old log-probs', of which the smaller one is named."""
    actor, rollout = "overrides.actor_rollout_ref.actor.", "overrides.actor_rollout_ref.rollout.log_prob_"
    changes = [
        "actor.parallel.expert=8",
        f"actor.parallel.context={ranks}",
        f"{actor}use_dynamic_bsz=true",
        f"{actor}ppo_max_token_len_per_gpu=16384",
        f"{rollout}use_dynamic_bsz=true",
    ]
    name, limits = "token-limit-holds-a-sequence", f"{rollout}max_token_len_per_gpu"
    assert name not in broken(plan(*changes, f"{limits}={limit}"))
    found = rule(plan(*changes, f"{limits}={limit - 1}"), name)
    assert found.figures.startswith(f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu {limit - 1} x")
    assert f"set {limits} to {limit} or more" in found.fix


def test_what_lies_on_a_device_of_qwen3_235b() -> None:
    """By hand: 94 layers of 64 heads and 4 KV heads of 128, hidden 4096, 128 experts of width 1536."""
    hidden, heads, key_heads, head, width = 4096, 64, 4, 128, 1536
    memory = present(plan(recipe="verl-npu-grpo-qwen3-235b").memory)
    stage = memory.stages[1]
    attention = (2 * heads * head + 2 * key_heads * head) * hidden // 4  # TP4
    experts = 128 // 4 * 3 * hidden * width // 4  # EP4, each expert over 4
    others = 128 * hidden + 2 * hidden + 2 * head  # router and norms, whole on each device
    assert stage.weights == 2 * 12 * (attention + experts + others)
    # 4 data parallel replicas share the states of all but the experts, which one expert data rank has.
    assert stage.states == 12 * 12 * experts + 12 * 12 * (attention + others) // 4
    engine = present(memory.engine)
    assert engine.counts["experts"] == 94 * 2 * 3 * hidden * width  # 2 experts a device of TP8 x DP8
    kept = 94 * hidden * head * (2 * heads // 8 + 2)  # and one KV head of each kind
    assert engine.counts["attention"] == kept
    assert engine.cache.per_token == 94 * 2 * head * 2
