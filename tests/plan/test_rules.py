"""Every rule, once where it holds and once where it doesn't, with its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.memory.memory_parts import Part
from tests.code_trees import lay
from tests.plan.helpers import Broken, broken, loaded, model, plan, refused, rule, shows
from tests.support import present

CANN = "manifest=deepseek-v3-cann"
SCHEDULER = "rollout.engine_arguments.additional_config.ascend_scheduler_config"
GRAPH = "rollout.engine_arguments.additional_config.torchair_graph_config"
FITS = {
    "world-size": "16 16 256 16 16 256",
    "model-parallel-divides-world": "256 8 32",
    "tensor-parallel-divides-heads": "128 1 128",
    "pipeline-layers": "6 8 8 8 8 8 8 7 61 8",
    "expert-parallel-divides-world": "256 256 1",
    "expert-parallel-divides-experts": "256 32 8",
    "rollout-parallel-divides-world": "256 256 1",
    "rollout-tensor-parallel-divides-heads": "128 2 64",
    "rollout-parallel-divides-experts": "256 256 1",
    "rollout-dp-size": "128 2 256 256",
    "rollout-experts-match-training": "256 32",
    "pipeline-layers-agree": "6 8 8 8 8 8 8 7 6 7",
    "mla-tensor-parallel": "1",
    "mini-batch-divisible-by-dp": "512 16 8192 32",
    "batch-divisible-by-mini-batch": "512 512",
    "batch-divisible-by-rollout-dp": "8192 128 64",
    "max-sequences-one-wave": "64 64",
    "model-positions": "4096 4096 40 163840",
    "rollout-max-length": "4096 4096",
    "sequences-within-step": "64 4096",
    "prefill-budget": "4096 4096",
    "training-seq-length": "4096 4096",
    "overlong-prompts": "longer prompts are left out, then: error",
    "swap-or-offload-optimizer": "true false",
    "swap-needs-distributed-optimizer": "true",
    "swap-without-reuse-fp32": "false",
    "swap-needs-fused-adamw": "optimizer_selection fused_adamw",
    "actor-reference-weights": "True True",
    "benchmark-switch-in-training": "of a benchmark's switches on: none",
    "router-groups": "moe_router_num_groups 8, moe_router_group_topk 4; the model has 8",
    "recompute-settings": "full uniform 1",
    "recompute-uniform-layers": "full uniform 1",
    "sleep-mode-expandable-segments": "true",
    "graph-or-eager": "on False",
    "mla-graph-needs-torchair": "false true",
    "graph-batch-sizes": "64 2 64 4096",
    "data-parallel-graphs": "false 128",
    "megatron-needs-vllm": "rollout.engine vllm",
    "router-bias-rounded": "on",
    "rollout-dp-groups-off": "128 on",
    "rollout-compile-off": "on",
    "clean-model-config": "no quantization_config, no num_nextn_predict_layers",
    "checkpoint-on-every-node": "/ckpts/DeepSeek-V3, the same on 16 nodes",
    "hccl-ports": "64247 16 64247 64262 65520",
    "memory-generate": "53.8 64.0",
    "memory-old-log-prob": "50.6 64.0",
    "memory-weight-sync": "42.9 64.0",
    "memory-update": "42.7 64.0",
    "memory-reference": "29.4 64.0",
    "kv-cache-room": "128 2048 64 4096",
}


def test_every_rule_holds_for_256_dies() -> None:
    made = plan()
    assert [found.id for found in made.rules if not found.ok] == []
    assert {found.id for found in made.rules} == set(FITS) and len(made.rules) == len(FITS)
    assert made.findings() == []
    assert [found for found in made.rules if not shows(found, FITS[found.id])] == []


BUFFER, FILTER = "overrides.reward_model.overlong_buffer", "overrides.algorithm.filter_groups"
DYNAMIC = "overrides.actor_rollout_ref.actor."
MEGATRON, T = f"{DYNAMIC}megatron", "actor.transformer"
LATENT = "multi_head_latent_attention"
DP_GROUPS, COMPILE = "adaptations.rollout-dp-groups", "adaptations.rollout-compile"
ON_POLICY = "adaptations.on-policy-logprob=true"
SAMPLES, GENERATED = "overrides.actor_rollout_ref.rollout.n", "overrides.data.gen_batch_size"
BROKEN = [
    Broken("world-size", ["overrides.trainer.nnodes=8"], "8 16 128 16 16 256", "cluster.nodes"),
    Broken(
        "model-parallel-divides-world",
        ["cluster.nodes=1", "cluster.dies=9", "cluster.dies_per_card=1"],
        "9 8",
        "pipeline",
    ),
    Broken("tensor-parallel-divides-heads", ["actor.parallel.tensor=3"], "128 3", "divisor"),
    Broken(
        "pipeline-layers",
        [f"{T}.pipeline_num_transformer_layers=[[8],[8],[8],[8],[8],[8],[8],[8]]"],
        "64 8 61 8",
        "num_layers_in_first_pipeline_stage",
    ),
    Broken("expert-parallel-divides-world", ["actor.parallel.expert=48"], "256 384", "expert"),
    Broken(
        "expert-parallel-divides-experts",
        ["actor.parallel.expert=48"],
        "256 48",
        "to a divisor of the experts",
    ),
    Broken("rollout-parallel-divides-world", ["rollout.tensor_parallel=3"], "256 384", "VLLM_DP_SIZE"),
    Broken("rollout-tensor-parallel-divides-heads", ["rollout.tensor_parallel=3"], "128 3", "to a divisor"),
    Broken("rollout-parallel-divides-experts", ["rollout.tensor_parallel=3"], "256 384", "VLLM_DP_SIZE"),
    Broken("rollout-dp-size", ["env.VLLM_DP_SIZE=64"], "64 2 128 256", "env.VLLM_DP_SIZE=128"),
    Broken("rollout-experts-match-training", ["env.VLLM_DP_SIZE=8"], "16 32", "multiple"),
    Broken(
        "pipeline-layers-agree", [f"{T}.num_layers_in_last_pipeline_stage=6"], "6 6", "to the same layers"
    ),
    Broken("mla-tensor-parallel", ["actor.parallel.tensor=2"], "2 1", "actor.parallel.tensor=1"),
    Broken("sequence-parallel-derived", [f"{MEGATRON}.sequence_parallel=true"], "true 1", "remove"),
    Broken(
        "sequence-parallel-needs-tensor-parallel", [f"{T}.sequence_parallel=true"], "true 1 256", "remove"
    ),
    Broken("responses-per-prompt", [f"{SAMPLES}=-4"], "4 1", f"{SAMPLES}=1"),
    Broken("batch-divisible-by-dp", ["data.batch=3"], "3 16 48 32", "to a multiple of 2"),
    Broken("mini-batch-within-batch", ["actor.mini_batch=513"], "512 513", "actor.mini_batch=512"),
    Broken("mini-batch-divisible-by-dp", ["actor.mini_batch=3"], "3 16 48 32", "multiple of 32"),
    Broken("batch-divisible-by-rollout-dp", ["data.batch=4"], "64 128", "multiple of 128"),
    Broken("max-sequences-one-wave", ["rollout.max_sequences=32"], "32 64", "rollout.max_sequences=64"),
    Broken(
        "model-positions", ["data.response_length=163840"], "164864 4096 40", "data.response_length=162816"
    ),
    Broken("rollout-max-length", ["rollout.max_length=2048"], "2048 4096", "rollout.max_length=4096"),
    Broken(
        "prefill-budget",
        ["rollout.max_batched_tokens=1024", "adaptations.chunked-prefill-check=false"],
        "1024 4096",
        "rollout.max_batched_tokens=4096",
    ),
    Broken(
        "attention-mask-size",
        [f"{T}.use_flash_attn=true", f"{T}.{LATENT}=true"],
        "4096",
        f"{T}.seq_length=2048",
    ),
    Broken("training-seq-length", [f"{T}.seq_length=2048"], "2048 4096", f"{T}.seq_length=4096"),
    Broken(
        "overlong-prompts",
        ["data.filter_overlong=false"],
        "longer prompts are kept, then: error",
        "data.filter_overlong=true",
    ),
    Broken("swap-or-offload-optimizer", ["offload.optimizer=true"], "true", "offload.optimizer=false"),
    Broken(
        "swap-needs-distributed-optimizer",
        [f"{MEGATRON}.override_ddp_config.use_distributed_optimizer=false"],
        "false",
        "on",
    ),
    Broken(
        "swap-without-reuse-fp32",
        [f"{T}.reuse_fp32_param=true"],
        "true",
        "remove actor.transformer.reuse_fp32_param",
    ),
    Broken(
        "swap-needs-fused-adamw",
        [f"{T}.optimizer_selection=fused_ema_adamw"],
        "optimizer_selection fused_ema_adamw",
        "remove actor.transformer.optimizer_selection",
    ),
    Broken(
        "actor-reference-weights",
        ["overrides.actor_rollout_ref.ref.load_weight=false"],
        "True False",
        "model.load_weights",
    ),
    Broken(
        "benchmark-switch-in-training",
        ["rollout.ignore_end=true", "env.VLLM_ENABLE_FIX_ROUTE=1"],
        "weights are loaded, and of a benchmark's switches on: rollout.ignore_end, env.VLLM_ENABLE_FIX_ROUTE",
        "model.load_weights to false",
    ),
    Broken(
        "router-groups",
        [f"{T}.moe_router_group_topk=8"],
        "moe_router_num_groups 8, moe_router_group_topk 8; the model has 8 expert groups",
        "moe_router_num_groups to 8 and actor.transformer.moe_router_group_topk to 4",
    ),
    Broken("recompute-settings", [f"{T}.recompute_method=~"], "full None 1", f"{T}.recompute_method=block"),
    Broken(
        "recompute-settings", [f"{T}.recompute_num_layers=~"], "uniform None", f"{T}.recompute_num_layers=1"
    ),
    Broken(
        "recompute-settings",
        [f"{T}.recompute_method=block", f"{T}.recompute_num_layers=~"],
        "block None",
        f"{T}.recompute_num_layers=8",
    ),
    Broken(
        "recompute-settings",
        [f"{T}.recompute_granularity=selective"],
        "selective uniform 1",
        (f"{T}.recompute_granularity=full"),
    ),
    Broken(
        "recompute-uniform-layers",
        [f"{T}.recompute_num_layers=0"],
        "full uniform 0",
        f"{T}.recompute_num_layers=1",
    ),
    Broken(
        "d2d-without-balance-batch",
        [CANN, "env.D2D_DATA_TRANSFER=1"],
        "1 true",
        "overrides.trainer.balance_batch=false",
    ),
    Broken(
        "sleep-mode-expandable-segments",
        ["env.PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", "adaptations.rollout-offload=false"],
        "PYTORCH_NPU_ALLOC_CONF expandable_segments:True",
        "rollout-offload",
    ),
    Broken("graph-or-eager", ["rollout.eager=true"], "on True", "rollout.eager=false"),
    Broken(
        "mla-graph-needs-torchair", [f"{GRAPH}={{enabled: false}}"], "false", "torchair_graph_config.enabled"
    ),
    Broken(
        "torchair-switches",
        [f"{GRAPH}={{enabled: false, enable_kv_nz: true}}"],
        "of the settings that are refused then these are on: graph_batch_sizes, enable_kv_nz",
        (f"{GRAPH}.enabled=true"),
    ),
    Broken("graph-batch-sizes", [f"{GRAPH}.graph_batch_sizes=[63]"], "63 2 64 4096", "to [64]"),
    Broken(
        "graph-batch-sizes-list",
        [f"{GRAPH}.graph_batch_sizes=abc"],
        "graph_batch_sizes 'abc' is not a list",
        "to [64]",
    ),
    Broken("graph-batch-sizes-list", [f"{GRAPH}.graph_batch_sizes=64"], "64", "to [64]"),
    Broken("graph-batch-sizes", ["rollout.max_sequences=128"], "64 2 128 4096", "to [128]"),
    Broken("graph-batch-sizes", ["rollout.max_sequences=129"], "64 2 129 4096", "to a multiple of 2"),
    Broken(
        "checkpoint-on-every-node",
        ["model.checkpoint=ckpts/v3"],
        "ckpts/v3, the same on 16 nodes",
        "absolute",
    ),
    Broken("rollout-ports", [CANN, "env.MASTER_PORT=65534"], "65534 2", "65533 or less"),
    Broken("hccl-ports", ["env.HCCL_IF_BASE_PORT=65521"], "16 65521 65536", "65520 or less"),
    Broken("ports-overlap", [CANN, "env.MASTER_PORT=64250"], "64250 64252 64247 64262", "don't meet"),
    Broken(
        "megatron-needs-vllm",
        ["rollout.engine=hf"],
        "rollout.engine hf, actor.strategy megatron",
        "rollout.engine=vllm",
    ),
    Broken("rollout-dp-groups-off", [f"{DP_GROUPS}=false"], "128 off", f"{DP_GROUPS}=true"),
    Broken("router-bias-rounded", ["adaptations.router-bias=false"], "off", "adaptations.router-bias=true"),
    Broken("rollout-compile-off", [f"{COMPILE}=false"], "on off", f"{COMPILE}=true"),
    Broken(
        "prompt-exceeds-prefill-step",
        [
            "rollout.max_batched_tokens=64",
            f"{SCHEDULER}={{enabled: true}}",
            f"{GRAPH}.graph_batch_sizes=[64]",
        ],
        "64 1024",
        "rollout.max_batched_tokens=1024",
    ),
    Broken(
        "prompt-exceeds-prefill-step",
        ["rollout.chunked_prefill=false", f"{SCHEDULER}={{enabled: true, max_num_batched_tokens: 100}}"],
        "100 1024",
        f"{SCHEDULER}.max_num_batched_tokens=1024",
    ),
    Broken(
        "v1-engine",
        ["env.VLLM_USE_V1=0"],
        "needed by the adaptation rollout-offload (npu_rl_runtime/rollout_offload/parts.py:",
        "env.VLLM_USE_V1=1",
    ),
    Broken(
        "v1-engine",
        ["env.VLLM_USE_V1=0", "adaptations.rollout-offload=false", "env.PYTORCH_NPU_ALLOC_CONF=x"],
        "needed by torchair_graph_config (vllm_ascend/ascend_config.py@v0.9.1rc2)",
        "env.VLLM_USE_V1=1",
    ),
    Broken(
        "on-policy-needs-one-step",
        [ON_POLICY, "actor.epochs=2"],
        "actor.epochs 2, actor.mini_batch 512 and data.batch 512",
        "actor.epochs=1",
    ),
    Broken(
        "on-policy-needs-one-step",
        [ON_POLICY, "actor.mini_batch=256"],
        "actor.epochs 1, actor.mini_batch 256 and data.batch 512",
        "actor.mini_batch to 512",
    ),
    Broken(
        "moe-grouped-gemm",
        [f"{T}.moe_grouped_gemm=true"],
        "megatron.training, which is not in the tree (mindspeed/features_manager/moe/gmm.py@7ff818c",
        "remove actor.transformer.moe_grouped_gemm",
    ),
    Broken(
        "topk-optimize-unused",
        ["env.VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE=1"],
        "1 None None",
        'env.VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE="0"',
    ),
    Broken(
        "megatron-temperature",
        ["rollout.temperature=0.9", "adaptations.rollout-temperature=false"],
        "0.9 off",
        "adaptations.rollout-temperature=true",
    ),
    Broken(
        "overlong-buffer-within-response",
        ["reward.manager=dapo", f"{BUFFER}.len=4096"],
        "4096 3072",
        "to a number from 0 to 3072",
    ),
    Broken(
        "overlong-buffer-within-response",
        ["reward.manager=dapo", f"{BUFFER}.len=0", f"{BUFFER}.enable=true"],
        "0 3072",
        "a number from 1 to 3072",
    ),
    Broken(
        "filter-groups-metric",
        [f"{FILTER}.enable=true", f'{FILTER}.metric="null"'],
        "None",
        f"{FILTER}.metric=acc",
    ),
    Broken(
        "context-parallel-agrees",
        ["actor.parallel.context=2", "actor.parallel.expert=16"],
        "2 None",
        f"{T}.context_parallel_size=2",
    ),
    Broken(
        "context-parallel-agrees", [f"{T}.context_parallel_size=4"], "1 4", f"{T}.context_parallel_size=1"
    ),
    Broken("generated-batch-is-trained", [f"{GENERATED}=1024"], "1024 512 off 1024", f"{GENERATED}=512"),
    Broken(
        "batch-divisible-by-rollout-dp",
        [f"{GENERATED}=100"],
        "1600 128",
        f"set {GENERATED} so that {GENERATED} x rollout.responses is a multiple",
    ),
    Broken(
        "sequences-within-step", ["rollout.max_sequences=5000"], "5000 4096", "rollout.max_sequences=4096"
    ),
    Broken(
        "token-limit-holds-a-sequence",
        [f"{DYNAMIC}use_dynamic_bsz=true", f"{DYNAMIC}ppo_max_token_len_per_gpu=4095"],
        "4095 1 4095 4096",
        f"{DYNAMIC}ppo_max_token_len_per_gpu=4096",
    ),
    Broken(
        "validation-sample-temperature",
        ["rollout.validation.sample=true", "rollout.temperature=0"],
        "true 0",
        "rollout.validation.sample=false",
    ),
]
ADVICE = {
    "generated-batch-is-trained",
    "max-sequences-one-wave",
    "router-groups",
    "sequence-parallel-derived",
    "topk-optimize-unused",
    "training-seq-length",
    "overlong-prompts",
}


@pytest.mark.parametrize("row", BROKEN, ids=[row.name for row in BROKEN])
def test_broken_rule_reports_figures_and_a_fix_that_works(row: Broken) -> None:
    found = broken(row, plan)
    assert found.advice is (row.name in ADVICE)
    assert (row.name in refused(plan(*row.changes))) is not found.advice


RARE = [
    ("overlong-buffer-within-response", ["reward.manager=dapo", f"{BUFFER}.len=0"]),
    ("sequence-parallel-derived", [f"{MEGATRON}.sequence_parallel=false"]),
    ("sequence-parallel-needs-tensor-parallel", [f"{T}.sequence_parallel=false"]),
    ("d2d-without-balance-batch", [CANN, "env.D2D_DATA_TRANSFER=1", "overrides.trainer.balance_batch=false"]),
    ("torchair-switches", [f"{GRAPH}.enabled=false", f"{GRAPH}.graph_batch_sizes=[]", "rollout.eager=true"]),
    ("benchmark-switch-in-training", ["env.VLLM_ENABLE_FIX_ROUTE=0"]),
    ("attention-mask-size", [f"{T}.use_flash_attn=true", f"{T}.seq_length=2048", f"{T}.{LATENT}=true"]),
    ("hccl-ports", ["env.HCCL_IF_BASE_PORT=65520"]),
]


@pytest.mark.parametrize(("name", "changes"), RARE, ids=[row[0] for row in RARE])
def test_rarely_applicable_rule_holds(name: str, changes: list[str]) -> None:
    made = plan(*changes)
    assert rule(made, name).ok
    # that trainer takes none of this recipe's actor.transformer, a fault of its own
    assert refused(made) == (["transformer-overrides-refused"] if CANN in changes else [])


def test_benchmark_switches_are_allowed_without_weights() -> None:
    made = plan("model.load_weights=false", "rollout.ignore_end=true", "env.VLLM_ENABLE_FIX_ROUTE=1")
    assert refused(made) == []
    assert made.loading is None


def test_every_rule_is_broken_once() -> None:
    # Those of memory are in test_memory_rules.py, and test_server_rollout.py has what verl 0.8 asserts.
    elsewhere = {"clean-model-config", "batch-divisible-by-mini-batch", "data-parallel-graphs"}
    of_memory = {name for name in FITS if name.startswith(("memory-", "kv-cache-"))}
    assert set(FITS) - {row.name for row in BROKEN} - of_memory == elsewhere


def test_an_unclean_config_is_refused(tmp_path: Path) -> None:
    unclean = {"num_nextn_predict_layers": 1, "quantization_config": {"quant_method": "fp8"}}
    found = rule(plan(model(tmp_path, "moonlight-16b-a3b", **unclean)), "clean-model-config")
    assert not found.ok
    assert found.figures.startswith(
        "quantization_config is {'quant_method': 'fp8'}, num_nextn_predict_layers is 1 (verl/models/mcore/"
    )


def test_the_layout_of_a_checkpoint_that_is_at_hand(tmp_path: Path) -> None:
    change = f"model.checkpoint={tmp_path}"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    found = rule(plan(change), "checkpoint-layout")
    legacy = "no .metadata, common.pt, metadata.json; it is one of Megatron's legacy checkpoints"
    assert not found.ok and legacy in found.figures
    for name in (".metadata", "common.pt", "metadata.json"):
        (tmp_path / name).write_text("")
    assert rule(plan(change), "checkpoint-layout").ok


def test_the_checkpoint_of_a_trainer_that_loads_the_legacy_layout(tmp_path: Path) -> None:
    """cann-recipes-train's; without the file of the last iteration Megatron goes on with random weights."""
    changes = (CANN, f"model.checkpoint={tmp_path}")
    found = rule(plan(*changes), "checkpoint-layout-legacy")
    assert not found.ok and found.certain
    assert "no latest_checkpointed_iteration.txt, without which" in found.figures
    assert rule(plan(*changes), "checkpoint-layout").skipped
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    assert rule(plan(*changes), "checkpoint-layout-legacy").ok
    assert rule(plan(changes[1]), "checkpoint-layout-legacy").skipped


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
    changes = ("rollout.max_batched_tokens=1024", "env.PYTORCH_NPU_ALLOC_CONF=expandable_segments:True")
    bias = "router-bias-rounded"  # the manifest has none of that patch in either case
    both = ["prefill-budget", bias, "sleep-mode-expandable-segments", "sleep-mode-loses-buffers"]
    assert refused(plan(*changes, f"manifest={tmp_path / 'bare.yaml'}")) == both
    brought = (*changes, f"manifest={tmp_path / 'm.yaml'}")
    assert refused(plan(*brought)) == [bias]
    assert refused(plan(*brought, *[f"adaptations.{name}=false" for name in names])) == both


def test_a_finding_says_where_and_what_to_write() -> None:
    assert judge(loaded()).findings == ()
    found = judge(loaded("actor.parallel.tensor=2")).findings[0]
    assert (found.rule, found.key) == ("mla-tensor-parallel", "actor.parallel.tensor")
    assert found.severity is Severity.ERROR
    assert found.trainer_key.endswith("tensor_model_parallel_size")
    assert found.where == "command line: actor.parallel.tensor=2"
    assert "MindSpeed" in found.message and found.fix.startswith("set actor.parallel.tensor to 1")
    port = judge(loaded("env.HCCL_IF_BASE_PORT=65530")).findings[0]
    assert (port.key, port.trainer_key) == ("env.HCCL_IF_BASE_PORT", "")
    assert port.fix == "set env.HCCL_IF_BASE_PORT to 65520"
    assert judge(loaded("env.HCCL_IF_BASE_PORT=65520")).findings == ()


def test_what_is_overruled_does_not_silence_what_follows() -> None:
    changes = ("env.VLLM_DP_SIZE=64", "rollout.memory_share=0.5", "plan.except.rollout-dp-size=ours")
    assert "kv-cache-room" in [one.rule for one in judge(loaded(*changes)).findings]


def test_a_model_of_unknown_shape_is_not_refused_for_it() -> None:
    judgement = judge(loaded("model.architecture=~", "offload.optimizer=true"))
    assert [found.rule for found in judgement.errors] == ["swap-or-offload-optimizer"]
    assert "model-size-unknown" in [found.rule for found in judgement.findings]


@pytest.mark.parametrize(
    "changes",
    [
        ["actor.transformer.recompute_granularity=selective", "actor.transformer.recompute_num_layers=~"],
        ["actor.transformer.recompute_granularity=~", "actor.transformer.recompute_method=~"],
    ],
)
def test_recomputation_settings_that_megatron_takes_are_ok(changes: list[str]) -> None:
    made = plan(*changes)
    assert all(found.ok for found in made.rules if found.id.startswith("recompute-"))


def test_memory_is_judged_on_gpus() -> None:
    """16 GPUs of 141 GB have room for what 64 GB have not, and nothing of HCCL and CANN is counted there."""
    gpus = ("device=cuda", "cluster.dies_per_card=1", "env.VLLM_DP_SIZE=128")
    small, large = (plan(*gpus, f"cluster.die_memory_gb={size}") for size in (40, 141))
    assert [rule.id for rule in small.rules if not rule.ok and rule.id.startswith("memory-")]
    assert not [rule.id for rule in large.rules if not rule.ok and rule.id.startswith("memory-")]
    memory = present(large.memory)
    assert "NCCL's buffers and CUDA's context" in memory.missing
    assert not {Part.HCCL, Part.CONTEXT} & {part for phase in memory.phases for part in phase.parts}


def test_memory_is_not_judged_on_a_cpu() -> None:
    names = [found.id for found in plan("device=cpu").rules]
    assert not [name for name in names if name.startswith("memory")]
    assert "mla-tensor-parallel" not in names
