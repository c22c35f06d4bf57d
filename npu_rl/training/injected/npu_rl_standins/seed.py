"""The recipe's seed in every process: NPU_RL_SEED plus 1009 times the rank, set once torch is imported.

verl seeds only the order of the data on the FSDP path, so two runs of one recipe would differ. In a rehearsal each
generation is seeded by its step as well: verl's checkpoint has no state of the rollout's random numbers, and a resumed
run is compared with one that went on.
"""

from __future__ import annotations

import functools
import os
import random
from types import ModuleType
from typing import Any

from .hooks import after_import


def install() -> None:
    """Seed Python now, and torch and numpy when they are imported."""
    if "NPU_RL_SEED" not in os.environ:
        return
    seed = _seed_of_rank()
    random.seed(seed)

    def torch(module: ModuleType) -> None:
        module.manual_seed(seed)

    def numpy(module: ModuleType) -> None:
        module.random.seed(seed)

    after_import("torch", torch)
    after_import("numpy", numpy)
    after_import("verl.workers.rollout.vllm_rollout.vllm_rollout_spmd", _seed_each_step)


def seed_step(prompts: Any) -> None:
    """Seed the generation of a step, whose number verl gives with the prompts."""
    import torch

    step = prompts.meta_info.get("global_steps")
    if step is not None and "NPU_RL_SEED" in os.environ:
        torch.manual_seed((_seed_of_rank() + 100_003 * int(step)) % 2**32)


def _seed_of_rank() -> int:
    return (int(os.environ["NPU_RL_SEED"]) + 1009 * int(os.environ.get("RANK", "0"))) % 2**32


def _seed_each_step(module: ModuleType) -> None:
    upstream = module.vLLMRollout.generate_sequences

    @functools.wraps(upstream)
    def generate_sequences(rollout: Any, prompts: Any, *arguments: Any, **named: Any) -> Any:
        seed_step(prompts)
        return upstream(rollout, prompts, *arguments, **named)

    module.vLLMRollout.generate_sequences = generate_sequences
