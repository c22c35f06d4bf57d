"""Rules on vLLM server rollouts and the newer trainers that require them: assertions, imports and registries."""

from __future__ import annotations

import re

from npu_rl.recipes.memory.training_memory import has_reference
from npu_rl.recipes.plan.rules import pins
from npu_rl.recipes.plan.rules.pins import servers
from npu_rl.recipes.plan.rules.rule import Broken, broken, rule
from npu_rl.recipes.sizing.plan_inputs import ACTOR, REFERENCE, ROLLOUT, PlanInputs
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.citations import Place
from npu_rl.recipes.trainer_code.source_files import source_files

_CHECKPOINT_ENGINE, _AGENT = f"{ROLLOUT}.checkpoint_engine", f"{ROLLOUT}.agent"
_OWN_MODULES = (f"{_CHECKPOINT_ENGINE}.custom_backend_module", "actor_rollout_ref.model.external_lib")
_OWN_LOOPS = (f"{_AGENT}.agent_loop_config_path", f"{_AGENT}.agent_loop_manager_class", *_OWN_MODULES)
_CORRECTION = "algorithm.rollout_correction"


def _bridge_off(facts: PlanInputs, name: str) -> tuple[str, ...]:
    """Return the parts' keys of a bridge that are false, those that the recipe sets if it does."""
    parts = (ACTOR, REFERENCE) if has_reference(facts) else (ACTOR,)
    keys = [f"{part}.megatron.{name}" for part in parts]
    off = [key for key in keys if facts.megatron and facts.values.value(key) is False]
    return tuple(key for key in off if key in facts.given) or tuple(off[:1])


@rule(ONLY_BRIDGES)
def _megatron_needs_mbridge(facts: PlanInputs) -> Broken:
    """Check that mbridge is on; newer trainers can't build a Megatron model without it."""
    if keys := _bridge_off(facts, "use_mbridge"):
        fix = f"set {' and '.join(f'overrides.{key}' for key in keys)} to true"
        yield broken(f"{keys[0]} false", fix, *keys)


@rule(servers("verl/models/mcore/bridge.py", "from megatron.bridge import AutoBridge"))
def _megatron_bridge_missing(facts: PlanInputs) -> Broken:
    """Advise if a part uses Megatron-Bridge, verl 0.9's default, and the tree lacks that package.

    It is no error because the interpreter may have it: `megatron` is a namespace package.
    """
    keys = _bridge_off(facts, "vanilla_mbridge")
    if keys and facts.code and not (facts.code / "megatron" / "bridge").exists():
        figures = f"{keys[0]} false: the workers import megatron.bridge, which is not in the tree: without it in the "
        fix = f"set {' and '.join(f'overrides.{key}' for key in keys)} to true, which is mbridge"
        yield broken(f"{figures}training interpreter they end in an ImportError", fix, *keys, advice=True)


@rule(servers("verl/trainer/ppo/rollout_corr_helper.py", "must be provided for rejection sampling"))
def _rejection_needs_threshold(facts: PlanInputs) -> Broken:
    """Check that rejection by rollout log-probabilities has a threshold; without one the first step fails."""
    keys = [f"{_CORRECTION}.{name}" for name in ("rollout_rs", "rollout_rs_threshold")]
    option, threshold = map(facts.values.value, keys)
    if isinstance(option, str) and threshold is None and facts.on(f"{ROLLOUT}.calculate_log_probs"):
        fix = f"set overrides.{keys[1]} to 2.0, or to bounds such as 0.5_2.0 for an option that ends in k1"
        yield broken(f"rollout_rs {option} without rollout_rs_threshold", fix, *keys)


def _unregistered(facts: PlanInputs, key: str, folder: str, register: str, usual: str) -> Broken:
    """Yield an error on a name that no module in one folder of the tree registers; nothing without a workspace."""
    files = source_files((facts.code / folder).glob("*.py")) if facts.code is not None else []
    texts = (facts.upstream.text(f"{folder}/{file.name}") or "" for file in files)
    pattern = rf"""^ *@{register}\(["'](\w+)["']\)"""
    names = sorted({name for text in texts for name in re.findall(pattern, text, re.MULTILINE)})
    value = facts.values.value(key)
    if names and value is not None and value not in names:
        figures = f"{key.removeprefix(f'{ROLLOUT}.')} {value}; registered are {', '.join(names)}"
        yield broken(figures, f"set overrides.{key} to {usual if usual in names else 'one of them'}", key)


@rule(Place("verl/trainer/ppo/v1/trainer_base.py", "return TRAINER_REGISTRY[name]", ("8851219",)))
def _trainer_mode(facts: PlanInputs) -> Broken:
    if facts.on("trainer.use_v1"):
        folder = "verl/trainer/ppo/v1"
        yield from _unregistered(facts, "trainer.v1.trainer_mode", folder, "register_trainer", "sync")


@rule(servers(pins.AGENT_LOOP, "assert agent_name in _agent_loop_registry"), certain=False)
def _agent_loop_registered(facts: PlanInputs) -> Broken:
    """Check the default agent loop, which a data file with a column agent_name never uses."""
    if facts.server_mode and not any(map(facts.values.value, _OWN_LOOPS)):
        folder = "verl/experimental/agent_loop"
        yield from _unregistered(
            facts, f"{_AGENT}.default_agent_loop", folder, "register", "single_turn_agent"
        )


@rule(servers("verl/checkpoint_engine/base.py", "return cls._registry[backend]"))
def _checkpoint_engine_backend(facts: PlanInputs) -> Broken:
    if facts.server_mode and not any(map(facts.values.value, _OWN_MODULES)):
        folder, register = "verl/checkpoint_engine", r"CheckpointEngineRegistry\.register"
        yield from _unregistered(facts, f"{_CHECKPOINT_ENGINE}.backend", folder, register, "naive")


# verl 0.9 turns them back itself: c0de7379cf for vLLM 0.18, _patch_legacy_fused_moe_weight_loader at 8851219.
@rule(
    Place("vllm_ascend/ops/fused_moe/fused_moe.py", "w13_weight.data).transpose(1, 2)", pins.ASCEND_0_18),
    Place(
        "verl/utils/vllm/npu_vllm_patch.py",
        'version.parse("0.13.0") and _VLLM_VERSION <= version.parse("0.14.0"):\n        # Disable flash_attn',
        pins.CHUNKS_EVENLY,
    ),
)
def _experts_stay_transposed(facts: PlanInputs) -> Broken:
    """Check that a mixture of experts sleeps between steps; its weights can't be reloaded otherwise.

    With FusedMoE's own _load_w13 and _load_w2 of vLLM 0.18.0 the sizes of Qwen3-30B, Qwen3-235B, Moonlight and
    DeepSeek-V3 all raise.
    """
    key, experts = f"{ROLLOUT}.free_cache_engine", facts.shape.experts if facts.shape else 0
    if facts.server_mode and facts.npu and experts and facts.values.value(key) is False:
        figures = f"free_cache false, {experts} experts: vllm-ascend transposes loaded weights, only its wake_up turns "
        figures += "them back, and the first weight sync writes into sizes that don't fit"
        yield broken(figures, "set rollout.free_cache to true", key)


@rule(
    Place("vllm/platforms/interface.py", "quantization is currently not supported in", ("vllm==0.18.0",)),
    Place(
        "vllm_ascend/platform.py", "[ASCEND_QUANTIZATION_METHOD, COMPRESSED_TENSORS_METHOD]", pins.ASCEND_0_18
    ),
)
def _quantized_model(facts: PlanInputs) -> Broken:
    """Check that vLLM supports config.json's quantization on this device, unless another one is set."""
    config = dict(facts.shape.unsupported).get("quantization_config") if facts.shape else None
    method = config.get("quant_method") if isinstance(config, dict) else None
    known = (None, "ascend", "compressed-tensors")
    if (
        facts.server_mode
        and facts.npu
        and method not in known
        and not facts.values.value(f"{ROLLOUT}.quantization")
    ):
        figures = (
            f"quantization_config of config.json has quant_method {method}, which this vLLM refuses on NPUs"
        )
        fix = "take the model in bf16, whose config.json has no quantization_config"
        yield broken(figures, fix, "model.path")
