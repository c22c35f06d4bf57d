"""Rules on vLLM server rollouts and the newer trainers that require them: assertions, imports and registries."""

from __future__ import annotations

import re

from npu_rl.recipes.memory.training_memory import has_reference
from npu_rl.recipes.plan.rules.pins import AGENT_LOOP, ASCEND_0_18, CHUNKS_EVENLY, TRAINER, servers
from npu_rl.recipes.plan.rules.rule import Outcome, Outcomes, rule
from npu_rl.recipes.sizing.plan_inputs import ACTOR, REFERENCE, ROLLOUT, PlanInputs
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.citations import Place
from npu_rl.recipes.trainer_code.source_files import source_files

_ENGINE_WORKERS = "verl/workers/engine_workers.py"
_CHECKPOINT_ENGINE = f"{ROLLOUT}.checkpoint_engine"
_OWN_MODULES = (f"{_CHECKPOINT_ENGINE}.custom_backend_module", "actor_rollout_ref.model.external_lib")
_FREES = f"{ROLLOUT}.free_cache_engine"


def _bridges_off(facts: PlanInputs, name: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the parts' keys of a bridge that are false, and those of them to change; the actor's is the default."""
    parts = (ACTOR, REFERENCE) if has_reference(facts) else (ACTOR,)
    off = [key for key in (f"{part}.megatron.{name}" for part in parts) if facts.values.value(key) is False]
    return off, tuple(key for key in off if key in facts.given)


@rule("megatron-needs-mbridge", ONLY_BRIDGES, only=("megatron",))
def _megatron_needs_mbridge(facts: PlanInputs) -> Outcomes:
    """Check that mbridge is on; newer trainers can't build a Megatron model without it."""
    off, given = _bridges_off(facts, "use_mbridge")
    if off:
        keys = given or tuple(off)
        fix = f"set {' and '.join(f'overrides.{key}' for key in keys)} to true"
        yield Outcome(False, f"{off[0]} false", fix, keys)


@rule(
    "megatron-bridge-missing",
    servers("verl/models/mcore/bridge.py", "from megatron.bridge import AutoBridge"),
    certain=False,
    only=("megatron", "code"),
)
def _megatron_bridge_missing(facts: PlanInputs) -> Outcomes:
    """Yield advice if a part uses Megatron-Bridge, verl 0.9's default, and the tree lacks that package.

    It is no error because the interpreter may have it: `megatron` is a namespace package.
    """
    off, given = _bridges_off(facts, "vanilla_mbridge")
    if off and facts.code and not (facts.code / "megatron" / "bridge").exists():
        keys = given or tuple(off[:1])
        yield Outcome(
            False,
            f"{off[0]} false: the workers import megatron.bridge to build the model, which is not in the tree: without "
            "it in the training interpreter they end in an ImportError",
            f"set {' and '.join(f'overrides.{key}' for key in keys)} to true, which is mbridge",
            keys,
            advice=True,
        )


@rule(
    "virtual-pipeline-needs-stages",
    Place(
        "megatron/core/parallel_state.py",
        "pipeline-model-parallel size should be greater than 1 with interleaved schedule",
        ("core_v0.16.1",),
    ),
    servers(
        ONLY_BRIDGES.file,
        "virtual_pipeline_model_parallel_size=self.engine_config.virtual_pipeline_model_parallel_size",
    ),
    only=("megatron",),
)
def _virtual_pipeline_needs_stages(facts: PlanInputs) -> Outcomes:
    """Check that the interleaved schedule has several stages; without them Megatron-core refuses even 1."""
    keys = tuple(f"{ACTOR}.megatron.{name}_model_parallel_size" for name in ("virtual_pipeline", "pipeline"))
    chunks, stages = map(facts.whole, keys)
    if chunks is not None and stages is not None:
        figures = f"virtual_pipeline_model_parallel_size {chunks}, pipeline {stages}"
        yield Outcome(stages > 1, figures, f"set overrides.{keys[0]} to null", keys)


@rule(
    "rejection-needs-threshold",
    servers(
        "verl/trainer/ppo/rollout_corr_helper.py",
        "rollout_rs_threshold must be provided for rejection sampling",
    ),
)
def _rejection_needs_threshold(facts: PlanInputs) -> Outcomes:
    """Check that rejection by rollout log-probabilities has a threshold; without one the first step fails."""
    keys = tuple(f"algorithm.rollout_correction.{name}" for name in ("rollout_rs", "rollout_rs_threshold"))
    option, threshold = map(facts.values.value, keys)
    if isinstance(option, str) and facts.on(f"{ROLLOUT}.calculate_log_probs"):
        yield Outcome(
            threshold is not None,
            f"rollout_rs {option} without rollout_rs_threshold",
            f"set overrides.{keys[1]} to 2.0, or to bounds such as 0.5_2.0 for an option that ends in k1",
            keys,
        )


@rule("hybrid-engine", servers(TRAINER, "Currently, only support hybrid engine"))
def _hybrid_engine(facts: PlanInputs) -> Outcomes:
    """Check that actor and rollout share their devices; the newer trainer (trainer.use_v1) ignores the key."""
    key = "actor_rollout_ref.hybrid_engine"
    if facts.values.value(key) is False and not facts.on("trainer.use_v1"):
        yield Outcome(False, "hybrid_engine false", f"set overrides.{key} to true", (key,))


def _registered(facts: PlanInputs, folder: str, pattern: str) -> list[str]:
    """Return the names registered by the modules in one folder of the tree; none without a workspace."""
    files = source_files((facts.code / folder).glob("*.py")) if facts.code is not None else []
    texts = (facts.upstream.text(f"{folder}/{file.name}") or "" for file in files)
    return sorted({name for text in texts for name in re.findall(pattern, text, re.MULTILINE)})


def _registered_outcome(facts: PlanInputs, key: str, names: list[str], usual: str) -> Outcomes:
    value = facts.values.value(key)
    if names and value is not None:
        yield Outcome(
            value in names,
            f"{key.removeprefix(f'{ROLLOUT}.')} {value}; registered are {', '.join(names)}",
            f"set overrides.{key} to {usual if usual in names else 'one of them'}",
            (key,),
        )


@rule(
    "trainer-mode",
    Place("verl/trainer/ppo/v1/trainer_base.py", "return TRAINER_REGISTRY[name]", ("8851219",)),
)
def _trainer_mode(facts: PlanInputs) -> Outcomes:
    """Check that the tree registers the trainer of verl 0.9; supported ones are checked with the keys."""
    if facts.on("trainer.use_v1"):
        names = _registered(facts, "verl/trainer/ppo/v1", r"""@register_trainer\(["'](\w+)["']\)""")
        yield from _registered_outcome(facts, "trainer.v1.trainer_mode", names, "sync")


@rule(
    "agent-loop-registered",
    servers(AGENT_LOOP, "assert agent_name in _agent_loop_registry"),
    certain=False,
    only=("server_mode",),
)
def _agent_loop_registered(facts: PlanInputs) -> Outcomes:
    """Check that the tree registers the default agent loop; other modules may register more.

    A data file with a column agent_name never uses it, so the rule can be overruled.
    """
    agent = f"{ROLLOUT}.agent"
    others = (f"{agent}.agent_loop_config_path", f"{agent}.agent_loop_manager_class", *_OWN_MODULES)
    if not any(map(facts.values.value, others)):
        names = _registered(facts, "verl/experimental/agent_loop", r"""^@register\(["'](\w+)["']\)""")
        yield from _registered_outcome(facts, f"{agent}.default_agent_loop", names, "single_turn_agent")


@rule(
    "checkpoint-engine-backend",
    servers("verl/checkpoint_engine/base.py", "return cls._registry[backend]"),
    only=("server_mode",),
)
def _checkpoint_engine_backend(facts: PlanInputs) -> Outcomes:
    """Check that the tree registers the weight sync backend; a user's module may register more."""
    if not any(map(facts.values.value, _OWN_MODULES)):
        pattern = r"""CheckpointEngineRegistry\.register\(["'](\w+)["']\)"""
        names = _registered(facts, "verl/checkpoint_engine", pattern)
        yield from _registered_outcome(facts, f"{_CHECKPOINT_ENGINE}.backend", names, "naive")


# verl 0.9 turns them back itself: c0de7379cf for vLLM 0.18, _patch_legacy_fused_moe_weight_loader at 8851219.
@rule(
    "experts-stay-transposed",
    Place(
        "vllm_ascend/ops/fused_moe/fused_moe.py",
        "_maybe_pad_weight(layer.w13_weight.data).transpose(1, 2)",
        ASCEND_0_18,
    ),
    Place(
        _ENGINE_WORKERS,
        'if self.config.rollout.free_cache_engine:\n            await self.rollout.resume(tags=["weights"])',
        CHUNKS_EVENLY,
    ),
    Place(
        "verl/utils/vllm/npu_vllm_patch.py",
        'version.parse("0.13.0") and _VLLM_VERSION <= version.parse("0.14.0"):\n        # Disable flash_attn',
        CHUNKS_EVENLY,
    ),
    only=("server_mode", "npu", "shape"),
)
def _experts_stay_transposed(facts: PlanInputs) -> Outcomes:
    """Check that a mixture of experts sleeps between steps; its weights can't be reloaded otherwise.

    With FusedMoE's own _load_w13 and _load_w2 of vLLM 0.18.0 the sizes of Qwen3-30B, Qwen3-235B, Moonlight and
    DeepSeek-V3 all raise.
    """
    experts = facts.shape.experts if facts.shape else 0
    if experts and facts.values.value(_FREES) is False:
        yield Outcome(
            False,
            f"free_cache false, {experts} experts: vllm-ascend transposes their weights once they are loaded, only its "
            "wake_up turns them back, and the first weight sync writes into sizes that don't fit",
            "set rollout.free_cache to true",
            (_FREES,),
        )


@rule(
    "quantized-model",
    Place("vllm/platforms/interface.py", "quantization is currently not supported in", ("vllm==0.18.0",)),
    Place(
        "vllm_ascend/platform.py",
        "supported_quantization: list[str] = [ASCEND_QUANTIZATION_METHOD, COMPRESSED_TENSORS_METHOD]",
        ASCEND_0_18,
    ),
    only=("server_mode", "npu", "shape"),
)
def _quantized_model(facts: PlanInputs) -> Outcomes:
    """Check that vLLM supports config.json's quantization on this device, unless another one is set."""
    config = dict(facts.shape.unsupported).get("quantization_config") if facts.shape else None
    method = config.get("quant_method") if isinstance(config, dict) else None
    if method is not None and facts.values.value(f"{ROLLOUT}.quantization") is None:
        yield Outcome(
            method in ("ascend", "compressed-tensors"),
            f"quantization_config of config.json has quant_method {method}, which this vLLM refuses on NPUs",
            "take the model in bf16, whose config.json has no quantization_config",
            path=("model", "path"),
        )
