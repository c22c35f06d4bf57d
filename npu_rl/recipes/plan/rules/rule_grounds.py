"""The grounds of each rule: its upstream code, and whether a run that breaks the rule is certain to fail.

A rule is skipped in a tree that lacks one of its places. A rule without places is arithmetic, valid for any tree.
`certain` is for code that raises, asserts, hangs or computes something else with these values; estimates, published
practice and what the code does not show can be overruled in the recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from npu_rl.recipes.plan.rules.engine_grounds import (
    ADDITIONAL,
    ANY_ASCEND,
    ENGINE_GROUNDS,
    PLUGIN,
    R1_ZERO,
    SPMD,
    UNPATCHED,
    VERL,
)
from npu_rl.recipes.plan.rules.ground import Ground, certain, overrulable
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.plan.rules.server_rollout_grounds import ANY_VERL_SERVERS, SERVER, SERVER_GROUNDS
from npu_rl.recipes.sizing.plan_inputs import CANN_SCHEDULER
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.citations import CitedCode, Place

_CORE_0_12 = ("core_v0.12.1", "megatron-core==0.12.1", "core_v0.16.1")
_CORE = (*_CORE_0_12, "core_r0.8.0")
_VLLM = ("b6553be", "vllm==0.9.1")
_VLLM_0_10 = ("3821787",)
_VLLM_0_18 = ("vllm==0.18.0", "vllm==0.23.0")
_MINDSPEED = ("7ff818c", "1cdd0ab")
_BRIDGED = ("v0.15.1", "0cd4ae2")  # mbridge

_WORKERS = "verl/workers/megatron_workers.py"
_MEGATRON_SYNC = "verl/workers/sharding_manager/megatron_vllm.py"
_CONVERTER = "verl/models/mcore/config_converter.py"
_STATE, _CONFIG = "megatron/core/parallel_state.py", "megatron/core/transformer/transformer_config.py"
_BLOCK = "megatron/core/transformer/transformer_block.py"
_SWAP = "mindspeed/features_manager/optimizer/swap_optimizer_feature.py"
_DAPO = "verl/workers/reward_manager/dapo.py"
_LOOPS_DAPO = "verl/experimental/reward_loop/reward_manager/dapo.py"
_CONTEXT = "mindspeed/features_manager/context_parallel/context_parallel_feature.py"
_UNALIGNED = "mindspeed/features_manager/pipeline_parallel/unaligned_pineline_feature.py"
_V1 = "verl/trainer/ppo/v1/trainer_base.py"

_SWAPPED = (Place(_SWAP, "SwapDistributedOptimizer", _MINDSPEED),)


_GREEDY = "validation gen temperature should be greater than 0 when enabling do_sample"
_PHASES = ("generate", "weight-sync", "old-log-prob", "reference", "update", "host")
_OF_MEMORY = (*(f"memory-{phase}" for phase in _PHASES), "kv-cache-room")


def _cann(file: str, text: str) -> Place:
    """Return a place in the patches that cann-recipes-train makes to verl at run time."""
    return Place(f"verl_patches/{file}", text, ("bcd3be7",))


_CANN_PORTS = overrulable(
    _cann("workers/vllm_rollout/vllm_parallel_state.py", 'os.environ["VLLM_DP_MASTER_PORT"] = str(')
)

GROUNDS: Mapping[str, Ground] = {
    # Layout
    "world-size": certain(),
    "cpu-one-node": certain(),
    "model-parallel-divides-world": certain(Place(_STATE, "is not divisible by", _CORE)),
    "fsdp-size-divides-world": certain(),
    "tensor-parallel-divides-heads": certain(Place(_CONFIG, "must be a multiple of", _CORE)),
    "tensor-parallel-divides-kv-heads": certain(Place(_CONFIG, "num_query_groups (", _CORE)),
    "pipeline-layers": certain(),
    "pipeline-layers-agree": overrulable(
        Place(_UNALIGNED, "args.pipeline_num_transformer_layers", _MINDSPEED)
    ),
    "expert-parallel-divides-world": certain(
        (
            Place(_STATE, "expert_tensor_model_pipeline_parallel size", _CORE_0_12),
            Place(_STATE, "is not divisible by expert_model_parallel_size", ("core_r0.8.0",)),
        )
    ),
    "expert-parallel-divides-experts": certain(),
    "sequence-parallel-divides-world": certain(),
    "sequence-parallel-divides-heads": certain(),
    "sequence-parallel-divides-kv-heads": certain(
        Place("verl/models/transformers/monkey_patch.py", "or vise versa", VERL)
    ),
    "sequence-parallel-needs-tensor-parallel": certain(
        Place("megatron/core/model_parallel_config.py", "without tensor parallelism", _CORE),
        Place("megatron/core/transformer/moe/moe_layer.py", "if MoE and tensor parallelism", _CORE),
    ),
    "sequence-parallel-derived": overrulable(
        (
            Place("mbridge/core/llm_bridge.py", '"sequence_parallel": self.mpu.tp_size > 1', _BRIDGED),
            Place(_CONVERTER, '"sequence_parallel": mpu.get_tensor_model_parallel_world_size() > 1', VERL),
        )
    ),
    "context-parallel-agrees": overrulable(
        Place(_CONTEXT, "if int(getattr(args, 'context_parallel_size', 1)) > 1", _MINDSPEED),
        Place(_WORKERS, "    repatch(self.config.actor.megatron.get(", (R1_ZERO, PLUGIN)),
    ),
    "rollout-parallel-divides-world": certain(),
    "rollout-tensor-parallel-divides-heads": certain(
        (
            Place("vllm/config.py", "must be divisible by tensor parallel size", _VLLM),
            Place("vllm/config/__init__.py", "must be divisible by tensor parallel size", _VLLM_0_10),
            Place("vllm/config/model.py", "must be divisible by tensor parallel size", _VLLM_0_18),
        )
    ),
    "rollout-parallel-divides-experts": overrulable(),
    "rollout-dp-size": overrulable(),
    "rollout-experts-match-training": overrulable(),
    "mla-tensor-parallel": certain(
        Place(
            "mindspeed/core/transformer/multi_head_latent_attention/adaptor.py",
            "MLA is not supported with Tensor Parallelism yet",
            _MINDSPEED,
        )
    ),
    # Batches and lengths
    "responses-per-prompt": certain(
        (
            Place(_V1, "actor_global_mini_batch_size *= self.config", ("8851219",)),
            Place(
                "verl/trainer/ppo/ray_trainer.py",
                "repeat_times=self.config.actor_rollout_ref.rollout.n, interleave=True",
                (*VERL, *ANY_VERL_SERVERS),
            ),
        )
    ),
    "batch-divisible-by-dp": certain(),
    "mini-batch-within-batch": certain(),
    "mini-batch-divisible-by-dp": overrulable(),
    "max-sequences-one-wave": overrulable(),
    "generated-batch-is-trained": overrulable(
        Place("verl/trainer/ppo/ray_trainer.py", 'self.config.data.get("gen_batch_size"', VERL)
    ),
    "sequences-within-step": certain(
        (
            Place("vllm/config.py", "be greater than or equal to max_num_seqs", _VLLM),
            Place(
                "vllm/config/scheduler.py",
                "be greater than or equal to max_num_seqs",
                (*_VLLM_0_10, *_VLLM_0_18),
            ),
        ),
        (
            Place(SPMD, "max_num_seqs=", (R1_ZERO, PLUGIN)),
            Place(SERVER, '"max_num_seqs": self.config.max_num_seqs', ANY_VERL_SERVERS),
        ),
    ),
    "token-limit-holds-a-sequence": certain(
        Place(
            "verl/utils/seqlen_balancing.py",
            "max_token_len must be greater than the sequence length",
            (*VERL, *ANY_VERL_SERVERS),
        )
    ),
    "training-seq-length": overrulable(),
    "overlong-prompts": overrulable(),
    "batch-divisible-by-rollout-dp": overrulable(),
    "model-positions": certain(
        (
            Place(SPMD, "model context length should be greater than total sequence length", VERL),
            Place(SERVER, "should be less than or equal to ", ANY_VERL_SERVERS),
        )
    ),
    "rollout-max-length": overrulable(),
    # verl's servers don't check it, and enable_chunked_prefill false doesn't reach vLLM, which chunks by default then
    # (build_cli_args_from_config, verl/workers/rollout/vllm_rollout/utils.py:352@7aed6b2, :458@8851219).
    "prefill-budget": certain(
        Place(SPMD, "Enable chunked prefill, max_num_batched_tokens is smaller than max_model_len", UNPATCHED)
    ),
    "prompt-exceeds-prefill-step": certain(
        Place("vllm_ascend/core/scheduler.py", "FINISHED_IGNORED", ANY_ASCEND), (*ADDITIONAL, CANN_SCHEDULER)
    ),
    "attention-mask-size": overrulable(
        Place(
            "mindspeed/core/transformer/flash_attention/generate_mask/generate_mask.py",
            "seq_len = config.seq_length",
            _MINDSPEED,
        )
    ),
    # Optimizer and weights
    "swap-or-offload-optimizer": overrulable(
        (
            *_SWAPPED,
            _cann("train_engine/initialize_training.py", "no need to use optimizer_offload"),
        )
    ),
    "swap-needs-distributed-optimizer": overrulable(_SWAPPED),
    "swap-without-reuse-fp32": overrulable(
        Place(_SWAP, "self.incompatible_check(args, 'reuse_fp32_param')", _MINDSPEED)
    ),
    "swap-needs-fused-adamw": overrulable(
        Place(_SWAP, "mindspeed.core.optimizer.adamw.AdamW.step", _MINDSPEED)
    ),
    "actor-reference-weights": certain(
        Place(_WORKERS, "assert self.config.actor.load_weight == self.config.ref.load_weight", VERL)
    ),
    "router-groups": overrulable(
        (
            Place("mbridge/models/deepseek_v3.py", "moe_router_topk=hf_config.num_exp", _BRIDGED),
            Place(_CONVERTER, "    mla_rope_config = {", UNPATCHED),
        ),
        (Place(_CONVERTER, "moe_router_num_groups", UNPATCHED, absent=True), ONLY_BRIDGES),
    ),
    "transformer-overrides-refused": certain(
        _cann(
            "models/mcore/config_converter.py",
            "def hf_to_mcore_config_dpskv3(hf_config: PretrainedConfig, dtype: torch.dtype) ->",
        )
    ),
    "moe-grouped-gemm": overrulable(
        Place("mindspeed/features_manager/moe/gmm.py", "moe_feature.adaptor import", _MINDSPEED),
        Place(
            "mindspeed/core/transformer/moe/moe_feature/__init__.py",
            "from megatron.training import",
            ("7ff818c",),
        ),
    ),
    "recompute-settings": certain(Place(_CONFIG, "recompute_num_layers must be None.", _CORE)),
    "recompute-uniform-layers": certain(Place(_BLOCK, "+= self.config.recompute_num_layers", _CORE)),
    "benchmark-switch-in-training": certain(),
    # Rollout
    "megatron-needs-vllm": certain(Place(_WORKERS, "Only vllmRollout is supported with Megatron now", VERL)),
    "d2d-without-balance-batch": certain(
        _cann("trainer/ppo/ray_trainer.py", "D2D_DATA_TRANSFER is not supported when using balance_batch")
    ),
    **ENGINE_GROUNDS,
    # DAPO
    "overlong-buffer-within-response": certain(
        (
            Place(_LOOPS_DAPO, "self.max_resp_len >= self.overlong_buffer_cfg.len", ANY_VERL_SERVERS),
            Place(_DAPO, "self.max_resp_len >= self.overlong_buffer_cfg.len", UNPATCHED),
        )
    ),
    "filter-groups-metric": certain(
        Place("recipe/dapo/dapo_ray_trainer.py", "new_batch.non_tensor_batch[metric_name]", VERL)
    ),
    # Adaptations
    "rollout-dp-groups-off": certain(Place(SPMD, "rollout_dp_groups.form(", (R1_ZERO,))),
    "megatron-temperature": certain(
        Place(
            "verl/workers/actor/megatron_actor.py",
            "import vocab_parallel_entropy, vocab_parallel_log_probs_from_logits",
            (*VERL, "7737a32"),
        )
    ),
    "rollout-compile-off": overrulable(Place(_WORKERS, "@with_real_compile", (R1_ZERO,))),
    "router-bias-rounded": overrulable(
        Place(_MEGATRON_SYNC, "loaded_params = model.load_weights(", (*UNPATCHED, "cccc2ef"))
    ),
    "router-bias-counts": overrulable(
        Place("mbridge/models/deepseek_v3.py", "moe_router_bias_update_rate=0.001", _BRIDGED),
        Place("megatron/core/transformer/moe/router.py", "'local_tokens_per_expert',", ("core_v0.16.1",)),
    ),
    "on-policy-needs-one-step": certain(Place("npu_rl_runtime/on_policy_logprob.py", "raise _refused(", ())),
    # Files and ports
    "clean-model-config": certain(
        Place(_CONVERTER, "please modify the config.json to remove quantization_config", VERL)
    ),
    "validation-sample-temperature": certain(
        (
            Place("verl/utils/config.py", _GREEDY, ANY_VERL_SERVERS),
            Place("verl/trainer/ppo/ray_trainer.py", _GREEDY, VERL),  # where it was up to verl 0.5
        )
    ),
    "checkpoint-on-every-node": overrulable(),
    "checkpoint-layout": overrulable(
        (
            Place(_WORKERS, "load_mcore_dist_weights(\n", UNPATCHED),
            Place(ONLY_BRIDGES.file, "load_mcore_dist_weights(\n", ANY_VERL_SERVERS),
        )
    ),
    # What use_dist_checkpointing loads there is Megatron-LM's own format before dist checkpoints; without the file it
    # "will not load any checkpoints and will start from random" (megatron/training/checkpointing.py:548@core_r0.8.0).
    "checkpoint-layout-legacy": certain(
        _cann("workers/megatron_workers.py", "load_checkpoint(actor_module, None, None)")
    ),
    "rollout-ports": _CANN_PORTS,
    "hccl-ports": overrulable(),
    # Memory and disk: each of these rules sets `certain` itself.
    **dict.fromkeys((*_OF_MEMORY, *(f"{rule}-tight" for rule in _OF_MEMORY), "checkpoint-disk"), certain()),
    "checkpoint-in-a-crash": overrulable(),
    **SERVER_GROUNDS,
    "ports-overlap": _CANN_PORTS,
}


def apply_grounds(rules: Iterable[Rule], upstream: CitedCode) -> Iterator[Rule]:
    """Yield the rules with their upstream code; rules whose code the tree lacks are marked as skipped."""
    for rule in rules:
        ground = GROUNDS.get(rule.id)
        yield rule if ground is None else _apply_ground(rule, ground, upstream)


def _apply_ground(rule: Rule, ground: Ground, upstream: CitedCode) -> Rule:
    where: list[str] = []
    for places in ground.places:
        citation = upstream.find(*places)
        if not citation.holds:
            return replace(rule, ok=True, skipped=citation.why)
        if citation.where:
            where.append(citation.where)
    figures = f"{rule.figures} ({', '.join(where)})" if where else rule.figures
    return replace(rule, figures=figures, certain=rule.certain and ground.certain and not rule.advice)
