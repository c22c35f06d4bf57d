"""Rules on vLLM server rollouts and the newer trainers that require them: assertions, imports and registries."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npu_rl.recipes.memory.training_memory import has_reference
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.sizing.parallelism import SERVER_DATA_KEY, SERVER_EXPERT_KEY
from npu_rl.recipes.sizing.plan_inputs import ACTOR, REFERENCE, ROLLOUT, PlanInputs
from npu_rl.recipes.trainer_code.source_files import source_files

_TENSOR = f"{ROLLOUT}.tensor_model_parallel_size"
_SCHEDULE, _SCHEDULES = f"{ACTOR}.optim.lr_scheduler_type", ("constant", "cosine")
_PACKED = (f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz")
_CHECKPOINT_ENGINE = f"{ROLLOUT}.checkpoint_engine"
_OWN_MODULES = (f"{_CHECKPOINT_ENGINE}.custom_backend_module", "actor_rollout_ref.model.external_lib")
_ENGINES = "verl/checkpoint_engine"
_REGISTERED = re.compile(r"""CheckpointEngineRegistry\.register\(["'](\w+)["']\)""")
_HYBRID, _V1 = "actor_rollout_ref.hybrid_engine", "trainer.use_v1"
_CHUNKS = f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size"
_PIPELINE = f"{ACTOR}.megatron.pipeline_model_parallel_size"
_AGENT, _AGENT_LOOPS = f"{ROLLOUT}.agent", "verl/experimental/agent_loop"
_AGENT_LOOP = re.compile(r"""^@register\(["'](\w+)["']\)""", re.MULTILINE)
_REJECTION, _THRESHOLD = (
    "algorithm.rollout_correction.rollout_rs",
    "algorithm.rollout_correction.rollout_rs_threshold",
)
_MODE, _TRAINERS = "trainer.v1.trainer_mode", "verl/trainer/ppo/v1"
_TRAINER = re.compile(r"""@register_trainer\(["'](\w+)["']\)""")


def server_rollout_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on the servers' experts, their weight sync, and the bridge of Megatron's actor."""
    if facts.recipe.megatron:
        yield from _bridge_rule(facts)
        yield from _bridge_package_rule(facts)
        yield from _virtual_pipeline_rule(facts)
    else:
        yield from _schedule_rule(facts)
    yield from _packing_rule(facts)
    yield from _rejection_rule(facts)
    yield from _trainer_mode_rule(facts)
    yield from _hybrid_rule(facts)
    if facts.server_mode:
        yield from _agent_workers_rule(facts)
        yield from _agent_loop_rule(facts)
        yield from _unsupported_size_rules(facts)
        yield from _expert_size_rule(facts)
        yield from _checkpoint_engine_rule(facts)
        if facts.npu and facts.shape is not None:
            yield from _expert_layout_rule(facts, facts.shape.experts)
            yield from _quantized_rule(facts, facts.shape.unsupported)


def _bridge_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that mbridge is on; newer trainers can't build a Megatron model without it."""
    parts = (ACTOR, REFERENCE) if has_reference(facts) else (ACTOR,)
    keys = [f"{part}.megatron.use_mbridge" for part in parts]
    off = [key for key in keys if facts.values.value(key) is False]
    if not off:
        return
    given = [key for key in off if key in facts.given] or off
    yield Rule(
        "megatron-needs-mbridge",
        False,
        f"{off[0]} false",
        f"set {' and '.join(f'overrides.{key}' for key in given)} to true",
        tuple(given),
    )


def _bridge_package_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Yield advice if a part uses Megatron-Bridge, verl 0.9's default, and the tree lacks that package.

    It is no error because the interpreter may have it: `megatron` is a namespace package.
    """
    parts = (ACTOR, REFERENCE) if has_reference(facts) else (ACTOR,)
    off = [
        key
        for key in (f"{part}.megatron.vanilla_mbridge" for part in parts)
        if facts.values.value(key) is False
    ]
    if not off or facts.code is None or (facts.code / "megatron" / "bridge").exists():
        return
    given = [key for key in off if key in facts.given] or off[:1]  # the reference's is the actor's by default
    yield Rule(
        "megatron-bridge-missing",
        False,
        f"{off[0]} false: the workers import megatron.bridge to build the model, which is not in the tree: without it "
        "in the training interpreter they end in an ImportError",
        f"set {' and '.join(f'overrides.{key}' for key in given)} to true, which is mbridge",
        tuple(given),
        advice=True,
    )


def _virtual_pipeline_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that the interleaved schedule has several stages; without them Megatron-core refuses even 1."""
    chunks, stages = facts.whole(_CHUNKS), facts.whole(_PIPELINE)
    if chunks is not None and stages is not None:
        yield Rule(
            "virtual-pipeline-needs-stages",
            stages > 1,
            f"virtual_pipeline_model_parallel_size {chunks}, pipeline {stages}",
            f"set overrides.{_CHUNKS} to null",
            (_CHUNKS, _PIPELINE),
        )


def _rejection_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that rejection by rollout log-probabilities has a threshold; without one the first step fails."""
    option = facts.values.value(_REJECTION)
    if isinstance(option, str) and facts.values.value(f"{ROLLOUT}.calculate_log_probs") is True:
        yield Rule(
            "rejection-needs-threshold",
            facts.values.value(_THRESHOLD) is not None,
            f"rollout_rs {option} without rollout_rs_threshold",
            f"set overrides.{_THRESHOLD} to 2.0, or to bounds such as 0.5_2.0 for an option that ends in k1",
            (_REJECTION, _THRESHOLD),
        )


def _schedule_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that FSDP's optimizer supports the schedule; others in the same file are for Megatron only."""
    schedule = facts.values.value(_SCHEDULE)
    if isinstance(schedule, str) and facts.values.value(f"{ACTOR}.optim.warmup_style") is None:
        yield Rule(
            "fsdp-schedule",
            schedule in _SCHEDULES,
            f"lr_scheduler_type {schedule}; FSDP's are {' and '.join(_SCHEDULES)}",
            f"set overrides.{_SCHEDULE} to {_SCHEDULES[0]}",
            (_SCHEDULE,),
        )


def _packing_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that micro batches are packed by tokens in both passes of the actor or in neither."""
    update, log_prob = (facts.values.value(key) for key in _PACKED)
    if not (isinstance(update, bool) and isinstance(log_prob, bool)):
        return
    yield Rule(
        "dynamic-batches-agree",
        update is log_prob,
        f"use_dynamic_bsz {str(update).lower()}, log_prob_use_dynamic_bsz {str(log_prob).lower()}",
        f"set overrides.{_PACKED[1]} to {str(update).lower()}",
        (_PACKED[1], _PACKED[0]),
    )


def _trainer_mode_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that the tree registers the trainer of verl 0.9; supported ones are checked with the keys."""
    mode, names = facts.values.value(_MODE), _registered_names(facts, _TRAINERS, _TRAINER)
    if names and mode is not None and facts.on(_V1):
        yield Rule(
            "trainer-mode",
            mode in names,
            f"trainer_mode {mode}; registered are {', '.join(names)}",
            f"set overrides.{_MODE} to sync" if "sync" in names else f"set overrides.{_MODE} to one of them",
            (_MODE,),
        )


def _hybrid_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that actor and rollout share their devices; the newer trainer (trainer.use_v1) ignores the key."""
    if facts.values.value(_HYBRID) is False and not facts.on(_V1):
        fix = f"set overrides.{_HYBRID} to true"
        yield Rule("hybrid-engine", False, "hybrid_engine false", fix, (_HYBRID,))


def _agent_workers_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that there are workers for a step's prompts, unless a user's manager creates the workers."""
    key = f"{_AGENT}.num_workers"
    workers = facts.whole(key)
    if workers is not None and workers < 1 and not facts.values.value(f"{_AGENT}.agent_loop_manager_class"):
        fix = f"set overrides.{key} to 1 or more"
        yield Rule("agent-loop-workers", False, f"{workers} agent loop workers", fix, (key,))


def _agent_loop_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that the tree registers the default agent loop; other modules may register more.

    A data file with a column agent_name never uses it, so the rule can be overruled.
    """
    key = f"{_AGENT}.default_agent_loop"
    loop, names = facts.values.value(key), _registered_names(facts, _AGENT_LOOPS, _AGENT_LOOP)
    others = (f"{_AGENT}.agent_loop_config_path", f"{_AGENT}.agent_loop_manager_class", *_OWN_MODULES)
    if names and loop is not None and not any(map(facts.values.value, others)):
        usual = "single_turn_agent"
        yield Rule(
            "agent-loop-registered",
            loop in names,
            f"default_agent_loop {loop}; registered are {', '.join(names)}",
            f"set overrides.{key} to {usual if usual in names else 'one of them'}",
            (key,),
        )


def _unsupported_size_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Check that a server has one pipeline stage and doesn't use tensor parallelism for experts, as verl requires."""
    for identity, key in (
        ("rollout-pipeline-parallel", f"{ROLLOUT}.pipeline_model_parallel_size"),
        ("rollout-expert-tensor-parallel", f"{ROLLOUT}.moe_tensor_parallel_size"),
    ):
        size = facts.whole(key)
        if size is not None:
            figures = f"{key.rpartition('.')[2]} {size}"
            yield Rule(identity, size <= 1, figures, f"set overrides.{key} to 1", (key,))


def _expert_size_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that divided experts are divided over all devices of a server."""
    expert, tensor, data = (facts.whole(key) for key in (SERVER_EXPERT_KEY, _TENSOR, SERVER_DATA_KEY))
    if expert is None or expert <= 1 or tensor is None:
        return
    together = tensor * (data or 1)
    yield Rule(
        "rollout-expert-size",
        expert == together,
        f"expert_parallel_size {expert}, rollout tensor {tensor} x data {data or 1} = {together}",
        f"set overrides.{SERVER_EXPERT_KEY} to {together}, or to 1 to divide each expert",
        (SERVER_EXPERT_KEY, SERVER_DATA_KEY),
    )


def _checkpoint_engine_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that the tree registers the weight sync backend; a user's module may register more."""
    key = f"{_CHECKPOINT_ENGINE}.backend"
    backend = facts.values.value(key)
    if backend is None or any(map(facts.values.value, _OWN_MODULES)):
        return
    names = _registered_names(facts, _ENGINES, _REGISTERED)
    if not names:
        return
    yield Rule(
        "checkpoint-engine-backend",
        backend in names,
        f"checkpoint_engine.backend {backend}; registered are {', '.join(names)}",
        f"set overrides.{key} to naive" if "naive" in names else f"set overrides.{key} to one of them",
        (key,),
    )


def _registered_names(facts: PlanInputs, folder: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the names registered by the modules in one folder of the tree; none without a workspace."""
    files = source_files((facts.code / folder).glob("*.py")) if facts.code is not None else []
    texts = (facts.upstream.text(f"{folder}/{file.name}") or "" for file in files)
    return sorted({name for text in texts for name in pattern.findall(text)})


def _expert_layout_rule(facts: PlanInputs, experts: int) -> Iterator[Rule]:
    """Check that a mixture of experts sleeps between steps; its weights can't be reloaded otherwise.

    With FusedMoE's own _load_w13 and _load_w2 of vLLM 0.18.0 the sizes of Qwen3-30B, Qwen3-235B, Moonlight and
    DeepSeek-V3 all raise.
    """
    key = f"{ROLLOUT}.free_cache_engine"
    if experts and facts.values.value(key) is False:
        yield Rule(
            "experts-stay-transposed",
            False,
            f"free_cache false, {experts} experts: vllm-ascend transposes their weights once they are loaded, only its "
            "wake_up turns them back, and the first weight sync writes into sizes that don't fit",
            "set rollout.free_cache to true",
            (key,),
        )


def _quantized_rule(facts: PlanInputs, unsupported: tuple[tuple[str, object], ...]) -> Iterator[Rule]:
    """Check that vLLM supports config.json's quantization on this device, unless another one is set."""
    config = dict(unsupported).get("quantization_config")
    method = config.get("quant_method") if isinstance(config, dict) else None
    if method is not None and facts.values.value(f"{ROLLOUT}.quantization") is None:
        yield Rule(
            "quantized-model",
            method in ("ascend", "compressed-tensors"),
            f"quantization_config of config.json has quant_method {method}, which this vLLM refuses on NPUs",
            "take the model in bf16, whose config.json has no quantization_config",
            path=("model", "path"),
        )
