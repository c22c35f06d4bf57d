"""Published runs on NPUs that measured the peak of a training process, and the combinations that they cover.

Sources: verl-project/verl-ascend-recipe@2a3edec, baseline/*/nightly_log (`actor/perf/max_memory_allocated_gb`), and the
report of a run with router replay (43.53 GiB allocated, 46.68 reserved). docs/plan.md has the table.
"""

from __future__ import annotations

from typing import NamedTuple

from npu_rl.recipes.sizing.plan_inputs import ACTOR, PlanInputs

CPU_OFFLOAD = f"{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload"


class Combination(NamedTuple):
    """The settings that decide what is on a die: strategy, what is offloaded, and what generates."""

    strategy: str
    offloading: frozenset[str]
    engine: str

    def __str__(self) -> str:
        offloading = ", ".join(sorted(self.offloading)) or "nothing"
        return f"{self.strategy} with {offloading} offloaded and {self.engine}"


class MeasuredRun(NamedTuple):
    """One run: the measured peak in GiB, and by how many percent the plan's upper end is off."""

    name: str
    gib: float
    error: float
    covers: Combination


SERVERS = "vLLM's servers"
_OFFLOADED = frozenset({"parameters", "optimizer"})
MEASURED = (
    MeasuredRun("GSPO Qwen3-30B-A3B", 49.14, 25.7, Combination("megatron", _OFFLOADED, SERVERS)),
    MeasuredRun("GSPO Qwen3-8B", 20.83, -0.1, Combination("fsdp2", _OFFLOADED, SERVERS)),
    MeasuredRun("GRPO Qwen3-30B-A3B", 36.93, -1.6, Combination("megatron", _OFFLOADED, "SGLang")),
    MeasuredRun("DAPO Moonlight-16B", 38.88, -5.9, Combination("megatron", _OFFLOADED, SERVERS)),
    MeasuredRun(
        "GRPO Qwen3-30B-A3B with router replay",
        43.53,
        6.3,
        Combination("megatron", _OFFLOADED | {"optimizer_cpu_offload"}, SERVERS),
    ),
)


def combination_of(facts: PlanInputs) -> Combination:
    """Return a recipe's combination."""
    backend = "megatron" if facts.recipe.megatron else "fsdp_config"
    switches = {
        "parameters": facts.on(f"{ACTOR}.{backend}.param_offload"),
        "optimizer": facts.on(f"{ACTOR}.{backend}.optimizer_offload"),
        "optimizer_cpu_offload": facts.on(CPU_OFFLOAD),
        "swap_optimizer": facts.swaps,
    }
    engine = SERVERS if facts.server_mode else "vLLM in training's process" if facts.vllm else "no engine"
    return Combination(
        facts.recipe.actor.strategy, frozenset(name for name, on in switches.items() if on), engine
    )


def lora_rank(facts: PlanInputs) -> int:
    """Return the rank of LoRA; 0 without."""
    keys = ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank")
    return max(facts.whole(key) or 0 for key in keys)


def unmeasured(facts: PlanInputs) -> str:
    """Return why no measured run covers a recipe, "" if one does."""
    if not facts.npu:
        return f"no measured run has device {facts.recipe.device}"
    if lora_rank(facts):
        return "no measured run has LoRA"
    combination = combination_of(facts)
    covered = any(run.covers == combination for run in MEASURED)
    return "" if covered else f"no measured run has {combination}"
