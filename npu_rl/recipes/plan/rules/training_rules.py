"""Rules on the optimizer, the weights, recomputation, the router and the adaptations of training, and on DAPO."""

from __future__ import annotations

from npu_rl.common.yaml_documents.problems import dotted
from npu_rl.recipes.plan.benchmark_only import find_benchmark_settings
from npu_rl.recipes.plan.rules.pins import (
    BRIDGED,
    CONVERTER,
    CORE,
    MINDSPEED,
    SERVERS,
    UNPATCHED,
    VERL,
    WORKERS,
    cann,
    servers,
)
from npu_rl.recipes.plan.rules.rule import Outcome, Outcomes, rule
from npu_rl.recipes.sizing.plan_inputs import ACTOR, REFERENCE, ROLLOUT, TRANSFORMER, PlanInputs
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.citations import Place

_SWAP = f"{TRANSFORMER}.swap_optimizer"
_DDP = f"{ACTOR}.megatron.override_ddp_config.use_distributed_optimizer"
_LOAD_WEIGHT = (f"{ACTOR}.load_weight", f"{REFERENCE}.load_weight")
_OFFLOAD, _GEMM = f"{ACTOR}.megatron.optimizer_offload", f"{TRANSFORMER}.moe_grouped_gemm"
_GROUPS = ("moe_router_num_groups", "moe_router_group_topk")
_RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers")
_MINI, _EPOCHS = f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs"
_RATE = f"{TRANSFORMER}.moe_router_bias_update_rate"
_ACTOR_FILE = "verl/workers/actor/megatron_actor.py"
_SWAP_FILE = "mindspeed/features_manager/optimizer/swap_optimizer_feature.py"
_SWAPPED = Place(_SWAP_FILE, "SwapDistributedOptimizer", MINDSPEED)
_DIVIDES = (  # our patches
    Place("verl_patches/workers/actor/megatron_actor.py", "rollout_temperature.scale(", ("bcd3be7",)),
    Place(_ACTOR_FILE, "rollout_temperature.scale(", ("55e3c5b", "796871d", "cccc2ef")),
)
_UPSTREAM_DIVIDES = Place(_ACTOR_FILE, "logits.div_(temperature)", ("v0.6.0",))  # verl 5deb8cc9a
_BUFFER, _FILTER = "reward_model.overlong_buffer", "algorithm.filter_groups"
# Of the reward loop's manager (verl/experimental/reward_loop/reward_manager/dapo.py@7aed6b2).
_LOOP_BUFFER, _LONGEST = "reward.reward_kwargs.overlong_buffer_cfg", "reward.reward_kwargs.max_resp_len"


@rule(
    "swap-or-offload-optimizer",
    (_SWAPPED, cann("train_engine/initialize_training.py", "no need to use optimizer_offload")),
    certain=False,
    only=("megatron", "swaps"),
)
def _swap_or_offload(facts: PlanInputs) -> Outcomes:
    offload = facts.on(_OFFLOAD)
    figures = f"swap_optimizer true, optimizer_offload {str(offload).lower()}"
    fix = "set offload.optimizer to false: swapped states are in the host's memory already"
    yield Outcome(not offload, figures, fix, (_OFFLOAD, _SWAP))


@rule("swap-needs-distributed-optimizer", _SWAPPED, certain=False, only=("megatron", "swaps"))
def _swap_needs_distributed(facts: PlanInputs) -> Outcomes:
    distributed = facts.values.value(_DDP) is not False
    figures = f"swap_optimizer true, use_distributed_optimizer {str(distributed).lower()}"
    fix = "remove use_distributed_optimizer, which is on by default"
    yield Outcome(distributed, figures, fix, (_DDP, _SWAP))


@rule(
    "swap-without-reuse-fp32",
    Place(_SWAP_FILE, "self.incompatible_check(args, 'reuse_fp32_param')", MINDSPEED),
    certain=False,
    only=("megatron", "swaps"),
)
def _swap_without_reuse(facts: PlanInputs) -> Outcomes:
    reuse, key = bool(facts.transformer("reuse_fp32_param")), f"{TRANSFORMER}.reuse_fp32_param"
    figures = f"swap_optimizer true, reuse_fp32_param {str(reuse).lower()}"
    yield Outcome(not reuse, figures, "remove actor.transformer.reuse_fp32_param", (key, _SWAP))


@rule(
    "swap-needs-fused-adamw",
    Place(_SWAP_FILE, "mindspeed.core.optimizer.adamw.AdamW.step", MINDSPEED),
    certain=False,
    only=("megatron", "swaps"),
)
def _swap_needs_fused_adamw(facts: PlanInputs) -> Outcomes:
    chosen, key = (
        facts.transformer("optimizer_selection") or "fused_adamw",
        f"{TRANSFORMER}.optimizer_selection",
    )
    figures = f"swap_optimizer true, optimizer_selection {chosen}; it replaces the step of fused_adamw"
    fix = "remove actor.transformer.optimizer_selection"
    yield Outcome(chosen == "fused_adamw", figures, fix, (key, _SWAP))


@rule(
    "actor-reference-weights",
    Place(WORKERS, "assert self.config.actor.load_weight == self.config.ref.load_weight", VERL),
    only=("megatron",),
)
def _actor_reference_weights(facts: PlanInputs) -> Outcomes:
    actor, reference = map(facts.values.value, _LOAD_WEIGHT)
    if actor is not None or reference is not None:
        yield Outcome(
            actor == reference,
            f"load_weight of the actor {actor}, of the reference {reference}",
            "remove this override and set model.load_weights, which sets both: else the first KL is not 0",
            (_LOAD_WEIGHT[1], _LOAD_WEIGHT[0]),
        )


@rule("benchmark-switch-in-training", only=("megatron",))
def _benchmark_switch(facts: PlanInputs) -> Outcomes:
    if facts.values.value(_LOAD_WEIGHT[0]) is False:
        return
    faults = find_benchmark_settings(facts.recipe, facts.given)
    found = [dotted(fault.path) for fault in faults if fault.key not in _LOAD_WEIGHT]
    yield Outcome(
        not found,
        f"weights are loaded, and of a benchmark's switches on: {', '.join(found) or 'none'}",
        "remove it, or set model.load_weights to false for a benchmark",
        (f"{ROLLOUT}.ignore_eos",),
    )


@rule(
    "router-groups",
    (
        Place("mbridge/models/deepseek_v3.py", "moe_router_topk=hf_config.num_exp", BRIDGED),
        Place(CONVERTER, "    mla_rope_config = {", UNPATCHED),
    ),
    (Place(CONVERTER, "moe_router_num_groups", UNPATCHED, absent=True), ONLY_BRIDGES),
    certain=False,
    only=("megatron", "shape"),
)
def _router_groups(facts: PlanInputs) -> Outcomes:
    """Yield advice on the router's expert groups.

    verl@55e3c5b and mbridge 0.15.1 read neither number from config.json; without them the actor's router may choose any
    expert. It is advice because verl's published recipe trains like that.
    """
    shape, (groups, chosen) = facts.shape, (facts.transformer(name) for name in _GROUPS)
    patched = (groups, chosen) == (None, None) and "router-groups" in facts.switches  # our patch of mbridge
    if shape is None or not shape.expert_groups or patched:
        return
    yield Outcome(
        (groups, chosen) == (shape.expert_groups, shape.groups_per_token),
        f"moe_router_num_groups {groups}, moe_router_group_topk {chosen}; the model has "
        f"{shape.expert_groups} expert groups and routes a token to {shape.groups_per_token} of them; the rollout "
        "does so, and verl's own configuration of the actor leaves both out",
        f"set actor.transformer.moe_router_num_groups to {shape.expert_groups} and "
        f"actor.transformer.moe_router_group_topk to {shape.groups_per_token}",
        tuple(f"{TRANSFORMER}.{name}" for name in _GROUPS),
        advice=True,
    )


def _recompute_keys(facts: PlanInputs) -> tuple[list[str], list[str]]:
    """Return the trainer's and the recipe's keys of the three recomputation settings."""
    keys = [facts.transformer_keys(name)[0] for name in _RECOMPUTE]
    own = [key == f"{TRANSFORMER}.{name}" for name, key in zip(_RECOMPUTE, keys, strict=True)]
    words = [
        f"actor.transformer.{name}" if mine else f"overrides.{key}"
        for name, key, mine in zip(_RECOMPUTE, keys, own, strict=True)
    ]
    return keys, words


def _recompute_figures(facts: PlanInputs) -> str:
    return ", ".join(f"{name} {facts.transformer(name)}" for name in _RECOMPUTE)


@rule(
    "recompute-settings",
    Place("megatron/core/transformer/transformer_config.py", "recompute_num_layers must be None.", CORE),
    only=("megatron",),
)
def _recompute_settings(facts: PlanInputs) -> Outcomes:
    """Check Megatron's three recomputation settings, which are valid only together."""
    granularity, method, layers = (facts.transformer(name) for name in _RECOMPUTE)
    keys, words = _recompute_keys(facts)
    if granularity == "selective":
        fix = f"set {words[0]} to full, or remove {words[2]} (on the command line: {words[2]}=~)"
        ok, broken = layers is None, (keys[0], keys[2])
    elif granularity == "full":
        way = method or ("uniform" if layers is None else "block")
        most = max(facts.layout.stage_layers) if way == "block" and facts.layout else 1
        right = {words[1]: (method, way), words[2]: (layers, most)}
        missing = [f"{key} to {value}" for key, (given, value) in right.items() if given is None]
        fix = f"set {' and '.join(missing)}"
        ok, broken = not missing, (keys[1] if method is None else keys[2], keys[0])
    else:
        return
    needs = "full needs a method and a number of layers, selective takes no number of layers"
    yield Outcome(ok, f"{_recompute_figures(facts)}: {needs}", fix, broken)


@rule(
    "recompute-uniform-layers",
    Place("megatron/core/transformer/transformer_block.py", "+= self.config.recompute_num_layers", CORE),
    only=("megatron",),
)
def _recompute_uniform_layers(facts: PlanInputs) -> Outcomes:
    granularity, method, layers = (facts.transformer(name) for name in _RECOMPUTE)
    if granularity == "full" and method == "uniform" and isinstance(layers, int):
        keys, words = _recompute_keys(facts)
        yield Outcome(
            layers >= 1,
            f"{_recompute_figures(facts)}: the loop over a stage's layers advances by recompute_num_layers each time, "
            "and with less than 1 it never ends",
            f"set {words[2]} to 1",
            (keys[2],),
        )


@rule(
    "d2d-without-balance-batch",
    cann("trainer/ppo/ray_trainer.py", "D2D_DATA_TRANSFER is not supported when using balance_batch"),
)
def _d2d_without_balance_batch(facts: PlanInputs) -> Outcomes:
    moved = facts.env.get("D2D_DATA_TRANSFER", "0")
    if moved not in ("0", ""):
        balanced = facts.values.value("trainer.balance_batch") is not False
        yield Outcome(
            not balanced,
            f"D2D_DATA_TRANSFER {moved}, trainer.balance_batch {str(balanced).lower()}",
            "set overrides.trainer.balance_batch to false",
            ("trainer.balance_batch",),
            ("env", "D2D_DATA_TRANSFER"),
        )


_GREEDY = "validation gen temperature should be greater than 0 when enabling do_sample"


@rule(
    "validation-sample-temperature",
    (
        Place("verl/utils/config.py", _GREEDY, SERVERS),
        Place("verl/trainer/ppo/ray_trainer.py", _GREEDY, VERL),  # where it was up to verl 0.5
    ),
)
def _validation_sample_temperature(facts: PlanInputs) -> Outcomes:
    """Check that a greedy rollout doesn't sample in validation, where the trainer uses the training temperature."""
    sample, key = f"{ROLLOUT}.val_kwargs.do_sample", f"{ROLLOUT}.temperature"
    temperature = facts.values.value(key)
    if facts.on(sample) and isinstance(temperature, (int, float)) and temperature <= 0:
        figures = f"rollout.validation.sample true, rollout.temperature {temperature:g}"
        fix = "set rollout.validation.sample to false, or rollout.temperature above 0"
        yield Outcome(False, figures, fix, (sample, key))


@rule(
    "megatron-needs-vllm",
    Place(WORKERS, "Only vllmRollout is supported with Megatron now", VERL),
    only=("megatron",),
)
def _megatron_needs_vllm(facts: PlanInputs) -> Outcomes:
    engine, key = facts.values.value(f"{ROLLOUT}.name"), f"{ROLLOUT}.name"
    yield Outcome(
        engine != "hf",
        f"rollout.engine {engine}, actor.strategy megatron",
        "set rollout.engine to vllm",
        (key,),
    )


@rule(
    "megatron-temperature",
    Place(
        _ACTOR_FILE,
        "import vocab_parallel_entropy, vocab_parallel_log_probs_from_logits",
        (*VERL, "7737a32"),
    ),
    only=("megatron",),
)
def _megatron_temperature(facts: PlanInputs) -> Outcomes:
    """Check the rollout's sampling temperature, which Megatron's actor may ignore."""
    key = f"{ROLLOUT}.temperature"
    temperature = facts.values.value(key)
    if temperature in (None, 1) or facts.upstream.has(_UPSTREAM_DIVIDES):
        return
    patched, off = facts.upstream.has(*_DIVIDES), "rollout-temperature" in facts.off
    adaptation = "off" if off else "on" if patched else "not in this tree"
    yield Outcome(
        patched and not off,
        f"rollout.temperature {temperature}, adaptation rollout-temperature {adaptation}: without it Megatron's actor "
        "and reference take log-probabilities, ratios and KL at temperature 1, not of the distribution sampled",
        "set adaptations.rollout-temperature to true"
        if off and patched
        else "set rollout.temperature to 1.0",
        () if off else (key,),
        ("adaptations", "rollout-temperature") if off else (),
    )


def _biased(facts: PlanInputs) -> bool:
    """Return whether the router has correction biases: V3, Kimi, Moonlight."""
    shape = facts.shape
    return bool(shape and shape.latent and shape.experts and shape.kind != "deepseek_v2")


@rule(
    "router-bias-rounded",
    Place(
        "verl/workers/sharding_manager/megatron_vllm.py",
        "loaded_params = model.load_weights(",
        (*UNPATCHED, "cccc2ef"),
    ),
    certain=False,
    only=("megatron",),
)
def _router_bias_rounded(facts: PlanInputs) -> Outcomes:
    if not _biased(facts) or facts.is_cann_trainer:  # there it is a fault of its own
        return
    on, off = "router-bias" in facts.switches, "router-bias" in facts.off
    yield Outcome(
        on,
        f"adaptation router-bias {'off' if off else 'on' if on else 'not in this tree'}: without it the router's "
        "correction bias is rounded to bfloat16, and tokens get other experts, without a message",
        "set adaptations.router-bias to true"
        if off
        else "add the patch that has it to the manifest: npu-rl patches list",
        path=("adaptations", "router-bias") if off else (),
    )


@rule(
    "router-bias-counts",
    Place("mbridge/models/deepseek_v3.py", "moe_router_bias_update_rate=0.001", BRIDGED),
    Place("megatron/core/transformer/moe/router.py", "'local_tokens_per_expert',", ("core_v0.16.1",)),
    certain=False,
    only=("megatron",),
)
def _router_bias_counts(facts: PlanInputs) -> Outcomes:
    rate = facts.transformer("moe_router_bias_update_rate")
    if _biased(facts) and facts.upstream.has(ONLY_BRIDGES):
        yield Outcome(
            rate == 0,
            f"moe_router_bias_update_rate {'left out, which is 0.001' if rate is None else rate}: the tokens of each "
            "expert are counted in bfloat16, wrong from 256 on, and biases step the wrong way",
            "set actor.transformer.moe_router_bias_update_rate to 0, which keeps the checkpoint's biases",
            (_RATE,),
            advice=True,  # the published scripts train like that
        )


@rule(
    "on-policy-needs-one-step",
    Place("npu_rl_runtime/on_policy_logprob.py", "raise _refused("),
    only=("megatron",),
)
def _on_policy_needs_one_step(facts: PlanInputs) -> Outcomes:
    epochs, mini, batch = facts.whole(_EPOCHS) or 1, facts.whole(_MINI), facts.whole("data.train_batch_size")
    if "on-policy-logprob" in facts.switches:
        yield Outcome(
            epochs == 1 and mini == batch,
            f"adaptation on-policy-logprob on, actor.epochs {epochs}, actor.mini_batch {mini} and data.batch "
            f"{batch}: more than one optimizer step per batch is refused",
            f"set actor.epochs to 1 and actor.mini_batch to {batch}, or adaptations.on-policy-logprob to false",
            (_MINI, _EPOCHS) if epochs == 1 else (_EPOCHS, _MINI),
        )


@rule(
    "transformer-overrides-refused",
    cann(
        "models/mcore/config_converter.py",
        "def hf_to_mcore_config_dpskv3(hf_config: PretrainedConfig, dtype: torch.dtype) ->",
    ),
    only=("megatron", "is_cann_trainer", "shape"),
)
def _transformer_overrides_refused(facts: PlanInputs) -> Outcomes:
    overridden = [key for key in facts.given if key.startswith(f"{TRANSFORMER}.")]
    if overridden and facts.shape and facts.shape.latent:
        names = ", ".join(key.removeprefix(f"{TRANSFORMER}.") for key in overridden)
        yield Outcome(
            False,
            f"actor.transformer sets {names}, and this tree's function for DeepSeek-V3 takes no such argument",
            "remove actor.transformer; this trainer has keys of its own, for overrides",
            tuple(overridden),
        )


@rule(
    "moe-grouped-gemm",
    Place("mindspeed/features_manager/moe/gmm.py", "moe_feature.adaptor import", MINDSPEED),
    Place(
        "mindspeed/core/transformer/moe/moe_feature/__init__.py",
        "from megatron.training import",
        ("7ff818c",),
    ),
    certain=False,
    only=("megatron", "mindspeed"),
)
def _moe_grouped_gemm(facts: PlanInputs) -> Outcomes:
    there = facts.code is not None and (facts.code / "megatron" / "training").exists()
    if facts.on(_GEMM):
        yield Outcome(
            there,
            f"moe_grouped_gemm true makes MindSpeed import megatron.training, which is {'' if there else 'not '}in the "
            "tree",
            "remove actor.transformer.moe_grouped_gemm: verl's own configuration of the model has it on already",
            (_GEMM,),
        )


@rule(
    "overlong-buffer-within-response",
    (
        servers(
            "verl/experimental/reward_loop/reward_manager/dapo.py",
            "self.max_resp_len >= self.overlong_buffer_cfg.len",
        ),
        Place(
            "verl/workers/reward_manager/dapo.py",
            "self.max_resp_len >= self.overlong_buffer_cfg.len",
            UNPATCHED,
        ),
    ),
)
def _overlong_buffer_within_response(facts: PlanInputs) -> Outcomes:
    """Check DAPO's penalty for overlong responses, of the reward loop's manager or of the older one."""
    response, manager = (
        facts.whole("data.max_response_length"),
        facts.values.value("reward_model.reward_manager"),
    )
    loops = "dapo" in (manager, facts.values.value("reward.reward_manager.name"))
    if loops and facts.on(f"{_LOOP_BUFFER}.enable"):
        length, longest = facts.whole(f"{_LOOP_BUFFER}.len"), facts.whole(_LONGEST)
        yield Outcome(
            length is not None and longest is not None and 0 < length <= longest,
            f"overlong_buffer_cfg.len {length}, max_resp_len {longest}, data.response_length {response}: the penalty "
            "grows over the last overlong_buffer_cfg.len tokens of max_resp_len",
            f"set overrides.{_LONGEST} to {response}"
            if longest is None
            else f"set overrides.{_LOOP_BUFFER}.len to a number from 1 to {longest}",
            (_LONGEST if longest is None else f"{_LOOP_BUFFER}.len",),
        )
    length = facts.whole(f"{_BUFFER}.len")
    if manager == "dapo" and length is not None and response:
        least = 1 if facts.on(f"{_BUFFER}.enable") else 0
        yield Outcome(
            least <= length <= response,
            f"overlong_buffer.len {length}, data.response_length {response}: the penalty grows over the last "
            "overlong_buffer.len tokens of a response",
            f"set overrides.{_BUFFER}.len to a number from {least} to {response}",
            (f"{_BUFFER}.len", "data.max_response_length"),
        )


@rule(
    "filter-groups-metric",
    Place("recipe/dapo/dapo_ray_trainer.py", "new_batch.non_tensor_batch[metric_name]", VERL),
)
def _filter_groups_metric(facts: PlanInputs) -> Outcomes:
    key = f"{_FILTER}.metric"
    if facts.on(f"{_FILTER}.enable") and facts.values.known(key):
        metric = facts.values.value(key)
        yield Outcome(
            metric is not None,
            f"filter_groups.enable true, filter_groups.metric {metric}: groups are chosen by the spread of a metric",
            f"set overrides.{key} to acc, or to seq_reward",
            (key, f"{_FILTER}.enable"),
        )
