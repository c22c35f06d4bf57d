"""Rules on settings that exclude or need each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npu_rl.common.yaml_documents.problems import dotted
from npu_rl.recipes.plan.benchmark_only import find_benchmark_settings
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.sizing.plan_inputs import ACTOR, REFERENCE, ROLLOUT, TRANSFORMER, PlanInputs

_SWAP, _DDP = (
    f"{TRANSFORMER}.swap_optimizer",
    f"{ACTOR}.megatron.override_ddp_config.use_distributed_optimizer",
)
_LOAD_WEIGHT = (f"{ACTOR}.load_weight", f"{REFERENCE}.load_weight")
_OFFLOAD = f"{ACTOR}.megatron.optimizer_offload"
_GROUPS = ("moe_router_num_groups", "moe_router_group_topk")
_RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers")
_RECOMPUTE_NEEDS = "full needs a method and a number of layers, selective takes no number of layers"
_VALIDATION_SAMPLE, _TEMPERATURE = f"{ROLLOUT}.val_kwargs.do_sample", f"{ROLLOUT}.temperature"
_ADDITIONAL = f"{ROLLOUT}.engine_kwargs.vllm.additional_config"
_GRAPH = f"{_ADDITIONAL}.torchair_graph_config"
_RECIPE_GRAPH = "rollout.engine_arguments.additional_config.torchair_graph_config"
_ONLY_WITH_GRAPH = (
    "use_cached_graph",
    "graph_batch_sizes",
    "graph_batch_sizes_init",
    "enable_multistream_mla",
    "enable_multistream_moe",
    "enable_kv_nz",
    "enable_super_kernel",
)


def conflict_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on the optimizer, the weights, recomputation, the engine's memory and graphs, and benchmarks."""
    if facts.recipe.megatron:
        yield from _swap_rules(facts)
        yield from _weight_rules(facts)
        yield from _router_group_rule(facts)
        yield from _recompute_rules(facts)
    yield from _d2d_transfer_rule(facts)
    yield from _validation_sample_rule(facts)
    if facts.vllm:
        yield from _sleep_mode_rule(facts)
        yield from _graph_rules(facts)


def _swap_rules(facts: PlanInputs) -> Iterator[Rule]:
    if not facts.transformer("swap_optimizer"):
        return
    offload = facts.on(_OFFLOAD)
    yield Rule(
        "swap-or-offload-optimizer",
        not offload,
        f"swap_optimizer true, optimizer_offload {str(offload).lower()}",
        "set offload.optimizer to false: swapped states are in the host's memory already",
        (_OFFLOAD, _SWAP),
    )
    distributed = facts.values.value(_DDP) is not False
    yield Rule(
        "swap-needs-distributed-optimizer",
        distributed,
        f"swap_optimizer true, use_distributed_optimizer {str(distributed).lower()}",
        "remove use_distributed_optimizer, which is on by default",
        (_DDP, _SWAP),
    )
    reuse = bool(facts.transformer("reuse_fp32_param"))
    yield Rule(
        "swap-without-reuse-fp32",
        not reuse,
        f"swap_optimizer true, reuse_fp32_param {str(reuse).lower()}",
        "remove actor.transformer.reuse_fp32_param",
        (f"{TRANSFORMER}.reuse_fp32_param", _SWAP),
    )
    chosen = facts.transformer("optimizer_selection") or "fused_adamw"
    yield Rule(
        "swap-needs-fused-adamw",
        chosen == "fused_adamw",
        f"swap_optimizer true, optimizer_selection {chosen}; it replaces the step of fused_adamw",
        "remove actor.transformer.optimizer_selection",
        (f"{TRANSFORMER}.optimizer_selection", _SWAP),
    )


def _weight_rules(facts: PlanInputs) -> Iterator[Rule]:
    actor, reference = (facts.values.value(f"{part}.load_weight") for part in (ACTOR, REFERENCE))
    if actor is not None or reference is not None:
        yield Rule(
            "actor-reference-weights",
            actor == reference,
            f"load_weight of the actor {actor}, of the reference {reference}",
            "remove this override and set model.load_weights, which sets both: else the first KL is not 0",
            (f"{REFERENCE}.load_weight", f"{ACTOR}.load_weight"),
        )
    if actor is False:
        return
    found = [
        dotted(fault.path)
        for fault in find_benchmark_settings(facts.recipe, facts.given)
        if fault.key not in _LOAD_WEIGHT
    ]
    yield Rule(
        "benchmark-switch-in-training",
        not found,
        f"weights are loaded, and of a benchmark's switches on: {', '.join(found) or 'none'}",
        "remove it, or set model.load_weights to false for a benchmark",
        (f"{ROLLOUT}.ignore_eos",),
    )


def _router_group_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Yield advice on the router's expert groups.

    verl@55e3c5b and mbridge 0.15.1 read neither number from config.json; without them the actor's router may choose any
    expert. It is advice because verl's published recipe trains like that.
    """
    shape = facts.shape
    if shape is None or not shape.expert_groups:
        return
    groups, chosen = (facts.transformer(name) for name in _GROUPS)
    if (groups, chosen) == (None, None) and "router-groups" in facts.switches:  # our patch of mbridge
        return
    yield Rule(
        "router-groups",
        (groups, chosen) == (shape.expert_groups, shape.groups_per_token),
        f"moe_router_num_groups {groups}, moe_router_group_topk {chosen}; the model has "
        f"{shape.expert_groups} expert groups and routes a token to {shape.groups_per_token} of them; the rollout "
        "does so, and verl's own configuration of the actor leaves both out",
        f"set actor.transformer.moe_router_num_groups to {shape.expert_groups} and "
        f"actor.transformer.moe_router_group_topk to {shape.groups_per_token}",
        tuple(f"{TRANSFORMER}.{name}" for name in _GROUPS),
        advice=True,
    )


def _recompute_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on Megatron's three recomputation settings, which are valid only together."""
    granularity, method, layers = (facts.transformer(name) for name in _RECOMPUTE)
    if granularity not in ("full", "selective"):
        return
    keys = tuple(facts.transformer_keys(name)[0] for name in _RECOMPUTE)
    recipe_keys = tuple(_recipe_key(name, key) for name, key in zip(_RECOMPUTE, keys, strict=True))
    figures = f"recompute_granularity {granularity}, recompute_method {method}, recompute_num_layers {layers}"
    if granularity == "selective":
        fix = f"set {recipe_keys[0]} to full, or remove {recipe_keys[2]} (on the command line: {recipe_keys[2]}=~)"
        ok, broken = layers is None, (keys[0], keys[2])
    else:
        way = method or ("uniform" if layers is None else "block")
        right = {recipe_keys[1]: (method, way), recipe_keys[2]: (layers, _recomputed_layers(facts, way))}
        missing = [
            f"{recipe_key} to {value}" for recipe_key, (given, value) in right.items() if given is None
        ]
        fix = f"set {' and '.join(missing)}"
        ok, broken = not missing, (keys[1] if method is None else keys[2], keys[0])
    yield Rule("recompute-settings", ok, f"{figures}: {_RECOMPUTE_NEEDS}", fix, broken)
    if granularity == "full" and method == "uniform" and isinstance(layers, int):
        yield Rule(
            "recompute-uniform-layers",
            layers >= 1,
            f"{figures}: the loop over a stage's layers advances by recompute_num_layers each time, and with less than "
            "1 it never ends",
            f"set {recipe_keys[2]} to 1",
            (keys[2],),
        )


def _recipe_key(name: str, trainer_key: str) -> str:
    own = trainer_key == f"{TRANSFORMER}.{name}"
    return f"actor.transformer.{name}" if own else f"overrides.{trainer_key}"


def _recomputed_layers(facts: PlanInputs, method: str) -> int:
    """Return the suggested recompute_num_layers: layers of a chunk (uniform) or of a whole stage (block)."""
    return max(facts.layout.stage_layers) if method == "block" and facts.layout else 1


def _d2d_transfer_rule(facts: PlanInputs) -> Iterator[Rule]:
    if facts.env.get("D2D_DATA_TRANSFER", "0") in ("0", ""):
        return
    balanced = facts.values.value("trainer.balance_batch") is not False
    yield Rule(
        "d2d-without-balance-batch",
        not balanced,
        f"D2D_DATA_TRANSFER {facts.env['D2D_DATA_TRANSFER']}, trainer.balance_batch {str(balanced).lower()}",
        "set overrides.trainer.balance_batch to false",
        ("trainer.balance_batch",),
        ("env", "D2D_DATA_TRANSFER"),
    )


def _validation_sample_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that a greedy rollout doesn't sample in validation, where the trainer uses the training temperature."""
    temperature = facts.values.value(_TEMPERATURE)
    if facts.on(_VALIDATION_SAMPLE) and isinstance(temperature, (int, float)) and temperature <= 0:
        yield Rule(
            "validation-sample-temperature",
            False,
            f"rollout.validation.sample true, rollout.temperature {temperature:g}",
            "set rollout.validation.sample to false, or rollout.temperature above 0",
            (_VALIDATION_SAMPLE, _TEMPERATURE),
        )


def _sleep_mode_rule(facts: PlanInputs) -> Iterator[Rule]:
    given = facts.env.get("PYTORCH_NPU_ALLOC_CONF", "")
    segments = "expandable_segments:true" in given.replace(" ", "").lower()
    # Both are true by the trainer's default. Servers have the memory pool even where they are never put to sleep.
    key = f"{ROLLOUT}.{'enable_sleep_mode' if facts.server_mode else 'free_cache_engine'}"
    sleep = facts.values.value(key) is not False
    manual = "rollout-offload" in facts.switches
    adaptation = f", adaptation rollout-offload {'on' if manual else 'off or absent'}"
    yield Rule(
        "sleep-mode-expandable-segments",
        not (sleep and segments and not manual),
        f"{'enable_sleep_mode' if facts.server_mode else 'free_cache'} {str(sleep).lower()}"
        f"{'' if facts.server_mode else adaptation}, PYTORCH_NPU_ALLOC_CONF {given or 'not set'}: "
        "vLLM's sleep mode has a memory pool of its own",
        # Not both: verl at 55e3c5b, which has the adaptation, sleeps at level 2 (sleep-mode-loses-buffers).
        "set adaptations.rollout-offload to true, which needs no sleep mode"
        if "rollout-offload" in facts.off
        else "set env.PYTORCH_NPU_ALLOC_CONF to expandable_segments:False",
        (key,),
        ("env", "PYTORCH_NPU_ALLOC_CONF"),
    )


def _graph_rules(facts: PlanInputs) -> Iterator[Rule]:
    settings = _section_values(facts, _GRAPH)
    enabled, eager = settings.get("enabled") is True, facts.values.value(f"{ROLLOUT}.enforce_eager")
    yield Rule(
        "graph-or-eager",
        not (enabled and eager is True),
        f"torchair graphs {'on' if enabled else 'off'}, eager {eager}",
        f"set rollout.eager to false, or {_RECIPE_GRAPH}.enabled to false",
        (f"{ROLLOUT}.enforce_eager", f"{_GRAPH}.enabled"),
    )
    if facts.npu and facts.shape is not None and facts.shape.latent and eager is False:
        yield Rule(
            "mla-graph-needs-torchair",
            enabled,
            f"rollout.eager false, torchair_graph_config.enabled {str(enabled).lower()}; vllm-ascend has no other "
            "graphs for DeepSeek",
            f"set {_RECIPE_GRAPH}.enabled to true, or rollout.eager to true",
            (f"{_GRAPH}.enabled", f"{ROLLOUT}.enforce_eager"),
        )
    if enabled:
        yield from _graph_batch_size_rules(facts, settings)
    elif settings:
        yield _torchair_settings_rule(settings)


def _torchair_settings_rule(settings: Mapping[str, Any]) -> Rule:
    used = [name for name in _ONLY_WITH_GRAPH if settings.get(name)]
    keys = " and ".join(f"{_RECIPE_GRAPH}.{name}" for name in used)
    return Rule(
        "torchair-switches",
        not used,
        f"torchair graphs are off, and of the settings that are refused then these are on: {', '.join(used) or 'none'}",
        f"remove {keys} (on the command line: KEY=~), or set {_RECIPE_GRAPH}.enabled to true",
        tuple(f"{_GRAPH}.{name}" for name in used),
    )


def _graph_batch_size_rules(facts: PlanInputs, settings: Mapping[str, Any]) -> Iterator[Rule]:
    sizes = settings.get("graph_batch_sizes")
    if sizes is not None and not isinstance(sizes, list):
        sequences = facts.whole(f"{ROLLOUT}.max_num_seqs")
        yield Rule(
            "graph-batch-sizes-list",
            False,
            f"graph_batch_sizes {sizes!r} is not a list of numbers",
            f"set {_RECIPE_GRAPH}.graph_batch_sizes to [{sequences or 'a number'}]",
            (f"{_GRAPH}.graph_batch_sizes",),
        )
        return
    if not isinstance(sizes, list) or not sizes or facts.layout is None or facts.layout.rollout is None:
        return
    tensor = facts.layout.rollout.tensor
    tokens = facts.whole(f"{ROLLOUT}.max_num_batched_tokens") or max(sizes)
    sequences = facts.whole(f"{ROLLOUT}.max_num_seqs") or max(sizes)
    good = all(size % tensor == 0 and size <= tokens for size in sizes) and max(sizes) >= sequences
    yield Rule(
        "graph-batch-sizes",
        good,
        f"graph_batch_sizes {sizes}, rollout tensor {tensor}, max_sequences {sequences}, max_batched_tokens {tokens}",
        f"set {_RECIPE_GRAPH}.graph_batch_sizes to [{sequences}]"
        if sequences % tensor == 0 and sequences <= tokens
        else f"set rollout.max_sequences to a multiple of {tensor} and at most {tokens}, and "
        f"{_RECIPE_GRAPH}.graph_batch_sizes to that one size",
        (f"{_GRAPH}.graph_batch_sizes",),
    )


def _section_values(facts: PlanInputs, section: str) -> dict[str, Any]:
    """Return the values that the recipe sets directly in a section, by name."""
    prefix = f"{section}."
    names = [key[len(prefix) :] for key in facts.given if key.startswith(prefix)]
    return {name: facts.values.value(prefix + name) for name in names}
