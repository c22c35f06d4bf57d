"""Rules on vLLM and vllm-ascend: graphs, sleep mode, the sampler, and the adaptations of the rollout."""

from __future__ import annotations

from typing import Any

from npu_rl.recipes.plan.rules.pins import (
    ADDITIONAL,
    AGENT_LOOP,
    ANY_ASCEND,
    ASCEND,
    ASCEND_CONFIG,
    ASCEND_SERVERS,
    PLUGIN,
    R1_ZERO,
    SERVER,
    SERVERS,
    SPMD,
    UNPATCHED,
    VERL,
    WORKERS,
)
from npu_rl.recipes.plan.rules.rule import Outcome, Outcomes, rule
from npu_rl.recipes.sizing.plan_inputs import ROLLOUT, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place

_ADDITIONAL = f"{ROLLOUT}.engine_kwargs.vllm.additional_config"
_GRAPH, _SCHEDULER = f"{_ADDITIONAL}.torchair_graph_config", f"{_ADDITIONAL}.ascend_scheduler_config"
_RECIPE_GRAPH = "rollout.engine_arguments.additional_config.torchair_graph_config"
_SIZES, _EAGER = f"{_GRAPH}.graph_batch_sizes", f"{ROLLOUT}.enforce_eager"
_FREES = f"{ROLLOUT}.free_cache_engine"
_ONLY_WITH_GRAPH = (
    *("use_cached_graph", "graph_batch_sizes", "graph_batch_sizes_init", "enable_multistream_mla"),
    *("enable_multistream_moe", "enable_kv_nz", "enable_super_kernel"),
)
_ASCEND_0_9_1 = ("v0.9.1rc2", "vllm-ascend==0.9.1", "e1d282d")
_WORKER, _RUNNER = "vllm_ascend/worker/worker_v1.py", "vllm_ascend/worker/model_runner_v1.py"
_SAMPLER = "vllm_ascend/patch/worker/patch_common/patch_sampler.py"
_TOPK = "VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE"
_NZ = "VLLM_ASCEND_ENABLE_NZ"
_IN_ORDER = Place(_SAMPLER, "sampler_arguments.in_order(k, p)", ("e1d282d",))  # our patch


def _graph(facts: PlanInputs, name: str) -> Any:
    """Return a value of torchair's section if the recipe sets it."""
    key = f"{_GRAPH}.{name}"
    return facts.values.value(key) if key in facts.given else None


def _frees_cache(facts: PlanInputs) -> bool:
    return facts.values.value(_FREES) is not False  # the trainer's default is true


@rule(
    "sleep-mode-expandable-segments",
    (
        Place(SPMD, "self.inference_engine.sleep(level=", UNPATCHED),
        Place(SERVER, '"enable_sleep_mode": self.config.enable_sleep_mode', SERVERS),
    ),
    Place(
        "vllm_ascend/device_allocator/camem.py",
        "Expandable segments are not compatible",
        (*ANY_ASCEND, *ASCEND_SERVERS),
    ),
    certain=False,
    only=("vllm",),
)
def _sleep_mode_expandable_segments(facts: PlanInputs) -> Outcomes:
    given = facts.env.get("PYTORCH_NPU_ALLOC_CONF", "")
    segments = "expandable_segments:true" in given.replace(" ", "").lower()
    # Both are true by the trainer's default. Servers have the memory pool even where they are never put to sleep.
    name = "enable_sleep_mode" if facts.server_mode else "free_cache_engine"
    sleep, manual = facts.values.value(f"{ROLLOUT}.{name}") is not False, "rollout-offload" in facts.switches
    adaptation = f", adaptation rollout-offload {'on' if manual else 'off or absent'}"
    yield Outcome(
        not (sleep and segments and not manual),
        f"{name.removesuffix('_engine')} {str(sleep).lower()}{'' if facts.server_mode else adaptation}, "
        f"PYTORCH_NPU_ALLOC_CONF {given or 'not set'}: vLLM's sleep mode has a memory pool of its own",
        # Not both: verl at 55e3c5b, which has the adaptation, sleeps at level 2 (sleep-mode-loses-buffers).
        "set adaptations.rollout-offload to true, which needs no sleep mode"
        if "rollout-offload" in facts.off
        else "set env.PYTORCH_NPU_ALLOC_CONF to expandable_segments:False",
        (f"{ROLLOUT}.{name}",),
        ("env", "PYTORCH_NPU_ALLOC_CONF"),
    )


@rule(
    "sleep-mode-loses-buffers",
    Place(SPMD, "self.inference_engine.sleep(level=2)", (R1_ZERO,)),
    Place(_WORKER, "allocator.sleep(offload_tags=", ANY_ASCEND),
    Place(_WORKER, "_sleep_saved_buffers", ANY_ASCEND, absent=True),  # 01592515b8
    only=("vllm", "npu"),
)
def _sleep_mode_loses_buffers(facts: PlanInputs) -> Outcomes:
    """Check sleep mode at level 2, which drops the model's buffers (the fault sleep-loses-buffers)."""
    off = "rollout-offload" in facts.off
    if _frees_cache(facts) and "rollout-offload" not in facts.switches:
        yield Outcome(
            False,
            f"free_cache true, adaptation rollout-offload {'off' if off else 'not in this tree'}: the engine sleeps at "
            "level 2, which drops RoPE's caches with the weights, and no weight sync brings them back",
            "set adaptations.rollout-offload to true" if off else "set rollout.free_cache to false",
            () if off else (_FREES,),
            ("adaptations", "rollout-offload") if off else (),
        )


@rule(
    "sleep-mode-weight-format",
    Place("vllm_ascend/worker/worker.py", '"FRACTAL_NZ mode is enabled.', ASCEND_SERVERS),
    only=("vllm", "npu"),
)
def _sleep_mode_weight_format(facts: PlanInputs) -> Outcomes:
    """Check the format of weights, on which NPUWorker.wake_up raises."""
    if not facts.server_mode:
        return
    key = f"{_ADDITIONAL}.weight_nz_mode"
    given = facts.values.value(key) if key in facts.given else facts.env.get(_NZ, "1")  # its default
    wrong = _frees_cache(facts) and str(given) != "0"
    yield Outcome(
        not wrong,
        f"free_cache {str(_frees_cache(facts)).lower()}, {_NZ} {given}: vllm-ascend raises when the trainer wakes an "
        "engine whose weights are in the format FRACTAL_NZ",
        f'set env.{_NZ} to "0"',
        (key,) if key in facts.given else (),
        () if key in facts.given else ("env", _NZ),
    )


@rule(
    "async-without-sleep",
    Place(AGENT_LOOP, "if self.config.actor_rollout_ref.rollout.free_cache_engine:", UNPATCHED),
    only=("vllm",),
)
def _async_without_sleep(facts: PlanInputs) -> Outcomes:
    if not _frees_cache(facts) and facts.values.value(f"{ROLLOUT}.mode") == "async":
        yield Outcome(
            False,
            "rollout.mode async, free_cache false: engines receive new weights when the trainer wakes them, which it "
            "does only if free_cache is true, so all responses are sampled from the first weights",
            "set rollout.free_cache to true",
            (_FREES,),
        )


@rule(
    "stale-prefix-cache",
    (
        Place(SPMD, "enable_prefix_caching=True,", UNPATCHED),
        Place(SPMD, 'enable_prefix_caching=config.get("enable_prefix_caching", True)', (PLUGIN,)),
    ),
    Place("verl/workers/sharding_manager/fsdp_vllm.py", "reset_prefix_cache", VERL, absent=True),
    certain=False,
    only=("vllm",),
)
def _stale_prefix_cache(facts: PlanInputs) -> Outcomes:
    """Check engines that never sleep: they keep prefixes (the fault stale-prefix-cache)."""
    if _frees_cache(facts) or facts.values.value(f"{ROLLOUT}.mode") == "async":
        return
    patched = "rollout-engine-args" in facts.switches
    keys = (f"{ROLLOUT}.engine_kwargs.vllm.enable_prefix_caching", f"{ROLLOUT}.enable_prefix_caching")
    given = map(facts.values.value, keys)
    cached = next((one for one in given if one is not None), not patched)
    off = "set rollout.engine_arguments.enable_prefix_caching to false, or " if patched else ""
    yield Outcome(
        cached is False,
        f"free_cache false, prefix caching {'off' if cached is False else 'on'}: vLLM forgets its prefixes only when "
        "it sleeps, so a step would take those that an earlier step's weights computed",
        f"{off}set rollout.free_cache to true",
        (_FREES,),
    )


@rule(
    "graph-or-eager",
    Place(ASCEND_CONFIG, "Can't enable graph mode and eager mode", ANY_ASCEND),
    ADDITIONAL,
    only=("vllm",),
)
def _graph_or_eager(facts: PlanInputs) -> Outcomes:
    enabled, eager = _graph(facts, "enabled") is True, facts.values.value(_EAGER)
    yield Outcome(
        not (enabled and eager is True),
        f"torchair graphs {'on' if enabled else 'off'}, eager {eager}",
        f"set rollout.eager to false, or {_RECIPE_GRAPH}.enabled to false",
        (_EAGER, f"{_GRAPH}.enabled"),
    )


@rule(
    "mla-graph-needs-torchair",
    Place(ASCEND_CONFIG, "ACL Graph does not support deepseek", ANY_ASCEND),
    ADDITIONAL,
    only=("vllm", "npu", "shape"),
)
def _mla_graph_needs_torchair(facts: PlanInputs) -> Outcomes:
    enabled = _graph(facts, "enabled") is True
    if facts.shape and facts.shape.latent and facts.values.value(_EAGER) is False:
        yield Outcome(
            enabled,
            f"rollout.eager false, torchair_graph_config.enabled {str(enabled).lower()}; vllm-ascend has no other "
            "graphs for DeepSeek",
            f"set {_RECIPE_GRAPH}.enabled to true, or rollout.eager to true",
            (f"{_GRAPH}.enabled", _EAGER),
        )


@rule(
    "torchair-switches",
    Place(ASCEND_CONFIG, "is valid only when Torchair graph mode", ASCEND),
    ADDITIONAL,
    only=("vllm",),
)
def _torchair_switches(facts: PlanInputs) -> Outcomes:
    if _graph(facts, "enabled") is True or not any(key.startswith(f"{_GRAPH}.") for key in facts.given):
        return
    used = [name for name in _ONLY_WITH_GRAPH if _graph(facts, name)]
    keys = " and ".join(f"{_RECIPE_GRAPH}.{name}" for name in used)
    yield Outcome(
        not used,
        f"torchair graphs are off, and of the settings that are refused then these are on: {', '.join(used) or 'none'}",
        f"remove {keys} (on the command line: KEY=~), or set {_RECIPE_GRAPH}.enabled to true",
        tuple(f"{_GRAPH}.{name}" for name in used),
    )


@rule(
    "graph-batch-sizes-list",
    Place(ASCEND_CONFIG, "graph_batch_sizes must be list[int]", ANY_ASCEND),
    ADDITIONAL,
    only=("vllm",),
)
def _graph_batch_sizes_list(facts: PlanInputs) -> Outcomes:
    sizes, sequences = _graph(facts, "graph_batch_sizes"), facts.whole(f"{ROLLOUT}.max_num_seqs")
    if _graph(facts, "enabled") is True and sizes is not None and not isinstance(sizes, list):
        fix = f"set {_RECIPE_GRAPH}.graph_batch_sizes to [{sequences or 'a number'}]"
        yield Outcome(False, f"graph_batch_sizes {sizes!r} is not a list of numbers", fix, (_SIZES,))


@rule(
    "graph-batch-sizes",
    Place(_RUNNER, "graph_batch_sizes", ANY_ASCEND),
    ADDITIONAL,
    certain=False,
    only=("vllm", "layout"),
)
def _graph_batch_sizes(facts: PlanInputs) -> Outcomes:
    sizes, rollout = _graph(facts, "graph_batch_sizes"), facts.sizes.rollout
    if _graph(facts, "enabled") is not True or not isinstance(sizes, list) or not sizes or rollout is None:
        return
    tensor = rollout.tensor
    tokens = facts.whole(f"{ROLLOUT}.max_num_batched_tokens") or max(sizes)
    sequences = facts.whole(f"{ROLLOUT}.max_num_seqs") or max(sizes)
    good = all(size % tensor == 0 and size <= tokens for size in sizes) and max(sizes) >= sequences
    yield Outcome(
        good,
        f"graph_batch_sizes {sizes}, rollout tensor {tensor}, max_sequences {sequences}, max_batched_tokens {tokens}",
        f"set {_RECIPE_GRAPH}.graph_batch_sizes to [{sequences}]"
        if sequences % tensor == 0 and sequences <= tokens
        else f"set rollout.max_sequences to a multiple of {tensor} and at most {tokens}, and "
        f"{_RECIPE_GRAPH}.graph_batch_sizes to that one size",
        (_SIZES,),
    )


@rule(
    "data-parallel-graphs",
    Place(_RUNNER, "def get_dp_padding(self,", ("1de16ea",)),
    Place(  # 99bf25af76
        _RUNNER, "num_tokens_across_dp_native = self.get_dp_padding(num_tokens)", ("1de16ea",), absent=True
    ),
    only=("vllm", "npu"),
)
def _data_parallel_graphs(facts: PlanInputs) -> Outcomes:
    """Check graphs with data-parallel engines (the fault data-parallel-graph-hang)."""
    key, engines = (
        facts.rollout_data_key,
        facts.layout.rollout.data if facts.layout and facts.layout.rollout else 1,
    )
    if engines > 1 and facts.values.value(_EAGER) is False:
        yield Outcome(
            False,
            f"rollout.eager false, {key} {engines}: an engine without requests synchronizes once before a pass, and "
            "the others twice, so all of them wait forever",
            f"set rollout.eager to true, or {key} to 1",
            (_EAGER,),
        )


@rule(
    "hybrid-tp-ignored",
    Place(SPMD, 'additional_config["oproj_tensor_parallel_size"]', (PLUGIN,)),  # MindSpeed-RL's verl_npu
    Place(ASCEND_CONFIG, "oproj_tensor_parallel_size", ASCEND, absent=True),
    certain=False,
    only=("vllm", "npu"),
)
def _hybrid_tp_ignored(facts: PlanInputs) -> Outcomes:
    """Check verl_npu's per-layer tensor parallelism, which the engine ignores."""
    key = f"{ROLLOUT}.hybrid_tp"
    section = facts.values.value(key)
    enabled = section.get("enabled") if isinstance(section, dict) else facts.values.value(f"{key}.enabled")
    if enabled:  # as verl_npu asks: 1 and "yes" switch it on too
        lost = (
            ", and rollout.engine_arguments.additional_config is lost"
            if facts.values.value(_ADDITIONAL)
            else ""
        )
        yield Outcome(
            False,
            f"{key}.enabled {enabled}: its sizes replace additional_config, and this vllm-ascend does not read them "
            f"there{lost}",
            f"remove overrides.{key}",
            (f"{key}.enabled",),
        )


def _topk(facts: PlanInputs) -> tuple[str, bool, bool]:
    """Return the setting of the optimized filter as a text, and whether top_k and top_p limit; "" if it is off."""
    given = facts.env.get(_TOPK, "0")
    if given in ("0", ""):
        return "", False, False
    top_k, top_p = (facts.values.value(f"{ROLLOUT}.{name}") for name in ("top_k", "top_p"))
    said = f"{_TOPK} {given}, rollout.top_k {top_k}, rollout.top_p {top_p}"
    return said, top_k not in (None, -1, 0), top_p not in (None, 1)


_TOPK_FIX, _TOPK_PATH = f'set env.{_TOPK} to "0"', ("env", _TOPK)


@rule(
    "topk-optimize-unused",
    Place(_SAMPLER, "probs_sort, _ = probs.sort(dim=-1, descending=False)", _ASCEND_0_9_1),
    certain=False,
    only=("vllm",),
)
def _topk_optimize_unused(facts: PlanInputs) -> Outcomes:
    said, by_k, by_p = _topk(facts)
    if said:
        figures = f"{said}: with neither, each decode step sorts the vocabulary for nothing"
        yield Outcome(by_k or by_p, figures, _TOPK_FIX, path=_TOPK_PATH, advice=True)


# 734eb68129 (#1920) renames the function, and calls an operator of torch_npu where both limits are set.
@rule(
    "topk-optimize-swapped",
    Place(_SAMPLER, "def _apply_top_k_top_p(", ("e1d282d",)),
    only=("vllm",),
)
def _topk_optimize_swapped(facts: PlanInputs) -> Outcomes:
    """Check the filter's arguments, as the witness topk-topp-swapped shows them on a CPU."""
    said, by_k, by_p = _topk(facts)
    in_order, off = _filters_in_order(facts), "sampler-arguments" in facts.off
    adaptation = "on" if in_order else "off" if off else "not in this tree"
    if by_k or by_p:
        yield Outcome(
            in_order,
            f"{said}, adaptation sampler-arguments {adaptation}: without it "
            "the filter takes top_k for top_p and top_p for top_k; on a CPU an index is out of bounds then",
            f"{_TOPK_FIX}, or adaptations.sampler-arguments to true" if off else _TOPK_FIX,
            path=_TOPK_PATH,
        )


@rule(
    "topk-optimize-filters-otherwise",
    Place(_SAMPLER, "def _apply_top_k_top_p(", ("e1d282d",)),
    certain=False,
    only=("vllm",),
)
def _topk_optimize_filters_otherwise(facts: PlanInputs) -> Outcomes:
    """Check the order of both limits; the figures are those of the witness topk-optimize-filters-otherwise."""
    said, by_k, by_p = _topk(facts)
    if (by_k or by_p) and _filters_in_order(facts):
        yield Outcome(
            not (by_k and by_p),
            f"{said}: the filter applies top_p to the whole distribution; vLLM applies it to what top_k has left. From "
            "129,280 normal logits, top_k 50 and top_p 0.9 keep 50 tokens here, and 35 to 38 in vLLM",
            _TOPK_FIX,
            path=_TOPK_PATH,
            advice=True,
        )


def _filters_in_order(facts: PlanInputs) -> bool:
    return "sampler-arguments" in facts.switches and facts.upstream.has(_IN_ORDER)


@rule("rollout-dp-groups-off", Place(SPMD, "rollout_dp_groups.form(", (R1_ZERO,)), only=("vllm",))
def _rollout_dp_groups_off(facts: PlanInputs) -> Outcomes:
    size, off = facts.env.get("VLLM_DP_SIZE", "1"), "rollout-dp-groups" in facts.off
    if size.isdecimal() and int(size) > 1:
        yield Outcome(
            not off,
            f"VLLM_DP_SIZE {size}, adaptation rollout-dp-groups {'off' if off else 'on'}, which sets the rank of "
            "each engine: without it every engine takes rank 0 and waits for the others until a timeout",
            "set adaptations.rollout-dp-groups to true, or env.VLLM_DP_SIZE to 1",
            path=("adaptations", "rollout-dp-groups") if off else ("env", "VLLM_DP_SIZE"),
        )


@rule(
    "rollout-compile-off",
    Place(WORKERS, "@with_real_compile", (R1_ZERO,)),
    certain=False,
    only=("vllm", "mindspeed"),
)
def _rollout_compile_off(facts: PlanInputs) -> Outcomes:
    off = "rollout-compile" in facts.off
    if facts.on(f"{_GRAPH}.enabled"):
        yield Outcome(
            not off,
            f"torchair graphs on, adaptation rollout-compile {'off' if off else 'on'}: MindSpeed replaces "
            "torch.compile by a function that compiles nothing, and without the adaptation the rollout silently has no "
            "graphs",
            "set adaptations.rollout-compile to true",
            path=("adaptations", "rollout-compile"),
        )


@rule("v1-engine", only=("vllm",))
def _v1_engine(facts: PlanInputs) -> Outcomes:
    """Check features that vLLM's V0 engine lacks, if the tree has the code that refuses them."""
    if facts.env.get("VLLM_USE_V1", "1") != "0":
        return
    refused = "is only supported for V1 Engine"
    wanted = {
        "the adaptation rollout-offload": (
            Place("npu_rl_runtime/rollout_offload/parts.py", "Set VLLM_USE_V1=1"),
            "rollout-offload" in facts.switches and _frees_cache(facts),
        ),
        "torchair_graph_config": (
            Place(ASCEND_CONFIG, f"Torchair graph mode {refused}", _ASCEND_0_9_1),
            facts.on(f"{_GRAPH}.enabled"),
        ),
        "ascend_scheduler_config": (
            Place(ASCEND_CONFIG, f"Ascend scheduler {refused}", _ASCEND_0_9_1),
            facts.on(f"{_SCHEDULER}.enabled"),
        ),
    }
    found = {name: facts.upstream.find(place) for name, (place, used) in wanted.items() if used}
    reasons = [f"{name} ({citation.where})" for name, citation in found.items() if citation.holds]
    if reasons:
        yield Outcome(
            False,
            f"VLLM_USE_V1 0, and vLLM's V1 engine is needed by {', '.join(reasons)}",
            "set env.VLLM_USE_V1 to 1, or leave it out",
            path=("env", "VLLM_USE_V1"),
        )
