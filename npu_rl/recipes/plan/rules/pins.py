"""Versions at which the places of rules were read, and places that several rules share."""

from __future__ import annotations

from npu_rl.recipes.trainer_code.citations import Place

R1_ZERO, CANN, QUICKSTART, PLUGIN = "55e3c5b", "54c9b73", "verl==0.5.0", "796871d"  # verl
VERL = (R1_ZERO, CANN, QUICKSTART, PLUGIN)
UNPATCHED = (R1_ZERO, QUICKSTART, PLUGIN)  # with CANN, verl_patches replace this code at run time
CHUNKS_EVENLY = ("v0.8.0", "7aed6b2")  # verl with vLLM's servers, before its trainer v1
SERVERS = (*CHUNKS_EVENLY, "8851219")
ASCEND = ("v0.9.1rc2", "vllm-ascend==0.9.1", "1de16ea")
ANY_ASCEND = (*ASCEND, "e1d282d")
ASCEND_0_18 = ("v0.18.0", "e18643f")
ASCEND_SERVERS = (*ASCEND_0_18, "v0.23.0", "5cb98ca")
ALL_ASCEND = (*ANY_ASCEND, *ASCEND_SERVERS)
VLLM = ("b6553be", "vllm==0.9.1")
VLLM_0_10 = ("3821787",)
VLLM_0_18 = ("vllm==0.18.0", "vllm==0.23.0")
CORE_0_12 = ("core_v0.12.1", "megatron-core==0.12.1", "core_v0.16.1")
CORE = (*CORE_0_12, "core_r0.8.0")
MINDSPEED = ("7ff818c", "1cdd0ab")
BRIDGED = ("v0.15.1", "0cd4ae2")  # mbridge

SPMD = "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py"
SERVER = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
WORKERS = "verl/workers/megatron_workers.py"
ENGINE_WORKERS = "verl/workers/engine_workers.py"
CONVERTER = "verl/models/mcore/config_converter.py"
TRAINER = "verl/trainer/ppo/ray_trainer.py"
ASCEND_CONFIG = "vllm_ascend/ascend_config.py"
AGENT_LOOP = "verl/experimental/agent_loop/agent_loop.py"
CORE_CONFIG = "megatron/core/transformer/transformer_config.py"

# The recipe's additional_config reaches the engine only if the rollout doesn't pass its own.
ADDITIONAL = Place(SPMD, "additional_config=", UNPATCHED, absent=True)


def cann(file: str, text: str) -> Place:
    """Return a place in the patches that cann-recipes-train makes to verl at run time."""
    return Place(f"verl_patches/{file}", text, ("bcd3be7",))


def servers(file: str, text: str) -> Place:
    """Return a place in every pinned verl whose rollout uses servers."""
    return Place(file, text, SERVERS)


def mindspeed(file: str, text: str) -> Place:
    """Return a place in every pinned MindSpeed that verl trains with."""
    return Place(f"mindspeed/{file}", text, MINDSPEED)
