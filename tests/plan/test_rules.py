"""Every rule broken once, by a manifest's pins and in a tree that has, or lacks, the code it rests on; and its fix."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.recipes.memory.memory_parts import Part
from npu_rl.recipes.plan.plan import Plan
from npu_rl.recipes.plan.rules.rule import RULES
from tests.code_trees import lay
from tests.plan.helpers import RECIPE, SCRIPT, broken, model, plan, refused, rule, skipped
from tests.plan.test_server_rollout import SERVERS, script
from tests.support import present

T, A = "actor.transformer", "overrides.actor_rollout_ref.actor."
R, MEGATRON = "overrides.actor_rollout_ref.rollout.", f"{A}megatron"
CANN, LATENT = "manifest=deepseek-v3-cann", f"{T}.multi_head_latent_attention=true"
EXTRA = "rollout.engine_arguments.additional_config"
SCHEDULER, GRAPH = f"{EXTRA}.ascend_scheduler_config", f"{EXTRA}.torchair_graph_config"
BUFFER, FILTER = "overrides.reward_model.overlong_buffer", "overrides.algorithm.filter_groups"
KWARGS, LOOPS = "overrides.reward.reward_kwargs", "overrides.reward.reward_manager.name=dapo"
ON_POLICY, GENERATED = "adaptations.on-policy-logprob=true", "overrides.data.gen_batch_size"
ALLOC, DP_GROUPS = "env.PYTORCH_NPU_ALLOC_CONF=expandable_segments", "adaptations.rollout-dp-groups"
V1, RS = "overrides.trainer.use_v1=true", "overrides.algorithm.rollout_correction.rollout_rs"
# Id, fix (KEY=VALUE: the fix names it and it helps; else a part of the fix), changes that break it.
BROKEN: list[tuple[str, ...]] = [
    ("model-parallel-divides-world", "divides 9 ranks", "cluster.nodes=1", "cluster.dies=9", "cluster.dies_per_card=1"),
    ("tensor-parallel-divides-heads", "actor.parallel.tensor so that it divides 128 heads", "actor.parallel.tensor=3"),
    ("pipeline-layers", "in_first_pipeline_stage", f"{T}.pipeline_num_transformer_layers=[{','.join(['[8]'] * 8)}]"),
    ("expert-parallel-divides-world", "their product divides 256 ranks", "actor.parallel.expert=48"),
    ("expert-parallel-divides-experts", "it divides 256 experts", "actor.parallel.expert=48"),
    ("rollout-parallel-divides-world", "env.VLLM_DP_SIZE", "rollout.tensor_parallel=3"),
    ("rollout-tensor-parallel-divides-heads", "it divides 128 heads", "rollout.tensor_parallel=3"),
    ("rollout-parallel-divides-experts", "env.VLLM_DP_SIZE", "rollout.tensor_parallel=3"),
    ("rollout-dp-size", "env.VLLM_DP_SIZE=128", "env.VLLM_DP_SIZE=64"),
    ("rollout-experts-match-training", "multiple of 32", "env.VLLM_DP_SIZE=8"),
    ("pipeline-layers-agree", "to the same layers", f"{T}.num_layers_in_last_pipeline_stage=6"),
    ("mla-tensor-parallel", "actor.parallel.tensor=1", "actor.parallel.tensor=2"),
    ("sequence-parallel-needs-tensor-parallel", "remove", f"{T}.sequence_parallel=true"),
    ("responses-per-prompt", f"{R}n=1", f"{R}n=-4"),
    ("batch-divisible-by-dp", "to a multiple of 2", "data.batch=3"),
    ("mini-batch-within-batch", "actor.mini_batch=512", "actor.mini_batch=513"),
    ("mini-batch-divisible-by-dp", "multiple of 32", "actor.mini_batch=3"),
    ("batch-divisible-by-rollout-dp", "multiple of 128", "data.batch=4"),
    ("batch-divisible-by-rollout-dp", f"set {GENERATED} so that {GENERATED} x", f"{GENERATED}=100"),
    ("generated-batch-is-trained", f"{GENERATED}=512", f"{GENERATED}=1024"),
    ("model-positions", "data.response_length=162816", "data.response_length=163840"),
    ("rollout-max-length", "rollout.max_length=4096", "rollout.max_length=2048"),
    ("prefill-budget", "rollout.max_batched_tokens=4096", "rollout.max_batched_tokens=1024",
     "adaptations.chunked-prefill-check=false"),
    ("attention-mask-size", f"{T}.seq_length=2048", f"{T}.use_flash_attn=true", LATENT),
    ("overlong-prompts", "data.filter_overlong=true", "data.filter_overlong=false"),
    ("swap-or-offload-optimizer", "offload.optimizer=false", "offload.optimizer=true"),
    ("swap-optimizer-needs", "remove", f"{MEGATRON}.override_ddp_config.use_distributed_optimizer=false"),
    ("swap-optimizer-needs", "remove reuse_fp32_param", f"{T}.reuse_fp32_param=true"),
    ("swap-optimizer-needs", "remove optimizer_selection", f"{T}.optimizer_selection=fused_ema_adamw"),
    ("router-groups", "moe_router_num_groups to 8 and actor.transformer.moe_router_group_topk to 4",
     f"{T}.moe_router_group_topk=8"),
    ("recompute-settings", f"{T}.recompute_method=block", f"{T}.recompute_method=~"),
    ("recompute-settings", f"{T}.recompute_num_layers=1", f"{T}.recompute_num_layers=~"),
    ("recompute-settings", f"{T}.recompute_num_layers=8", f"{T}.recompute_method=block", f"{T}.recompute_num_layers=~"),
    ("recompute-settings", f"{T}.recompute_granularity=full", f"{T}.recompute_granularity=selective"),
    ("recompute-uniform-layers", f"{T}.recompute_num_layers=1", f"{T}.recompute_num_layers=0"),
    ("d2d-without-balance-batch", "overrides.trainer.balance_batch=false", CANN, "env.D2D_DATA_TRANSFER=1"),
    ("sleep-mode-expandable-segments", "adaptations.rollout-offload=true", f"{ALLOC}:True",
     "adaptations.rollout-offload=false"),
    ("graph-or-eager", "rollout.eager=false", "rollout.eager=true"),
    ("mla-graph-needs-torchair", f"{GRAPH}.enabled to true", f"{GRAPH}={{enabled: false}}"),
    ("torchair-switches", f"{GRAPH}.enabled=true", f"{GRAPH}={{enabled: false, enable_kv_nz: true}}"),
    ("graph-batch-sizes", "to [64]", f"{GRAPH}.graph_batch_sizes=[63]"),
    ("graph-batch-sizes", "to [64]", f"{GRAPH}.graph_batch_sizes=abc"),
    ("graph-batch-sizes", "to [128]", "rollout.max_sequences=128"),
    ("graph-batch-sizes", "to a multiple of 2", "rollout.max_sequences=129"),
    ("checkpoint-on-every-node", "absolute", "model.checkpoint=ckpts/v3"),
    ("rollout-dp-groups-off", f"{DP_GROUPS}=true", f"{DP_GROUPS}=false"),
    ("router-bias-rounded", "adaptations.router-bias=true", "adaptations.router-bias=false"),
    ("prompt-exceeds-prefill-step", "rollout.max_batched_tokens=1024", "rollout.max_batched_tokens=64",
     f"{SCHEDULER}={{enabled: true}}", f"{GRAPH}.graph_batch_sizes=[64]"),
    ("prompt-exceeds-prefill-step", f"{SCHEDULER}.max_num_batched_tokens=1024", "rollout.chunked_prefill=false",
     f"{SCHEDULER}={{enabled: true, max_num_batched_tokens: 100}}"),
    ("on-policy-needs-one-step", "actor.epochs=1", ON_POLICY, "actor.epochs=2"),
    ("on-policy-needs-one-step", "actor.mini_batch to 512", ON_POLICY, "actor.mini_batch=256"),
    ("moe-grouped-gemm", "remove actor.transformer.moe_grouped_gemm", f"{T}.moe_grouped_gemm=true"),
    ("overlong-buffer-within-response", "a number from 0 to 3072", "reward.manager=dapo", f"{BUFFER}.len=4096"),
    ("overlong-buffer-within-response", "a number from 1 to 3072", "reward.manager=dapo", f"{BUFFER}.len=0",
     f"{BUFFER}.enable=true"),
    ("filter-groups-metric", f"{FILTER}.metric=acc", f"{FILTER}.enable=true", f'{FILTER}.metric="null"'),
    ("context-parallel-agrees", f"{T}.context_parallel_size=2", "actor.parallel.context=2", "actor.parallel.expert=16"),
    ("context-parallel-agrees", f"{T}.context_parallel_size=1", f"{T}.context_parallel_size=4"),
    ("sequences-within-step", "rollout.max_sequences=4096", "rollout.max_sequences=5000"),
    ("token-limit-holds-a-sequence", f"{A}ppo_max_token_len_per_gpu=4096", f"{A}use_dynamic_bsz=true",
     f"{A}ppo_max_token_len_per_gpu=4095"),
]  # fmt: skip
# The same for a recipe whose rollout is vLLM servers: these only in a tree.
OF_SERVERS: list[tuple[str, ...]] = [
    ("sequences-within-step", "rollout.max_sequences=2048", "rollout.max_sequences=4096"),
    ("sleep-mode-expandable-segments", f"{ALLOC}:False", f"{ALLOC}:True", "rollout.free_cache=false"),
    ("experts-stay-transposed", "rollout.free_cache=true", "rollout.free_cache=false"),
    ("dynamic-batches-agree", f"{R}log_prob_use_dynamic_bsz=true", f"{A}use_dynamic_bsz=true",
     f"{R}log_prob_use_dynamic_bsz=false"),
    ("batch-divisible-by-mini-batch", "data.batch to a multiple of 3", "actor.mini_batch=3"),
    ("micro-batch-divides-share", "actor.micro_batch=1", "actor.micro_batch=3"),
    ("checkpoint-engine-backend", f"{R}checkpoint_engine.backend=naive", f"{R}checkpoint_engine.backend=hcclx"),
    ("agent-loop-registered", f"{R}agent.default_agent_loop=single_turn_agent", f"{R}agent.default_agent_loop=singel"),
    ("trainer-mode", "overrides.trainer.v1.trainer_mode=sync", V1, "overrides.trainer.v1.trainer_mode=syncc"),
    ("megatron-needs-mbridge", f"{MEGATRON}.use_mbridge=true", f"{MEGATRON}.use_mbridge=false"),
    ("megatron-bridge-missing", f"{MEGATRON}.vanilla_mbridge=true", f"{MEGATRON}.vanilla_mbridge=false"),
    ("rejection-needs-threshold", f"{RS}_threshold=2.0", f"{RS}=token_k3", f"{R}calculate_log_probs=true"),
    ("overlong-buffer-within-response", f"{KWARGS}.max_resp_len=261120", LOOPS,
     f"{KWARGS}.overlong_buffer_cfg.enable=true", f"{KWARGS}.overlong_buffer_cfg.len=4096"),
    ("overlong-buffer-within-response", "overlong_buffer_cfg.len to a number from 1 to 4095", LOOPS,
     f"{KWARGS}.overlong_buffer_cfg={{enable: true, len: 4096}}", f"{KWARGS}.max_resp_len=4095"),
    ("batch-divisible-by-agent-workers", f"{R}agent.num_workers to 4", f"{R}agent.num_workers=8", "data.batch=3"),
]  # fmt: skip
ADVICE = {
    *("generated-batch-is-trained", "router-groups", "overlong-prompts"),
    "megatron-bridge-missing",
}
REGISTRIES = {
    **SERVERS,
    "verl/experimental/agent_loop/single_turn_agent_loop.py": '@register("single_turn_agent")\n',
    "verl/checkpoint_engine/some.py": '@CheckpointEngineRegistry.register("naive")\n',
    "verl/trainer/ppo/v1/trainer_sync.py": '@register_trainer("sync")\n',
}


def tree_of(folder: Path, *others: dict[str, str], without: frozenset[str] = frozenset()) -> Path:
    """A tree with the text of every place, and the files named left out."""
    texts = defaultdict[str, str](str)
    for definition in RULES.values():
        for place in (place for places in definition.places for place in places):
            texts[place.file] += "" if place.absent else f"{place.text}\n"
    files = {file: text for file, text in texts.items() if file not in without}
    return lay(
        folder, *({file: text for file, text in one.items() if file not in without} for one in others), files
    )


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trees with the text of every place, which nobody may change."""
    folder = tmp_path_factory.mktemp("trees")
    return {"own": tree_of(folder / "own"), "servers": tree_of(folder / "servers", REGISTRIES)}


def judged(row: tuple[str, ...], made: Callable[..., Plan]) -> None:
    """Assert that changes break a rule and that its fix, which is tried, names the key to change."""
    name, fix, *changes = row
    found = rule(made(*changes), name)
    assert found.advice is (name in ADVICE) and found.figures
    key, is_change, value = fix.partition("=")
    if not is_change:
        assert fix in found.fix
        return
    assert re.search(rf"set {re.escape(key)} to {re.escape(value)}(?= or |,|:| and|$)", found.fix)
    others = [change for change in changes if not change.startswith(f"{key}=")]
    assert name not in broken(made(*others, fix))


def test_every_rule_holds_for_256_dies_and_is_broken_below() -> None:
    made = plan()
    assert broken(made) == {} and made.findings() == []
    elsewhere = {
        *("clean-model-config", "quantized-model", "checkpoint-layout", "checkpoint-layout-legacy"),
        *("router-bias-counts", "transformer-overrides-refused", "cpu-one-node", "fsdp-size-divides-world"),
        *(
            "tensor-parallel-divides-kv-heads",
            "stale-prefix-cache",
            "async-without-sleep",
            "data-parallel-graphs",
        ),
        *("hybrid-tp-ignored", "topk-optimize-swapped"),
        *(
            "sleep-mode-weight-format",
            *(name for name in RULES if name.startswith("sequence-parallel-divides")),
        ),
    }
    assert {*RULES} - {row[0] for row in (*BROKEN, *OF_SERVERS)} == elsewhere


@pytest.mark.parametrize("row", BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_rule_has_a_fix_that_works(row: tuple[str, ...]) -> None:
    judged(row, plan)
    assert (row[0] in refused(plan(*row[2:]))) is (row[0] not in ADVICE)


@pytest.mark.parametrize("row", OF_SERVERS, ids=[row[0] for row in OF_SERVERS])
def test_a_rule_of_servers_has_a_fix_that_works(trees: dict[str, Path], row: tuple[str, ...]) -> None:
    judged(row, lambda *changes: script(trees["servers"], *changes))


RESTING = [
    (kind, row)
    for kind, rows in (("own", BROKEN), ("servers", OF_SERVERS))
    for row in rows
    if row[0] in RULES and RULES[row[0]].places
]


@pytest.mark.parametrize(("kind", "row"), RESTING, ids=[row[0] for _, row in RESTING])
def test_a_rule_cites_its_code_and_steps_aside_without_it(
    trees: dict[str, Path], tmp_path: Path, kind: str, row: tuple[str, ...]
) -> None:
    name, _, *changes = row
    others, recipe = ((), RECIPE) if kind == "own" else ((REGISTRIES,), SCRIPT)
    first = frozenset(place.file for place in RULES[name].places[0])
    there = rule(plan(*changes, recipe=recipe, code=trees[kind]), name)
    assert any(f"({file}:" in there.figures for file in first)
    assert not there.certain or RULES[name].certain
    gone = plan(*changes, recipe=recipe, code=tree_of(tmp_path, *others, without=first))
    assert name not in broken(gone) and "not in this tree: " in skipped(gone).get(name, "not in this tree: ")


NOT_BROKEN = [
    ("overlong-buffer-within-response", "reward.manager=dapo", f"{BUFFER}.len=0"),
    ("sequence-parallel-needs-tensor-parallel", f"{T}.sequence_parallel=false"),
    ("torchair-switches", f"{GRAPH}.enabled=false", f"{GRAPH}.graph_batch_sizes=[]", "rollout.eager=true"),
    ("attention-mask-size", f"{T}.use_flash_attn=true", f"{T}.seq_length=2048", LATENT),
    ("recompute-settings", f"{T}.recompute_granularity=selective", f"{T}.recompute_num_layers=~"),
    ("recompute-settings", f"{T}.recompute_granularity=~", f"{T}.recompute_method=~"),
    ("generated-batch-is-trained", f"{GENERATED}=1536", f"{FILTER}.enable=true"),
]


@pytest.mark.parametrize("row", NOT_BROKEN, ids=[row[0] for row in NOT_BROKEN])
def test_a_rule_holds_at_its_border(row: tuple[str, ...]) -> None:
    assert refused(plan(*row[1:])) == [] and row[0] not in broken(plan(*row[1:]))


def test_an_unclean_config_is_refused(tmp_path: Path) -> None:
    unclean = {"num_nextn_predict_layers": 1, "quantization_config": {"quant_method": "fp8"}}
    found = rule(plan(model(tmp_path, "moonlight-16b-a3b", **unclean)), "clean-model-config")
    assert "quantization_config is {'quant_method': 'fp8'}, num_nextn_predict_layers is 1 (" in found.figures


@pytest.mark.parametrize(
    ("name", "other", "changes", "files"),
    [
        ("checkpoint-layout", "checkpoint-layout-legacy", (), (".metadata", "common.pt", "metadata.json")),
        ("checkpoint-layout-legacy", "checkpoint-layout", (CANN,), ("latest_checkpointed_iteration.txt",)),
    ],
)
def test_the_layout_of_a_checkpoint_that_is_at_hand(
    tmp_path: Path, name: str, other: str, changes: tuple[str, ...], files: tuple[str, ...]
) -> None:
    """cann-recipes-train's trainer loads the legacy one; without its file Megatron goes on with random weights."""
    made = plan(*changes, f"model.checkpoint={tmp_path}")
    assert f"has no {', '.join(files)}" in rule(made, name).figures and other in skipped(made)
    for file in files:
        (tmp_path / file).write_text("1")
    assert name not in broken(plan(*changes, f"model.checkpoint={tmp_path}"))


def test_an_adaptation_of_the_manifest_lifts_a_rule(tmp_path: Path) -> None:
    """The slugs are those in the headers of the manifest's own patches."""
    patched, bare = (
        f"schema: 1\nname: mine\nextends: deepseek-r1-zero\ncomponents:\n"
        f"  verl: {{patches: {patches}}}\n  vllm-ascend: {{patches: []}}\n  vllm: {{patches: []}}\n"
        for patches in ("[./ours, ./one.patch]", "[]")
    )
    names = ("chunked-prefill-check", "rollout-offload")
    headers = (
        f"Subject: x\n\nHow: NPU_RL_{name.upper().replace('-', '_')}=0 is upstream.\n---\ndiff --git a/x b/x\n"
        for name in names
    )
    patches = dict(zip(("ours/0001-a.patch", "one.patch"), headers, strict=True))
    lay(tmp_path, {"m.yaml": patched, "bare.yaml": bare}, patches)
    changes = ("rollout.max_batched_tokens=1024", f"{ALLOC}:True")
    bias = "router-bias-rounded"  # the manifest has none of that patch in either case
    both = ["prefill-budget", bias, "sleep-mode-expandable-segments"]
    assert sorted(refused(plan(*changes, f"manifest={tmp_path / 'bare.yaml'}"))) == both
    brought = (*changes, f"manifest={tmp_path / 'm.yaml'}")
    assert refused(plan(*brought)) == [bias]
    assert sorted(refused(plan(*brought, *[f"adaptations.{name}=false" for name in names]))) == both


def test_memory_is_judged_on_gpus() -> None:
    """16 GPUs of 141 GB have room for what 64 GB have not, and nothing of HCCL and CANN is counted there."""
    gpus = ("device=cuda", "cluster.dies_per_card=1", "env.VLLM_DP_SIZE=128")
    small, large = (plan(*gpus, f"cluster.die_memory_gb={size}") for size in (40, 141))
    assert [name for name in broken(small) if name.startswith("memory-")]
    assert not [name for name in broken(large) if name.startswith("memory-")]
    memory = present(large.memory)
    assert "NCCL's buffers and CUDA's context" in memory.missing
    assert not {Part.HCCL, Part.CONTEXT} & {part for phase in memory.phases for part in phase.parts}
