"""verl accepts prompts that vllm-ascend's scheduler drops, longer than a step; the rollout waits forever.

Made is verl's vLLMRollout (verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@55e3c5b), or verl_patches' in its
place, up to vLLM's engine, with the Ascend scheduler on, prompts of 1025 tokens and steps of 1024; verl's own check
only refuses the reverse, steps that are shorter than a sequence where chunked prefill makes them legal. "accepts" is
whether each of the two is.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch_npu
from witness_common import HasEngine, an_engine, is_patched, make_vllm_rollout, only_rank, show

STAND_INS = ("npu",)
ENVIRONMENT = {
    "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29556",
    "VLLM_USE_V1": "1", "VLLM_PLUGINS": "", "VLLM_VERSION": "0.9.1", "HF_HUB_OFFLINE": "0",
}  # fmt: skip

torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend names; the stand-in has no graphs


def without_a_device(engine_args: Any) -> SimpleNamespace:
    demand_of_ascend(engine_args)
    if is_patched():
        raise HasEngine
    return an_engine(engine_args)


def demand_of_ascend(engine_args: Any) -> None:
    """Let vllm-ascend check the sizes, as its platform does when it creates the engine's configuration."""
    from vllm.config import SchedulerConfig
    from vllm_ascend.core.schedule_config import AscendSchedulerConfig

    given = (engine_args.additional_config or {}).get("ascend_scheduler_config", {})
    if given.get("enabled"):
        sizes = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
        usual = SchedulerConfig(
            enable_chunked_prefill=True, **{name: getattr(engine_args, name) for name in sizes}
        )
        AscendSchedulerConfig.initialize_from_config(usual, SimpleNamespace(**given))


def accepts(prompt: int, ascend: bool, chunked: bool) -> bool:
    scheduler = {"vllm": {"additional_config": {"ascend_scheduler_config": {"enabled": ascend}}}}
    try:
        make_vllm_rollout(
            without_a_device, prompt_length=prompt, response_length=3072, max_num_batched_tokens=1024,
            max_num_seqs=64, enable_chunked_prefill=chunked,
            engine_kwargs={} if is_patched() else scheduler,  # verl_patches always switch it on
        )  # fmt: skip
    except ValueError as error:
        if "chunked prefill" not in str(error).lower() and "Ascend scheduler" not in str(error):
            raise  # not of the sizes
        return False
    return True


def main() -> dict[str, Any]:
    dropped, legal = accepts(1025, True, False), accepts(1024, False, True)
    return {"fault": dropped, "accepts": {"a dropped prompt": dropped, "chunked prefill": legal}}


if __name__ == "__main__":
    with only_rank():
        show(main)
