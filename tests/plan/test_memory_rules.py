"""What memory refuses and advises, and that each change it names helps."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.memory.memory_by_phase import PhaseName
from npu_rl.recipes.memory.memory_parts import total
from npu_rl.recipes.plan.memory_report import memory_json, memory_text
from npu_rl.recipes.plan.plan import Plan
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.sizing.machine import Machine
from tests.code_trees import lay
from tests.plan.helpers import ASCEND, FSDP, HERE, loaded, model, plan, rule
from tests.plan.test_memory import T, fsdp
from tests.support import present

EIGHT_NODES = ["cluster.nodes=8", "env.VLLM_DP_SIZE='64'", "actor.parallel.expert=16"]
OF_MEMORY = ("memory-", "kv-cache-", "checkpoint-disk", "checkpoint-in-")


ascend = partial(plan, recipe=ASCEND)


def broken(made: Plan) -> dict[str, Rule]:
    return {one.id: one for one in made.rules if not one.ok and one.id.startswith(OF_MEMORY)}


REFUSED = [
    (["actor.transformer.recompute_num_layers=1"], "memory-update", "activations (estimate) 122.9 GB"),
    (["actor.transformer.recompute_num_layers=0"], "memory-update", "activations (estimate) 137.2 GB"),
    (["reference.micro_batch=256"], "memory-reference", "logits of the longest sequences 813.4 GB"),
    (["rollout.log_prob_micro_batch=256"], "memory-old-log-prob", "2169.0 GB"),
    (["rollout.memory_share=1"], "memory-generate", "= 66.6 GB, of 64.0 GB"),
    (["rollout.memory_share=0.99"], "memory-generate", "= 66.0 GB, of 64.0 GB"),
    (["rollout.memory_share=0.3"], "kv-cache-room", "not one sequence fits"),
    (["rollout.memory_share=0.5"], "kv-cache-room", "351 blocks of 128 tokens, of 2048"),
    (["rollout.free_cache=false"], "memory-old-log-prob", "also update 89.3 GB, reference log-probs 76.1 GB"),
    (["actor.micro_batch=16"], "memory-update", "= 128.7 GB"),
    ([*EIGHT_NODES], "kv-cache-room", "1917 blocks of 128 tokens, of 2048"),
]


@pytest.mark.parametrize(("changes", "name", "figures"), REFUSED, ids=[f"{row[0][-1]}" for row in REFUSED])
def test_what_is_refused(changes: list[str], name: str, figures: str) -> None:
    found = broken(ascend(*changes))
    refused = [one.id for one in found.values() if one.refuses]
    assert refused == [name]
    assert figures in found[name].figures


def test_a_cache_whose_room_is_less_than_its_estimates_is_tight() -> None:
    found = broken(ascend())
    assert list(found) == ["kv-cache-room-tight"]
    assert found["kv-cache-room-tight"].advice
    assert "3.9 GB to spare, and 4.6 GB are estimates" in found["kv-cache-room-tight"].figures


def test_a_fit_by_less_than_its_estimates_is_tight() -> None:
    """61.7 of 64.0 GB, of which 12.4 GB are estimates."""
    found = broken(ascend(*EIGHT_NODES))["memory-update-tight"]
    assert found.advice and not found.certain
    assert "61.7 GB of 64.0 GB, of which 12.4 GB are estimates" in found.figures


def test_a_large_share_is_tight_before_it_is_refused() -> None:
    found = broken(ascend("rollout.memory_share=0.93"))
    assert list(found) == ["memory-generate-tight"]
    # the cache gives way to the engine's activations
    assert "engine's activations" not in found["memory-generate-tight"].figures


def test_estimates_alone_are_never_certain() -> None:
    assert not broken(ascend("rollout.memory_share=0.99"))["memory-generate"].certain
    assert broken(ascend("reference.micro_batch=256"))["memory-reference"].certain


def test_one_cause_is_one_fault() -> None:
    made = ascend("offload=~")
    assert [name for name, one in broken(made).items() if one.refuses] == ["memory-old-log-prob"]
    assert "offload.parameters" in broken(made)["memory-old-log-prob"].fix
    why = "judged with memory-old-log-prob, which the same change makes fit"
    assert rule(made, "memory-generate").skipped == why
    assert rule(made, "kv-cache-room").skipped == "follows from memory-weight-sync"


def test_where_sequences_may_come_back_a_small_cache_is_advice() -> None:
    """Without the Ascend scheduler, or where a step holds a whole sequence, giving way costs time alone."""
    found = rule(plan("rollout.memory_share=0.5"), "kv-cache-room")
    assert found.advice and "computed again" in found.figures
    steps = rule(ascend("rollout.memory_share=0.5", "rollout.max_batched_tokens=4096"), "kv-cache-room")
    assert steps.advice


@pytest.mark.parametrize("share", ["0.2", "0.4", "0.5"])
def test_the_share_that_is_named_is_the_least(share: str) -> None:
    fix = rule(ascend(f"rollout.memory_share={share}"), "kv-cache-room").fix
    assert fix.startswith("set rollout.memory_share to 0.74")
    assert not rule(ascend("rollout.memory_share=0.73"), "kv-cache-room").ok


def test_a_forced_cache_is_named_as_the_cause() -> None:
    """A larger share changes nothing of it, and one above 1 is not a share."""
    override = "rollout.engine_arguments.num_gpu_blocks_override"
    (found,) = judge(loaded(f"{override}=100", recipe=ASCEND)).errors
    assert found.key == override and "num_gpu_blocks_override 100 = 0.9 GB: 99 blocks" in found.message
    assert found.fix.startswith(f"remove {override}") and "memory_share" not in found.fix


def test_what_no_share_holds_names_none() -> None:
    found = rule(ascend("rollout.max_length=60000", "rollout.memory_share=0.4"), "kv-cache-room")
    assert "set rollout.memory_share" not in found.fix


@pytest.mark.parametrize("size", ["800", "2400"])
def test_buffers_that_are_too_large_are_one_fault(size: str) -> None:
    """2.4 GB, two of them for each of 9 communicators: every phase is too large, and none of its own keys helps all."""
    keeps = "adaptations.kv-cache-room=true"
    (found,) = judge(loaded(f"env.HCCL_BUFFSIZE={size}", keeps, recipe=ASCEND)).findings
    assert found.key == "env.HCCL_BUFFSIZE" and found.fix.startswith("set env.HCCL_BUFFSIZE to ")
    assert found.severity is (Severity.ERROR if size == "2400" else Severity.ADVICE)


def test_with_the_adaptation_that_keeps_room_sequences_wait() -> None:
    on = "adaptations.kv-cache-room=true"
    found = rule(ascend("rollout.memory_share=0.5", on), "kv-cache-room")
    assert found.advice and "wait for room" in found.figures
    assert broken(ascend(on)) == {}
    assert not rule(ascend("rollout.memory_share=0.3", on), "kv-cache-room").advice  # not one sequence fits


def test_a_cache_at_the_border() -> None:
    """One block less than all sequences need; vLLM keeps one of them."""
    override = "rollout.engine_arguments.num_gpu_blocks_override"
    assert not rule(plan(f"{override}=2048"), "kv-cache-room").ok
    assert rule(plan(f"{override}=2049"), "kv-cache-room").ok


FIXED = [
    *(changes for changes, *_ in REFUSED),
    ["rollout.memory_share=0.2"],
    ["rollout.memory_share=0.4"],
    ["rollout.memory_share=0.5", "adaptations.kv-cache-room=true"],
    ["rollout.memory_share=0.4", "adaptations.kv-cache-room=false"],
    ["rollout.engine_arguments.num_gpu_blocks_override=100"],
    ["rollout.engine_arguments.num_gpu_blocks_override=20", "adaptations.kv-cache-room=false"],
    ["env.HCCL_BUFFSIZE=2000"],
    ["env.HCCL_BUFFSIZE=800"],
    ["offload=~"],
    ["offload.parameters=false", "offload.reference=false", f"{T}.swap_optimizer=false"],
    [f"{T}.recompute_granularity=selective", f"{T}.recompute_num_layers=~"],
    [f"{T}.recompute_method=uniform", f"{T}.recompute_num_layers=8", "actor.micro_batch=2"],
]


def written(fix: str) -> dict[str, str]:
    """Key -> value of one way out; "" for a key that is to be removed."""
    if fix.startswith("remove "):
        return {fix.removeprefix("remove "): ""}
    return dict(re.findall(r"([\w.]+) to (\[\d+\]|[\w.]+)", fix.removeprefix("set ")))


@pytest.mark.second
@pytest.mark.parametrize("changes", FIXED, ids=[changes[-1] for changes in FIXED])
def test_each_change_that_is_named_helps(changes: list[str]) -> None:
    """Every change of a fix is made, through the recipe's own keys, and the rule holds then."""
    tried = 0
    for name, one in broken(ascend(*changes)).items():
        if name == "checkpoint-disk":
            continue
        for text in filter(None, one.fix.split("; or ")):
            given = written(text)
            assert given, text
            kept = [change for change in changes if change.partition("=")[0] not in given]
            made = ascend(*kept, *(f"{key}={value}" for key, value in given.items() if value))
            after = broken(made)
            assert name not in after, (text, after[name].figures)
            assert not (name == "kv-cache-room" and "memory-generate" in after), text
            tried += 1
    assert tried


SWAP = "mindspeed/core/optimizer/swap_optimizer/swap_optimizer.py"


def test_a_swap_that_checkpoints_do_not_hold_is_no_fix(tmp_path: Path) -> None:
    """MindSpeed's swap loses the states in verl's checkpoints, but for the adaptation swapped-states."""
    swap = "swap_optimizer to true"
    off = ("offload.parameters=false", "offload.reference=false", f"{T}.swap_optimizer=false")
    for changes, offered in ((off, True), ((*off, "adaptations.swapped-states=false"), False)):
        assert any(swap in one.fix for one in broken(ascend(*changes)).values()) is offered
    script = HERE / "published" / "today-nightly-ci-ascend-gspo-qwen3-30b-megatron.yaml"
    for tree, offered in (("class Other:\n", True), ("class SwapDistributedOptimizer(Base):\n", False)):
        code = lay(tmp_path / str(offered), {SWAP: tree})
        found = broken(plan("cluster.die_memory_gb=64", recipe=str(script), code=code))
        assert any(swap in one.fix for one in found.values()) is offered, found


def test_a_change_names_no_value_that_is_set_already() -> None:
    given = ("granularity=selective", "method=uniform", "num_layers=~")
    found = broken(ascend(*(f"{T}.recompute_{one}" for one in given))).values()
    fixes = [one.fix for one in found if "recompute_granularity to full" in one.fix]
    assert fixes and not any("recompute_method" in fix for fix in fixes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["rollout.memory_share=0.95"], "set rollout.memory_share to"),
        (["actor.micro_batch=32", "data.response_length=8192"], "set actor.micro_batch to"),
        (["model.recompute=false", "actor.micro_batch=8"], "set model.recompute to true"),
    ],
)
def test_fixes_of_fsdp(changes: list[str], words: str) -> None:
    found = broken(plan(*changes, recipe=FSDP))
    assert any(words in one.fix for one in found.values()), found


def test_packed_micro_batches_are_advised_on_at_the_longest() -> None:
    """The measured run of Qwen3-30B-A3B: 30,720 tokens fill a micro batch only if all eight sequences are long."""
    measured = partial(plan, recipe=str(HERE / "measured" / "gspo-qwen3-30b.yaml"))
    found = broken(measured())
    assert [name for name, one in found.items() if one.refuses] == []
    assert "if all sequences have the full length" in found["memory-update-tight"].figures
    more = broken(measured("data.batch=256", "actor.mini_batch=128"))
    assert more["memory-update"].refuses


def test_a_host_is_judged_where_its_memory_is_named() -> None:
    assert "memory-host" not in {one.id for one in plan().rules}
    for host, wanted in ((2 * 10**12, None), (1250 * 10**9, "memory-host-tight"), (10**12, "memory-host")):
        found = broken(plan(machine=Machine(host=host)))
        assert list(found) == ([wanted] if wanted else [])
    assert not broken(plan(machine=Machine(host=10**12)))["memory-host"].certain  # by the copies, an estimate
    assert broken(plan(machine=Machine(host=8 * 10**11)))["memory-host"].certain


def test_half_the_nodes_need_twice_the_host() -> None:
    """Each host has 16 dies, and each of these twice the share of the experts and of the optimizer's states."""
    need, more = (total(present(made.memory).host) for made in (plan(), ascend(*EIGHT_NODES)))
    assert (need // 10**9, more // 10**9) == (1140, 2053)
    made = ascend(*EIGHT_NODES, machine=Machine(host=1500 * 10**9))
    assert broken(made)["memory-host"].refuses
    assert "memory-host" not in broken(ascend(*EIGHT_NODES, machine=Machine(host=2 * more)))


def test_rays_object_store_on_the_host() -> None:
    found = broken(plan(machine=Machine(host=1250 * 10**9)))["memory-host-tight"]
    assert "Ray's object store may take 200.0 GB" in found.figures
    assert "--object-store-memory=109000000000" in found.fix


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


def test_no_checkpoints() -> None:
    assert ascend().checkpoints is None


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


def test_a_number_of_the_trainers_own() -> None:
    one = "overrides.trainer.max_actor_ckpt_to_keep=1"
    changes = ["checkpoint.every=5", "checkpoint.keep=3", one]
    found = broken(ascend(*changes, machine=Machine(disk=10**13)))
    assert "checkpoint-disk" not in found and not found["checkpoint-in-a-crash"].refuses
    changes[-1] = one.replace("=1", "=5")
    found = broken(ascend(*changes, machine=Machine(disk=30 * 10**12)))
    assert found["checkpoint-disk"].fix == "set trainer.max_actor_ckpt_to_keep to 3 in overrides"


def test_estimates_are_marked_in_text_and_json() -> None:
    made = present(plan().memory)
    data = json.loads(json.dumps(memory_json(made)))
    assert any("evidence: four published runs" in line for line in data["range"])
    assert {one["name"] for one in data["phases"]} == {name.label for name in PhaseName}
    update = next(one for one in data["phases"] if one["rule"] == "memory-update")
    assert {"activations", "hccl-buffers", "cann-context"} == set(update["estimates"])
    assert update["estimated"] == sum(update["parts"][name] for name in update["estimates"])
    assert set(data["host_estimates"]) == {"pinned-copies", "processes"}
    text = "\n".join(memory_text(made, None))
    assert "CANN's context (estimate)" in text and " estimated\n" in text
    assert update["low"] + update["by_lengths"] + update["other_estimates"] == update["high"]
    assert update["high"] == update["total"]
    assert " by the lengths of sequences, " in text and "Range\n" in text
    assert re.search(r"At once on a die, update .*: [\d.]+-[\d.]+ GB, [\d.]+ GB estimated", text)
    assert "+25.7 %" in text and "-1.6 %" in text
    assert "not judged without --host-memory-gb" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_model_of_another_type_is_counted_and_said(tmp_path: Path) -> None:
    made = plan(model(tmp_path, "qwen2.5-7b", model_type="novel"), recipe=FSDP)
    assert any("'novel' is unknown here" in text for text in present(made.memory).assumed)
    assert fsdp().missing == ()
