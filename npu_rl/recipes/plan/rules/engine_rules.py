"""Rules on vLLM and vllm-ascend: graphs, sleep mode, the sampler, and the adaptations of the rollout."""

from __future__ import annotations

from typing import Any

from npu_rl.recipes.plan.rules import pins
from npu_rl.recipes.plan.rules.rule import Broken, broken, rule, without
from npu_rl.recipes.sizing.plan_inputs import ROLLOUT, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place

_ADDITIONAL = f"{ROLLOUT}.engine_kwargs.vllm.additional_config"
_GRAPH = f"{_ADDITIONAL}.torchair_graph_config"
_RECIPE_GRAPH = "rollout.engine_arguments.additional_config.torchair_graph_config"
_EAGER, _FREES = f"{ROLLOUT}.enforce_eager", f"{ROLLOUT}.free_cache_engine"
_ONLY_WITH_GRAPH = (
    *("use_cached_graph", "graph_batch_sizes", "graph_batch_sizes_init", "enable_multistream_mla"),
    *("enable_multistream_moe", "enable_kv_nz", "enable_super_kernel"),
)
_RUNNER = "vllm_ascend/worker/model_runner_v1.py"
_SAMPLER = "vllm_ascend/patch/worker/patch_common/patch_sampler.py"
_TOPK, _NZ = "VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE", "VLLM_ASCEND_ENABLE_NZ"
# 734eb68129 (#1920) renames the function, and calls an operator of torch_npu where both limits are set.
_OWN_FILTER = Place(_SAMPLER, "def _apply_top_k_top_p(", ("e1d282d",))
_IN_ORDER = Place(_SAMPLER, "sampler_arguments.in_order(k, p)", ("e1d282d",))  # our patch


def _graph(facts: PlanInputs, name: str) -> Any:
    """Return a value of torchair's section if the recipe sets it for vLLM."""
    key = f"{_GRAPH}.{name}"
    return facts.values.value(key) if facts.vllm and key in facts.given else None


def _frees_cache(facts: PlanInputs) -> bool:
    return facts.values.value(_FREES) is not False  # the trainer's default is true


@rule(
    (
        Place(pins.SPMD, "self.inference_engine.sleep(level=", pins.UNPATCHED),
        Place(pins.SERVER, '"enable_sleep_mode": self.config.enable_sleep_mode', pins.SERVERS),
    ),
    Place("vllm_ascend/device_allocator/camem.py", "Expandable segments are not", pins.ALL_ASCEND),
    certain=False,
)
def _sleep_mode_expandable_segments(facts: PlanInputs) -> Broken:
    """Check for both. Servers have the memory pool even where they are never put to sleep."""
    name, given = "enable_sleep_mode" if facts.server_mode else "free_cache_engine", "PYTORCH_NPU_ALLOC_CONF"
    segments = "expandable_segments:true" in facts.env.get(given, "").replace(" ", "").lower()
    sleeps = facts.vllm and facts.values.value(f"{ROLLOUT}.{name}") is not False  # true by default
    if sleeps and segments and "rollout-offload" not in facts.switches:
        # Not both: verl at 55e3c5b, which has the adaptation, sleeps at level 2 (the fault sleep-loses-buffers).
        fix = f"set env.{given} to expandable_segments:False"
        state, fix, keys = without(facts, "rollout-offload", fix, f"env.{given}")
        figures = f"{name} true, {given} {facts.env[given]}, {state}: vLLM's sleep mode has a memory pool of its own"
        yield broken(figures, fix, *keys)


@rule(Place("vllm_ascend/worker/worker.py", '"FRACTAL_NZ mode is enabled.', pins.ASCEND_SERVERS))
def _sleep_mode_weight_format(facts: PlanInputs) -> Broken:
    """Check the format of weights, on which NPUWorker.wake_up raises."""
    key = f"{_ADDITIONAL}.weight_nz_mode"
    name, at, fix = _NZ, f"env.{_NZ}", f'set env.{_NZ} to "0"'
    given = facts.env.get(_NZ, "1")  # its default
    if key in facts.given:  # it wins over the variable (vllm_ascend/ascend_config.py)
        name, at, given = "weight_nz_mode", key, str(facts.values.value(key) or 0)
        fix = "set rollout.engine_arguments.additional_config.weight_nz_mode to 0"
    if facts.server_mode and facts.npu and _frees_cache(facts) and given != "0":
        figures = f"free_cache true, {name} {given}: vllm-ascend raises when the trainer wakes an engine in that format"
        yield broken(figures, fix, at)


@rule(Place(pins.AGENT_LOOP, "if self.config.actor_rollout_ref.rollout.free_cache_engine:", pins.UNPATCHED))
def _async_without_sleep(facts: PlanInputs) -> Broken:
    if facts.vllm and not _frees_cache(facts) and facts.values.value(f"{ROLLOUT}.mode") == "async":
        figures = "rollout.mode async, free_cache false: engines receive new weights only when the trainer wakes them, "
        figures += "so all responses are sampled from the first weights"
        yield broken(figures, "set rollout.free_cache to true", _FREES)


@rule(
    (
        Place(pins.SPMD, "enable_prefix_caching=True,", pins.UNPATCHED),
        Place(pins.SPMD, 'enable_prefix_caching=config.get("enable_prefix_caching", True)', (pins.PLUGIN,)),
    ),
    Place("verl/workers/sharding_manager/fsdp_vllm.py", "reset_prefix_cache", pins.VERL, absent=True),
    certain=False,
)
def _stale_prefix_cache(facts: PlanInputs) -> Broken:
    """Check engines that never sleep: they keep prefixes (the fault stale-prefix-cache)."""
    patched = "rollout-engine-args" in facts.switches
    keys = (f"{ROLLOUT}.engine_kwargs.vllm.enable_prefix_caching", f"{ROLLOUT}.enable_prefix_caching")
    given = (one for one in map(facts.values.value, keys) if one is not None)
    awake = facts.vllm and not _frees_cache(facts) and facts.values.value(f"{ROLLOUT}.mode") != "async"
    if awake and next(given, not patched) is not False:
        figures = "free_cache false, prefix caching on: a step takes prefixes that an earlier step's weights computed"
        off = "set rollout.engine_arguments.enable_prefix_caching to false, or " if patched else ""
        yield broken(figures, f"{off}set rollout.free_cache to true", _FREES)


@rule(Place(pins.ASCEND_CONFIG, "Can't enable graph mode and eager mode", pins.ANY_ASCEND), pins.ADDITIONAL)
def _graph_or_eager(facts: PlanInputs) -> Broken:
    if _graph(facts, "enabled") is True and facts.on(_EAGER):
        fix = f"set rollout.eager to false, or {_RECIPE_GRAPH}.enabled to false"
        yield broken("torchair graphs on, eager True", fix, _EAGER, f"{_GRAPH}.enabled")


@rule(Place(pins.ASCEND_CONFIG, "ACL Graph does not support deepseek", pins.ANY_ASCEND), pins.ADDITIONAL)
def _mla_graph_needs_torchair(facts: PlanInputs) -> Broken:
    latent = facts.vllm and facts.npu and facts.shape and facts.shape.latent
    if latent and facts.values.value(_EAGER) is False and _graph(facts, "enabled") is not True:
        figures = (
            "rollout.eager false, torchair_graph_config.enabled false: there are no other graphs for DeepSeek"
        )
        fix = f"set {_RECIPE_GRAPH}.enabled to true, or rollout.eager to true"
        yield broken(figures, fix, f"{_GRAPH}.enabled", _EAGER)


@rule(Place(pins.ASCEND_CONFIG, "is valid only when Torchair graph mode", pins.ASCEND), pins.ADDITIONAL)
def _torchair_switches(facts: PlanInputs) -> Broken:
    used = [name for name in _ONLY_WITH_GRAPH if _graph(facts, name)]
    if used and _graph(facts, "enabled") is not True:
        keys = " and ".join(f"{_RECIPE_GRAPH}.{name}" for name in used)
        figures = f"torchair graphs are off, and with them these are refused: {', '.join(used)}"
        fix = f"remove {keys} (on the command line: KEY=~), or set {_RECIPE_GRAPH}.enabled to true"
        yield broken(figures, fix, *(f"{_GRAPH}.{name}" for name in used))


@rule(Place(_RUNNER, "graph_batch_sizes", pins.ANY_ASCEND), pins.ADDITIONAL, certain=False)
def _graph_batch_sizes(facts: PlanInputs) -> Broken:
    sizes, rollout = _graph(facts, "graph_batch_sizes"), facts.layout.rollout if facts.layout else None
    if _graph(facts, "enabled") is not True or not sizes or rollout is None:
        return
    listed = sizes if isinstance(sizes, list) else []
    sequences = facts.whole(f"{ROLLOUT}.max_num_seqs") or max(listed, default=0)
    tokens, tensor = (
        facts.whole(f"{ROLLOUT}.max_num_batched_tokens") or max(listed, default=0),
        rollout.tensor,
    )
    if not listed or max(listed) < sequences or any(size % tensor or size > tokens for size in listed):
        figures = f"graph_batch_sizes {sizes}, rollout tensor {tensor}, max_sequences {sequences}, "
        fix = f"set {_RECIPE_GRAPH}.graph_batch_sizes to [{sequences}]"
        if sequences % tensor or (listed and sequences > tokens):
            fix = f"set rollout.max_sequences to a multiple of {tensor} and at most {tokens}, and {_RECIPE_GRAPH}"
            fix += ".graph_batch_sizes to that one size"
        yield broken(f"{figures}max_batched_tokens {tokens}", fix, f"{_GRAPH}.graph_batch_sizes")


@rule(
    Place(_RUNNER, "def get_dp_padding(self,", ("1de16ea",)),
    Place(
        _RUNNER, "num_tokens_across_dp_native = self.get_dp_padding(num_tokens)", ("1de16ea",), absent=True
    ),
)
def _data_parallel_graphs(facts: PlanInputs) -> Broken:
    """Check graphs with data-parallel engines (the fault data-parallel-graph-hang, ended by 99bf25af76)."""
    key, rollout = facts.rollout_data_key, facts.layout.rollout if facts.layout and facts.vllm else None
    if facts.npu and rollout and rollout.data > 1 and facts.values.value(_EAGER) is False:
        figures = f"rollout.eager false, {key} {rollout.data}: an engine without requests synchronizes once before a "
        figures += "pass, and the others twice, so all of them wait forever"
        yield broken(figures, f"set rollout.eager to true, or {key} to 1", _EAGER)


@rule(
    Place(
        pins.SPMD, 'additional_config["oproj_tensor_parallel_size"]', (pins.PLUGIN,)
    ),  # MindSpeed-RL's verl_npu
    Place(pins.ASCEND_CONFIG, "oproj_tensor_parallel_size", pins.ASCEND, absent=True),
    certain=False,
)
def _hybrid_tp_ignored(facts: PlanInputs) -> Broken:
    """Check verl_npu's per-layer tensor parallelism, which the engine ignores."""
    key = f"{ROLLOUT}.hybrid_tp"
    section = facts.values.value(key)
    enabled = section.get("enabled") if isinstance(section, dict) else facts.values.value(f"{key}.enabled")
    if facts.vllm and facts.npu and enabled:  # as verl_npu asks: 1 and "yes" switch it on too
        figures = f"{key}.enabled {enabled}: its sizes replace additional_config, where this vllm-ascend ignores them"
        yield broken(figures, f"remove overrides.{key}", f"{key}.enabled")


@rule(_OWN_FILTER)
def _topk_optimize_swapped(facts: PlanInputs) -> Broken:
    """Check the filter's arguments, as the witness topk-topp-swapped shows them on a CPU."""
    top_k, top_p = (facts.values.value(f"{ROLLOUT}.{name}") for name in ("top_k", "top_p"))
    limits = facts.vllm and (top_k not in (None, -1, 0) or top_p not in (None, 1))
    in_order = "sampler-arguments" in facts.switches and facts.upstream.has(_IN_ORDER)
    if limits and facts.env.get(_TOPK, "0") not in ("0", "") and not in_order:
        state, other, _ = without(facts, "sampler-arguments", "")
        figures = (
            f"{_TOPK} on, rollout.top_k {top_k}, rollout.top_p {top_p}, {state}: the filter exchanges both "
        )
        fixes = filter(None, (f'set env.{_TOPK} to "0"', other))
        yield broken(f"{figures}and ends in an index out of bounds", " or ".join(fixes), f"env.{_TOPK}")


@rule(Place(pins.SPMD, "rollout_dp_groups.form(", (pins.R1_ZERO,)))
def _rollout_dp_groups_off(facts: PlanInputs) -> Broken:
    size, name = facts.env.get("VLLM_DP_SIZE", "1"), "rollout-dp-groups"
    if facts.vllm and size.isdecimal() and int(size) > 1 and name in facts.off:
        figures = (
            f"VLLM_DP_SIZE {size}, adaptation {name} off: every engine takes rank 0 and waits for the others"
        )
        fix = f"set adaptations.{name} to true, or env.VLLM_DP_SIZE to 1"
        yield broken(figures, fix, f"adaptations.{name}")
