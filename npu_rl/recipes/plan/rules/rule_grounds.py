"""The grounds of each rule: the upstream code that it rests on, and whether a run that breaks it is certain to fail.

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
from npu_rl.recipes.plan.rules.ground import Ground
from npu_rl.recipes.plan.rules.ground import at as _at
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
_CANN_TRAINING = "verl_patches/train_engine/initialize_training.py"

_SWAPPED = (Place(_SWAP, "SwapDistributedOptimizer", _MINDSPEED),)


_GREEDY = "validation gen temperature should be greater than 0 when enabling do_sample"
_ARITHMETIC = Ground(certain=True)
_OVERRULABLE = Ground()
_PHASES = ("generate", "weight-sync", "old-log-prob", "reference", "update", "host")
_CANN_PORTS = Ground(
    (
        _at(
            "verl_patches/workers/vllm_rollout/vllm_parallel_state.py",
            'os.environ["VLLM_DP_MASTER_PORT"] = str(',
            ("bcd3be7",),
        ),
    )
)

GROUNDS: Mapping[str, Ground] = {
    # Layout
    "world-size": _ARITHMETIC,
    "cpu-one-node": _ARITHMETIC,
    "model-parallel-divides-world": Ground((_at(_STATE, "is not divisible by", _CORE),), True),
    "fsdp-size-divides-world": _ARITHMETIC,
    "tensor-parallel-divides-heads": Ground((_at(_CONFIG, "must be a multiple of", _CORE),), True),
    "tensor-parallel-divides-kv-heads": Ground((_at(_CONFIG, "num_query_groups (", _CORE),), True),
    "pipeline-layers": _ARITHMETIC,
    "pipeline-layers-agree": Ground((_at(_UNALIGNED, "args.pipeline_num_transformer_layers", _MINDSPEED),)),
    "expert-parallel-divides-world": Ground(
        (
            (
                Place(_STATE, "expert_tensor_model_pipeline_parallel size", _CORE_0_12),
                Place(_STATE, "is not divisible by expert_model_parallel_size", ("core_r0.8.0",)),
            ),
        ),
        True,
    ),
    "expert-parallel-divides-experts": _ARITHMETIC,
    "sequence-parallel-divides-world": _ARITHMETIC,
    "sequence-parallel-divides-heads": _ARITHMETIC,
    "sequence-parallel-divides-kv-heads": Ground(
        (_at("verl/models/transformers/monkey_patch.py", "or vise versa", VERL),), True
    ),
    "sequence-parallel-needs-tensor-parallel": Ground(
        (
            _at("megatron/core/model_parallel_config.py", "without tensor parallelism", _CORE),
            _at("megatron/core/transformer/moe/moe_layer.py", "if MoE and tensor parallelism", _CORE),
        ),
        True,
    ),
    "sequence-parallel-derived": Ground(
        (
            (
                Place("mbridge/core/llm_bridge.py", '"sequence_parallel": self.mpu.tp_size > 1', _BRIDGED),
                Place(
                    _CONVERTER, '"sequence_parallel": mpu.get_tensor_model_parallel_world_size() > 1', VERL
                ),
            ),
        )
    ),
    "context-parallel-agrees": Ground(
        (
            _at(_CONTEXT, "if int(getattr(args, 'context_parallel_size', 1)) > 1", _MINDSPEED),
            _at(_WORKERS, "    repatch(self.config.actor.megatron.get(", (R1_ZERO, PLUGIN)),
        )
    ),
    "rollout-parallel-divides-world": _ARITHMETIC,
    "rollout-tensor-parallel-divides-heads": Ground(
        (
            (
                Place("vllm/config.py", "must be divisible by tensor parallel size", _VLLM),
                Place("vllm/config/__init__.py", "must be divisible by tensor parallel size", _VLLM_0_10),
                Place("vllm/config/model.py", "must be divisible by tensor parallel size", _VLLM_0_18),
            ),
        ),
        True,
    ),
    "rollout-parallel-divides-experts": _OVERRULABLE,
    "rollout-dp-size": _OVERRULABLE,
    "rollout-experts-match-training": _OVERRULABLE,
    "mla-tensor-parallel": Ground(
        (
            _at(
                "mindspeed/core/transformer/multi_head_latent_attention/adaptor.py",
                "MLA is not supported with Tensor Parallelism yet",
                _MINDSPEED,
            ),
        ),
        True,
    ),
    # Batches and lengths
    "responses-per-prompt": Ground(
        (
            (
                Place(_V1, "actor_global_mini_batch_size *= self.config", ("8851219",)),
                Place(
                    "verl/trainer/ppo/ray_trainer.py",
                    "repeat_times=self.config.actor_rollout_ref.rollout.n, interleave=True",
                    (*VERL, *ANY_VERL_SERVERS),
                ),
            ),
        ),
        True,
    ),
    "batch-divisible-by-dp": _ARITHMETIC,
    "mini-batch-within-batch": _ARITHMETIC,
    "mini-batch-divisible-by-dp": _OVERRULABLE,
    "max-sequences-one-wave": _OVERRULABLE,
    "generated-batch-is-trained": Ground(
        (_at("verl/trainer/ppo/ray_trainer.py", 'self.config.data.get("gen_batch_size"', VERL),)
    ),
    "sequences-within-step": Ground(
        (
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
        True,
    ),
    "token-limit-holds-a-sequence": Ground(
        (
            _at(
                "verl/utils/seqlen_balancing.py",
                "max_token_len must be greater than the sequence length",
                (*VERL, *ANY_VERL_SERVERS),
            ),
        ),
        True,
    ),
    "training-seq-length": _OVERRULABLE,
    "overlong-prompts": _OVERRULABLE,
    "batch-divisible-by-rollout-dp": _OVERRULABLE,
    "model-positions": Ground(
        (
            (
                Place(SPMD, "model context length should be greater than total sequence length", VERL),
                Place(SERVER, "should be less than or equal to ", ANY_VERL_SERVERS),
            ),
        ),
        True,
    ),
    "rollout-max-length": _OVERRULABLE,
    # verl's servers don't check it, and enable_chunked_prefill false doesn't reach vLLM, which chunks by default then
    # (build_cli_args_from_config, verl/workers/rollout/vllm_rollout/utils.py:352@7aed6b2, :458@8851219).
    "prefill-budget": Ground(
        (
            _at(
                SPMD,
                "Enable chunked prefill, max_num_batched_tokens is smaller than max_model_len",
                UNPATCHED,
            ),
        ),
        True,
    ),
    "prompt-exceeds-prefill-step": Ground(
        (
            _at("vllm_ascend/core/scheduler.py", "FINISHED_IGNORED", ANY_ASCEND),
            (*ADDITIONAL, CANN_SCHEDULER),
        ),
        True,
    ),
    "attention-mask-size": Ground(
        (
            _at(
                "mindspeed/core/transformer/flash_attention/generate_mask/generate_mask.py",
                "seq_len = config.seq_length",
                _MINDSPEED,
            ),
        )
    ),
    # Optimizer and weights
    "swap-or-offload-optimizer": Ground(
        ((*_SWAPPED, Place(_CANN_TRAINING, "no need to use optimizer_offload", ("bcd3be7",))),)
    ),
    "swap-needs-distributed-optimizer": Ground((_SWAPPED,)),
    "swap-without-reuse-fp32": Ground(
        (_at(_SWAP, "self.incompatible_check(args, 'reuse_fp32_param')", _MINDSPEED),)
    ),
    "swap-needs-fused-adamw": Ground((_at(_SWAP, "mindspeed.core.optimizer.adamw.AdamW.step", _MINDSPEED),)),
    "actor-reference-weights": Ground(
        (_at(_WORKERS, "assert self.config.actor.load_weight == self.config.ref.load_weight", VERL),), True
    ),
    "router-groups": Ground(
        (
            (
                Place("mbridge/models/deepseek_v3.py", "moe_router_topk=hf_config.num_exp", _BRIDGED),
                Place(_CONVERTER, "    mla_rope_config = {", UNPATCHED),
            ),
            (Place(_CONVERTER, "moe_router_num_groups", UNPATCHED, absent=True), ONLY_BRIDGES),
        )
    ),
    "transformer-overrides-refused": Ground(
        (
            _at(
                "verl_patches/models/mcore/config_converter.py",
                "def hf_to_mcore_config_dpskv3(hf_config: PretrainedConfig, dtype: torch.dtype) ->",
                ("bcd3be7",),
            ),
        ),
        True,
    ),
    "moe-grouped-gemm": Ground(
        (
            _at("mindspeed/features_manager/moe/gmm.py", "moe_feature.adaptor import", _MINDSPEED),
            _at(
                "mindspeed/core/transformer/moe/moe_feature/__init__.py",
                "from megatron.training import",
                ("7ff818c",),
            ),
        )
    ),
    "recompute-settings": Ground((_at(_CONFIG, "recompute_num_layers must be None.", _CORE),), True),
    "recompute-uniform-layers": Ground((_at(_BLOCK, "+= self.config.recompute_num_layers", _CORE),), True),
    "benchmark-switch-in-training": _ARITHMETIC,
    # Rollout
    "megatron-needs-vllm": Ground(
        (_at(_WORKERS, "Only vllmRollout is supported with Megatron now", VERL),), True
    ),
    "d2d-without-balance-batch": Ground(
        (
            _at(
                "verl_patches/trainer/ppo/ray_trainer.py",
                "D2D_DATA_TRANSFER is not supported when using balance_batch",
                ("bcd3be7",),
            ),
        ),
        True,
    ),
    **ENGINE_GROUNDS,
    # DAPO
    "overlong-buffer-within-response": Ground(
        (
            (
                Place(_LOOPS_DAPO, "self.max_resp_len >= self.overlong_buffer_cfg.len", ANY_VERL_SERVERS),
                Place(_DAPO, "self.max_resp_len >= self.overlong_buffer_cfg.len", UNPATCHED),
            ),
        ),
        True,
    ),
    "filter-groups-metric": Ground(
        (_at("recipe/dapo/dapo_ray_trainer.py", "new_batch.non_tensor_batch[metric_name]", VERL),), True
    ),
    # Adaptations
    "rollout-dp-groups-off": Ground((_at(SPMD, "rollout_dp_groups.form(", (R1_ZERO,)),), True),
    "megatron-temperature": Ground(
        (
            _at(
                "verl/workers/actor/megatron_actor.py",
                "import vocab_parallel_entropy, vocab_parallel_log_probs_from_logits",
                (*VERL, "7737a32"),
            ),
        ),
        True,
    ),
    "rollout-compile-off": Ground((_at(_WORKERS, "@with_real_compile", (R1_ZERO,)),)),
    "router-bias-rounded": Ground(
        (_at(_MEGATRON_SYNC, "loaded_params = model.load_weights(", (*UNPATCHED, "cccc2ef")),)
    ),
    "router-bias-counts": Ground(
        (
            _at("mbridge/models/deepseek_v3.py", "moe_router_bias_update_rate=0.001", _BRIDGED),
            _at("megatron/core/transformer/moe/router.py", "'local_tokens_per_expert',", ("core_v0.16.1",)),
        )
    ),
    "on-policy-needs-one-step": Ground(
        (_at("npu_rl_runtime/on_policy_logprob.py", "raise _refused(", ()),), True
    ),
    # Files and ports
    "clean-model-config": Ground(
        (_at(_CONVERTER, "please modify the config.json to remove quantization_config", VERL),), True
    ),
    "validation-sample-temperature": Ground(
        (
            (
                Place("verl/utils/config.py", _GREEDY, ANY_VERL_SERVERS),
                Place("verl/trainer/ppo/ray_trainer.py", _GREEDY, VERL),  # where it was up to verl 0.5
            ),
        ),
        True,
    ),
    "checkpoint-on-every-node": _OVERRULABLE,
    "checkpoint-layout": Ground(
        (
            (
                Place(_WORKERS, "load_mcore_dist_weights(\n", UNPATCHED),
                Place(ONLY_BRIDGES.file, "load_mcore_dist_weights(\n", ANY_VERL_SERVERS),
            ),
        )
    ),
    # What use_dist_checkpointing loads there is Megatron-LM's own format before dist checkpoints; without the file it
    # "will not load any checkpoints and will start from random" (megatron/training/checkpointing.py:548@core_r0.8.0).
    "checkpoint-layout-legacy": Ground(
        (
            _at(
                "verl_patches/workers/megatron_workers.py",
                "load_checkpoint(actor_module, None, None)",
                ("bcd3be7",),
            ),
        ),
        True,
    ),
    "rollout-ports": _CANN_PORTS,
    "hccl-ports": _OVERRULABLE,
    # Memory and disk: each of these rules sets `certain` itself.
    **dict.fromkeys(
        (
            *(f"memory-{phase}" for phase in _PHASES),
            *(f"memory-{phase}-tight" for phase in _PHASES),
            "kv-cache-room",
            "kv-cache-room-tight",
            "checkpoint-disk",
        ),
        _ARITHMETIC,
    ),
    "checkpoint-in-a-crash": _OVERRULABLE,
    **SERVER_GROUNDS,
    "ports-overlap": _CANN_PORTS,
}


def apply_grounds(rules: Iterable[Rule], upstream: CitedCode) -> Iterator[Rule]:
    """Yield the rules with the code they rest on, as skipped if the tree lacks it."""
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
