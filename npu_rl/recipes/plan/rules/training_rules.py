"""Rules on the optimizer, the weights, recomputation, the router and the adaptations of training, and on DAPO."""

from __future__ import annotations

from npu_rl.recipes.plan.rules import pins
from npu_rl.recipes.plan.rules.pins import cann, mindspeed, servers
from npu_rl.recipes.plan.rules.rule import Broken, broken, rule, without
from npu_rl.recipes.sizing.plan_inputs import ACTOR, TRANSFORMER, PlanInputs
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.citations import Place

_DDP = f"{ACTOR}.megatron.override_ddp_config.use_distributed_optimizer"
_OFFLOAD, _GEMM = f"{ACTOR}.megatron.optimizer_offload", f"{TRANSFORMER}.moe_grouped_gemm"
_RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers")
_MINI, _EPOCHS = f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs"
_SWAPPED = mindspeed("features_manager/optimizer/swap_optimizer_feature.py", "SwapDistributedOptimizer")
_FILTER, _DEEPSEEK = "algorithm.filter_groups", "mbridge/models/deepseek_v3.py"
# DAPO's penalty: its section and the limit of responses, of the reward loop's manager and of the older one.
_BUFFERS = (
    ("reward.reward_kwargs.overlong_buffer_cfg", "reward.reward_kwargs.max_resp_len"),
    ("reward_model.overlong_buffer", "data.max_response_length"),
)
_WITHIN = "self.max_resp_len >= self.overlong_buffer_cfg.len"


@rule(
    (_SWAPPED, cann("train_engine/initialize_training.py", "no need to use optimizer_offload")),
    certain=False,
)
def _swap_or_offload_optimizer(facts: PlanInputs) -> Broken:
    if facts.megatron and facts.swaps and facts.on(_OFFLOAD):
        fix = "set offload.optimizer to false: swapped states are in the host's memory already"
        yield broken("swap_optimizer true, optimizer_offload true", fix, _OFFLOAD)


@rule(_SWAPPED, certain=False)
def _swap_optimizer_needs(facts: PlanInputs) -> Broken:
    """Check what MindSpeed's swapped optimizer replaces or excludes; verl doesn't run MindSpeed's own check."""
    reuse, chosen = (facts.transformer(name) for name in ("reuse_fp32_param", "optimizer_selection"))
    wrong = {
        _DDP: facts.values.value(_DDP) is False,
        f"{TRANSFORMER}.reuse_fp32_param": bool(reuse),
        f"{TRANSFORMER}.optimizer_selection": chosen not in (None, "fused_adamw"),
    }
    for key in (key for key, is_wrong in wrong.items() if is_wrong and facts.megatron and facts.swaps):
        name = key.rpartition(".")[2]
        figures = (
            f"swap_optimizer true, {name} {facts.values.value(key)}: it swaps only fused_adamw, distributed"
        )
        yield broken(figures, f"remove {name}", key)


@rule(
    (
        Place(_DEEPSEEK, "moe_router_topk=hf_config.num_exp", pins.BRIDGED),
        Place(pins.CONVERTER, "mla_rope_config = {", pins.UNPATCHED),
    ),
    (Place(pins.CONVERTER, "moe_router_num_groups", pins.UNPATCHED, absent=True), ONLY_BRIDGES),
)
def _router_groups(facts: PlanInputs) -> Broken:
    """Advise on the router's expert groups.

    verl@55e3c5b and mbridge 0.15.1 read neither number from config.json; without them the actor's router may choose any
    expert. It is advice because verl's published recipe trains like that.
    """
    names = ("moe_router_num_groups", "moe_router_group_topk")
    given = [facts.transformer(name) for name in names]
    patched = given == [None, None] and "router-groups" in facts.switches  # our patch of mbridge
    shape = facts.shape if facts.megatron and not patched else None
    if shape and shape.expert_groups and given != [shape.expert_groups, shape.groups_per_token]:
        wanted = dict(zip(names, (shape.expert_groups, shape.groups_per_token), strict=True))
        figures = (
            f"{names[0]} {given[0]}, {names[1]} {given[1]}; the rollout routes a token as the model does, to "
        )
        figures += f"{shape.groups_per_token} of {shape.expert_groups} expert groups"
        fix = "set " + " and ".join(f"actor.transformer.{name} to {size}" for name, size in wanted.items())
        yield broken(figures, fix, *(f"{TRANSFORMER}.{name}" for name in names), advice=True)


@rule(Place(pins.CORE_CONFIG, "recompute_num_layers must be None.", pins.CORE))
def _recompute_settings(facts: PlanInputs) -> Broken:
    """Check Megatron's three recomputation settings, which are valid only together."""
    granularity, method, layers = (facts.transformer(name) for name in _RECOMPUTE)
    keys, words = _recompute_keys(facts)
    figures = f"recompute {granularity}, method {method}, layers {layers}: full needs both, selective takes no layers"
    if facts.megatron and granularity == "selective" and layers is not None:
        fix = f"set {words[0]} to full, or remove {words[2]} (on the command line: {words[2]}=~)"
        yield broken(figures, fix, keys[0], keys[2])
    if facts.megatron and granularity == "full" and None in (method, layers):
        way = method or ("uniform" if layers is None else "block")
        most = max(facts.layout.stage_layers) if way == "block" and facts.layout else 1
        missing = [f"{words[1]} to {way}"] if method is None else []
        missing += [f"{words[2]} to {most}"] if layers is None else []
        yield broken(figures, f"set {' and '.join(missing)}", keys[1 if method is None else 2], keys[0])


@rule(
    Place("megatron/core/transformer/transformer_block.py", "+= self.config.recompute_num_layers", pins.CORE)
)
def _recompute_uniform_layers(facts: PlanInputs) -> Broken:
    granularity, method, layers = (facts.transformer(name) for name in _RECOMPUTE)
    full = facts.megatron and (granularity, method) == ("full", "uniform")
    if full and isinstance(layers, int) and layers < 1:
        keys, words = _recompute_keys(facts)
        figures = (
            f"recompute_num_layers {layers}, by which the loop over a stage's layers advances: it never ends"
        )
        yield broken(figures, f"set {words[2]} to 1", keys[2])


def _recompute_keys(facts: PlanInputs) -> tuple[list[str], list[str]]:
    """Return the trainer's and the recipe's keys of the three recomputation settings."""
    keys = [facts.transformer_keys(name)[0] for name in _RECOMPUTE]
    own = f"{TRANSFORMER}."
    return keys, [
        f"actor.transformer.{key.removeprefix(own)}" if key.startswith(own) else f"overrides.{key}"
        for key in keys
    ]


@rule(cann("trainer/ppo/ray_trainer.py", "D2D_DATA_TRANSFER is not supported when using balance_batch"))
def _d2d_without_balance_batch(facts: PlanInputs) -> Broken:
    moved, key = facts.env.get("D2D_DATA_TRANSFER", "0"), "trainer.balance_batch"
    if moved not in ("0", "") and facts.values.value(key) is not False:
        yield broken(f"D2D_DATA_TRANSFER {moved}, {key} true", f"set overrides.{key} to false", key)


def _biased(facts: PlanInputs) -> bool:
    """Return whether Megatron's router has correction biases: V3, Kimi, Moonlight."""
    shape = facts.shape if facts.megatron else None
    return bool(shape and shape.latent and shape.experts and shape.kind != "deepseek_v2")


@rule(
    Place(
        "verl/workers/sharding_manager/megatron_vllm.py",
        "loaded_params = model.load_weights(",
        (*pins.UNPATCHED, "cccc2ef"),
    ),
    certain=False,
)
def _router_bias_rounded(facts: PlanInputs) -> Broken:
    if (
        _biased(facts) and "router-bias" not in facts.switches and not facts.is_cann_trainer
    ):  # there a known fault
        fix = "add the patch that has it to the manifest: npu-rl patches list"
        state, fix, keys = without(facts, "router-bias", fix)
        lost = "the router's correction bias is rounded to bfloat16, and tokens get other experts, without a message"
        yield broken(f"{state}: {lost}", fix, *keys)


@rule(
    Place(_DEEPSEEK, "moe_router_bias_update_rate=0.001", pins.BRIDGED),
    Place("megatron/core/transformer/moe/router.py", "'local_tokens_per_expert',", ("core_v0.16.1",)),
)
def _router_bias_counts(facts: PlanInputs) -> Broken:
    """Advise on biases that are trained; the published scripts train like that."""
    rate = facts.transformer("moe_router_bias_update_rate")
    if _biased(facts) and rate != 0 and facts.upstream.has(ONLY_BRIDGES):
        given = "left out, which is 0.001" if rate is None else rate
        figures = f"moe_router_bias_update_rate {given}: the tokens of each expert are counted in bfloat16, wrong from "
        figures += "256 on, and biases step the wrong way"
        fix = "set actor.transformer.moe_router_bias_update_rate to 0, which keeps the checkpoint's biases"
        yield broken(figures, fix, f"{TRANSFORMER}.moe_router_bias_update_rate", advice=True)


@rule(Place("npu_rl_runtime/on_policy_logprob.py", "raise _refused("))
def _on_policy_needs_one_step(facts: PlanInputs) -> Broken:
    epochs, mini, batch = facts.whole(_EPOCHS) or 1, facts.whole(_MINI), facts.whole("data.train_batch_size")
    on = facts.megatron and "on-policy-logprob" in facts.switches
    if on and (epochs != 1 or mini != batch):
        figures = f"adaptation on-policy-logprob, actor.epochs {epochs}, actor.mini_batch {mini}, data.batch {batch}"
        fix = f"set actor.epochs to 1 and actor.mini_batch to {batch}, or adaptations.on-policy-logprob to false"
        keys = (_MINI, _EPOCHS) if epochs == 1 else (_EPOCHS, _MINI)
        yield broken(f"{figures}: it refuses several steps per batch", fix, *keys)


@rule(
    cann(
        "models/mcore/config_converter.py",
        "def hf_to_mcore_config_dpskv3(hf_config: PretrainedConfig, dtype: torch.dtype) ->",
    )
)
def _transformer_overrides_refused(facts: PlanInputs) -> Broken:
    overridden = [key for key in facts.given if key.startswith(f"{TRANSFORMER}.")]
    if facts.megatron and facts.is_cann_trainer and overridden and facts.shape and facts.shape.latent:
        names = ", ".join(key.removeprefix(f"{TRANSFORMER}.") for key in overridden)
        figures = (
            f"actor.transformer sets {names}, and this tree's function for DeepSeek-V3 takes no such argument"
        )
        yield broken(
            figures, "remove actor.transformer; this trainer has its own keys, for overrides", *overridden
        )


@rule(
    mindspeed("features_manager/moe/gmm.py", "moe_feature.adaptor import"),
    Place(
        "mindspeed/core/transformer/moe/moe_feature/__init__.py",
        "from megatron.training import",
        ("7ff818c",),
    ),
    certain=False,
)
def _moe_grouped_gemm(facts: PlanInputs) -> Broken:
    there = facts.code is not None and (facts.code / "megatron" / "training").exists()
    if facts.megatron and facts.mindspeed and facts.on(_GEMM) and not there:
        figures = "moe_grouped_gemm true makes MindSpeed import megatron.training, which is not in the tree"
        fix = "remove actor.transformer.moe_grouped_gemm: verl's own configuration of the model has it on already"
        yield broken(figures, fix, _GEMM)


@rule(
    (
        servers("verl/experimental/reward_loop/reward_manager/dapo.py", _WITHIN),
        Place("verl/workers/reward_manager/dapo.py", _WITHIN, pins.UNPATCHED),
    )
)
def _overlong_buffer_within_response(facts: PlanInputs) -> Broken:
    """Check DAPO's penalty for overlong responses, of the reward loop's manager and of the older one."""
    older, value = facts.values.value("reward_model.reward_manager") == "dapo", facts.values.value
    for (section, limit), manages in zip(
        _BUFFERS, (older or value("reward.reward_manager.name") == "dapo", older), strict=True
    ):
        length, longest, on = facts.whole(f"{section}.len"), facts.whole(limit), facts.on(f"{section}.enable")
        if not manages or not (on or (section == _BUFFERS[1][0] and length is not None and longest)):
            continue
        if length is None or longest is None or not int(on) <= length <= longest:
            name, key = section.rpartition(".")[2], limit if longest is None else f"{section}.len"
            to = (
                facts.whole("data.max_response_length")
                if longest is None
                else f"a number from {int(on)} to {longest}"
            )
            figures = f"{name}.len {length} of {limit} {longest}: the penalty grows over the last tokens of a response"
            yield broken(figures, f"set overrides.{key} to {to}", key)


@rule(Place("recipe/dapo/dapo_ray_trainer.py", "new_batch.non_tensor_batch[metric_name]", pins.VERL))
def _filter_groups_metric(facts: PlanInputs) -> Broken:
    key = f"{_FILTER}.metric"
    if facts.on(f"{_FILTER}.enable") and facts.values.known(key) and facts.values.value(key) is None:
        figures = "filter_groups.enable true, filter_groups.metric None, by whose spread groups are chosen"
        yield broken(figures, f"set overrides.{key} to acc, or to seq_reward", key)
