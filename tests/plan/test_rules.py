"""Every rule, once where it holds and once where it doesn't, with its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.memory.memory_parts import Part
from tests.plan.helpers import loaded, plan, refused, rule

HERE = Path(__file__).parent
CANN = "manifest=deepseek-v3-cann"
SCHEDULER = "rollout.engine_arguments.additional_config.ascend_scheduler_config"
GRAPH = "rollout.engine_arguments.additional_config.torchair_graph_config"
FITS = {
    "world-size": "trainer: 16 nodes x 16 dies = 256; cluster: 16 x 16 = 256",
    "model-parallel-divides-world": "256 ranks / 8 = 32 data",
    "tensor-parallel-divides-heads": "128 heads / 1 = 128 per rank",
    "pipeline-layers": "6 + 8 + 8 + 8 + 8 + 8 + 8 + 7 = 61 layers on 8 stages",
    "expert-parallel-divides-world": "256 ranks / 256 = 1 expert data",
    "expert-parallel-divides-experts": "256 experts / 32 = 8 per rank",
    "rollout-parallel-divides-world": "256 ranks / 256 = 1 engines",
    "rollout-tensor-parallel-divides-heads": "128 heads / 2 = 64 per rank",
    "rollout-parallel-divides-experts": "256 experts / 256 = 1 per rank",
    "rollout-dp-size": "VLLM_DP_SIZE 128 x rollout tensor 2 = 256, of 256 dies",
    "rollout-experts-match-training": "experts over 256 dies in the rollout, over 32 in training",
    "pipeline-layers-agree": "6 + 8 + 8 + 8 + 8 + 8 + 8 + 7; first stage 6, last stage 7",
    "mla-tensor-parallel": "tensor parallel size 1 in training",
    "batch-divisible-by-dp": "512 prompts x 16 responses = 8192; 32 replicas x micro batch 1 = 32",
    "mini-batch-within-batch": "mini batch of 512 prompts in a batch of 512",
    "mini-batch-divisible-by-dp": "512 prompts x 16 responses = 8192, over 32 data-parallel replicas",
    "batch-divisible-by-mini-batch": "512 prompts in mini batches of 512",
    "batch-divisible-by-rollout-dp": "8192 responses over 128 engines = 64",
    "max-sequences-one-wave": "max_sequences 64, 64 responses an engine",
    "model-positions": "4096 tokens; 4096 positions x rope factor 40 = 163840",
    "rollout-max-length": "max_length 4096, prompt and response of 4096 tokens",
    "sequences-within-step": "max_sequences 64, max_batched_tokens 4096",
    "prefill-budget": "max_batched_tokens 4096, max_length 4096, with chunked prefill",
    "training-seq-length": "seq_length 4096 for sequences of 4096 tokens",
    "overlong-prompts": "longer prompts are left out, then: error",
    "swap-or-offload-optimizer": "swap_optimizer true, optimizer_offload false",
    "swap-needs-distributed-optimizer": "use_distributed_optimizer true",
    "swap-without-reuse-fp32": "reuse_fp32_param false",
    "swap-needs-fused-adamw": "optimizer_selection fused_adamw",
    "actor-reference-weights": "of the actor True, of the reference True",
    "benchmark-switch-in-training": "of a benchmark's switches on: none",
    "router-groups": "moe_router_num_groups 8, moe_router_group_topk 4; the model's experts are in 8",
    "recompute-settings": "recompute_granularity full, recompute_method uniform, recompute_num_layers 1",
    "recompute-uniform-layers": "recompute_granularity full, recompute_method uniform, recompute_num_layers 1",
    "sleep-mode-expandable-segments": "free_cache true, adaptation rollout-offload",
    "graph-or-eager": "torchair graphs on, eager False",
    "mla-graph-needs-torchair": "eager false, torchair_graph_config.enabled true",
    "graph-batch-sizes": "graph_batch_sizes [64], rollout tensor 2, max_sequences 64, max_batched_tokens 4096",
    "megatron-needs-vllm": "rollout.engine vllm",
    "router-bias-rounded": "adaptation router-bias on",
    "rollout-dp-groups-off": "VLLM_DP_SIZE 128, adaptation rollout-dp-groups on",
    "rollout-compile-off": "adaptation rollout-compile on",
    "clean-model-config": "no quantization_config, no num_nextn_predict_layers",
    "checkpoint-on-every-node": "/ckpts/DeepSeek-V3, the same on 16 nodes",
    "hccl-ports": "HCCL_IF_BASE_PORT 64247: 16 dies take 64247 to 64262, the base may be 65520 at most",
    "memory-weight-sync": "= 42.9 GB, of 64.0 GB",
    "memory-generate": "= 53.8 GB, of 64.0 GB",
    "memory-old-log-prob": "= 50.6 GB, of 64.0 GB",
    "memory-reference": "= 29.4 GB, of 64.0 GB",
    "memory-update": "= 42.7 GB, of 64.0 GB",
    "kv-cache-room": "blocks of 128 tokens, of 2048 for 64 sequences of 4096",
}


def test_every_rule_holds_for_256_dies() -> None:
    made = plan()
    assert [found.id for found in made.rules if not found.ok] == []
    assert [found.id for found in made.rules] == list(FITS)
    assert made.findings() == []


@pytest.mark.parametrize("name", FITS)
def test_a_rule_that_holds_says_its_figures(name: str) -> None:
    found = rule(plan(), name)
    assert FITS[name] in found.figures
    assert found.ok


DYNAMIC = "overrides.actor_rollout_ref.actor."
LATENT = "multi_head_latent_attention"
BROKEN = [
    (
        "world-size",
        ["overrides.trainer.nnodes=8"],
        "8 nodes x 16 dies = 128; cluster: 16 x 16 = 256",
        "cluster.nodes",
    ),
    (
        "model-parallel-divides-world",
        ["cluster.nodes=1", "cluster.dies=9", "cluster.dies_per_card=1"],
        "9 ranks can't be split evenly 8 ways",
        "pipeline",
    ),
    (
        "tensor-parallel-divides-heads",
        ["actor.parallel.tensor=3"],
        "128 heads can't be split evenly 3",
        "divisor",
    ),
    (
        "pipeline-layers",
        ["actor.transformer.pipeline_num_transformer_layers=[[8],[8],[8],[8],[8],[8],[8],[8]]"],
        "64 layers on 8 stages, where there are 61 and 8",
        "num_layers_in_first_pipeline_stage",
    ),
    (
        "expert-parallel-divides-world",
        ["actor.parallel.expert=48"],
        "256 ranks can't be split evenly 384 ways",
        "expert",
    ),
    (
        "expert-parallel-divides-experts",
        ["actor.parallel.expert=48"],
        "256 experts can't be split evenly 48",
        "set actor.parallel.expert to a divisor of the experts",
    ),
    (
        "rollout-parallel-divides-world",
        ["rollout.tensor_parallel=3"],
        "256 ranks can't be split evenly 384",
        "VLLM_DP_SIZE",
    ),
    (
        "rollout-tensor-parallel-divides-heads",
        ["rollout.tensor_parallel=3"],
        "128 heads can't be split",
        "set rollout.tensor_parallel to a divisor",
    ),
    (
        "rollout-parallel-divides-experts",
        ["rollout.tensor_parallel=3"],
        "256 experts can't be",
        "VLLM_DP_SIZE",
    ),
    ("rollout-dp-size", ["env.VLLM_DP_SIZE=64"], "64 x rollout tensor 2 = 128, of 256 dies", "to 128"),
    (
        "rollout-experts-match-training",
        ["env.VLLM_DP_SIZE=8"],
        "experts over 16 dies in the rollout, over 32 in training",
        "multiple",
    ),
    (
        "pipeline-layers-agree",
        ["actor.transformer.num_layers_in_last_pipeline_stage=6"],
        "first stage 6, last stage 6",
        "set both of them to the same layers",
    ),
    (
        "mla-tensor-parallel",
        ["actor.parallel.tensor=2"],
        "tensor parallel size 2 in training; MindSpeed's multi-head latent attention takes only 1",
        "set actor.parallel.tensor to 1",
    ),
    (
        "sequence-parallel-derived",
        ["overrides.actor_rollout_ref.actor.megatron.sequence_parallel=true"],
        "sequence_parallel true with tensor parallel size 1",
        "remove",
    ),
    (
        "sequence-parallel-needs-tensor-parallel",
        ["actor.transformer.sequence_parallel=true"],
        "sequence_parallel true with tensor parallel size 1, 256 experts",
        "remove",
    ),
    (
        "responses-per-prompt",
        ["overrides.actor_rollout_ref.rollout.n=-4"],
        "-4 responses of each prompt: must be 1 or more",
        "set overrides.actor_rollout_ref.rollout.n to 1",
    ),
    (
        "batch-divisible-by-dp",
        ["data.batch=3"],
        "3 prompts x 16 responses = 48 is not divisible by 32",
        "set data.batch to a multiple of 2",
    ),
    (
        "mini-batch-within-batch",
        ["actor.mini_batch=513"],
        "512 prompts is smaller than the mini batch of 513",
        "512",
    ),
    (
        "mini-batch-divisible-by-dp",
        ["actor.mini_batch=3"],
        "3 prompts x 16 responses = 48, over 32",
        "multiple of 32",
    ),
    ("batch-divisible-by-rollout-dp", ["data.batch=4"], "64 responses over 128 engines", "multiple of 128"),
    (
        "max-sequences-one-wave",
        ["rollout.max_sequences=32"],
        "max_sequences 32, 64 responses an engine",
        "to 64",
    ),
    (
        "model-positions",
        ["data.response_length=163840"],
        "164864 tokens; 4096 positions x rope factor 40",
        "set data.response_length to 162816 or less",
    ),
    (
        "rollout-max-length",
        ["rollout.max_length=2048"],
        "max_length 2048, prompt and response of 4096",
        "to 4096",
    ),
    (
        "prefill-budget",
        ["rollout.max_batched_tokens=1024", "adaptations.chunked-prefill-check=false"],
        "max_batched_tokens 1024, max_length 4096, with chunked prefill, adaptation chunked-prefill-check off",
        "set rollout.max_batched_tokens to 4096 or more, or adaptations.chunked-prefill-check to true",
    ),
    (
        "attention-mask-size",
        ["actor.transformer.use_flash_attn=true", f"actor.transformer.{LATENT}=true"],
        "seq_length 4096; MindSpeed makes its mask of this side",
        "seq_length to 2048",
    ),
    (
        "training-seq-length",
        ["actor.transformer.seq_length=2048"],
        "seq_length 2048 for sequences of 4096",
        "4096",
    ),
    (
        "overlong-prompts",
        ["data.filter_overlong=false"],
        "longer prompts are kept, then: error",
        "filter_overlong",
    ),
    ("swap-or-offload-optimizer", ["offload.optimizer=true"], "optimizer_offload true", "false"),
    (
        "swap-needs-distributed-optimizer",
        ["overrides.actor_rollout_ref.actor.megatron.override_ddp_config.use_distributed_optimizer=false"],
        "use_distributed_optimizer false",
        "on",
    ),
    (
        "swap-without-reuse-fp32",
        ["actor.transformer.reuse_fp32_param=true"],
        "reuse_fp32_param true",
        "remove actor.transformer.reuse_fp32_param",
    ),
    (
        "swap-needs-fused-adamw",
        ["actor.transformer.optimizer_selection=fused_ema_adamw"],
        "optimizer_selection fused_ema_adamw",
        "remove actor.transformer.optimizer_selection",
    ),
    (
        "actor-reference-weights",
        ["overrides.actor_rollout_ref.ref.load_weight=false"],
        "of the actor True, of the reference False",
        "model.load_weights",
    ),
    (
        "benchmark-switch-in-training",
        ["rollout.ignore_end=true", "env.VLLM_ENABLE_FIX_ROUTE=1"],
        "weights are loaded, and of a benchmark's switches on: rollout.ignore_end, env.VLLM_ENABLE_FIX_ROUTE",
        "model.load_weights to false",
    ),
    (
        "router-groups",
        ["actor.transformer.moe_router_group_topk=8"],
        "moe_router_num_groups 8, moe_router_group_topk 8; the model's experts are in 8 groups",
        "moe_router_num_groups to 8 and actor.transformer.moe_router_group_topk to 4",
    ),
    (
        "recompute-settings",
        ["actor.transformer.recompute_method=~"],
        "recompute_granularity full, recompute_method None, recompute_num_layers 1",
        "set actor.transformer.recompute_method to block",
    ),
    (
        "recompute-settings",
        ["actor.transformer.recompute_num_layers=~"],
        "recompute_method uniform, recompute_num_layers None",
        "set actor.transformer.recompute_num_layers to 1",
    ),
    (
        "recompute-settings",
        ["actor.transformer.recompute_method=block", "actor.transformer.recompute_num_layers=~"],
        "recompute_method block, recompute_num_layers None",
        "set actor.transformer.recompute_num_layers to 8",
    ),
    (
        "recompute-settings",
        ["actor.transformer.recompute_granularity=selective"],
        "recompute_granularity selective, recompute_method uniform, recompute_num_layers 1",
        "set actor.transformer.recompute_granularity to full, or remove actor.transformer.recompute_num_layers "
        "(on the command line: actor.transformer.recompute_num_layers=~)",
    ),
    (
        "recompute-uniform-layers",
        ["actor.transformer.recompute_num_layers=0"],
        "recompute_num_layers 0: the loop over a stage's layers",
        "set actor.transformer.recompute_num_layers to 1",
    ),
    (
        "d2d-without-balance-batch",
        [CANN, "env.D2D_DATA_TRANSFER=1"],
        "D2D_DATA_TRANSFER 1, trainer.balance_batch true",
        "trainer.balance_batch to false",
    ),
    (
        "sleep-mode-expandable-segments",
        ["env.PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", "adaptations.rollout-offload=false"],
        "PYTORCH_NPU_ALLOC_CONF expandable_segments:True",
        "rollout-offload",
    ),
    ("graph-or-eager", ["rollout.eager=true"], "torchair graphs on, eager True", "rollout.eager to false"),
    (
        "mla-graph-needs-torchair",
        [f"{GRAPH}={{enabled: false}}"],
        "torchair_graph_config.enabled false",
        "torchair_graph_config.enabled",
    ),
    (
        "torchair-switches",
        [f"{GRAPH}={{enabled: false, enable_kv_nz: true}}"],
        "of the settings that are refused then these are on: graph_batch_sizes, enable_kv_nz",
        f"remove {GRAPH}.graph_batch_sizes and {GRAPH}.enable_kv_nz (on the command line: KEY=~), or set "
        f"{GRAPH}.enabled to true",
    ),
    ("graph-batch-sizes", [f"{GRAPH}.graph_batch_sizes=[63]"], "graph_batch_sizes [63]", "to [64]"),
    (
        "graph-batch-sizes-list",
        [f"{GRAPH}.graph_batch_sizes=abc"],
        "graph_batch_sizes 'abc' is not a list",
        "to [64]",
    ),
    (
        "graph-batch-sizes-list",
        [f"{GRAPH}.graph_batch_sizes=64"],
        "graph_batch_sizes 64 is not a list",
        "to [64]",
    ),
    ("graph-batch-sizes", ["rollout.max_sequences=128"], "max_sequences 128", "to [128]"),
    ("graph-batch-sizes", ["rollout.max_sequences=129"], "max_sequences 129", "to a multiple of 2"),
    ("checkpoint-on-every-node", ["model.checkpoint=ckpts/v3"], "ckpts/v3, the same on 16 nodes", "absolute"),
    ("rollout-ports", [CANN, "env.MASTER_PORT=65534"], "65534 + 2 data parallel", "65533 or less"),
    ("hccl-ports", ["env.HCCL_IF_BASE_PORT=65521"], "16 dies take 65521 to 65536", "65520 or less"),
    ("ports-overlap", [CANN, "env.MASTER_PORT=64250"], "64250 to 64252, HCCL's 64247 to 64262", "don't meet"),
]
BROKEN += [
    (
        "megatron-needs-vllm",
        ["rollout.engine=hf"],
        "rollout.engine hf, actor.strategy megatron",
        "set rollout.engine to vllm",
    ),
    (
        "rollout-dp-groups-off",
        ["adaptations.rollout-dp-groups=false"],
        "VLLM_DP_SIZE 128, adaptation rollout-dp-groups off",
        "set adaptations.rollout-dp-groups to true",
    ),
    (
        "router-bias-rounded",
        ["adaptations.router-bias=false"],
        "adaptation router-bias off",
        "set adaptations.router-bias to true",
    ),
    (
        "rollout-compile-off",
        ["adaptations.rollout-compile=false"],
        "torchair graphs on, adaptation rollout-compile off",
        "set adaptations.rollout-compile to true",
    ),
    (
        "prompt-exceeds-prefill-step",
        [
            "rollout.max_batched_tokens=64",
            f"{SCHEDULER}={{enabled: true}}",
            f"{GRAPH}.graph_batch_sizes=[64]",
        ],
        "max_batched_tokens 64, prompts of up to 1024 tokens",
        "set rollout.max_batched_tokens to 1024 or more",
    ),
    (
        "prompt-exceeds-prefill-step",
        ["rollout.chunked_prefill=false", f"{SCHEDULER}={{enabled: true, max_num_batched_tokens: 100}}"],
        "max_batched_tokens 100, prompts of up to 1024 tokens",
        f"set {SCHEDULER}.max_num_batched_tokens to 1024 or more",
    ),
    (
        "v1-engine",
        ["env.VLLM_USE_V1=0"],
        "needed by the adaptation rollout-offload (npu_rl_runtime/rollout_offload/parts.py:",
        "set env.VLLM_USE_V1 to 1",
    ),
    (
        "v1-engine",
        ["env.VLLM_USE_V1=0", "adaptations.rollout-offload=false", "env.PYTORCH_NPU_ALLOC_CONF=x"],
        "needed by torchair_graph_config (vllm_ascend/ascend_config.py@v0.9.1rc2)",
        "set env.VLLM_USE_V1 to 1",
    ),
    (
        "on-policy-needs-one-step",
        ["adaptations.on-policy-logprob=true", "actor.epochs=2"],
        "actor.epochs 2, actor.mini_batch 512 of a data.batch of 512",
        "set actor.epochs to 1",
    ),
    (
        "on-policy-needs-one-step",
        ["adaptations.on-policy-logprob=true", "actor.mini_batch=256"],
        "actor.epochs 1, actor.mini_batch 256 of a data.batch of 512",
        "actor.mini_batch to 512",
    ),
    (
        "moe-grouped-gemm",
        ["actor.transformer.moe_grouped_gemm=true"],
        "megatron.training, which is not in the tree (mindspeed/features_manager/moe/gmm.py@7ff818c",
        "remove actor.transformer.moe_grouped_gemm",
    ),
    (
        "topk-optimize-unused",
        ["env.VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE=1"],
        "VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE 1, rollout.top_k None, rollout.top_p None",
        'set env.VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE to "0"',
    ),
    (
        "megatron-temperature",
        ["rollout.temperature=0.9", "adaptations.rollout-temperature=false"],
        "rollout.temperature 0.9, adaptation rollout-temperature off",
        "set adaptations.rollout-temperature to true",
    ),
]
BUFFER, FILTER = "overrides.reward_model.overlong_buffer", "overrides.algorithm.filter_groups"
BROKEN += [
    (
        "overlong-buffer-within-response",
        ["reward.manager=dapo", f"{BUFFER}.len=4096"],
        "overlong_buffer.len 4096, data.response_length 3072",
        f"set {BUFFER}.len to a number from 0 to 3072",
    ),
    (
        "overlong-buffer-within-response",
        ["reward.manager=dapo", f"{BUFFER}.len=0", f"{BUFFER}.enable=true"],
        "overlong_buffer.len 0, data.response_length 3072",
        "a number from 1 to 3072",
    ),
    (
        "filter-groups-metric",
        [f"{FILTER}.enable=true", f'{FILTER}.metric="null"'],
        "filter_groups.metric None",
        f"set {FILTER}.metric to acc",
    ),
    (
        "context-parallel-agrees",
        ["actor.parallel.context=2", "actor.parallel.expert=16"],
        "actor.parallel.context 2, actor.transformer.context_parallel_size None",
        "set actor.transformer.context_parallel_size to 2",
    ),
    (
        "context-parallel-agrees",
        ["actor.transformer.context_parallel_size=4"],
        "actor.parallel.context 1, actor.transformer.context_parallel_size 4",
        "set actor.transformer.context_parallel_size to 1",
    ),
    (
        "generated-batch-is-trained",
        ["overrides.data.gen_batch_size=1024"],
        "data.gen_batch_size 1024, data.batch 512, filter_groups off: all 1024 prompts are trained on",
        "set overrides.data.gen_batch_size to 512",
    ),
    (
        "batch-divisible-by-rollout-dp",
        ["overrides.data.gen_batch_size=100"],
        "1600 responses over 128 engines",
        "set overrides.data.gen_batch_size so that overrides.data.gen_batch_size x rollout.responses is a multiple",
    ),
    (
        "sequences-within-step",
        ["rollout.max_sequences=5000"],
        "max_sequences 5000, max_batched_tokens 4096",
        "set rollout.max_sequences to 4096",
    ),
    (
        "token-limit-holds-a-sequence",
        [f"{DYNAMIC}use_dynamic_bsz=true", f"{DYNAMIC}ppo_max_token_len_per_gpu=4095"],
        "ppo_max_token_len_per_gpu 4095 x context parallel 1 = 4095, prompt and response of 4096 tokens",
        f"set {DYNAMIC}ppo_max_token_len_per_gpu to 4096",
    ),
    (
        "validation-sample-temperature",
        ["rollout.validation.sample=true", "rollout.temperature=0"],
        "rollout.validation.sample true, rollout.temperature 0",
        "set rollout.validation.sample to false",
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


@pytest.mark.parametrize(("name", "changes", "said", "change"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_rule_that_does_not_hold(name: str, changes: list[str], said: str, change: str) -> None:
    made = plan(*changes)
    found = rule(made, name)
    assert said in found.figures
    assert change in found.fix
    assert not found.ok
    assert found.advice is (name in ADVICE)
    assert (name in refused(made)) is not found.advice


_SET = re.compile(r"set ([a-z_]+\.[\w.-]+) to (\[?\"?[\w.-]+\"?\]?)(?= or |,|:| and|$)")
LITERAL = [row for row in BROKEN if _SET.search(row[3])]


@pytest.mark.parametrize(("name", "changes", "said", "change"), LITERAL, ids=[row[0] for row in LITERAL])
def test_what_a_fix_says_to_set_makes_the_rule_hold(
    name: str, changes: list[str], said: str, change: str
) -> None:
    match = _SET.search(rule(plan(*changes), name).fix)
    assert match
    others = [change for change in changes if not change.startswith(f"{match[1]}=")]
    fixed = [found for found in plan(*others, f"{match[1]}={match[2]}").rules if found.id == name]
    assert all(found.ok for found in fixed)


RARE = [
    (
        "overlong-buffer-within-response",
        ["reward.manager=dapo", "overrides.reward_model.overlong_buffer.len=0"],
    ),
    (
        "sequence-parallel-derived",
        ["overrides.actor_rollout_ref.actor.megatron.sequence_parallel=false"],
    ),
    (
        "sequence-parallel-needs-tensor-parallel",
        ["actor.transformer.sequence_parallel=false"],
    ),
    (
        "d2d-without-balance-batch",
        [CANN, "env.D2D_DATA_TRANSFER=1", "overrides.trainer.balance_batch=false"],
    ),
    (
        "torchair-switches",
        [f"{GRAPH}.enabled=false", f"{GRAPH}.graph_batch_sizes=[]", "rollout.eager=true"],
    ),
    ("benchmark-switch-in-training", ["env.VLLM_ENABLE_FIX_ROUTE=0"]),
    (
        "attention-mask-size",
        [f"actor.transformer.{key}" for key in ("use_flash_attn=true", "seq_length=2048", f"{LATENT}=true")],
    ),
    ("hccl-ports", ["env.HCCL_IF_BASE_PORT=65520"]),
]


@pytest.mark.parametrize(("name", "changes"), RARE, ids=[row[0] for row in RARE])
def test_a_rule_that_holds_where_it_applies(name: str, changes: list[str]) -> None:
    made = plan(*changes)
    assert rule(made, name).ok
    # that trainer takes none of this recipe's actor.transformer, a fault of its own
    assert refused(made) == (["transformer-overrides-refused"] if CANN in changes else [])


def test_a_benchmark_may_have_its_switches() -> None:
    made = plan("model.load_weights=false", "rollout.ignore_end=true", "env.VLLM_ENABLE_FIX_ROUTE=1")
    assert refused(made) == []
    assert made.loading is None


def test_every_rule_is_broken_once() -> None:
    # Those of memory are in test_memory_rules.py, and test_server_rollout.py has what verl 0.8 asserts.
    elsewhere = {"clean-model-config", "batch-divisible-by-mini-batch"}
    of_memory = {name for name in FITS if name.startswith(("memory-", "kv-cache-"))}
    assert set(FITS) - {row[0] for row in BROKEN} - of_memory == elsewhere


def test_an_unclean_config_is_refused(tmp_path: Path) -> None:
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "intermediate_size": 18432,
        "vocab_size": 129280,
        "num_nextn_predict_layers": 1,
        "quantization_config": {"quant_method": "fp8"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = rule(plan(f"model.path={tmp_path}"), "clean-model-config")
    assert not found.ok
    assert found.figures.startswith(
        "quantization_config is {'quant_method': 'fp8'}, num_nextn_predict_layers is 1 (verl/models/mcore/"
    )


def test_the_layout_of_a_checkpoint_that_is_at_hand(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    folder.mkdir()
    change = f"model.checkpoint={folder}"
    (folder / "latest_checkpointed_iteration.txt").write_text("1")
    found = rule(plan(change), "checkpoint-layout")
    assert not found.ok
    assert (
        "no .metadata, common.pt, metadata.json; it is one of Megatron's legacy checkpoints" in found.figures
    )
    for name in (".metadata", "common.pt", "metadata.json"):
        (folder / name).write_text("")
    assert rule(plan(change), "checkpoint-layout").ok


def test_the_checkpoint_of_a_trainer_that_loads_the_legacy_layout(tmp_path: Path) -> None:
    """cann-recipes-train's; without the file of the last iteration Megatron goes on with random weights."""
    folder = tmp_path / "ckpt"
    folder.mkdir()
    changes = (CANN, f"model.checkpoint={folder}")
    found = rule(plan(*changes), "checkpoint-layout-legacy")
    assert not found.ok and found.certain
    assert "no latest_checkpointed_iteration.txt, without which" in found.figures
    assert rule(plan(*changes), "checkpoint-layout").skipped
    (folder / "latest_checkpointed_iteration.txt").write_text("1")
    assert rule(plan(*changes), "checkpoint-layout-legacy").ok
    assert rule(plan(changes[1]), "checkpoint-layout-legacy").skipped


def test_an_adaptation_of_the_manifest_lifts_a_rule(tmp_path: Path) -> None:
    """The slugs are those in the headers of the manifest's own patches."""
    patched, bare = (
        f"schema: 1\nname: mine\nextends: deepseek-r1-zero\ncomponents:\n"
        f"  verl: {{patches: {patches}}}\n  vllm-ascend: {{patches: []}}\n  vllm: {{patches: []}}\n"
        for patches in ("[./ours, ./one.patch]", "[]")
    )
    (tmp_path / "m.yaml").write_text(patched)
    (tmp_path / "bare.yaml").write_text(bare)
    names = ("chunked-prefill-check", "rollout-offload")
    (tmp_path / "ours").mkdir()
    for name, place in zip(names, ("ours/0001-a.patch", "one.patch"), strict=True):
        switch = "NPU_RL_" + name.upper().replace("-", "_")
        (tmp_path / place).write_text(
            f"Subject: x\n\nHow: {switch}=0 is upstream.\n---\ndiff --git a/x b/x\n"
        )
    changes = ("rollout.max_batched_tokens=1024", "env.PYTORCH_NPU_ALLOC_CONF=expandable_segments:True")
    bias = "router-bias-rounded"  # the manifest has none of that patch in either case
    both = ["prefill-budget", "sleep-mode-expandable-segments", bias, "sleep-mode-loses-buffers"]
    assert refused(plan(*changes, f"manifest={tmp_path / 'bare.yaml'}")) == both
    brought = (*changes, f"manifest={tmp_path / 'm.yaml'}")
    assert refused(plan(*brought)) == [bias]
    assert refused(plan(*brought, *[f"adaptations.{name}=false" for name in names])) == both


def test_a_finding_says_where_and_what_to_write() -> None:
    assert judge(loaded()).findings == ()
    (found,) = judge(loaded("actor.parallel.tensor=2")).findings
    assert (found.rule, found.severity, found.key) == (
        "mla-tensor-parallel",
        Severity.ERROR,
        "actor.parallel.tensor",
    )
    assert found.trainer_key.endswith("tensor_model_parallel_size")
    assert found.where == "command line: actor.parallel.tensor=2"
    assert "MindSpeed" in found.message and found.fix.startswith("set actor.parallel.tensor to 1")
    (port,) = judge(loaded("env.HCCL_IF_BASE_PORT=65530")).findings
    assert (port.key, port.trainer_key) == ("env.HCCL_IF_BASE_PORT", "")
    assert port.fix == "set env.HCCL_IF_BASE_PORT to 65520"
    assert judge(loaded("env.HCCL_IF_BASE_PORT=65520")).findings == ()


ON_POLICY = "adaptations.on-policy-logprob=true"
ONE_FAULT = [
    (["env.VLLM_DP_SIZE=64"], "rollout-dp-size", "env.VLLM_DP_SIZE"),
    (["env.VLLM_DP_SIZE=0"], "rollout-dp-size", "env.VLLM_DP_SIZE"),
    (["env.VLLM_DP_SIZE=3"], "rollout-dp-size", "env.VLLM_DP_SIZE"),
    (["actor.mini_batch=1024", ON_POLICY], "mini-batch-within-batch", "actor.mini_batch"),
    (["actor.mini_batch=513"], "mini-batch-within-batch", "actor.mini_batch"),
    (["data.batch=256", ON_POLICY], "mini-batch-within-batch", "actor.mini_batch"),
]


@pytest.mark.parametrize(("changes", "name", "key"), ONE_FAULT, ids=[" ".join(row[0]) for row in ONE_FAULT])
def test_one_fault_is_one_line(changes: list[str], name: str, key: str) -> None:
    judgement = judge(loaded(*changes))
    (found,) = judgement.findings
    assert (found.rule, found.key) == (name, key)
    assert [one.id for one in judgement.plan.rules if not one.ok] == [name]
    fixed = re.findall(r"([\w.]+) to (\d+)", found.fix)[0]
    kept = [change for change in changes if not change.startswith(f"{fixed[0]}=")]
    assert judge(loaded(*kept, "=".join(fixed))).errors == ()


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
def test_recomputation_as_megatron_takes_it(changes: list[str]) -> None:
    made = plan(*changes)
    assert all(found.ok for found in made.rules if found.id.startswith("recompute-"))


@pytest.mark.parametrize(
    "change", ["recompute_method=~", "recompute_num_layers=~", "recompute_granularity=selective"]
)
def test_no_memory_of_a_recomputation_that_is_refused(change: str) -> None:
    """A step in which nothing is computed again needs 175 GB, which no such recipe reaches."""
    found = judge(loaded("actor.micro_batch=2", f"actor.transformer.{change}")).findings
    assert [one.rule for one in found] == ["recompute-settings"]


def test_memory_is_judged_on_gpus() -> None:
    """16 GPUs of 141 GB have room for what 64 GB have not, and nothing of HCCL and CANN is counted there."""
    gpus = ("device=cuda", "cluster.dies_per_card=1", "env.VLLM_DP_SIZE=128")
    small, large = (plan(*gpus, f"cluster.die_memory_gb={size}") for size in (40, 141))
    assert [rule.id for rule in small.rules if not rule.ok and rule.id.startswith("memory-")]
    assert not [rule.id for rule in large.rules if not rule.ok and rule.id.startswith("memory-")]
    assert large.memory is not None
    assert "NCCL's buffers and CUDA's context" in large.memory.missing
    assert not {Part.HCCL, Part.CONTEXT} & {part for phase in large.memory.phases for part in phase.parts}


def test_memory_is_not_judged_on_a_cpu() -> None:
    names = [found.id for found in plan("device=cpu").rules]
    assert not [name for name in names if name.startswith("memory")]
    assert "mla-tensor-parallel" not in names
