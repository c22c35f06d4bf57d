"""Rules on vllm-ascend features that compute wrong results or hang in some versions."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.sizing.plan_inputs import ROLLOUT, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place

_TOPK = "VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE"
_IN_ORDER = Place(  # our patch
    "vllm_ascend/patch/worker/patch_common/patch_sampler.py",
    "sampler_arguments.in_order(k, p)",
    ("e1d282d",),
)

_ASKS_TWICE = Place("vllm_ascend/worker/model_runner_v1.py", "def get_dp_padding(self,", ("1de16ea",))


def engine_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on vllm-ascend's sampler, sleep mode, and graphs with experts shared among engines."""
    if facts.vllm:
        yield from _topk_rules(facts)
        yield from _awake_rules(facts)
    if facts.vllm and facts.npu:
        yield from _sleep_level_rule(facts)
        yield from _data_parallel_graph_rule(facts)
        yield from _hybrid_tensor_parallel_rule(facts)


def _awake_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on engines that never sleep: they keep prefixes (the fault stale-prefix-cache) or weights."""
    if facts.values.value(f"{ROLLOUT}.free_cache_engine") is not False:  # the trainer's default is true
        return
    if facts.values.value(f"{ROLLOUT}.mode") == "async":
        yield Rule(
            "async-without-sleep",
            False,
            "rollout.mode async, free_cache false: engines receive new weights when the trainer wakes them, which it "
            "does only if free_cache is true, so all responses are sampled from the first weights",
            "set rollout.free_cache to true",
            (f"{ROLLOUT}.free_cache_engine",),
        )
        return
    patched = "rollout-engine-args" in facts.switches
    argument, key = f"{ROLLOUT}.engine_kwargs.vllm.enable_prefix_caching", f"{ROLLOUT}.enable_prefix_caching"
    given = [facts.values.value(name) for name in (argument, key)]
    cached = next((one for one in given if one is not None), not patched)
    off = "set rollout.engine_arguments.enable_prefix_caching to false, or " if patched else ""
    yield Rule(
        "stale-prefix-cache",
        cached is False,
        f"free_cache false, prefix caching {'off' if cached is False else 'on'}: vLLM forgets its prefixes only when "
        "it sleeps, so a step would take those that an earlier step's weights computed",
        f"{off}set rollout.free_cache to true",
        (f"{ROLLOUT}.free_cache_engine",),
    )


def _sleep_level_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rule on sleep mode at level 2, which drops the model's buffers (the fault sleep-loses-buffers)."""
    if facts.values.value(f"{ROLLOUT}.free_cache_engine") is False or "rollout-offload" in facts.switches:
        return
    off = "rollout-offload" in facts.off
    yield Rule(
        "sleep-mode-loses-buffers",
        False,
        f"free_cache true, adaptation rollout-offload {'off' if off else 'not in this tree'}: the engine sleeps at "
        "level 2, which drops RoPE's caches with the weights, and no weight sync brings them back",
        "set adaptations.rollout-offload to true" if off else "set rollout.free_cache to false",
        () if off else (f"{ROLLOUT}.free_cache_engine",),
        ("adaptations", "rollout-offload") if off else (),
    )


def _data_parallel_graph_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rule on graphs with data-parallel engines (the fault data-parallel-graph-hang)."""
    eager, key = facts.values.value(f"{ROLLOUT}.enforce_eager"), facts.rollout_data_key
    engines = facts.layout.rollout.data if facts.layout and facts.layout.rollout else 1
    if engines < 2 or eager is not False or not facts.upstream.has(_ASKS_TWICE):
        return
    yield Rule(
        "data-parallel-graphs",
        False,
        f"rollout.eager false, {key} {engines}: an engine without requests synchronizes once before a pass, and "
        "the others twice, so all of them wait forever",
        f"set rollout.eager to true, or {key} to 1",
        (f"{ROLLOUT}.enforce_eager",),
    )


def _hybrid_tensor_parallel_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rule on verl_npu's per-layer tensor parallelism, which the engine ignores."""
    key = f"{ROLLOUT}.hybrid_tp"
    section = facts.values.value(key)
    enabled = section.get("enabled") if isinstance(section, dict) else facts.values.value(f"{key}.enabled")
    if not enabled:  # as verl_npu asks: 1 and "yes" switch it on too
        return
    settings = facts.values.value(f"{ROLLOUT}.engine_kwargs.vllm.additional_config")
    lost = ", and rollout.engine_arguments.additional_config is lost" if settings else ""
    yield Rule(
        "hybrid-tp-ignored",
        False,
        f"{key}.enabled {enabled}: its sizes replace additional_config, and this vllm-ascend does not read them "
        f"there{lost}",
        f"remove overrides.{key}",
        (f"{key}.enabled",),
    )


def _topk_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on the optimized top-k/top-p filter: two faults shown on a CPU, and its cost.

    The figures are those of the witnesses topk-topp-swapped and topk-optimize-filters-otherwise.
    """
    given = facts.env.get(_TOPK, "0")
    if given in ("0", ""):
        return
    top_k, top_p = (facts.values.value(f"{ROLLOUT}.{name}") for name in ("top_k", "top_p"))
    limits_k, limits_p = top_k not in (None, -1, 0), top_p not in (None, 1)
    said = f"{_TOPK} {given}, rollout.top_k {top_k}, rollout.top_p {top_p}"
    fix, path = f'set env.{_TOPK} to "0"', ("env", _TOPK)
    yield Rule(
        "topk-optimize-unused",
        limits_k or limits_p,
        f"{said}: with neither, each decode step sorts the vocabulary for nothing",
        fix,
        path=path,
        advice=True,
    )
    if not (limits_k or limits_p):
        return
    in_order = "sampler-arguments" in facts.switches and facts.upstream.has(_IN_ORDER)
    off = "sampler-arguments" in facts.off
    adaptation = "on" if in_order else "off" if off else "not in this tree"
    yield Rule(
        "topk-optimize-swapped",
        in_order,
        f"{said}, adaptation sampler-arguments {adaptation}: without it "
        "the filter takes top_k for top_p and top_p for top_k; on a CPU an index is out of bounds then",
        f"{fix}, or adaptations.sampler-arguments to true" if off else fix,
        path=path,
    )
    if in_order:
        yield Rule(
            "topk-optimize-filters-otherwise",
            not (limits_k and limits_p),
            f"{said}: the filter applies top_p to the whole distribution; vLLM applies it to what top_k has left. From "
            "129,280 normal logits, top_k 50 and top_p 0.9 keep 50 tokens here, and 35 to 38 in vLLM",
            fix,
            path=path,
            advice=True,
        )
