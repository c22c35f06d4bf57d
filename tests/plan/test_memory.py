"""What lies on a die in each phase of a step and on a host, part by part, against arithmetic by hand."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from npu_rl.recipes.memory.device_overhead import hccl_groups
from npu_rl.recipes.memory.memory_by_phase import Memory, Phase, PhaseName
from npu_rl.recipes.memory.memory_parts import Part, total
from npu_rl.recipes.sizing.machine import Machine
from tests.plan.helpers import FSDP, MODELS, plan
from tests.support import present

WORDS, HIDDEN = 129_280, 7168
STAGE_7 = 7 * 585_318_400 + HIDDEN + WORDS * HIDDEN  # parameters
HCCL = 2 * 300 * 2**20  # one communicator's buffers
EARLY = 5  # all ranks, data with context, and the engine's tensor 2, expert 256 and MC2
LATE = 4  # pipeline, data, model, expert


def memory(*changes: str, machine: Machine | None = None) -> Memory:
    return present(plan(*changes, machine=machine).memory)


def phase(made: Memory, name: PhaseName, stage: int | None = None) -> Phase:
    if stage is None:
        return present(made.worst(name))
    return next(one for one in made.phases if (one.name, one.stage) == (name, stage))


def test_generating_takes_the_whole_share() -> None:
    """memory_share of the die, and what is made after the engine's profiling on top of it."""
    made = memory()
    found = phase(made, PhaseName.GENERATE)
    on_top = LATE * HCCL + found.parts[Part.SAMPLING]
    assert found.total == pytest.approx(0.8 * 64e9 + on_top, abs=128)
    assert found.parts[Part.HCCL] == (EARLY + LATE) * HCCL
    assert phase(memory("rollout.max_sequences=8"), PhaseName.GENERATE).total < found.total  # sampling alone


def test_the_cache_is_what_is_left_of_the_share() -> None:
    engine = present(memory().engine)
    assert engine.share == 0.8
    taken = total(engine.own) + engine.profiled[Part.ENGINE_ACTIVATIONS] + EARLY * HCCL + 10**9
    assert engine.cache.size == int(0.8 * 64e9) - taken
    assert engine.cache.blocks == engine.cache.size // (128 * 70_272) - 1  # vLLM's null block
    assert engine.cache.wanted == 64 * 4096 // 128


def test_training_that_stays_on_the_die_is_taken_off_the_cache() -> None:
    """Weights and gradients leave the die together; grad_offload is read by nothing."""
    here, alone, before = (
        present(memory(*changes, machine=Machine(96 * 10**9)).engine).cache.size
        for changes in (["offload.parameters=false"], ["offload.gradients=false"], [])
    )
    assert before - here == 6 * STAGE_7  # of stage 7, the largest
    assert alone == before


def test_the_weight_sync() -> None:
    found = phase(memory(), PhaseName.WEIGHT_SYNC)
    assert found.stage == 7
    assert found.parts[Part.GATHERED] == 33 * 2 * 2048 * HIDDEN * 2  # an expert of every rank, and its copy
    assert Part.KV_CACHE not in found.parts
    assert found.parts[Part.ENGINE_WEIGHTS] == 23_257_200_640


@pytest.mark.parametrize(
    ("name", "key", "each"),
    [
        (PhaseName.OLD_LOG_PROB, "rollout.log_prob_micro_batch", 16),
        (PhaseName.REFERENCE, "reference.micro_batch", 6),
    ],
)
@pytest.mark.parametrize("micro", [1, 4, 256])
def test_logits_of_the_log_probs(name: PhaseName, key: str, each: int, micro: int) -> None:
    """On the last stage: with the entropy 16 bytes a word and token, without it 6."""
    found = phase(memory(f"{key}={micro}"), name)
    if micro == 1 and name is PhaseName.REFERENCE:
        assert Part.LOGITS in phase(memory(f"{key}={micro}"), name, 7).parts
    assert phase(memory(f"{key}={micro}"), name, 7).parts[Part.LOGITS] == each * micro * 4096 * WORDS
    assert all(Part.LOGITS not in phase(memory(f"{key}={micro}"), name, stage).parts for stage in range(7))
    assert found.stage == 7


def test_the_update() -> None:
    made = memory()
    found, one = phase(made, PhaseName.UPDATE, 7), made.stages[7]
    assert found.parts[Part.SWAPPED] == one.states // 16
    assert found.parts[Part.ACTOR_GRADIENTS] == 4 * STAGE_7
    assert found.parts[Part.LOGITS] == 6 * 4096 * WORDS  # larger than one layer's activations
    assert found.parts[Part.ACTIVATIONS] == 7 * 4096 * HIDDEN * 2  # the input of each layer, one micro batch


def test_entropy_in_the_loss_keeps_more_logits() -> None:
    found = phase(memory("actor.entropy=0.001"), PhaseName.UPDATE, 7)
    assert found.parts[Part.LOGITS] == 18 * 4096 * WORDS


def activations(*changes: str, stage: int = 1) -> int:
    return phase(memory(*changes), PhaseName.UPDATE, stage).parts[Part.ACTIVATIONS]


T = "actor.transformer"


def test_recomputation_is_read_as_configured() -> None:
    """Stage 1 has 8 layers and 7 micro batches in flight; each layer's input is 4096 x 7168 bf16."""
    each = 4096 * HIDDEN * 2
    uniform = [f"{T}.recompute_method=uniform", f"{T}.recompute_num_layers=1"]
    one = activations(*uniform) - 7 * 8 * each  # one layer's own
    assert one > each
    four = activations(f"{T}.recompute_method=uniform", f"{T}.recompute_num_layers=4")
    assert four == 7 * 2 * each + 4 * one
    assert activations(f"{T}.recompute_method=block", f"{T}.recompute_num_layers=8") == 7 * 8 * each + one
    block = activations(f"{T}.recompute_method=block", f"{T}.recompute_num_layers=1")
    assert block == 7 * (each + 7 * one) + one
    for none in ("0", "-1"):
        assert activations(f"{T}.recompute_method=block", f"{T}.recompute_num_layers={none}") == 7 * 8 * one
    assert activations(f"{T}.recompute_granularity=selective") == 7 * 8 * one
    off = activations(f"{T}.recompute_granularity=~")
    assert off == 7 * 8 * one
    some = f"{T}.recompute_granularity=selective"
    assert activations(some, f"{T}.recompute_modules=[moe]") < off / 2


def test_what_is_not_freed_stays_on_the_die() -> None:
    made = memory("rollout.free_cache=false", "offload=~", f"{T}.swap_optimizer=false")
    update, generate = phase(made, PhaseName.UPDATE), phase(made, PhaseName.GENERATE)
    assert {Part.ENGINE_WEIGHTS, Part.REFERENCE_WEIGHTS, Part.OPTIMIZER} <= set(update.parts)
    assert {Part.ACTOR_WEIGHTS, Part.ACTOR_GRADIENTS, Part.OPTIMIZER} <= set(generate.parts)
    assert set(made.host) == {Part.PROCESSES}


@pytest.mark.parametrize(
    ("given", "mb"), [("300", 300), ("1", 1), ("300MB", 200), ("", 200), ("-5", 200), ("0", 200), ("²", 200)]
)
def test_hccl_buffers_as_set(given: str, mb: int) -> None:
    """A value that is none is refused by a rule of its own; the default is counted meanwhile."""
    found = phase(memory(f"env.HCCL_BUFFSIZE={given!r}"), PhaseName.UPDATE)
    assert found.parts[Part.HCCL] == (EARLY + LATE) * 2 * mb * 2**20


def test_a_host() -> None:
    made = memory()
    host, stage = made.host, made.stages[1]
    assert {part: round(size / 1e9) for part, size in host.items()} == {
        Part.ACTOR_WEIGHTS: 150,
        Part.PINNED_COPIES: 240,
        Part.REFERENCE_WEIGHTS: 150,
        Part.OPTIMIZER: 552,
        Part.PROCESSES: 48,
    }
    experts = 2 * stage.counts["experts"]  # the larger of DDP's two buffers
    assert host[Part.PINNED_COPIES] == 16 * (stage.weights + experts)


def test_the_trainers_other_switches() -> None:
    part = "overrides.actor_rollout_ref.actor.megatron"
    whole = memory(f"{part}.use_distributed_optimizer=false").stages[1]
    assert whole.states == 12 * 4_682_547_200
    bf16 = memory(f"{part}.override_ddp_config.grad_reduce_in_fp32=false").stages[1]
    assert bf16.gradients == bf16.weights
    fused = memory("overrides.actor_rollout_ref.model.use_fused_kernels=true")
    assert all(Part.LOGITS not in found.parts for found in fused.phases)


def test_what_is_not_set_is_named() -> None:
    made = memory("rollout.log_prob_micro_batch=~", "reference=~")
    assert made.worst(PhaseName.OLD_LOG_PROB) is None
    assert made.missing == (
        "old log-probs: rollout.log_prob_micro_batch is not set",
        "reference log-probs: reference.micro_batch is not set",
    )
    assert memory("actor.kl_loss.use=false", "reference=~").missing == ()


def fsdp(*changes: str, model: str = "qwen3-8b") -> Memory:
    return present(plan(f"model.path={MODELS / model}", *changes, recipe=FSDP).memory)


def test_a_7b_model_on_sixteen_dies() -> None:
    made = fsdp(model="qwen2.5-7b")
    shard = -(-7_615_616_512 // 16)
    update = phase(made, PhaseName.UPDATE)
    assert update.parts[Part.ACTOR_WEIGHTS] == update.parts[Part.ACTOR_GRADIENTS] == 4 * shard
    assert update.parts[Part.OPTIMIZER] == 8 * shard
    assert made.host[Part.REFERENCE_WEIGHTS] == 16 * 2 * shard
    generate = phase(made, PhaseName.GENERATE)
    assert generate.parts[Part.ACTOR_WEIGHTS] == 4 * shard
    assert generate.parts[Part.OPTIMIZER] == 8 * shard  # made at the first update, so outside the share
    assert generate.total > 0.6 * 64e9 + 8 * shard


@pytest.mark.parametrize(
    ("changes", "resident", "on_host"),
    [
        ([], 12, 2),
        (["offload.parameters=true"], 8, 6),
        (["offload.optimizer=true"], 4, 10),
        (["offload.parameters=true", "offload.optimizer=true"], 0, 14),
        (["actor.parallel.shard=4"], 48, 8),
    ],
)
def test_what_fsdp_keeps_and_offloads(changes: list[str], resident: int, on_host: int) -> None:
    made = fsdp(*changes)
    count, one = 8_190_735_360 / 16, made.stages[0]
    assert total(one.resident) + total(one.resident_late) == pytest.approx(resident * count, rel=1e-6)
    assert total(one.on_host) == pytest.approx(on_host * count, rel=1e-6)


def test_the_moments_of_fsdp() -> None:
    """FSDP's root has embedding and head, and its gradients in two formats; FSDP2 reduces each by itself."""
    short = ["data.prompt_length=8", "data.response_length=8", "actor.micro_batch=1"]
    first = phase(fsdp(*short), PhaseName.UPDATE).parts[Part.FSDP_UNITS]
    second = phase(fsdp(*short, "actor.strategy=fsdp2"), PhaseName.UPDATE).parts[Part.FSDP_UNITS]
    words = 151_936 * 4096
    assert first == 8 * 2 * words
    assert 8 * words <= second < first


def test_sequence_parallel_ranks_divide_the_tokens() -> None:
    def logits(*changes: str) -> Any:
        return phase(fsdp(*changes), PhaseName.OLD_LOG_PROB).parts[Part.LOGITS]

    assert logits("actor.parallel.sequence=4") == logits() // 4
    chunked = "overrides.actor_rollout_ref.actor.entropy_from_logits_with_chunking=true"
    assert logits(chunked) < logits() / 2


def groups(recipe: str, *changes: str) -> tuple[list[str], list[str]]:
    facts = plan(*changes, recipe=recipe).facts
    return hccl_groups(facts, facts.sizes)


@pytest.mark.parametrize(
    ("recipe", "early", "late"),
    [
        (
            "deepseek-r1-zero-256die",
            "world data_context rollout_tensor rollout_expert rollout_mc2",
            "pipeline data model expert",
        ),
        # vllm-ascend f20869e has no group for MC2, and its engines tell their sizes over HCCL.
        (
            "deepseek-v3-cann-256die",
            "world data_context rollout_tensor rollout_data rollout_expert",
            "tensor pipeline data model expert",
        ),
        (
            "verl-npu-grpo-qwen3-235b",
            "world data_context rollout_tensor rollout_expert rollout_mc2",
            "tensor pipeline data model expert expert_tensor",
        ),
        ("verl-npu-dapo-qwen25-32b-4k", "world rollout_tensor", "data sequence"),
    ],
)
def test_groups_that_have_communicated_before_the_engine_measures(recipe: str, early: str, late: str) -> None:
    assert groups(recipe) == (early.split(), late.split())


def test_groups_of_experts() -> None:
    """Two copies of them are broadcast before the rollout; a dense model has none, though Megatron forms the groups."""
    two = groups("deepseek-r1-zero-256die", "actor.parallel.expert=16")
    assert "expert_data" in two[0] and "expert" in two[1]
    dense = groups("deepseek-r1-zero-256die", "actor.parallel.expert=1", "model.architecture=qwen3-32b")
    assert not [name for name in chain(*dense) if "expert" in name or "mc2" in name]
