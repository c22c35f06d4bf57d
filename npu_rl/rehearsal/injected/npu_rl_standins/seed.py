"""The recipe's seed in every process, NPU_RL_SEED plus 1009 times the rank, set once torch is imported.

verl seeds only the order of the data on the FSDP path, so two runs of one recipe would differ. verl's checkpoint has no
state of the rollout's random numbers, and a rehearsal compares a resumed run with one that went on: without vLLM each
generation is seeded by its step as well, and with it the first after a resume begins with the state that was kept.
"""

from __future__ import annotations

import functools
import os
import random
from pathlib import Path
from types import ModuleType
from typing import Any

from .hooks import after_import


def install() -> None:
    """Seed Python now, and torch and numpy once they are imported."""
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
    after_import("verl.workers.rollout.vllm_rollout.vllm_rollout_spmd", _go_on_with_the_noise)


def seed_step(prompts: Any) -> None:
    """Seed the generation of a step, whose number verl passes with the prompts."""
    import torch

    step = prompts.meta_info.get("global_steps")
    if step is not None and "NPU_RL_SEED" in os.environ:
        torch.manual_seed((_seed_of_rank() + 100_003 * int(step)) % 2**32)


def _seed_of_rank() -> int:
    return (int(os.environ["NPU_RL_SEED"]) + 1009 * int(os.environ.get("RANK", "0"))) % 2**32


def _go_on_with_the_noise(module: ModuleType) -> None:
    """Make verl's vLLM rollout use the same random numbers after a resume as without an interruption.

    Only its first generation: seeding each of them would hide a rollout that draws the same numbers in every step.
    """
    upstream = module.vLLMRollout.generate_sequences
    generated: list[int] = []

    @functools.wraps(upstream)
    def generate_sequences(rollout: Any, prompts: Any, *arguments: Any, **named: Any) -> Any:
        step, folder = prompts.meta_info.get("global_steps"), os.environ.get("NPU_RL_USAGE")
        if folder and step is not None and not prompts.meta_info.get("validate"):
            if not generated:
                _restore_noise(Path(folder), int(step))
            _keep_noise(Path(folder), int(step))
            generated.append(int(step))
        return upstream(rollout, prompts, *arguments, **named)

    module.vLLMRollout.generate_sequences = generate_sequences


def _keep_noise(usage: Path, step: int) -> None:
    import torch

    usage.mkdir(parents=True, exist_ok=True)
    (usage / _noise_file(step)).write_bytes(torch.get_rng_state().numpy().tobytes())


def _restore_noise(usage: Path, step: int) -> None:
    """Restore the generator state that the last earlier attempt stored at a step, if there is one."""
    import torch

    kept = usage.parent.parent.glob(f"*/{usage.name}/{_noise_file(step)}")
    earlier = [path for path in kept if path.parent != usage]
    if earlier:
        state = max(earlier, key=lambda path: path.stat().st_mtime).read_bytes()
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _noise_file(step: int) -> str:
    return f"generator-{os.environ.get('RANK', '0')}-{step}"
