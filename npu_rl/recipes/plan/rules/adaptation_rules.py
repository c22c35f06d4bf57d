"""Rules on adaptations: settings they require, settings that require them, and unsupported combinations."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.sizing.plan_inputs import ACTOR, ROLLOUT, TRANSFORMER, PlanInputs
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.citations import Place

_ADDITIONAL = f"{ROLLOUT}.engine_kwargs.vllm.additional_config"
_TORCHAIR, _SCHEDULER = f"{_ADDITIONAL}.torchair_graph_config", f"{_ADDITIONAL}.ascend_scheduler_config"
_MINI, _EPOCHS = f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs"
_GEMM = f"{TRANSFORMER}.moe_grouped_gemm"
_ASCEND_CONFIG = "vllm_ascend/ascend_config.py"
_ACTOR_FILE = "verl/workers/actor/megatron_actor.py"
_DIVIDES = (  # our patches
    Place("verl_patches/workers/actor/megatron_actor.py", "rollout_temperature.scale(", ("bcd3be7",)),
    Place(_ACTOR_FILE, "rollout_temperature.scale(", ("55e3c5b", "796871d", "cccc2ef")),
)
_UPSTREAM_DIVIDES = Place(_ACTOR_FILE, "logits.div_(temperature)", ("v0.6.0",))  # verl 5deb8cc9a
_ASCEND_VERSIONS = ("v0.9.1rc2", "vllm-ascend==0.9.1", "e1d282d")


def adaptation_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on adaptations, the engine version and grouped experts."""
    if facts.recipe.megatron:
        yield from _megatron_rules(facts)
    if facts.vllm:
        yield from _vllm_rules(facts)


def _megatron_rules(facts: PlanInputs) -> Iterator[Rule]:
    engine = facts.values.value(f"{ROLLOUT}.name")
    yield Rule(
        "megatron-needs-vllm",
        engine != "hf",
        f"rollout.engine {engine}, actor.strategy megatron",
        "set rollout.engine to vllm",
        (f"{ROLLOUT}.name",),
    )
    yield from _temperature_rule(facts)
    shape = facts.shape
    biased = (
        shape is not None and shape.latent and shape.experts and shape.kind != "deepseek_v2"
    )  # V3, Kimi, Moonlight
    if biased and not facts.is_cann_trainer:  # there it is a fault of its own
        on, off = "router-bias" in facts.switches, "router-bias" in facts.off
        yield Rule(
            "router-bias-rounded",
            on,
            f"adaptation router-bias {'off' if off else 'on' if on else 'not in this tree'}: without it the router's "
            "correction bias is rounded to bfloat16, and tokens get other experts, without a message",
            "set adaptations.router-bias to true"
            if off
            else "add the patch that has it to the manifest: npu-rl patches list",
            path=("adaptations", "router-bias") if off else (),
        )
    if biased and facts.upstream.has(ONLY_BRIDGES):
        rate = facts.transformer("moe_router_bias_update_rate")
        yield Rule(
            "router-bias-counts",
            rate == 0,
            f"moe_router_bias_update_rate {'left out, which is 0.001' if rate is None else rate}: the tokens of each "
            "expert are counted in bfloat16, wrong from 256 on, and biases step the wrong way",
            "set actor.transformer.moe_router_bias_update_rate to 0, which keeps the checkpoint's biases",
            (f"{TRANSFORMER}.moe_router_bias_update_rate",),
            advice=True,  # the published scripts train like that
        )
    if "on-policy-logprob" in facts.switches:
        epochs, mini = facts.whole(_EPOCHS) or 1, facts.whole(_MINI)
        batch = facts.whole("data.train_batch_size")
        yield Rule(
            "on-policy-needs-one-step",
            epochs == 1 and mini == batch,
            f"adaptation on-policy-logprob on, actor.epochs {epochs}, actor.mini_batch {mini} and data.batch "
            f"{batch}: more than one optimizer step per batch is refused",
            f"set actor.epochs to 1 and actor.mini_batch to {batch}, or adaptations.on-policy-logprob to false",
            (_MINI, _EPOCHS) if epochs == 1 else (_EPOCHS, _MINI),
        )
    overridden = [key for key in facts.given if key.startswith(f"{TRANSFORMER}.")]
    if overridden and facts.is_cann_trainer and facts.shape is not None and facts.shape.latent:
        names = ", ".join(key.removeprefix(f"{TRANSFORMER}.") for key in overridden)
        yield Rule(
            "transformer-overrides-refused",
            False,
            f"actor.transformer sets {names}, and this tree's function for DeepSeek-V3 takes no such argument",
            "remove actor.transformer; this trainer has keys of its own, for overrides",
            tuple(overridden),
        )
    if facts.mindspeed and facts.on(_GEMM):
        there = facts.code is not None and (facts.code / "megatron" / "training").exists()
        yield Rule(
            "moe-grouped-gemm",
            there,
            f"moe_grouped_gemm true makes MindSpeed import megatron.training, which is {'' if there else 'not '}in the "
            "tree",
            "remove actor.transformer.moe_grouped_gemm: verl's own configuration of the model has it on already",
            (_GEMM,),
        )


def _temperature_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rule on the rollout's sampling temperature, which Megatron's actor may ignore."""
    key = f"{ROLLOUT}.temperature"
    temperature = facts.values.value(key)
    if temperature in (None, 1) or facts.upstream.has(_UPSTREAM_DIVIDES):
        return
    patched, off = facts.upstream.has(*_DIVIDES), "rollout-temperature" in facts.off
    adaptation = "off" if off else "on" if patched else "not in this tree"
    yield Rule(
        "megatron-temperature",
        patched and not off,
        f"rollout.temperature {temperature}, adaptation rollout-temperature {adaptation}: without it Megatron's actor "
        "and reference take log-probabilities, ratios and KL at temperature 1, not of the distribution sampled",
        "set adaptations.rollout-temperature to true"
        if off and patched
        else "set rollout.temperature to 1.0",
        () if off else (key,),
        ("adaptations", "rollout-temperature") if off else (),
    )


def _vllm_rules(facts: PlanInputs) -> Iterator[Rule]:
    size = facts.env.get("VLLM_DP_SIZE", "1")
    if size.isdecimal() and int(size) > 1:
        off = "rollout-dp-groups" in facts.off
        yield Rule(
            "rollout-dp-groups-off",
            not off,
            f"VLLM_DP_SIZE {size}, adaptation rollout-dp-groups {'off' if off else 'on'}, which sets the rank of "
            "each engine: without it every engine takes rank 0 and waits for the others until a timeout",
            "set adaptations.rollout-dp-groups to true, or env.VLLM_DP_SIZE to 1",
            path=("adaptations", "rollout-dp-groups") if off else ("env", "VLLM_DP_SIZE"),
        )
    if facts.mindspeed and facts.on(f"{_TORCHAIR}.enabled"):
        off = "rollout-compile" in facts.off
        yield Rule(
            "rollout-compile-off",
            not off,
            f"torchair graphs on, adaptation rollout-compile {'off' if off else 'on'}: MindSpeed replaces "
            "torch.compile by a function that compiles nothing, and without the adaptation the rollout silently has no "
            "graphs",
            "set adaptations.rollout-compile to true",
            path=("adaptations", "rollout-compile"),
        )
    yield from _prefill_step_rule(facts)
    yield from _v1_engine_rule(facts)


def _prefill_step_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rule on the Ascend scheduler, which prefills whole prompts unless its chunked prefill is on."""
    value = facts.values.value
    if not facts.whole_prompts:
        return
    own, prompt = f"{_SCHEDULER}.max_num_batched_tokens", facts.whole("data.max_prompt_length")
    key = own if facts.whole(own) else f"{ROLLOUT}.max_num_batched_tokens"
    tokens = facts.whole(key)
    if tokens is None or prompt is None:
        return
    refused_already = (
        not facts.ascend_scheduler_forced
        and bool(value(f"{ROLLOUT}.enable_chunked_prefill"))
        and ("chunked-prefill-check" not in facts.switches)
    )
    if refused_already and tokens < prompt:
        return  # the rule prefill-budget reports it
    name = "rollout.max_batched_tokens" if key != own else ".".join(map(str, facts.path(own)))
    yield Rule(
        "prompt-exceeds-prefill-step",
        tokens >= prompt,
        f"max_batched_tokens {tokens}, prompts of up to {prompt} tokens: the Ascend scheduler prefills a prompt in one "
        "step, and one that is longer gets no response",
        f"set {name} to {prompt} or more",
        (key, "data.max_prompt_length"),
    )


def _v1_engine_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rule on features that vLLM's V0 engine lacks, if the tree has the code that refuses them."""
    if facts.env.get("VLLM_USE_V1", "1") != "0":
        return
    value = facts.values.value
    parts = Place("npu_rl_runtime/rollout_offload/parts.py", "Set VLLM_USE_V1=1")
    graph = Place(_ASCEND_CONFIG, "Torchair graph mode is only supported for V1 Engine", _ASCEND_VERSIONS)
    scheduler = Place(_ASCEND_CONFIG, "Ascend scheduler is only supported for V1 Engine", _ASCEND_VERSIONS)
    wanted = {
        "the adaptation rollout-offload": (
            parts,
            "rollout-offload" in facts.switches and _frees_cache(facts),
        ),
        "torchair_graph_config": (graph, value(f"{_TORCHAIR}.enabled") is True),
        "ascend_scheduler_config": (scheduler, value(f"{_SCHEDULER}.enabled") is True),
    }
    found = {name: facts.upstream.find(place) for name, (place, used) in wanted.items() if used}
    reasons = [f"{name} ({citation.where})" for name, citation in found.items() if citation.holds]
    if reasons:
        yield Rule(
            "v1-engine",
            False,
            f"VLLM_USE_V1 0, and vLLM's V1 engine is needed by {', '.join(reasons)}",
            "set env.VLLM_USE_V1 to 1, or leave it out",
            path=("env", "VLLM_USE_V1"),
        )


def _frees_cache(facts: PlanInputs) -> bool:
    return facts.values.value(f"{ROLLOUT}.free_cache_engine") is not False
