"""What memory refuses and advises, and that each change it names helps."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.judgement.plan_report import plan_text
from npu_rl.recipes.plan.plan import Plan
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.sizing.machine import Machine
from tests.plan import helpers
from tests.plan.helpers import ASCEND, FSDP, RECIPE, loaded, model, plan, rule
from tests.support import present

EIGHT_NODES = ["cluster.nodes=8", "env.VLLM_DP_SIZE='64'", "actor.parallel.expert=16"]
OF_MEMORY = ("memory-", "kv-cache-", "checkpoint-disk", "checkpoint-in-")


ascend = partial(plan, recipe=ASCEND)


def broken(made: Plan) -> dict[str, Rule]:
    return {name: one for name, one in helpers.broken(made).items() if name.startswith(OF_MEMORY)}


# More than a die, or a cache without room, in a combination that no published run measured.
TOO_MUCH = [
    (["actor.transformer.recompute_num_layers=1"], "memory-update", "activations (estimate) 122.9 GB"),
    (["actor.transformer.recompute_num_layers=0"], "memory-update", "activations (estimate) 137.2 GB"),
    (["reference.micro_batch=256"], "memory-reference", "logits of the longest sequences 813.4 GB"),
    (["rollout.log_prob_micro_batch=256"], "memory-old-log-prob", "2169.0 GB"),
    (["rollout.memory_share=1"], "memory-generate", "= 66.6 GB, of 64.0 GB"),
    (["rollout.memory_share=0.3"], "kv-cache-room", "not one sequence fits"),
    (["rollout.memory_share=0.5"], "kv-cache-room", "351 blocks of 128 tokens, of 2048"),
    (
        ["rollout.free_cache=false"],
        "memory-old-log-prob",
        "also update 89.3 GB; also reference log-probs 76.1 GB",
    ),
    (["actor.micro_batch=16"], "memory-update", "= 128.7 GB"),
    ([*EIGHT_NODES], "kv-cache-room", "1917 blocks of 128 tokens, of 2048"),
]


@pytest.mark.parametrize(("changes", "name", "figures"), TOO_MUCH, ids=[f"{row[0][-1]}" for row in TOO_MUCH])
def test_what_does_not_fit_is_advice_where_no_run_was_measured(
    changes: list[str], name: str, figures: str
) -> None:
    found = broken(ascend(*changes))[name]
    assert figures in found.figures and found.advice and not found.refuses
    swap = "swap_optimizer" if "micro" in str(changes) or "layers" in str(changes) else "megatron"
    assert swap in found.figures and "training's process, so it is advice" in found.figures


measured = partial(plan, recipe="today-gspo-qwen3-30b")


def test_in_a_measured_combination_it_is_refused() -> None:
    """The GSPO run's: Megatron with parameters and optimizer offloaded, and vLLM's servers."""
    assert broken(measured()).keys() == {"memory-update-tight"}
    small = measured("cluster.die_memory_gb=24")
    assert [one.id for one in small.rules if one.refuses and one.id.startswith("memory-")] == [
        "memory-update"
    ]
    assert not rule(small, "memory-update").certain


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("offload.optimizer=false", "parameters offloaded"),
        ("actor.transformer.swap_optimizer=true", "swap_optimizer offloaded"),
        ("overrides.actor_rollout_ref.model.lora_rank=8", "no measured run has LoRA"),
    ],
)
def test_elsewhere_it_is_advice_with_the_reason(change: str, reason: str) -> None:
    made = measured("cluster.die_memory_gb=24", change)
    found = next(one for one in broken(made).values() if not one.id.endswith("-tight"))
    assert not found.refuses and reason in found.figures


@pytest.mark.parametrize(
    ("made", "name", "fix", "path"),
    [
        (ascend("actor.micro_batch=16"), "memory-update", "activations (estimate), ", "actor.micro_batch"),
        (ascend("reference.micro_batch=256"), "memory-reference", "logits of the", "reference.micro_batch"),
        (plan("cluster.die_memory_gb=40", recipe="today-gspo-qwen3-30b"), "memory-update", "optimizer's states, ",
         "actor.transformer.swap_optimizer"),
        (ascend("rollout.memory_share=1"), "memory-generate", "KV cache, ", "rollout.memory_share"),
        (plan("actor.micro_batch=32", "data.response_length=8192", recipe=FSDP), "memory-update", "logits",
         "actor.micro_batch"),
    ],
)  # fmt: skip
def test_the_fix_names_the_largest_part_and_its_usual_keys(
    made: Plan, name: str, fix: str, path: str
) -> None:
    found = broken(made)[name]
    assert found.fix.startswith(f"the largest part is {fix}") and found.keys == (path,)
    assert f"the usual keys for it: {path}" in found.fix


def test_a_cache_whose_room_is_less_than_its_estimates_is_tight() -> None:
    found = broken(ascend())
    assert list(found) == ["kv-cache-room-tight"]
    assert found["kv-cache-room-tight"].advice
    assert "3.9 GB to spare, and 4.6 GB are estimates" in found["kv-cache-room-tight"].figures


def test_where_sequences_may_come_back_a_small_cache_is_advice() -> None:
    """Without the Ascend scheduler, or where a step holds a whole sequence, giving way costs time alone."""
    found = rule(plan("rollout.memory_share=0.5"), "kv-cache-room")
    assert found.advice and "computed again" in found.figures and "measured" not in found.figures
    steps = rule(ascend("rollout.memory_share=0.5", "rollout.max_batched_tokens=4096"), "kv-cache-room")
    assert steps.advice
    on = "adaptations.kv-cache-room=true"
    assert "or wait for room" in rule(ascend("rollout.memory_share=0.5", on), "kv-cache-room").figures
    assert broken(ascend(on)) == {}


def test_a_forced_cache_is_no_estimate_and_refused() -> None:
    override = "rollout.engine_arguments.num_gpu_blocks_override"
    (found,) = judge(loaded(f"{override}=100", recipe=ASCEND)).errors
    assert found.key == override and "num_gpu_blocks_override 100 = 0.9 GB: 99 blocks" in found.message
    assert found.fix == f"remove {override}, or lower rollout.max_sequences"


def test_a_host_is_advised_on_where_its_memory_is_named() -> None:
    """No published run measured one."""
    assert "memory-host" not in broken(plan())
    for host, said in (
        (2 * 10**12, ""),
        (1250 * 10**9, "Ray's object store may take 200.0 GB"),
        (10**12, "= 1140"),
    ):
        found = broken(plan(machine=Machine(host=host))).get("memory-host")
        assert (found is None) is not said and (found is None or (found.advice and said in found.figures))
    assert (
        "--object-store-memory=109000000000"
        in rule(plan(machine=Machine(host=1250 * 10**9)), "memory-host").fix
    )


@pytest.mark.parametrize(
    ("recipe", "changes", "answer"),
    [
        (RECIPE, [], "fits: at most 53.8 of 64.0 GB on a die (generate, stage 0), 10.2 GB to spare"),
        (RECIPE, ["rollout.memory_share=1"],
         "does not fit, by an estimate that no measured run covers: 66.6 of 64.0 GB on a die (generate, stage 0), "
         "2.6 GB too much"),
        ("today-gspo-qwen3-30b", ["cluster.die_memory_gb=24"], "does not fit: 72.1 of 24.0 GB"),
        ("quickstart", [], "quickstart fits."),
    ],
)  # fmt: skip
def test_the_answer_comes_first(recipe: str, changes: list[str], answer: str) -> None:
    judgement = judge(load_recipe(recipe, changes))
    assert plan_text(judgement, None).startswith(answer)


CHECKPOINTS = [
    (["checkpoint.every=5"], (20, 20)),
    (["checkpoint.every=5", "checkpoint.keep=3"], (20, 4)),  # and the one that is being written
    (["checkpoint.every=5", "overrides.trainer.max_actor_ckpt_to_keep=3"], (20, 3)),  # verl's own number
    (["checkpoint.every=5", "overrides.trainer.max_actor_ckpt_to_keep=0"], (20, 20)),  # which is all
    (["checkpoint.every=30"], (4, 4)),  # 30, 60, 90 and the last
    (["checkpoint.every=200"], (1, 1)),
]


@pytest.mark.parametrize(("changes", "counts"), CHECKPOINTS)
def test_checkpoints(changes: list[str], counts: tuple[int, int]) -> None:
    made = ascend(*changes)
    checkpoints = present(made.checkpoints)
    assert (checkpoints.written, checkpoints.kept) == counts
    assert checkpoints.each == 14 * 671_026_404_352 + 4 * 58 * 256
    assert ("checkpoint-disk" in broken(made)) is (counts == (20, 20) or counts == (4, 4))


def test_what_a_checkpoint_holds() -> None:
    contents = "overrides.actor_rollout_ref.actor.checkpoint.save_contents"
    made = ascend("checkpoint.every=10", f"{contents}=[model]")
    assert present(made.checkpoints).each == 2 * 671_026_404_352 + 4 * 58 * 256
    small = plan("checkpoint.every=10", f"{contents}=[model, optimizer, hf_model]", recipe=FSDP)
    assert present(small.checkpoints).each == (4 + 8 + 2) * 7_615_616_512


def test_checkpoints_and_the_disk() -> None:
    """9.39 TB each: what is proposed leaves room for the one that is being written."""
    changes = ["checkpoint.every=5", "checkpoint.keep=3"]
    assert "checkpoint-disk" not in broken(ascend(*changes, machine=Machine(disk=40 * 10**12)))
    found = broken(ascend(*changes, machine=Machine(disk=30 * 10**12)))["checkpoint-disk"]
    assert found.refuses and not found.certain
    assert found.fix == "set checkpoint.keep to 2"
    fixed = ascend("checkpoint.every=5", "checkpoint.keep=2", machine=Machine(disk=30 * 10**12))
    assert "checkpoint-disk" not in broken(fixed)
    for disk in (10**12, 10**13):  # none, or one that verl would delete before it writes the next
        small = broken(ascend(*changes, machine=Machine(disk=disk)))["checkpoint-disk"]
        assert small.fix.startswith("give the run a larger disk: checkpoint.keep 1 needs 18788.7 GB")


def test_a_model_of_another_type_is_counted_and_said(tmp_path: Path) -> None:
    for kind, said in (("novel", True), ("qwen2", False)):
        made = plan(model(tmp_path, "qwen2.5-7b", model_type=kind), recipe=FSDP)
        assert any("is unknown here" in text for text in present(made.memory).assumed) is said
